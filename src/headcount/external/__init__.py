"""Models that headcount did not train: Hugging Face folders, and users' own models, called through an adapter."""
