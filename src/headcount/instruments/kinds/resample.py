"""The head says what it says about another example (Chan et al. 2022, "Causal scrubbing").

Unlike the mean, what it says is something that later layers have met before; but not together with what the other heads
say about this example. So it measures misleading as well as missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.instruments.kinds.base import Kind, Material


def of_another(material: Material) -> Tensor | None:
    """Another row of the same block."""
    if material.real is None or bool(material.real.all()):
        return material.z[material.others]
    # Where the other one is shorter, it is read again from its beginning: padding is nothing that a head says.
    n_queries = material.z.shape[1]
    lengths = material.real.sum(dim=1).clamp(min=1)[material.others]
    places = torch.arange(n_queries, device=material.z.device) % lengths[:, None]
    return material.z[material.others[:, None], places]


PART = Kind("the head says what it says about another example", of_another, needs_others=True)
