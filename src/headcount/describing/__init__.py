"""Descriptions of results: each result as blocks (sentences, tables, figures), made once for all renderers."""

from headcount.registry import Registry

SECTIONS = Registry("headcount.describing.sections")
