"""What would a best pairing find by chance? That with models which cannot have learned the same.

Two nulls, for they fail differently. An *untrained* model in the place of a run is drawn as that run's weights once
were, so a run that is itself untrained is one more draw: p is exact, whatever heads attend to by their build and by the
data. But untrained heads spread their attention, and a trained head shares about the same little with each of them: two
trained heads that look at a few keys each would beat them by luck. So a run is also compared with the other one
*relabelled*: each of its heads keeps how peaked and how steady it is, but its keys change places, and examples are
shuffled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.head_activity import Activity, KindActivity, observe
from headcount.analysis.pairing import Pairing, Partners, Values
from headcount.models.build import Model, build_model
from headcount.runs.run import Run
from headcount.seeds import integer, stream
from headcount.tasks.base import Tokens


def untrained_model(run: Run, index: int, seed: int = 0) -> Model:
    """As the run's model was before it was trained, but for its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(seed, "untrained stand-in", index))
        model = build_model(run.config.model, run.task)
    return model.to(next(run.model.parameters()).device).eval()


@dataclass
class Draws:
    """Best pairings with one kind of null model, seen from one of the two runs."""

    axis: int
    """0 for the first run's heads, 1 for the other's."""
    shared: list[Values] = field(default_factory=list)
    """The overlap of each head with its partner, draw by draw."""
    written: list[Values] = field(default_factory=list)
    """The CKA of what they write."""
    means: list[float] = field(default_factory=list)
    """The mean overlap of all pairs."""
    partners: list[Partners] = field(default_factory=list)

    def add(self, pairing: Pairing, *, outputs: bool = True) -> None:
        """One more draw."""
        self.shared.append(pairing.shared(self.axis))
        self.means.append(pairing.mean)
        self.partners.append(pairing.partners)
        if outputs:
            self.written.append(pairing.written(self.axis))


def pair_with_untrained(
    run: Run, other: Run, inputs: tuple[Tokens, ...], pairing: Pairing, n: int, seed: int, step: Callable[[], None]
) -> tuple[Draws, Draws]:
    """Our heads with untrained stand-ins for the other run, and its heads with stand-ins for ours."""
    found = Draws(0), Draws(1)
    for i in range(n):
        theirs = _like(pairing.ours, observe(untrained_model(other, i, seed), inputs))
        ours = theirs
        if run.config.model != other.config.model:
            ours = _like(pairing.ours, observe(untrained_model(run, i, seed), inputs))
        found[0].add(Pairing.best(pairing.ours, theirs))
        found[1].add(Pairing.best(ours, pairing.theirs))
        step()
    return found


def pair_with_relabelled(
    pairing: Pairing, n: int, seed: int, step: Callable[[], None], *, outputs: bool = False
) -> Draws:
    """Our heads with the other run's, whose keys changed places.

    For attention, examples are shuffled too. For `outputs` they are not, or nothing would be left to compare: heads
    write what their own values are at the other keys.
    """
    found, rng = Draws(0), stream(seed, "relabelled")
    for _ in range(n):
        examples = np.arange(pairing.n_examples) if outputs else rng.permutation(pairing.n_examples)
        moved = {kind: each.looking(relabelled(each, examples, rng)) for kind, each in pairing.theirs.items()}
        found.add(Pairing.best(pairing.ours, moved), outputs=outputs)
        step()
    return found


def _like(known: Activity, found: Activity) -> Activity:
    return {kind: found[kind] for kind in known}


def relabelled(activity: KindActivity, examples: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
    """The weights with each head's keys in another order, the same for all queries as far as they see those keys."""
    n_keys = activity.visible.shape[-1]
    order_H1K = torch.from_numpy(rng.random((len(activity.heads), 1, n_keys)))
    shuffled_HQK = order_H1K.masked_fill(~activity.visible, torch.inf).argsort(dim=-1)
    weights = activity.weights[torch.from_numpy(examples)]
    moved = weights.gather(-1, shuffled_HQK.expand(weights.shape))
    if activity.visible.all():
        return moved
    in_order_QK = torch.arange(float(n_keys)).masked_fill(~activity.visible, torch.inf).argsort(dim=-1, stable=True)
    return torch.zeros_like(moved).scatter_(-1, in_order_QK.expand(weights.shape), moved)
