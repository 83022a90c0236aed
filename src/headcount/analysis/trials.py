"""What a model scores, example by example, without some of its heads: many trials in one job.

The instrument is proven on the model first; then each block of examples is recorded once, and all trials are run from
where they begin to differ (instruments/sweep.py).

What stands in for a head is itself a draw: another example that happened to be next, or a mean over some inputs. A
trial says which `draw`, so that its noise can be measured: another donor, or the mean over one part of the inputs.
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

Means = Sequence[Mapping[HeadSite, Tensor]]
"""What heads find on average: over all inputs, then over each of `PARTS` parts of them."""
PARTS = 8
Donors = NDArray[np.int64]
"""Who stood in for whom, [draw, example]."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trial:
    """Heads that are silent together, and what stands in for them."""

    heads: tuple[HeadId, ...]
    kind: str = "zero"
    draw: int = 0
    """Which donor; or which part of the inputs a mean is over, 0 being all of them."""


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
    means: Means | None = None,
    progress: Progress | None = None,
    look: Callable[[Tried], None] | None = None,
) -> Outcome:
    """Score every trial on every example, the heads of `base` being silent throughout.

    The instrument is proven to act first, unless it was `proven` on this model already. `means` are taken if they are
    needed and not given. Asked again at the end, the model must say of the first block what it said at the beginning.
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
        if means is None:
            means = means_of(subject, base) if any(kind.needs_mean for kind in kinds.values()) else ()
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
    return score.cpu().double().numpy()


def means_of(subject: Subject, base: Sequence[HeadId] = ()) -> Means:
    """What heads find on average, position by position; each position over the inputs that have it."""
    sums: dict[HeadSite, tuple[Tensor, Tensor]] = {}
    blocks = subject.reference or subject.blocks
    with at_rest(subject.model), torch.no_grad():
        for block, part in zip(blocks, parts_of(blocks), strict=True):
            recording = Recording(subject.model, subject.sites, block.inputs, base)
            for site in subject.sites:
                found = _summed(recording.z(site).cpu().double(), block, site, part)
                sums[site] = _added(*sums[site], *found) if site in sums else found
    return [{site: _mean(*sums[site], part) for site in sums} for part in range(PARTS + 1)]


def parts_of(blocks: Sequence[Block]) -> list[NDArray[np.int64]]:
    """Which part each example is in, whichever share a block; of a running text, its eighths, one after the other."""
    orders = [block.order for block in blocks if block.order is not None]
    if len(orders) < len(blocks):
        return [block.rows % PARTS for block in blocks]
    every = np.sort(np.concatenate(orders))
    return [np.searchsorted(every, order) * PARTS // len(every) for order in orders]


def _summed(z: Tensor, block: Block, site: HeadSite, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """By part, the sum over rows at each position, and of how many: padding says nothing."""
    real, counted = block.real.get(site.stack), torch.ones_like(z[..., :1, :1])
    if real is not None and real.shape == z.shape[:2]:
        counted = real.to(z)[..., None, None]
    part = np.repeat(part, block.n_inputs // len(block.rows))
    parts = [torch.from_numpy(np.flatnonzero(part == i)).to(z.device) for i in range(PARTS)]
    sums = [(z[rows] * counted[rows]).sum(dim=0) for rows in parts]
    return torch.stack(sums), torch.stack([counted[rows].sum(dim=0) for rows in parts])


def _added(sums: Tensor, counts: Tensor, more: Tensor, n_more: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of another length: of the positions that only one of them has, that one tells."""
    if more.shape[1] > sums.shape[1]:
        sums, counts, more, n_more = more, n_more, sums, counts
    sums, counts = sums.clone(), counts.clone()
    sums[:, : more.shape[1]] += more
    counts[:, : more.shape[1]] += n_more
    return sums, counts


def _mean(sums: Tensor, counts: Tensor, part: int) -> Tensor:
    """Over all of them (0), or over one part, where that has the position."""
    whole = sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)  # a position that is all padding is asked about by nobody
    if not part:
        return whole
    return torch.where(counts[part - 1] > 0, sums[part - 1] / counts[part - 1].clamp(min=1), whole)


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
    stands: dict[tuple[str, HeadSite, int], Tensor | None] = {}
    changes = []
    for trial in trials:
        sites = recording.sites.by_site(trial.heads)
        for site in sites:
            if (trial.kind, site, trial.draw) not in stands:
                z, kind = recording.z(site), kinds[trial.kind]
                mean = means[trial.draw][site] if kind.needs_mean else None
                others = torch.from_numpy(_others(n, block, trial.draw)).to(z.device)
                material = Material(z, mean, others, real.get(site.stack))
                stands[trial.kind, site, trial.draw] = kind.stand_in(material)
        found = {site: stands[trial.kind, site, trial.draw] for site in sites}
        changes.append(Change(trial.heads, {site: stand for site, stand in found.items() if stand is not None}))
    return changes


def donors_of(subject: Subject, draws: int) -> Donors:
    """Who stood in for whom; of examples that consist of several rows, the donor of the first."""
    donors = np.empty((draws, subject.n), dtype=np.int64)
    for i, block in enumerate(subject.blocks):
        times = block.n_inputs // len(block.rows)
        for draw in range(draws):
            donors[draw, block.rows] = block.rows[_others(block.n_inputs, i, draw)[::times] // times]
    return donors


def _others(n: int, block: int, draw: int) -> NDArray[np.int64]:
    """For each row another one: a ring in random order, so that nobody is their own donor."""
    order = stream(0, f"resample {draw}" if draw else "resample", block).permutation(n)
    others = np.empty_like(order)
    others[order] = np.roll(order, 1)
    return others
