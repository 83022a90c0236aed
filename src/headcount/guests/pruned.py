"""Heads cut out of a model of others, proven equal to silencing them, and kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headcount.analysis.cost import Cost, cost_between
from headcount.analysis.subjects import Subject
from headcount.errors import CheckFailed, InputError
from headcount.guests.adapter import Adapted
from headcount.guests.cutting import cut_heads, prove_cut
from headcount.guests.foreign_cutting import cut_adapted, prove_adapted
from headcount.guests.foreign_saving import save_cut
from headcount.guests.guest import Guest, load_guest
from headcount.guests.saving import save_model
from headcount.heads import HeadId
from headcount.runs.prune import Size

TOLERANCE = 1e-5
"""Most that what is written and what is read may differ, as a share of the largest value."""


@dataclass(frozen=True)
class PrunedGuest:
    """What is left, and what it costs beside the whole."""

    guest: Guest
    cost: Cost


def prune_guest(guest: Guest, heads: Iterable[str | HeadId], out: Path, subject: Subject) -> PrunedGuest:
    """Cut these heads out, proven on the subject's first examples; write a folder, read it, and prove it again."""
    gone = tuple(dict.fromkeys(guest.find_head(head) for head in heads))
    if len(gone) == len(guest.sites.heads):
        raise InputError(f"all heads of {guest.name} would go", "lower --loss, or name the heads: --heads")
    inputs = subject.blocks[0].inputs
    difference = _cut_and_saved(guest, gone, out, inputs)
    is_adapted = isinstance(guest.model, Adapted)  # whose code was run already, and is asked to be run again
    left = load_guest(out, next(guest.inner.parameters()).device, length=guest.length, run_adapter=is_adapted)
    again = _proven(guest.model, left.model, gone, inputs)
    if not again <= TOLERANCE:
        raise CheckFailed(f"what was written to {out} differs by {again:.1e} from what was cut", "please report this")
    names, sizes = (guest.name, str(out)), (_size(guest.inner), _size(left.inner))
    return PrunedGuest(left, cost_between(names, subject, left.model, gone, sizes, max(difference, again)))


def _cut_and_saved(guest: Guest, gone: tuple[HeadId, ...], out: Path, inputs: Sequence[Tensor]) -> float:
    """How far the cut model is from the whole one with those heads silenced."""
    if isinstance(guest.model, Adapted):
        cut: nn.Module = cut_adapted(guest.model, gone, inputs)
    else:
        cut = cut_heads(guest.inner, gone)
    difference = _proven(guest.model, cut, gone, inputs)
    if isinstance(cut, Adapted):
        save_cut(cut, guest.digest, out, inputs)
    else:
        save_model(cut, out, guest.tokenizer)
    return difference


def _proven(whole: nn.Module, cut: nn.Module, gone: tuple[HeadId, ...], inputs: Sequence[Tensor]) -> float:
    if isinstance(whole, Adapted) and isinstance(cut, Adapted):
        return prove_adapted(whole, cut, gone, inputs)
    return prove_cut(whole, cut, gone, inputs)


def _size(model: nn.Module) -> Size:
    with torch.no_grad():
        weights = list(model.parameters())
    return Size(sum(w.numel() for w in weights), sum(w.numel() * w.element_size() for w in weights))
