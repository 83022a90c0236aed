"""The claim that a head attends to the operator between the operands, and the model needs the head."""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("reads-operator", "reads the operator", targets=("operator",))
