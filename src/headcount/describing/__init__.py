"""Describe results as blocks (sentences, tables, figures), which the terminal, the page and other forms all show."""

from headcount.registry import Registry

SECTIONS = Registry("headcount.describing.sections")
