"""Copy a model without some of its heads, and fold the heads' mean outputs into biases before cutting.

    cut = cut_heads(model, ["L0H3", "L5H0"])         a copy without these heads; the model is not changed
    prove_cut(model, cut, ["L0H3", "L5H0"], inputs)  proves that its output is that of zero ablation

    means = mean_outputs(model, sites, batches)      the mean output of each head, over examples and positions
    folded = fold(model, heads, means, n)            a copy with these means in its biases, ready for cut_heads

A cut model runs the same code on smaller layers. It generates, trains and can be wrapped as before, and the remaining
heads keep their names. The configuration of a Hugging Face model then lists the heads that were cut out
(`headcount_cut`). Folding adds the mean outputs of the cut heads to the biases of the output projections. If the model
family has no such biases (Llama, T5), the configuration also lists the attention blocks that got one
(`headcount_biased`).

A bias is the same for all examples and positions, so means are taken over both, without padding. The means of mean
ablation, one per position, cannot be folded.
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
from headcount.hooks.families import Family, family_of, model_type_of, model_types
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.sites import Sites, unwrap
from headcount.hooks.wrapping import BIASED, CUT, FOLDED, Wrapped, blocks_at, cut_from, wrap
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import Transformer
from headcount.surgery.family import family_plans
from headcount.surgery.plan import Narrowed, SitePlan, add_bias, apply_plan, features

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Means = Mapping[HeadSite, Float[Tensor, "head d_head"]]
Inputs = tuple[Sequence[Tensor], Mapping[str, Tensor]]
"""The input tensors of one batch, and for each stack a mask of its tokens; a stack without a mask has no padding."""
ALTERNATIVE = "leave --fold-mean out: the heads are then cut out as if their outputs were zero"


@dataclass(frozen=True)
class Size:
    """The number of parameters of a model, and the size of its weights in bytes."""

    parameters: int
    n_bytes: int

    @classmethod
    def of(cls, model: nn.Module, n_bytes: int | None = None) -> Size:
        """Return the size of a model; `n_bytes` is the size of its file (default: the size of its tensors)."""
        weights = list(model.parameters())
        own = sum(weight.numel() * weight.element_size() for weight in weights)
        return cls(sum(weight.numel() for weight in weights), own if n_bytes is None else n_bytes)


@dataclass(frozen=True)
class Cut(Generic[T]):
    """A model from which heads were cut out, loaded again from its folder, with its sizes before and after."""

    model: T
    heads: tuple[HeadId, ...]
    """The heads that were cut out."""
    difference: float
    """Relative difference between the output of the cut model and that of the original model with these heads ablated
    (or replaced by their means), in the model's own precision."""
    before: Size
    after: Size
    folded_over: int = 0
    """The number of examples over which the mean head outputs in the biases were taken; 0 if no means were folded."""


# --- cut --------------------------------------------------------------------------------------------------------------


def cut_heads(model: nn.Module, heads: Iterable[HeadId | str]) -> Any:
    """Return a copy of a model from whose weights these heads are removed; the other heads keep their names."""
    gone = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in heads)
    if not gone:
        raise InputError("no heads to cut out were named", "name at least one: cut_heads(model, ['L0H3'])")
    whole: Any = model.model if isinstance(model, Wrapped) else unwrap(model)
    if isinstance(whole, Transformer):
        if missing := [head.short for head in gone if head not in whole.heads]:
            known = ", ".join(head.short for head in whole.heads) or "none"
            raise InputError(f"no head {', '.join(missing)} in this model", f"the model has these heads: {known}")
        own = deepcopy(whole)
        _apply(_own_plans(own, gone), own)
        own.config = replace(own.config, pruned=(*own.config.pruned, *map(str, gone)))
        return own
    wrapped = wrap(model)
    family, before = known_family(wrapped.model), set(cut_from(wrapped.model))
    wrapped.head_sites.head_slots(gone)  # raises an error if a head does not exist
    copy: Any = deepcopy(wrapped.model)
    _apply(family_plans(copy, family, before, before | gone.keys()), copy)
    setattr(copy.config, CUT, [str(head) for head in sorted(before | gone.keys())])
    return copy


def apply_cut(model: nn.Module) -> None:
    """Cut out of a newly built model, in place, the heads that its configuration lists as cut.

    The weights of the cut model must be loaded afterwards.
    """
    family, biased = known_family(model), getattr(model.config, BIASED, ())
    for site, _, _, projection, _ in blocks_at(model, family):
        if str(site) in biased:
            add_bias(projection)
    _apply(family_plans(model, family, set(), set(cut_from(model))), model)


