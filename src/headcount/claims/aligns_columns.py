"""The claim that a head attends to the tokens of its own column (the 10s of a sum), and the model needs the head."""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("aligns-columns", "aligns columns", targets=("aligned column",))
