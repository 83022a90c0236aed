"""How much of a head's attention goes where, and how concentrated is it, example by example?

Weights are read a few queries at a time, so that no matrix of queries times keys is ever held. For each measure, head,
example and column the sum over queries is kept, and how many queries it counts:

    target          mass on the keys that the task calls so; at queries that may see such keys, and others beside them
    other tokens    the same for keys that are none of the task's, such as a class token that a model has besides
    entropy         -sum w log w, in nats
    entropy share   entropy / log n, where n > 1 keys are visible
    sparsity        (sqrt n - l1 / l2) / (sqrt n - 1), where n > 1: 0 if even, 1 if on one key (Hoyer 2004,
                    "Non-negative matrix factorization with sparseness constraints", JMLR 5)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from headcount.errors import InputError
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadSite
from headcount.models.reading import AttentionChunk
from headcount.seeds import stream
from headcount.tasks.base import AttentionTargets, ClassTask, Examples, Task

ENTROPY, ENTROPY_SHARE, SPARSITY = "entropy", "entropy share", "sparsity"
"""How spread attention is; every other measure is a target."""
SPREADS, OTHERS = (ENTROPY, ENTROPY_SHARE, SPARSITY), "other tokens"
Sums = NDArray[np.float64]
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Measured:
    """One measure at one site. The last column stands for queries that are about none."""

    sums: Sums
    """[example, head, column]: over the queries that count."""
    counts: Sums
    """[example, column]: how many those are."""
    even: Sums | None
    """[example, column]: what the sums would be if attention were even; None if the measure is no mass on keys."""


def measure(
    model: TaskAttention,
    inputs_seen: EvalInputs,
    progress: Callable[[int, int], None] | None = None,
    *,
    norm_weighted: bool = False,
) -> dict[HeadSite, dict[str, Measured]]:
    """Every measure, by site and name, of the sites that have heads; `progress(done, total)` in examples.

    Norm-weighted, a key counts by its share of what is added instead of by its weight (`ValueNorms`).
    """
    measures, n = HeadMeasures(model.task, inputs_seen.examples), len(inputs_seen)
    tell = None if progress is None else lambda done: progress(done, n)
    model.read_attention(inputs_seen.examples, measures.add, norm_weighted=norm_weighted, progress=tell)
    return measures.found


class HeadMeasures:
    """Adds up weights as they are read, a few queries at a time."""

    def __init__(self, task: Task, examples: Examples) -> None:
        self.found: dict[HeadSite, dict[str, Measured]] = {}
        self._task, self._examples = task, examples
        self._targets: dict[HeadSite, tuple[NDArray[np.int64], AttentionTargets]] = {}

    def add(self, chunk: AttentionChunk) -> None:
        """Some more queries; one that is none of the task's does not count."""
        targets, here = self._targets_at(chunk), self.found.setdefault(chunk.site, {})
        column_QC = np.eye(len(targets.columns) + 1)[targets.query_column[chunk.query_places]]  # -1 is the last
        is_asked_Q = torch.from_numpy(chunk.query_places >= 0).to(chunk.weights.device)
        for name, *values in _values(chunk, targets):
            if name not in here:
                counts = np.zeros((len(self._examples), column_QC.shape[1]))
                sums = np.zeros((len(self._examples), chunk.weights.shape[1], column_QC.shape[1]))
                here[name] = Measured(sums, counts, None if name in SPREADS else counts.copy())
            values[1] = values[1] & is_asked_Q
            values_BHQ, counted_BQ, even_BQ = (x.cpu().numpy().astype(np.float64) for x in values)
            here[name].sums[chunk.rows] += (values_BHQ * counted_BQ[:, None]) @ column_QC
            here[name].counts[chunk.rows] += counted_BQ @ column_QC
            if (even := here[name].even) is not None:
                even[chunk.rows] += (even_BQ * counted_BQ) @ column_QC

    def _targets_at(self, chunk: AttentionChunk) -> AttentionTargets:
        """What heads may attend to in the chunk's examples, made once for all of their queries."""
        rows, targets = self._targets.get(chunk.site, (None, None))
        if targets is None or rows is not chunk.rows:
            targets = self._task.attention_targets(chunk.site.stack, chunk.site.kind, self._examples[chunk.rows])
            self._targets[chunk.site] = chunk.rows, targets
        return targets


Values = tuple[str, Float[Tensor, "batch head query"], Bool[Tensor, "#batch query"], Float[Tensor, "#batch query"]]
"""A measure: its name, its values, the queries that count, and what even attention would give them."""


