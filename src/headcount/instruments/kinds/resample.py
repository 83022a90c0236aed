"""The head says what it says about another example (Chan et al. 2022, "Causal scrubbing").

Unlike the mean, what it says is something that later layers have met before.
"""

from __future__ import annotations

from torch import Tensor

from headcount.instruments.kinds.base import Kind, Material


def of_another(material: Material) -> Tensor | None:
    """Another row of the same block."""
    return material.z[material.others]


PART = Kind("the head says what it says about another example", of_another, needs_others=True)
