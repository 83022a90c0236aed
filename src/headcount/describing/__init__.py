"""Descriptions: each result as blocks (sentences, tables, figures, commands), written once for all renderers."""

from headcount.registry import Registry

SECTIONS = Registry("headcount.describing.sections")
