"""Does a head attend to the token before its own, and does the model need it?"""

from headcount.claims._attention import pattern_kind

TARGETS = ("previous output", "left neighbour")
"""The names of the previous token in the tasks."""

PART = pattern_kind("previous-token", "attends to the previous token", targets=TARGETS, role="previous")
