"""Questions about a trained model: one question, one file, one typed result."""
