"""Sections of a report, one question each; a section without results returns None and is left out."""
