"""Heads cut out of a model of others, proven equal to silencing them (or to their means in their places), and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.analysis.cost import Cost, cost_between
from headcount.analysis.subjects import Subject
from headcount.errors import CheckFailed, InputError
from headcount.guests.adapter import Adapted
from headcount.guests.cut_proof import prove_cut, prove_folded
from headcount.guests.cutting import cut_heads
from headcount.guests.folding import Means, fold, mean_outputs
from headcount.guests.foreign_cutting import Steady, cut_adapted
from headcount.guests.foreign_saving import save_cut
from headcount.guests.guest import Guest, load_guest
from headcount.guests.saving import save_model
from headcount.heads import HeadId
from headcount.instruments.wrapping import Wrapped, wrap
from headcount.runs.prune import Size

TOLERANCE = 1e-5
"""Most that what is written and what is read may differ, as a share of the largest value."""


@dataclass(frozen=True)
class PrunedGuest:
    """What is left, and what it costs beside the whole."""

    guest: Guest
    cost: Cost


@dataclass(frozen=True)
class _Folded:
    """A model whose biases hold the means of some heads, taken over `n` examples."""

    model: Wrapped | Adapted
    means: Means
    n: int


def prune_guest(
    guest: Guest, heads: Iterable[str | HeadId], out: Path, subject: Subject, *, fold_mean: bool = False
) -> PrunedGuest:
    """Cut these heads out, proven on the subject's first examples; write a folder, read it, and prove it again.

    With `fold_mean`, what they said on average over the subject's reference stays in the biases.
    """
    gone = tuple(dict.fromkeys(guest.find_head(head) for head in heads))
    if len(gone) == len(guest.sites.heads):
        raise InputError(f"all heads of {guest.name} would go", "lower --loss, or name the heads: --heads")
    inputs, folded = subject.blocks[0].inputs, None
    if fold_mean:
        means, n = mean_outputs(subject)
        folded = _Folded(fold(guest.model, gone, means, n), means, n)
    difference = _cut_and_saved(guest, gone, out, inputs, folded)
    is_adapted = isinstance(guest.model, Adapted)  # whose code was run already, and is asked to be run again
    left = load_guest(out, next(guest.inner.parameters()).device, length=guest.length, run_adapter=is_adapted)
    again = _proven(guest.model, left.model, gone, inputs, folded)
    if not again <= TOLERANCE:
        raise CheckFailed(f"what was written to {out} differs by {again:.1e} from what was cut", "please report this")
    names, sizes = (guest.name, str(out)), (_size(guest.inner), _size(left.inner))
    n = folded.n if folded else 0
    cost = cost_between(names, subject, left.model, gone, sizes, max(difference, again), folded_over=n)
    return PrunedGuest(left, cost)


def _cut_and_saved(
    guest: Guest, gone: tuple[HeadId, ...], out: Path, inputs: Sequence[Tensor], folded: _Folded | None
) -> float:
    """How far the cut model is from the whole one with those heads silenced, or at their means."""
    whole = folded.model if folded else guest.model
    if isinstance(whole, Adapted):
        cut: nn.Module = cut_adapted(whole, gone, inputs)
    else:
        cut = cut_heads(whole.model, gone)
    difference = _proven(guest.model, cut, gone, inputs, folded)
    if isinstance(cut, Adapted):
        save_cut(cut, guest.digest, out, inputs, folded_over=folded.n if folded else 0)
    else:
        save_model(cut, out, guest.tokenizer)
    return difference


def _proven(
    whole: nn.Module, cut: nn.Module, gone: tuple[HeadId, ...], inputs: Sequence[Tensor], folded: _Folded | None
) -> float:
    steady: Callable[[Any], nn.Module] = Steady if isinstance(cut, Adapted) else wrap
    kept = folded.model if folded else whole
    found = prove_cut(steady(kept), steady(cut), gone, inputs)
    return prove_folded(steady(whole), steady(cut), gone, folded.means, inputs) if folded else found


def _size(model: nn.Module) -> Size:
    with torch.no_grad():
        weights = list(model.parameters())
    return Size(sum(w.numel() for w in weights), sum(w.numel() * w.element_size() for w in weights))
