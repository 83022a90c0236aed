"""How much faster does headcount patch every head than a loop of hooked forward passes, on one thread?

Both compute the shares of `headcount routes` on all six ways of the packaged adder: for each of 24 heads, the part of
the gap that moves with the carry and with the placebo. The loops run one whole pass for each head, kind of patch and
direction (the event patched in, and patched out). A hook puts the output of one head on the donor's sum in place:

    with a cache       the outputs of all heads on all donors are read once, before the loop
    without a cache    the donor passes through the model for each patch again

headcount begins at the patched block, and leaves out the places of the answer behind the one that is read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import Ratio, timed
from headcount.analysis.routes import EventPatches, require_event
from headcount.experiments.models import RunModel
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.limits import N_SCAN
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.tasks.base import Quartets
from headcount.training.device import n_threads
from headcount.training.evaluation import SequenceModel

ROUNDS, LEAST, TOLERANCE = 3, 5.0, 1e-5
"""Number of rounds, the ratio that is asked for, and the largest difference between the shares of two ways."""
LOOPS = ("with a cache", "without a cache")
SMALLER, WITHOUT, WITH, LARGER = range(4)
KINDS = {"event": {WITHOUT: WITH, WITH: WITHOUT}, "placebo": {WITHOUT: SMALLER, WITH: LARGER}}
"""The donor of each receiver, by the kind of patch."""
Shares = NDArray[np.float64]
"""The share of each head, with the event and with the placebo, [head, 2]."""
Inputs = list[Tensor]


def measure() -> Iterator[Ratio]:
    """Compare the processor times on all ways of the carry; rounds alternate."""
    model = RunModel.of(load("sample:addition"))
    all_quartets = require_event(model).quartets(stream(0, "quartets"), N_SCAN)
    ways: dict[str, Callable[[], Shares]] = {"ours": lambda: _of_all(partial(_sweep, model), all_quartets)}
    for name in LOOPS:
        loop = partial(_loop, model, has_cache=name == "with a cache")
        ways[name] = partial(_of_all, loop, all_quartets)
    times: dict[str, list[float]] = {name: [] for name in ways}
    with n_threads(1), eval_mode(model.module), torch.no_grad():
        shares = {name: way() for name, way in ways.items()}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                times[name].append(timed(way)[1])
    for name in LOOPS:
        difference = float(np.abs(shares["ours"] - shares[name]).max())
        ratio = statistics.median(other / own for own, other in zip(times["ours"], times[name], strict=True))
        question = (
            f"patches of 24 heads, event and placebo, {len(all_quartets)} ways of {N_SCAN} quartets, against a loop "
        )
        question += "against a loop of hooked passes "
        question += f"{name} of donors (1 thread; shares apart by {difference:.0e})"
        own_time, other_time = (f"{statistics.median(times[each]):.2f} s" for each in ("ours", name))
        yield Ratio.at_least(question, own_time, other_time, ratio, LEAST, valid=difference <= TOLERANCE)


def _of_all(work: Callable[[Quartets], Shares], all_quartets: list[Quartets]) -> Shares:
    return np.concatenate([work(quartets) for quartets in all_quartets])


def _sweep(model: RunModel, quartets: Quartets) -> Shares:
    """Return the shares by headcount."""
    patches = EventPatches(model, quartets)
    shares = patches.head_shares([(head,) for head in model.sites.heads], 1)
    return np.array([[moved.share, placebo.share] for _, _, moved, placebo in shares])


# --- a loop of hooked passes ------------------------------------------------------------------------------------------


def _loop(model: RunModel, quartets: Quartets, *, has_cache: bool) -> Shares:
    """Return the shares by hooks alone."""
    answers, n = cast(SequenceModel, model.answers), len(quartets)
    inputs, labels = answers.teacher_forced(np.concatenate(quartets.examples))
    parts = [[each[i * n : (i + 1) * n] for each in inputs] for i in range(4)]
    seen = [_pass_with_outputs(model, part) for part in parts]
    predicted = torch.cat([logits.argmax(dim=-1) for _, logits in seen])
    assert bool((predicted == labels).all()), "the packaged adder is right on every sum"
    place = [each.label for each in answers.task.answer_positions].index(quartets.read)
    without, with_event = (labels.unflatten(0, (4, n))[i][:, place] for i in (WITHOUT, WITH))

    def difference(logits: Tensor) -> Tensor:
        rows, at = torch.arange(n), logits[:, place].double()
        return at[rows, with_event] - at[rows, without]

    clean = {i: difference(seen[i][1]) for i in (WITHOUT, WITH)}
    gap = float((clean[WITH] - clean[WITHOUT]).sum())
    shares = []
    for site, each in model.sites.items():
        for head in range(len(each.heads)):
            for donors in KINDS.values():
                moved = {}
                for receiver, donor in donors.items():
                    outputs = seen[donor][0] if has_cache else _pass_with_outputs(model, parts[donor])[0]
                    logits = _patched_pass(model, site, head, parts[receiver], outputs)
                    moved[receiver] = float((difference(logits) - clean[receiver]).sum())
                shares.append((moved[WITHOUT] - moved[WITH]) / 2 / gap)
    return np.array(shares).reshape(-1, len(KINDS))


def _pass_with_outputs(model: RunModel, inputs: Inputs) -> tuple[Mapping[HeadSite, Tensor], Tensor]:
    """Return the inputs of all output projections, and the logits."""
    outputs: dict[HeadSite, Tensor] = {}

    def keep(site: HeadSite, module: nn.Module, args: tuple[Tensor]) -> None:
        outputs[site] = args[0]

    handles = [each.projection.register_forward_pre_hook(partial(keep, site)) for site, each in model.sites.items()]
    logits = model.module(*inputs)
    for handle in handles:
        handle.remove()
    return outputs, logits


def _patched_pass(
    model: RunModel, site: HeadSite, head: int, inputs: Inputs, outputs: Mapping[HeadSite, Tensor]
) -> Tensor:
    """Return the logits of a whole pass in which one head has the donor's output."""
    n_heads = len(model.sites[site].heads)

    def patch(module: nn.Module, args: tuple[Tensor]) -> Tensor:
        z = args[0].clone()
        z.unflatten(-1, (n_heads, -1))[..., head, :] = outputs[site].unflatten(-1, (n_heads, -1))[..., head, :]
        return z

    handle = model.sites[site].projection.register_forward_pre_hook(patch)
    logits: Tensor = model.module(*inputs)
    handle.remove()
    return logits
