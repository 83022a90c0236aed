"""Does a head attend to the token before its own, and does the model need it?"""

from headcount.claims._attention import pattern_kind

TARGETS = ("previous output", "left neighbour")
"""The names that tasks give to the previous token."""

PART = pattern_kind("previous-token", "attends to the previous token", targets=TARGETS, role="previous")
