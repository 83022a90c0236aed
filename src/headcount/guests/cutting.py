"""Cut heads out of Hugging Face models for real: their rows and columns leave the matrices.

    cut = cut_heads(model, ["L0H3", "L5H0"])         a copy; the model stays as it is
    prove_cut(model, cut, ["L0H3", "L5H0"], inputs)  says what the model says with these heads silenced

What is left is still the model's own code on smaller layers: it generates, trains and is wrapped as before, and its
heads keep their names. `config.headcount_cut` lists the heads that are gone; save with guests.saving. Heads may leave
their means behind (guests.folding). In some places more is needed than smaller layers:

* Query heads that share keys and values, unevenly after the cut: the key and value heads still in use are picked after
  the projection, once for every query head. No weight is stored twice, but the cache then holds as many heads as there
  are queries.
* T5's position biases stay whole and are handed on whole; every block picks its own.
* A block without heads says what its output projection's bias says. No weight is left of it, but one head of zeros is
  still computed and cached, and shown as attention: the model's own code cannot do with none.
* Where means are folded into biases and a family has none (Llama, T5), output projections are given some, and
  `config.headcount_biased` lists whose.
* ALBERT's layers take turns with one block. Where they no longer agree on its heads, every layer gets a block of its
  own on the same weights, and picks its rows and columns from them. So a cut never costs parameters, but a head frees
  its own only when it is gone from all the layers that share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from torch import nn

from headcount.errors import InputError
from headcount.guests.cut_blocks import cut_in_place
from headcount.guests.cut_layers import add_bias
from headcount.guests.cut_proof import prove_cut
from headcount.heads import HeadId
from headcount.instruments.families import family_of, model_types
from headcount.instruments.families.base import Family
from headcount.instruments.wrapping import BIASED, CUT, blocks_at, cut_from, wrap

__all__ = ["apply_cut", "cut_heads", "known_family", "prove_cut"]


def cut_heads(model: nn.Module, heads: Iterable[HeadId | str]) -> nn.Module:
    """A copy without these heads; the other heads keep their names."""
    asked = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in heads)
    if not asked:
        raise InputError("no heads to cut out", "name some: cut_heads(model, ['L0H3'])")
    wrapped = wrap(model)
    family = known_family(wrapped.model)
    wrapped.head_sites.by_site(asked)  # they are there, or this says what is
    copy = deepcopy(wrapped.model)
    before = set(cut_from(copy))
    cut_in_place(copy, family, before, before | asked.keys())
    config: Any = copy.config
    setattr(config, CUT, [str(head) for head in sorted(before | asked.keys())])
    return copy


def apply_cut(model: nn.Module) -> None:
    """Give a whole model the structure that its configuration speaks of, in place; its weights mean nothing then."""
    family, biased = known_family(model), getattr(model.config, BIASED, ())
    for site, _, _, projection, _ in blocks_at(model, family):
        if str(site) in biased:
            add_bias(projection)
    cut_in_place(model, family, set(), set(cut_from(model)))


def known_family(model: nn.Module) -> Family:
    """The family of a model, whose layout is needed to cut it."""
    model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
    family = family_of(model_type)
    if family is None:
        raise InputError(
            f"{type(model).__name__} is of no family whose heads headcount can cut out"
            + (f" (model_type {model_type!r})" if model_type else ""),
            f"it can for {', '.join(model_types())}; heads of other models can be silenced",
        )
    return family
