"""A copy of a model without some of its heads.

    cut = cut_heads(model, ["L0H3", "L5H0"])         the model stays as it is
    prove_cut(model, cut, ["L0H3", "L5H0"], inputs)  has the output that the model has with these heads ablated

What is left is still the model's own code on smaller layers: it generates, trains and is wrapped as before, and its
heads keep their names. The configuration of a Hugging Face model then lists the heads that are gone (`headcount_cut`)
and, where means were folded into biases that its family does not have (Llama, T5), whose output projections were given
one (`headcount_biased`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import nn

from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.hooks.families import Family, family_of, model_types
from headcount.hooks.sites import unwrap
from headcount.hooks.wrapping import BIASED, CUT, Wrapped, blocks_at, cut_from, wrap
from headcount.models.blocks import Transformer
from headcount.surgery.family import family_plans
from headcount.surgery.layers import Made, add_bias
from headcount.surgery.own import own_plans, tell_settings
from headcount.surgery.plan import SitePlan, apply_plan

T = TypeVar("T")


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


def cut_heads(model: nn.Module, heads: Iterable[HeadId | str]) -> Any:
    """A copy without these heads; the other heads keep their names."""
    asked = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in heads)
    if not asked:
        raise InputError("no heads to cut out", "name some: cut_heads(model, ['L0H3'])")
    whole: Any = model.model if isinstance(model, Wrapped) else unwrap(model)
    if isinstance(whole, Transformer):
        _require_heads(whole, asked)
        own = deepcopy(whole)
        _apply(own_plans(own, asked), own)
        tell_settings(own, asked)
        return own
    wrapped = wrap(model)
    family, before = known_family(wrapped.model), set(cut_from(wrapped.model))
    wrapped.head_sites.head_slots(asked)  # they are there, or this says what is
    copy: Any = deepcopy(wrapped.model)
    _apply(list(family_plans(copy, family, before, before | asked.keys())), copy)
    setattr(copy.config, CUT, [str(head) for head in sorted(before | asked.keys())])
    return copy


def apply_cut(model: nn.Module) -> None:
    """Give a whole model the structure that its configuration speaks of, in place; its weights mean nothing then."""
    family, biased = known_family(model), getattr(model.config, BIASED, ())
    for site, _, _, projection, _ in blocks_at(model, family):
        if str(site) in biased:
            add_bias(projection)
    _apply(list(family_plans(model, family, set(), set(cut_from(model)))), model)


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


def _apply(plans: Sequence[SitePlan], model: nn.Module) -> None:
    made: Made = {}
    for plan in plans:
        apply_plan(plan, model, made)


def _require_heads(model: Transformer, asked: Iterable[HeadId]) -> None:
    if missing := [head.short for head in asked if head not in model.heads]:
        there = ", ".join(head.short for head in model.heads) or "none"
        raise InputError(f"no head {', '.join(missing)} in this model", f"its heads: {there}")
