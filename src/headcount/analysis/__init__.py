"""Analyses of a trained model. Each file answers one question and defines the type of its result."""
