"""The claim that a head attends to the token after an earlier copy of its own token, and the model needs the head."""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("induction", "attends to what follows copies of its token", role="induction")
