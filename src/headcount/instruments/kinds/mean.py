"""The head says what it says on average at that position, whatever the example.

What is left out is only what the head knows of the example; a constant that later layers count on stays.
"""

from __future__ import annotations

from torch import Tensor

from headcount.instruments.kinds.base import Kind, Material


def average(material: Material) -> Tensor | None:
    """The mean over the data, for every row."""
    assert material.mean is not None, "asked for by needs_mean"
    return material.mean[None, : material.z.shape[1]]


PART = Kind("the head says its average over many inputs, position by position", average, needs_mean=True)
