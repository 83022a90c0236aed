"""Pictures, tables and progress, made from results alone: nothing here knows torch."""
