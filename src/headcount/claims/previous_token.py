"""The claim that a head attends to the token before its own token, and the model needs the head."""

from headcount.claims._attention import pattern_kind

TARGETS = ("previous output", "left neighbour")
"""The names that tasks give to the token before a query's own token."""

PART = pattern_kind("previous-token", "attends to the previous token", targets=TARGETS, role="previous")
