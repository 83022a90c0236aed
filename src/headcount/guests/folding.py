"""What heads say on average, put into the biases of their output projections before they are cut out.

    means, n = mean_outputs(subject)                   of every head, over examples and positions
    kept = fold(model, heads, means)                   a copy; cut out of that, the heads leave their means behind

A bias is the same for every example and at every position, so the mean is over both, padding aside: one mean for each
position, as mean ablation has it, cannot be folded. Where examples are left that nothing is measured on, the means are
over those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.analysis.subjects import Subject
from headcount.errors import InputError
from headcount.guests.adapter import Adapted
from headcount.guests.cut_layers import add_bias
from headcount.heads import HeadId, HeadSite
from headcount.instruments.capture import Capture
from headcount.instruments.running import at_rest
from headcount.instruments.sites import Sites
from headcount.instruments.wrapping import BIASED, FOLDED, Wrapped

Means = Mapping[HeadSite, Float[Tensor, "head d_head"]]
ALTERNATIVE = "or leave --fold-mean out: the heads are then cut out as if they said nothing"


@torch.no_grad()
def mean_outputs(subject: Subject) -> tuple[Means, int]:
    """Of the heads of every site, in double precision; and over how many examples."""
    measured = {id(block) for block in subject.blocks}
    blocks = [block for block in subject.reference if id(block) not in measured] or subject.blocks
    sums, counts = dict[HeadSite, Tensor](), Counter[HeadSite]()
    with at_rest(subject.model):
        for block in blocks:
            with Capture(subject.sites) as seen:
                subject.model(*block.inputs)
            for site in subject.sites:
                z, real = seen.z(site).cpu().double(), block.real.get(site.stack)
                found = z.flatten(0, -3) if real is None or real.shape != z.shape[:2] else z[real]
                sums[site] = found.sum(dim=0) + sums.get(site, 0)
                counts[site] += len(found)
    return {site: sums[site] / counts[site] for site in sums}, sum(len(block.rows) for block in blocks)


def fold(model: Wrapped | Adapted, heads: Iterable[HeadId], means: Means, n: int) -> Wrapped | Adapted:
    """A copy whose biases say already what these heads say on average, over `n` examples."""
    heads, copy = tuple(heads), deepcopy(model)
    sites = copy.head_sites
    biased = [site for site in sites.by_site(heads) if not _has_bias(sites[site].projection)]
    if biased and not (isinstance(copy, Wrapped) and copy.family):  # of which folders are read with biases again
        raise InputError(
            f"the output projection of {biased[0]} has no bias to put a mean into",
            "give it one in the model's own code: bias=True, and zeros in the checkpoint",
            ALTERNATIVE,
        )
    fold_in_place(sites, heads, means)
    for site in sites.by_site(heads):
        _require_bias_of_its_own(copy, sites, site)
    if isinstance(copy, Wrapped):
        config: Any = copy.model.config
        setattr(config, FOLDED, n)
        setattr(config, BIASED, sorted({*getattr(config, BIASED, ()), *map(str, biased)}))
    return copy


@torch.no_grad()
def fold_in_place(sites: Sites, heads: Iterable[HeadId], means: Means) -> None:
    """Add to the biases of these sites' output projections; to zeros, where there is none."""
    for site, places in sites.by_site(heads).items():
        projection: Any = sites[site].projection
        if not _has_bias(projection):
            add_bias(projection)
        double = deepcopy(projection).cpu().double()
        z = torch.zeros_like(means[site], device="cpu")
        z[list(places)] = means[site][list(places)].cpu()
        said = double.forward(z.flatten()[None]) - double.forward(torch.zeros_like(z).flatten()[None])  # it is linear
        projection.bias.copy_(projection.bias.cpu().double() + said[0])


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
