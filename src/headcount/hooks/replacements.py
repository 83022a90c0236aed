"""The kinds of ablation: what replaces the output of an ablated head. Results list the kinds in the order of `PARTS`.

Zero ablation comes first, because heads are ranked by the cost of removing them. Resample ablation uses the head's
output on another example. Mean ablation uses the head's average output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class ReplacementInputs(NamedTuple):
    """The data from which the replacement outputs of one attention block's heads are computed, for one batch."""

    z: Float[Tensor, "row query head d_head"]
    """The heads' own outputs on the examples of the batch."""
    mean: Float[Tensor, "query head d_head"] | None
    """The heads' mean outputs over many inputs, per position; None for kinds of ablation that do not need them."""
    donors: Int[Tensor, " row"]
    """For each example, the row of its donor: the example of the batch whose head outputs replace its own."""
    token_mask: Bool[Tensor, "row query"] | None = None
    """True at positions that hold tokens, False at padding; None if there is no padding."""


@dataclass(frozen=True)
class Replacement:
    """One kind of ablation: a way to replace the outputs of ablated heads."""

    summary: str
    make: Callable[[ReplacementInputs], Float[Tensor, "#row query head d_head"] | None]
    """A function that returns the values that replace the heads' outputs; None means zeros."""
    needs_mean: bool = False
    needs_donors: bool = False


def of_donor(inputs: ReplacementInputs) -> Tensor | None:
    """Return, for each example, the heads' outputs on its donor, another example (resample ablation)."""
    if inputs.token_mask is None or bool(inputs.token_mask.all()):
        return inputs.z[inputs.donors]
    # A donor that is shorter is repeated from its beginning, because outputs at padding are meaningless.
    n_queries = inputs.z.shape[1]
    lengths = inputs.token_mask.sum(dim=1).clamp(min=1)[inputs.donors]
    places = torch.arange(n_queries, device=inputs.z.device) % lengths[:, None]
    return inputs.z[inputs.donors[:, None], places]


def of_mean(inputs: ReplacementInputs) -> Tensor | None:
    """Return the heads' mean outputs, as one row that serves all examples (mean ablation)."""
    assert inputs.mean is not None, "mean ablation needs the mean outputs: needs_mean must be true"
    return inputs.mean[None, : inputs.z.shape[1]]


PARTS: dict[str, Replacement] = {
    # The head adds nothing to the residual stream, exactly as if it were cut out.
    "zero": Replacement("the head outputs zeros, as if it were cut out", lambda inputs: None),
    # The head's output on another example (Chan et al. 2022, "Causal scrubbing").
    #
    # Unlike the mean, such an output is familiar to later layers, but not in combination with the other heads' outputs
    # on this example. The drop therefore includes the effect of wrong information, not only of missing information.
    "resample": Replacement("the head outputs its values on another example", of_donor, needs_donors=True),
    # The head's average output at each position, the same for all examples.
    #
    # This removes only what depends on the example; a constant that later layers rely on stays.
    "mean": Replacement("the head outputs its mean over many inputs, position by position", of_mean, needs_mean=True),
}
