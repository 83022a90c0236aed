"""Donors and means: the values that replace the outputs of ablated heads.

Resample ablation replaces a head's output by its output on another example, the donor. Mean ablation replaces it by its
mean over some inputs. `hooks/replacements.py` says how a replacement is made of these values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.data.dataset import EvalBatch
from headcount.errors import InputError
from headcount.experiments.experiment import Experiment
from headcount.heads import HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.replay import CachedPass, Intervention
from headcount.seeds import stream
from headcount.training.device import Copies, n_processes, n_threads

Means = Sequence[Mapping[HeadSite, Tensor]]
"""Mean head outputs by attention block: first over all inputs, then over each of `PARTS` parts of the inputs."""
PARTS = 8
"""Number of parts into which inputs are divided, to measure how much a mean head output varies between the parts."""
GROUPS = 8
"""Number of groups into which blocks of inputs are divided to compute means; it does not depend on the processes."""
Sums = dict[HeadSite, tuple[Tensor, Tensor]]
"""Sums of head outputs and numbers of rows, both by part of the inputs and by position, for each attention block."""
Donors = NDArray[np.int64]
"""An array [draw, example] of donors: the index of the example whose head output replaces that of each example."""


def means_of(experiment: Experiment) -> Means:
    """Return the mean output of every head at each position, over all inputs that have this position.

    The means over parts of the inputs are returned as well.
    """
    blocks = experiment.reference or experiment.batches
    widths = {tuple(tensor.shape[1:2] for tensor in batch.inputs) for batch in blocks}
    # The sums of one group of blocks have the shape of the others only if all inputs are equally long.
    n_groups = min(GROUPS, len(blocks)) if len(widths) == 1 else 1
    n = n_processes(experiment.model, n_groups)

    def flat(numbers: Sequence[int]) -> NDArray[np.float64]:
        groups = [_sums_of(experiment, blocks, group, n_groups) for group in range(numbers[0], n_groups, n)]
        return np.concatenate([_flat(sums) for sums in groups])

    with Copies(flat, n - 1) as copies, n_threads(1 if n > 1 else torch.get_num_threads()):
        for i in range(1, n):
            copies.send(i - 1, [i])
        by_group = {group: _sums_of(experiment, blocks, group, n_groups) for group in range(0, n_groups, n)}
        size = len(_flat(by_group[0]))
        for i in range(1, n):
            values = copies.receive(i - 1)
            values = flat([i]) if values is None else values
            for group, part in zip(range(i, n_groups, n), values.reshape(-1, size), strict=True):
                by_group[group] = _unflat(part, by_group[0])
    sums = by_group[0]
    for group in range(1, n_groups):  # in one order, so that the number of processes does not change the rounding
        sums = {site: _added(sums[site], by_group[group][site]) for site in sums}
    return [{site: _mean(*sums[site], part) for site in sums} for part in range(PARTS + 1)]


def _sums_of(experiment: Experiment, blocks: Sequence[EvalBatch], group: int, n_groups: int) -> Sums:
    """Return the sums of head outputs over every `n_groups`-th block, from the block `group` on."""
    sums: Sums = {}
    chosen = list(zip(blocks, parts_of(blocks), strict=True))[group::n_groups]
    with eval_mode(experiment.model), torch.no_grad():
        for batch, part in chosen:
            with Capture(experiment.sites) as capture:
                experiment.model(*batch.inputs)
            for site in experiment.sites:
                of_batch = _summed(capture.z(site), batch, site, part)
                sums[site] = _added(sums[site], of_batch) if site in sums else of_batch
    return sums


def _flat(sums: Sums) -> NDArray[np.float64]:
    return np.concatenate([tensor.numpy().ravel() for pair in sums.values() for tensor in pair])


def _unflat(values: NDArray[np.float64], like: Sums) -> Sums:
    """Turn an array of numbers that `_flat` returned back into sums of head outputs, with the shapes of `like`."""
    sums, start = dict[HeadSite, tuple[Tensor, Tensor]](), 0
    for site, pair in like.items():
        parts = []
        for tensor in pair:
            parts.append(torch.from_numpy(values[start : start + tensor.numel()].copy()).view(tensor.shape))
            start += tensor.numel()
        sums[site] = (parts[0], parts[1])
    return sums


def parts_of(blocks: Sequence[EvalBatch]) -> list[NDArray[np.int64]]:
    """Return, for each batch, the number of the part (of `PARTS`) that each example belongs to.

    A running text is divided into consecutive parts.
    """
    orders = [batch.order for batch in blocks if batch.order is not None]
    if len(orders) < len(blocks):
        return [batch.rows % PARTS for batch in blocks]
    whole = np.sort(np.concatenate(orders))
    return [np.searchsorted(whole, order) * PARTS // len(whole) for order in orders]


def _summed(z: Tensor, batch: EvalBatch, site: HeadSite, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return the sums of head outputs z over the rows of each part of the inputs, and the numbers of rows, by position.

    Padding does not count. `part` is the number of the part that each row of the batch belongs to.
    """
    token_mask, counted = batch.token_mask.get(site.stack), torch.ones_like(z[..., :1, :1])
    if token_mask is not None and token_mask.shape == z.shape[:2]:
        counted = token_mask.to(z)[..., None, None]
    part = np.repeat(part, batch.n_inputs // len(batch.rows))
    is_part = torch.from_numpy(part == np.arange(PARTS)[:, None]).to(z)

    def summed(values: Tensor) -> Tensor:
        return (is_part @ values.flatten(start_dim=1)).unflatten(1, values.shape[1:]).cpu().double()

    return summed(z * counted), summed(counted)


def _added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add the (sums, counts) of head outputs of two batches, which may have different lengths."""
    short, long = sorted((one, other), key=lambda sums_counts: sums_counts[0].shape[1])
    gap = long[0].shape[1] - short[0].shape[1]
    sums, counts = (F.pad(few, (0, 0, 0, 0, 0, gap)) + many for few, many in zip(short, long, strict=True))
    return sums, counts


def _mean(sums: Tensor, counts: Tensor, part: int) -> Tensor:
    """Return the mean head output over all inputs (part 0) or over one part of them.

    At positions that no input of the part has, return the mean over all inputs.
    """
    whole = sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)  # the value at a position that is always padding is unused
    if not part:
        return whole
    return torch.where(counts[part - 1] > 0, sums[part - 1] / counts[part - 1].clamp(min=1), whole)


def with_values(
    cached: CachedPass, interventions: Sequence[Intervention], means: Means, number: int, batch: EvalBatch
) -> list[Intervention]:
    """Return copies of the interventions with the values that replace head outputs in the batch of index `number`."""
    n, replacements = cached.n_rows, {each.replacement for each in interventions}
    if n < 2 and any(REPLACEMENTS.get(name).needs_donors for name in replacements):
        raise InputError(
            "resample ablation takes head outputs from another example of the same length, but no other example has "
            "the length of one example",
            "give at least two examples of each length",
        )

    @cache
    def values(name: str, site: HeadSite, draw: int) -> Tensor | None:
        z, replacement = cached.z(site), cast(Replacement, REPLACEMENTS.get(name))
        mean = means[draw][site] if replacement.needs_mean else None
        donors = torch.from_numpy(_donors(n, number, draw)).to(z.device)
        return replacement.make(ReplacementInputs(z, mean, donors, batch.token_mask.get(site.stack)))

    with_values = []
    for each in interventions:
        by_site = {site: values(each.replacement, site, each.draw) for site in cached.sites.head_slots(each.heads)}
        with_values.append(replace(each, values={site: z for site, z in by_site.items() if z is not None}))
    return with_values


def donors_of(experiment: Experiment, draws: int) -> Donors:
    """Return [draw, example]: the donor of each example, whose head outputs replace its own in resample ablation.

    If an example has several rows, the donors of its first row are returned.
    """
    donors = np.empty((draws, experiment.n), dtype=np.int64)
    for i, batch in enumerate(experiment.batches):
        times = batch.n_inputs // len(batch.rows)
        for draw in range(draws):
            donors[draw, batch.rows] = batch.rows[_donors(batch.n_inputs, i, draw)[::times] // times]
    return donors


def _donors(n: int, batch: int, draw: int) -> NDArray[np.int64]:
    """Return a donor for each of `n` rows of a batch: the next row in a random circle, so never the row itself."""
    order = stream(0, f"resample {draw}" if draw else "resample", batch).permutation(n)
    donors = np.empty_like(order)
    donors[order] = np.roll(order, 1)
    return donors
