"""What replaces the output of an ablated head: a table, in the order in which results list them.

Zero comes first: it removes the head, and heads are ranked by what their removal costs. Resample swaps the head's
output with another example's, and mean keeps only what the head outputs on average.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ReplacementInputs(NamedTuple):
    """What a replacement can be made of, at one site, for one block of examples."""

    z: Float[Tensor, "row query head d_head"]
    """What the heads found in these examples."""
    mean: Float[Tensor, "query head d_head"] | None
    """What they found on average over many inputs, position by position; only for those that need it."""
    donors: Int[Tensor, " row"]
    """For each example, another one of the block: its donor."""
    token_mask: Bool[Tensor, "row query"] | None = None
    """Which positions hold tokens and no padding; all of them if None."""


@dataclass(frozen=True)
class Replacement:
    """What replaces the outputs of ablated heads."""

    summary: str
    make: Callable[[ReplacementInputs], Float[Tensor, "#row query head d_head"] | None]
    """What is put in the place of z; None for nothing at all."""
    needs_mean: bool = False
    needs_donors: bool = False


def of_donor(inputs: ReplacementInputs) -> Tensor | None:
    """Another row of the same block."""
    if inputs.token_mask is None or bool(inputs.token_mask.all()):
        return inputs.z[inputs.donors]
    # Where the other one is shorter, it is read again from its beginning: padding is no output of a head.
    n_queries = inputs.z.shape[1]
    lengths = inputs.token_mask.sum(dim=1).clamp(min=1)[inputs.donors]
    places = torch.arange(n_queries, device=inputs.z.device) % lengths[:, None]
    return inputs.z[inputs.donors[:, None], places]


def of_mean(inputs: ReplacementInputs) -> Tensor | None:
    """The mean over the data, for every row."""
    assert inputs.mean is not None, "asked for by needs_mean"
    return inputs.mean[None, : inputs.z.shape[1]]


PARTS: dict[str, Replacement] = {
    # Nothing: the head adds nothing to the residual stream, just as if it were cut out.
    "zero": Replacement("the head says nothing, as if it were cut out", lambda inputs: None),
    # The head's output on another example (Chan et al. 2022, "Causal scrubbing").
    #
    # Unlike the mean, that is something that later layers have met before; but not together with the other heads'
    # outputs on this example. So it measures misleading as well as missing.
    "resample": Replacement("the head says what it says about another example", of_donor, needs_donors=True),
    # The head's average output at that position, whatever the example.
    #
    # What is left out is only what depends on the example; a constant that later layers count on stays.
    "mean": Replacement("the head says its average over many inputs, position by position", of_mean, needs_mean=True),
}