def _values(chunk: AttentionChunk, targets: AttentionTargets) -> Iterator[Values]:
    """Attention on each target, and how concentrated it is.

    A query that may see nothing but the target, or nothing of it, has no choice. A key that is none of the task's is
    no target, but is seen.
    """
    weights, sees = chunk.weights, chunk.sees
    q, k = chunk.query_places[:, None], chunk.key_places[None]
    n_BQ = sees.sum(dim=-1)[None]
    found = {name: target(q, k) & (q >= 0) & (k >= 0) for name, target in targets.targets.items()}
    if (k < 0).any():
        found[OTHERS] = (q >= 0) & (k < 0)
    for name, is_meant in found.items():
        is_target = torch.from_numpy(is_meant).to(weights.device) & sees
        is_target_BQK = is_target if is_target.ndim == 3 else is_target[None]
        hits_BQ = is_target_BQK.sum(dim=-1)
        mass_BHQ = (weights * is_target_BQK[:, None]).sum(dim=-1)
        yield name, mass_BHQ, (hits_BQ > 0) & (hits_BQ < n_BQ), hits_BQ.double() / n_BQ
    several, n_BHQ, even = n_BQ > 1, n_BQ.clamp(min=2)[:, None], torch.zeros_like(n_BQ)
    entropy_BHQ = torch.special.entr(weights).sum(dim=-1)
    l1_BHQ, l2_BHQ = weights.sum(dim=-1), weights.square().sum(dim=-1).sqrt()
    yield ENTROPY, entropy_BHQ, torch.ones_like(several), even
    yield ENTROPY_SHARE, entropy_BHQ / n_BHQ.log(), several, even
    yield SPARSITY, (n_BHQ.sqrt() - l1_BHQ / l2_BHQ) / (n_BHQ.sqrt() - 1), several, even


DIGITS = 6
"""That count, of a number in a result: more would make results long and say nothing."""
POWERS = np.array([float(f"1e{n}") for n in range(23)])
"""Of ten, as far as they are exact."""


def rounded(value: float, digits: int = DIGITS) -> float:
    """To so many digits that count."""
    return float(f"{value:.{digits}g}")


def matrix_of(array: NDArray[np.floating[Any]]) -> Matrix:
    """Rounded, for a result: every number as `rounded` has it, but all at once, for there may be millions."""
    values = np.asarray(array, dtype=np.float64)
    after = DIGITS - 1 - np.floor(np.log10(np.abs(values, where=values != 0, out=np.ones_like(values))))
    is_quick = (after >= 0) & (after < len(POWERS))
    scale = POWERS[np.where(is_quick, after, 0).astype(int)]
    scaled = values * scale
    is_quick &= np.abs(scaled % 1 - 0.5) > 1e-6  # so near to the middle, the product's own error may tip it over
    found = np.rint(scaled) / scale
    found[~is_quick] = [rounded(each) for each in values[~is_quick].tolist()]
    return tuple(map(tuple, found.tolist()))


# --- which examples? a held-out set, or fresh sequences of one length, without padding --------------------------------


MOST, FEWEST = 1000, 16
"""Fresh sequences: as many as `PAIRS` allows, between these."""
PAIRS = 2**26
"""Pairs of a query and a key over all fresh sequences: some ten seconds for each layer of four heads."""
LONGEST = 2**13
CONTROL_MOST, CONTROL_PAIRS, CONTROL_LONGEST = 64, 2**18, 2**9
"""What controls are measured on: examples, pairs of a query and a key over all of them, and the longest sequence."""


@dataclass(frozen=True)
class EvalInputs:
    """Examples of one length."""

    examples: Examples
    width: int
    """Tokens of an example, as the task has them."""
    data: str
    """Which examples these are, in words."""

    def __len__(self) -> int:
        return len(self.examples)

    def some(self, n: int) -> EvalInputs:
        """At most `n` of them, spread over all."""
        return replace(self, examples=self.examples[:: -(-len(self) // n)])


def eval_inputs(model: TaskAttention, length: int | None = None) -> EvalInputs:
    """The test set; of a classifier, fresh sequences of this length (the longest trained one)."""
    if model.task.output_type == "sequence":
        if length is not None:
            raise InputError(
                f"the examples of {model.name} all have one length",
                "leave --length out: it is for models that classify sequences",
            )
        examples = model.task.split("test")
        if len(examples) < 2:
            raise InputError(f"{model.name} has a test set of one example: it says nothing of errors", "raise --n-test")
        return EvalInputs(examples, model.task.longest, "the test set")
    task = cast(ClassTask, model.task)
    length = task.trained_lengths[1] if length is None else length
    if not 2 <= length <= LONGEST:
        raise InputError(f"sequences of {length:,} cannot be measured", f"choose a --length from 2 to {LONGEST:,}")
    # Half of the last class, half of the first, over all ways to make one.
    each = max(FEWEST, min(MOST, PAIRS // length**2)) // (2 * len(task.negatives))
    rng, n = stream(0, "watched", length), each * len(task.negatives)
    parts = [task.sample_of_length(rng, length, negative, each) for negative in task.negatives]
    examples = np.concatenate([*parts, task.sample_of_length(rng, length, None, n)])
    return EvalInputs(examples, length, f"fresh sequences of {length:,}, half of them {task.classes[-1]}")


def control_inputs(model: TaskAttention, length: int | None = None) -> EvalInputs:
    """Fewer of the same examples, and none too long: what controls show differs more between heads than examples."""
    if model.task.output_type == "class":
        length = min(cast(ClassTask, model.task).trained_lengths[1] if length is None else length, CONTROL_LONGEST)
    inputs_seen = eval_inputs(model, length)
    return inputs_seen.some(max(1, min(CONTROL_MOST, CONTROL_PAIRS // inputs_seen.width**2)))
