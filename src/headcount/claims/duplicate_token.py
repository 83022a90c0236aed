"""The claim that a head attends to other copies of its own token, and the model needs the head."""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("duplicate-token", "attends to copies of its token", targets=("equal numbers",), role="duplicate")
