"""Studies: many runs from one file, each in its own process, and what they say together."""
