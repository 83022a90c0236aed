"""The sections of a report, each about one question. A section without results is left out of the report."""
