"""The claim that a head attends to a neighbouring token, and the model needs the head."""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("attends-neighbour", "attends to a neighbour", targets=("left neighbour", "right neighbour"))
