"""Does a head attend to the operator between the operands, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("reads-operator", "reads the operator", targets=("operator",))
