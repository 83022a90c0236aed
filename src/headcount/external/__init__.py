"""Models that headcount did not train: Hugging Face folders, and models of users through an adapter."""
