"""Does a head attend to other copies of its token, and does the model need it?"""

from headcount.claims._attention import pattern_kind

PART = pattern_kind("duplicate-token", "attends to copies of its token", targets=("equal numbers",), role="duplicate")
