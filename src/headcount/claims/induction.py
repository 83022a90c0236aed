"""Does a head attend to the token after an earlier copy of its own, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("induction", "attends to what follows copies of its token", role="induction")
