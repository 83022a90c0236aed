"""Checks of the audit: one known mistake, one file."""
