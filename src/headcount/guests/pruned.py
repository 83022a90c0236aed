"""Heads cut out of a model of others, proven equal to silencing them, and kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headcount.analysis.cost import Cost, cost_between
from headcount.analysis.subjects import Subject
from headcount.errors import CheckFailed
from headcount.guests.cutting import cut_heads, prove_cut
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
    inputs = subject.blocks[0].inputs
    cut = cut_heads(guest.inner, gone)
    difference = prove_cut(guest.inner, cut, gone, inputs)
    save_model(cut, out, guest.tokenizer)
    left = load_guest(out, next(guest.inner.parameters()).device, length=guest.length)
    again = prove_cut(guest.inner, left.inner, gone, inputs)
    if not again <= TOLERANCE:
        raise CheckFailed(f"what was written to {out} differs by {again:.1e} from what was cut", "please report this")
    names, sizes = (guest.name, str(out)), (_size(guest.inner), _size(left.inner))
    return PrunedGuest(left, cost_between(names, subject, left.model, gone, sizes, max(difference, again)))


def _size(model: nn.Module) -> Size:
    with torch.no_grad():
        weights = list(model.parameters())
    return Size(sum(w.numel() for w in weights), sum(w.numel() * w.element_size() for w in weights))