def known_family(model: nn.Module) -> Family:
    """Return the family of a Hugging Face model; raise an error if it is unknown, because cutting needs its layout."""
    model_type = model_type_of(model)
    if (family := family_of(model_type)) is None:
        raise InputError(
            f"{type(model).__name__} is of no family whose heads headcount can cut out"
            + (f" (model_type {model_type!r})" if model_type else ""),
            f"headcount can remove heads from the weights of {', '.join(model_types())}; heads of other models can "
            "only be ablated",
        )
    return family


def _apply(plans: Iterable[SitePlan], model: nn.Module) -> None:
    narrowed: Narrowed = {}
    for plan in list(plans):  # complete the list first: plans are computed from the unchanged model
        apply_plan(plan, model, narrowed)


def _own_plans(model: Transformer, gone: Collection[HeadId]) -> Iterator[SitePlan]:
    """Yield a plan for each attention block that loses heads, for a model that headcount trained."""
    paths = {module: path for path, module in model.named_modules()}
    for site, block in model.blocks.items():
        keep = tuple(place for place, head in enumerate(block.heads) if head not in gone)
        if len(keep) == len(block.heads):
            continue
        attention, home = block.attention, f"{paths[block]}.attention"
        assert isinstance(attention, MultiHeadAttention), "an attention block that loses heads has heads"
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
    """Return the mean output of each head over examples and positions, in double precision, by attention block."""
    sums, counts = dict[HeadSite, Tensor](), Counter[HeadSite]()
    with eval_mode(model):
        for inputs, token_mask in batches:
            with Capture(sites) as seen:
                model(*inputs)
            for site in sites:
                z, is_token = seen.z(site).cpu().double(), token_mask.get(site.stack)
                fits = is_token is not None and is_token.shape == z.shape[:2]
                outputs = z[is_token.cpu()] if fits and is_token is not None else z.flatten(0, -3)
                sums[site] = outputs.sum(dim=0) + sums.get(site, 0)
                counts[site] += len(outputs)
    return {site: sums[site] / counts[site] for site in sums}


def fold(model: M, heads: Iterable[HeadId], means: Means, n: int) -> M:
    """Return a copy of a model in which the mean outputs of these heads are added to biases, to cut the heads later.

    `n` is the number of examples over which the means were taken; the model's configuration keeps this number.
    """
    copy = deepcopy(model)
    wrapped = wrap(copy)
    sites, heads = wrapped.head_sites, tuple(heads)
    touched = sites.head_slots(heads)
    biased = [site for site in touched if not _has_bias(sites[site].projection)]
    if biased and not wrapped.family:  # only a family's model can be loaded with the additional biases
        raise InputError(
            f"the output projection of {biased[0]} has no bias, to which the mean outputs of the removed heads could "
            "be added",
            "add a bias in the model's own code (bias=True, with zeros in the checkpoint)",
            ALTERNATIVE,
        )
    fold_in_place(sites, heads, means)
    for site in touched:
        projection: Any = sites[site].projection
        uses = [bias for _, bias in copy.named_parameters(remove_duplicate=False) if bias is projection.bias]
        if len(sites.projections[projection]) > 1 or len(uses) > 1:
            raise InputError(
                f"the output projection of {site} shares its bias with other attention blocks, so the mean outputs "
                "of its removed heads cannot be added to it",
                ALTERNATIVE,
            )
    if wrapped.family:
        config: Any = wrapped.model.config
        setattr(config, FOLDED, n)
        setattr(config, BIASED, sorted({*getattr(config, BIASED, ()), *map(str, biased)}))
    return copy


@torch.no_grad()
def fold_in_place(sites: Sites, heads: Iterable[HeadId], means: Means) -> None:
    """Add the projected mean outputs of heads to the biases of their output projections, in place.

    Missing biases are created.
    """
    for site, places in sites.head_slots(heads).items():
        projection: Any = sites[site].projection
        if not _has_bias(projection):
            add_bias(projection)
        double = deepcopy(projection).cpu().double()
        z = torch.zeros_like(means[site], device="cpu")
        z[list(places)] = means[site][list(places)].cpu()
        added = double.forward(z.flatten()[None]) - double.forward(torch.zeros_like(z).flatten()[None])
        projection.bias.copy_(projection.bias.cpu().double() + added[0])


def _has_bias(projection: nn.Module) -> bool:
    return isinstance(getattr(projection, "bias", None), nn.Parameter)
