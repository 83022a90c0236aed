"""Models that headcount did not train: Hugging Face folders, and users' own models through an adapter (a small file)."""
