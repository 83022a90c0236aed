"""What heads output on average, put into the biases of their output projections before they are cut out.

    means = mean_outputs(model, sites, batches)        of every head, over examples and positions
    kept = fold(model, heads, means, n)                a copy; cut out of that, the heads leave their means behind

A bias is the same for every example and at every position, so the mean is over both, padding aside: one mean for each
position, as mean ablation has it, cannot be folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import BIASED, FOLDED, wrap
from headcount.surgery.layers import add_bias

Means = Mapping[HeadSite, Float[Tensor, "head d_head"]]
Inputs = tuple[Sequence[Tensor], Mapping[str, Tensor]]
"""One batch, and by stack which of its positions hold tokens and no padding; all of them where none is given."""
ALTERNATIVE = "or leave --fold-mean out: the heads are then cut out as if their outputs were zero"
M = TypeVar("M", bound=nn.Module)


@torch.no_grad()
def mean_outputs(model: nn.Module, sites: Sites, batches: Iterable[Inputs]) -> Means:
    """Of the heads of every site, in double precision."""
    sums, counts = dict[HeadSite, Tensor](), Counter[HeadSite]()
    with eval_mode(model):
        for inputs, token_mask in batches:
            with Capture(sites) as seen:
                model(*inputs)
            for site in sites:
                z, is_token = seen.z(site).cpu().double(), token_mask.get(site.stack)
                fits = is_token is not None and is_token.shape == z.shape[:2]
                found = z[is_token.cpu()] if fits and is_token is not None else z.flatten(0, -3)
                sums[site] = found.sum(dim=0) + sums.get(site, 0)
                counts[site] += len(found)
    return {site: sums[site] / counts[site] for site in sums}


def fold(model: M, heads: Iterable[HeadId], means: Means, n: int) -> M:
    """A copy whose biases hold what these heads output on average, over `n` examples."""
    heads, copy = tuple(heads), deepcopy(model)
    wrapped = wrap(copy)
    sites = wrapped.head_sites
    biased = [site for site in sites.head_slots(heads) if not _has_bias(sites[site].projection)]
    if biased and not wrapped.family:  # whose folders are read with biases again
        raise InputError(
            f"the output projection of {biased[0]} has no bias to put a mean into",
            "give it one in the model's own code: bias=True, and zeros in the checkpoint",
            ALTERNATIVE,
        )
    fold_in_place(sites, heads, means)
    for site in sites.head_slots(heads):
        _require_bias_of_its_own(copy, sites, site)
    if wrapped.family:
        config: Any = wrapped.model.config
        setattr(config, FOLDED, n)
        setattr(config, BIASED, sorted({*getattr(config, BIASED, ()), *map(str, biased)}))
    return copy


@torch.no_grad()
def fold_in_place(sites: Sites, heads: Iterable[HeadId], means: Means) -> None:
    """Add to the biases of these sites' output projections; to zeros, where there is none."""
    for site, places in sites.head_slots(heads).items():
        projection: Any = sites[site].projection
        if not _has_bias(projection):
            add_bias(projection)
        double = deepcopy(projection).cpu().double()
        z = torch.zeros_like(means[site], device="cpu")
        z[list(places)] = means[site][list(places)].cpu()
        added = double.forward(z.flatten()[None]) - double.forward(torch.zeros_like(z).flatten()[None])  # it is linear
        projection.bias.copy_(projection.bias.cpu().double() + added[0])


def _has_bias(projection: nn.Module) -> bool:
    return isinstance(getattr(projection, "bias", None), nn.Parameter)


def _require_bias_of_its_own(model: nn.Module, sites: Sites, site: HeadSite) -> None:
    projection: Any = sites[site].projection
    uses = [each for _, each in model.named_parameters(remove_duplicate=False) if each is projection.bias]
    if len(sites.projections[projection]) > 1 or len(uses) > 1:
        raise InputError(
            f"the output projection of {site} has its bias in common with others, whose heads have other means",
            ALTERNATIVE,
        )
