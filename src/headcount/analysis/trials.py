"""What a model scores, example by example, without some of its heads: many trials in one job.

The instrument is proven on the model first; then each block of examples is recorded once, and all trials are run from
where they begin to differ (instruments/sweep.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.subjects import Block, Subject
from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadId, HeadSite
from headcount.instruments.kinds import KINDS
from headcount.instruments.kinds.base import Kind, Material
from headcount.instruments.proof import difference, first_tensor, prove, tolerance
from headcount.instruments.recording import Change, Recording
from headcount.instruments.running import at_rest
from headcount.instruments.sweep import BATCH, sweep
from headcount.limits import require_room
from headcount.models.finite import require_numbers
from headcount.seeds import stream

Means = Mapping[HeadSite, Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trial:
    """Heads that are silent together, and what stands in for them."""

    heads: tuple[HeadId, ...]
    kind: str = "zero"


@dataclass(frozen=True)
class Tried:
    """One block, as it was tried: for whoever wants to look closer."""

    block: Block
    recording: Recording
    changes: Sequence[Change]
    clean: NDArray[np.float64]
    scores: NDArray[np.float64]
    """[trial, row]."""


@dataclass(frozen=True)
class Outcome:
    """Scores of every example."""

    clean: NDArray[np.float64]
    scores: NDArray[np.float64]
    """[trial, example]."""
    floor: float
    """What the best constant answer scores or, by a loss, even odds over all tokens or classes."""


def run_trials(
    subject: Subject,
    trials: Sequence[Trial],
    *,
    base: Sequence[HeadId] = (),
    batch_size: int = BATCH,
    proven: bool = False,
    progress: Progress | None = None,
    look: Callable[[Tried], None] | None = None,
) -> Outcome:
    """Score every trial on every example, the heads of `base` being silent throughout.

    The instrument is proven to act first, unless it was `proven` on this model already. Asked again at the end, the
    model must say of the first block what it said of it at the beginning.
    """
    if not all(trial.heads for trial in trials):
        raise InputError("a trial without heads", "name at least one head to silence")
    kinds = {trial.kind: KINDS.get(trial.kind) for trial in trials}
    require_room(8 * len(trials) * subject.n, f"scores of {subject.n:,} examples, {len(trials):,} times", "lower --n")
    clean, scores = np.empty(subject.n), np.empty((len(trials), subject.n))
    batch_size = min(batch_size, subject.most_rows or batch_size)
    if not proven:
        prove(subject.model, subject.sites, subject.blocks[0].inputs)
    with at_rest(subject.model), torch.no_grad():
        first: Tensor | None = None
        means = _means(subject, base) if any(kind.needs_mean for kind in kinds.values()) else {}
        for i, block in enumerate(subject.blocks):
            recording = Recording(subject.model, subject.sites, block.inputs, base)
            if first is None:
                first = first_tensor(recording.output).clone()
            changes = _changes(recording, trials, kinds, means, i, block.real)
            clean[block.rows] = _numbers(block, first_tensor(recording.output))
            for j, output in sweep(recording, changes, batch_size=batch_size, checked=i == 0):
                scores[j, block.rows] = _numbers(block, output)
            if look:
                look(Tried(block, recording, changes, clean[block.rows], scores[:, block.rows]))
            if progress:
                progress(i + 1, len(subject.blocks))
        assert first is not None, "every subject has a block"
        _require_same(subject, base, first)
    return Outcome(clean, scores, -math.log(first.shape[-1]) if subject.metric.is_loss else subject.floor)


def _require_same(subject: Subject, base: Sequence[HeadId], first: Tensor) -> None:
    """A model that changes while it is asked would give every head a drop of its own."""
    again = first_tensor(Recording(subject.model, subject.sites, subject.blocks[0].inputs, base).output)
    if torch.equal(first, again):
        return
    apart = difference(first, again) if first.shape == again.shape else math.inf
    if not apart <= tolerance(first.dtype):
        raise InstrumentError(
            f"asked the same again, the model said something else (by {apart:.1e} of the largest value)",
            "it changes from call to call, so a difference is no head's doing: does it keep state, or draw noise?",
        )


def _numbers(block: Block, output: Tensor) -> NDArray[np.float64]:
    require_numbers(output, f"example {int(block.rows[0])} and those beside it")
    score = block.score(output)
    if not isinstance(score, Tensor) or score.shape != (len(block.rows),):
        what = f"a tensor of shape {tuple(score.shape)}" if isinstance(score, Tensor) else type(score).__name__
        raise InputError(
            f"the metric gave {what} for {len(block.rows)} examples",
            "it should give a tensor with one number per example: metric(output, rows) -> [row]",
        )
    return score.double().cpu().numpy()


def _means(subject: Subject, base: Sequence[HeadId]) -> Means:
    """What heads find on average, position by position; each position over the examples that have it."""
    sums: dict[HeadSite, list[tuple[Tensor, Tensor]]] = {}
    for block in subject.blocks:
        recording = Recording(subject.model, subject.sites, block.inputs, base)
        for site in subject.sites:
            sums.setdefault(site, []).append(_summed(recording.z(site).double(), block.real.get(site.stack)))
    return {site: _weighted(parts) for site, parts in sums.items()}


def _summed(z: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum over rows at each position, and of how many: padding says nothing."""
    if real is None or real.shape != z.shape[:2]:
        return z.sum(dim=0), z.new_full((z.shape[1], 1, 1), len(z))
    counted = real.to(z)[..., None, None]
    return (z * counted).sum(dim=0), counted.sum(dim=0)


def _weighted(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    longest = max((total for total, _ in parts), key=len)
    sums, counts = torch.zeros_like(longest), longest.new_zeros(len(longest), 1, 1)
    for total, n in parts:
        sums[: len(total)] += total
        counts[: len(total)] += n
    return sums / counts.clamp(min=1)  # a position that is all padding is asked about by nobody


def _changes(
    recording: Recording,
    trials: Sequence[Trial],
    kinds: Mapping[str, Kind],
    means: Means,
    block: int,
    real: Mapping[str, Tensor],
) -> list[Change]:
    n = recording.n_rows
    if n < 2 and any(kind.needs_others for kind in kinds.values()):
        raise InputError("an example is alone in its length, so there is none to resample from", "try more examples")
    order = stream(0, "resample", block).permutation(n)
    others = np.empty_like(order)
    others[order] = np.roll(order, 1)  # a ring: nobody is their own other
    stands: dict[tuple[str, HeadSite], Tensor | None] = {}
    changes = []
    for trial in trials:
        for site in recording.sites.by_site(trial.heads):
            if (trial.kind, site) not in stands:
                z = recording.z(site)
                material = Material(z, means.get(site), torch.from_numpy(others).to(z.device), real.get(site.stack))
                stands[trial.kind, site] = kinds[trial.kind].stand_in(material)
        found = {site: stands[trial.kind, site] for site in recording.sites.by_site(trial.heads)}
        changes.append(Change(trial.heads, {site: stand for site, stand in found.items() if stand is not None}))
    return changes
