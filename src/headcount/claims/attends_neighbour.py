"""Does a head attend to a neighbouring token, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("attends-neighbour", "attends to a neighbour", targets=("left neighbour", "right neighbour"))
