"""Does a head attend to the tokens of its own column, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("aligns-columns", "aligns columns", targets=("aligned column",))
