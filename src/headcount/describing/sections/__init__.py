"""Sections of a report, each about one question. A section without results returns None and is left out."""
