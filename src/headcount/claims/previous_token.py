"""Does a head attend to the token before its own, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind(
    "previous-token", "attends to the previous token", targets=("previous output", "left neighbour"), role="previous"
)
