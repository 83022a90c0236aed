"""A copy of a model without some of its heads; and what they output on average, kept in biases before they go.

    cut = cut_heads(model, ["L0H3", "L5H0"])         the model stays as it is
    prove_cut(model, cut, ["L0H3", "L5H0"], inputs)  has the output that the model has with these heads ablated

    means = mean_outputs(model, sites, batches)      of every head, over examples and positions
    kept = fold(model, heads, means, n)              a copy; cut out of that, the heads leave their means behind

What is left is still the model's own code on smaller layers: it generates, trains and is wrapped as before, and its
heads keep their names. The configuration of a Hugging Face model then lists the heads that are gone (`headcount_cut`)
and, where means were folded into biases that its family does not have (Llama, T5), whose output projections were given
one (`headcount_biased`).

A bias is the same for every example and at every position, so a mean is over both, padding aside: one mean for each
position, as mean ablation has it, cannot be folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import Family, family_of, model_types
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.sites import Sites, unwrap
from headcount.hooks.wrapping import BIASED, CUT, FOLDED, Wrapped, blocks_at, cut_from, wrap
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import Transformer
from headcount.surgery.family import family_plans
from headcount.surgery.plan import Made, SitePlan, add_bias, apply_plan, features

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Means = Mapping[HeadSite, Float[Tensor, "head d_head"]]
Inputs = tuple[Sequence[Tensor], Mapping[str, Tensor]]
"""One batch, and by stack which of its positions hold tokens and no padding; all of them where none is given."""
ALTERNATIVE = "or leave --fold-mean out: the heads are then cut out as if their outputs were zero"


@dataclass(frozen=True)
class Size:
    """Of a model, and of the bytes that hold its weights."""

    parameters: int
    n_bytes: int

    @classmethod
    def of(cls, model: nn.Module, n_bytes: int | None = None) -> Size:
        """As its weights are, unless they are kept in another number of bytes."""
        weights = list(model.parameters())
        own = sum(weight.numel() * weight.element_size() for weight in weights)
        return cls(sum(weight.numel() for weight in weights), own if n_bytes is None else n_bytes)


@dataclass(frozen=True)
class Cut(Generic[T]):
    """A model without some of its parent's heads, as it was read from where it was written."""

    model: T
    heads: tuple[HeadId, ...]
    """Those that were cut out now."""
    difference: float
    """From the parent with these heads ablated or at their means, in the model's own precision: as a share of the
    largest output."""
    before: Size
    after: Size
    folded_over: int = 0
    """Examples whose means were folded into biases; 0 if none were."""


# --- cut --------------------------------------------------------------------------------------------------------------


def cut_heads(model: nn.Module, heads: Iterable[HeadId | str]) -> Any:
    """A copy without these heads; the other heads keep their names."""
    asked = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in heads)
    if not asked:
        raise InputError("no heads to cut out", "name some: cut_heads(model, ['L0H3'])")
    whole: Any = model.model if isinstance(model, Wrapped) else unwrap(model)
    if isinstance(whole, Transformer):
        if missing := [head.short for head in asked if head not in whole.heads]:
            there = ", ".join(head.short for head in whole.heads) or "none"
            raise InputError(f"no head {', '.join(missing)} in this model", f"its heads: {there}")
        own = deepcopy(whole)
        _apply(_own_plans(own, asked), own)
        own.config = replace(own.config, pruned=(*own.config.pruned, *map(str, asked)))
        return own
    wrapped = wrap(model)
    family, before = known_family(wrapped.model), set(cut_from(wrapped.model))
    wrapped.head_sites.head_slots(asked)  # they are there, or this says what is
    copy: Any = deepcopy(wrapped.model)
    _apply(family_plans(copy, family, before, before | asked.keys()), copy)
    setattr(copy.config, CUT, [str(head) for head in sorted(before | asked.keys())])
    return copy


def apply_cut(model: nn.Module) -> None:
    """Give a whole model the structure that its configuration speaks of, in place; its weights mean nothing then."""
    family, biased = known_family(model), getattr(model.config, BIASED, ())
    for site, _, _, projection, _ in blocks_at(model, family):
        if str(site) in biased:
            add_bias(projection)
    _apply(family_plans(model, family, set(), set(cut_from(model))), model)


def known_family(model: nn.Module) -> Family:
    """The family of a model, whose layout is needed to cut it."""
    model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
    family = family_of(model_type)
    if family is None:
        raise InputError(
            f"{type(model).__name__} is of no family whose heads headcount can cut out"
            + (f" (model_type {model_type!r})" if model_type else ""),
            f"it can for {', '.join(model_types())}; heads of other models can be ablated",
        )
    return family


def _apply(plans: Iterable[SitePlan], model: nn.Module) -> None:
    made: Made = {}
    for plan in list(plans):  # all of them first: they speak of the model as it is
        apply_plan(plan, model, made)


def _own_plans(model: Transformer, gone: Collection[HeadId]) -> Iterator[SitePlan]:
    """What takes these heads out of a model of headcount's own, site by site."""
    paths = {module: path for path, module in model.named_modules()}
    for site, block in model.blocks.items():
        keep = tuple(place for place, head in enumerate(block.heads) if head not in gone)
        if len(keep) == len(block.heads):
            continue
        attention, home = block.attention, f"{paths[block]}.attention"
        assert isinstance(attention, MultiHeadAttention), "it has heads"
        plan = SitePlan(str(site), attention.kept, keep, "headless", f"{home}.output")
        yield (
            plan
            if not keep
            else replace(
                plan,
                way="narrow",
                layers={f"{home}.{name}": features(keep, attention.d_head) for name in ("query", "key", "value")},
                numbers={f"{home}.kept": tuple(attention.kept[place] for place in keep)},
                tensors={} if attention.log_n_scale is None else {f"{home}.log_n_scale": 0},
            )
        )


# --- fold -------------------------------------------------------------------------------------------------------------


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
    copy = deepcopy(model)
    wrapped = wrap(copy)
    sites, heads = wrapped.head_sites, tuple(heads)
    touched = sites.head_slots(heads)
    biased = [site for site in touched if not _has_bias(sites[site].projection)]
    if biased and not wrapped.family:  # whose folders are read with biases again
        raise InputError(
            f"the output projection of {biased[0]} has no bias to put a mean into",
            "give it one in the model's own code: bias=True, and zeros in the checkpoint",
            ALTERNATIVE,
        )
    fold_in_place(sites, heads, means)
    for site in touched:
        projection: Any = sites[site].projection
        uses = [each for _, each in copy.named_parameters(remove_duplicate=False) if each is projection.bias]
        if len(sites.projections[projection]) > 1 or len(uses) > 1:
            raise InputError(
                f"the output projection of {site} has its bias in common with others, whose heads have other means",
                ALTERNATIVE,
            )
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
