"""The report: what results say, as a story that explains itself, in one file that needs no network."""

from headcount.registry import Registry

SECTIONS = Registry("headcount.reporting.sections")
