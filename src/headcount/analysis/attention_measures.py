"""Measure which keys each head attends to, and how concentrated its attention is, in each example of a task.

Attention weights are read a few queries at a time, because a matrix of all queries and keys may not fit into memory.
For each of these measures, head, example and column (such as the 10s), the sum over queries and the number of queries
are kept:

    target          attention on the keys of one of the task's targets, at queries that can see such keys and others
    other tokens    attention on keys that do not belong to the task's input, such as a class token
    entropy         -sum w log w, in nats
    entropy share   entropy / log n, where n > 1 keys are visible
    sparsity        (sqrt n - l1 / l2) / (sqrt n - 1), where n > 1: 0 if uniform, 1 if on one key (Hoyer 2004,
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
from headcount.tasks.base import AttentionTargets, ClassTask, Examples, SequenceTask, Task, longest_rows

ENTROPY, ENTROPY_SHARE, SPARSITY = "entropy", "entropy share", "sparsity"
"""Names of the measures of how concentrated attention is; every other measure is attention on a kind of key."""
SPREADS, OTHERS = (ENTROPY, ENTROPY_SHARE, SPARSITY), "other tokens"
Sums = NDArray[np.float64]
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class MeasureSums:
    """Sums of one attention measure over the queries of each example, by column of the task (such as the 10s).

    The last column is for queries outside of all columns.
    """

    sums: Sums
    """Sums of the measure over the counted queries, [example, head, column]."""
    counts: Sums
    """Number of queries that are counted for the measure, [example, column]."""
    even: Sums | None
    """The sums under uniform attention, [example, column]; None unless the measure is attention on a kind of key."""


def measure(
    model: TaskAttention,
    inputs_seen: EvalInputs,
    progress: Callable[[int, int], None] | None = None,
    *,
    norm_weighted: bool = False,
) -> dict[HeadSite, dict[str, MeasureSums]]:
    """Measure the attention of every head on some examples; return sums by attention block and name of the measure.

    With `norm_weighted`, attention weights are multiplied by the norms of the value vectors (`ValueNorms`).
    `progress(done, total)` counts examples.
    """
    measures, n = HeadMeasures(model.task, inputs_seen.examples), len(inputs_seen)
    report = None if progress is None else lambda done: progress(done, n)
    model.read_attention(inputs_seen.examples, measures.add, norm_weighted=norm_weighted, progress=report)
    return measures.by_site


class HeadMeasures:
    """Running sums of all attention measures, by attention block, updated a few queries at a time."""

    def __init__(self, task: Task, examples: Examples) -> None:
        self.by_site: dict[HeadSite, dict[str, MeasureSums]] = {}
        self._task, self._examples = task, examples
        self._targets: dict[HeadSite, tuple[NDArray[np.int64], AttentionTargets]] = {}

    def add(self, chunk: AttentionChunk) -> None:
        """Add the attention weights of the next queries, given as a chunk, to the sums.

        Queries outside of the task's input, such as a class token, are left out.
        """
        targets, measures = self._targets_at(chunk), self.by_site.setdefault(chunk.site, {})
        column_QC = np.eye(len(targets.columns) + 1)[targets.query_column[chunk.query_places]]  # -1 is the last
        is_task_Q = torch.from_numpy(chunk.query_places >= 0).to(chunk.weights.device)
        for name, *values in _values(chunk, targets):
            if name not in measures:
                counts = np.zeros((len(self._examples), column_QC.shape[1]))
                sums = np.zeros((len(self._examples), chunk.weights.shape[1], column_QC.shape[1]))
                measures[name] = MeasureSums(sums, counts, None if name in SPREADS else counts.copy())
            values[1] = values[1] & is_task_Q
            values_BHQ, counted_BQ, even_BQ = (x.cpu().numpy().astype(np.float64) for x in values)
            measures[name].sums[chunk.rows] += (values_BHQ * counted_BQ[:, None]) @ column_QC
            measures[name].counts[chunk.rows] += counted_BQ @ column_QC
            if (even := measures[name].even) is not None:
                even[chunk.rows] += (even_BQ * counted_BQ) @ column_QC

    def _targets_at(self, chunk: AttentionChunk) -> AttentionTargets:
        """Return the task's targets (kinds of keys, such as the operator) for a chunk of attention weights.

        They are computed once per batch of examples.
        """
        rows, targets = self._targets.get(chunk.site, (None, None))
        if targets is None or rows is not chunk.rows:
            targets = self._task.attention_targets(chunk.site.stack, chunk.site.kind, self._examples[chunk.rows])
            self._targets[chunk.site] = chunk.rows, targets
        return targets


Values = tuple[str, Float[Tensor, "batch head query"], Bool[Tensor, "#batch query"], Float[Tensor, "#batch query"]]
"""One measure of a chunk of attention weights: name, values, queries that count, and values under uniform attention."""


def _values(chunk: AttentionChunk, targets: AttentionTargets) -> Iterator[Values]:
    """Yield every measure of a chunk of attention weights: attention on each kind of key, entropy and sparsity.

    A query counts for a kind of key (target) if it can see such keys and other keys. Keys outside of the task's input
    belong to no target.
    """
    weights, sees = chunk.weights, chunk.sees
    q, k = chunk.query_places[:, None], chunk.key_places[None]
    n_BQ = sees.sum(dim=-1)[None]
    masks = {name: target(q, k) & (q >= 0) & (k >= 0) for name, target in targets.targets.items()}
    if (k < 0).any():
        masks[OTHERS] = (q >= 0) & (k < 0)
    for name, mask in masks.items():
        is_target = torch.from_numpy(mask).to(weights.device) & sees
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
"""Number of significant digits of a number in a result."""
POWERS = np.array([float(f"1e{n}") for n in range(23)])
"""Powers of ten that are exact in double precision."""


def rounded(value: float, digits: int = DIGITS) -> float:
    """Return a number rounded to `digits` significant digits."""
    return float(f"{value:.{digits}g}")


def matrix_of(array: NDArray[np.floating[Any]]) -> Matrix:
    """Return a matrix rounded to `DIGITS` significant digits, equal to `rounded` of each entry but much faster."""
    values = np.asarray(array, dtype=np.float64)
    after = DIGITS - 1 - np.floor(np.log10(np.abs(values, where=values != 0, out=np.ones_like(values))))
    is_quick = (after >= 0) & (after < len(POWERS))
    scale = POWERS[np.where(is_quick, after, 0).astype(int)]
    scaled = values * scale
    is_quick &= np.abs(scaled % 1 - 0.5) > 1e-6  # close to a tie, the error of the product may change the rounding
    matrix = np.rint(scaled) / scale
    matrix[~is_quick] = [rounded(value) for value in values[~is_quick].tolist()]
    return tuple(map(tuple, matrix.tolist()))


# --- examples: a held-out set, or new sequences of one length, without padding ----------------------------------------


MOST, FEWEST = 1000, 16
"""Largest and smallest number of new sequences on which the attention of a classifier is measured."""
PAIRS = 2**26
"""Largest number of query-key pairs over all new sequences: about ten seconds of work for each layer of four heads."""
LONGEST = 2**13
CONTROL_MOST, CONTROL_PAIRS, CONTROL_LONGEST = 64, 2**18, 2**9
"""Limits for control models, which learned nothing: number of examples, of query-key pairs, and sequence length."""


@dataclass(frozen=True)
class EvalInputs:
    """Examples of equal length, and so without padding, on which attention is measured."""

    examples: Examples
    width: int
    """Number of tokens of the task's input in each example (without class tokens)."""
    data: str
    """Description of the examples in words, such as `the test set`."""

    def __len__(self) -> int:
        return len(self.examples)

    def some(self, n: int) -> EvalInputs:
        """Return at most `n` of these examples, evenly spaced."""
        return replace(self, examples=self.examples[:: -(-len(self) // n)])


def eval_inputs(model: TaskAttention, length: int | None = None) -> EvalInputs:
    """Return examples of equal length, and so without padding, on which attention is measured.

    For a classifier, they are new sequences of `length` tokens (default: the longest training length). Otherwise they
    are the examples of the test set with the most tokens; in most tasks, all examples are equally long.
    """
    if model.task.output_type == "sequence":
        if length is not None:
            raise InputError(
                f"--length is for models that classify sequences, and {model.name} generates its answers",
                "leave --length out",
            )
        test = model.task.split("test")
        examples = test[longest_rows(cast(SequenceTask, model.task), test)]  # heads do not attend to padding
        which = f"the longest {model.task.words.examples} of " if len(examples) < len(test) else ""
        if len(examples) < 2:
            raise InputError(
                f"{model.name} has a test set of one example, but a standard error needs two",
                "train a model with a larger test set, such as --n-test 2000",
            )
        return EvalInputs(examples, model.task.longest, f"{which}the test set")
    task = cast(ClassTask, model.task)
    length = task.trained_lengths[1] if length is None else length
    if not 2 <= length <= LONGEST:
        raise InputError(f"--length must be from 2 to {LONGEST:,}, got {length:,}")
    # Half of the examples belong to the last class. The other half is split evenly over the kinds of negatives.
    n_per_kind = max(FEWEST, min(MOST, PAIRS // length**2)) // (2 * len(task.negatives))
    rng, n = stream(0, "watched", length), n_per_kind * len(task.negatives)
    parts = [task.sample_of_length(rng, length, negative, n_per_kind) for negative in task.negatives]
    examples = np.concatenate([*parts, task.sample_of_length(rng, length, None, n)])
    return EvalInputs(examples, length, f"new sequences of {length:,} tokens, half of them {task.classes[-1]}")


def control_inputs(model: TaskAttention, length: int | None = None) -> EvalInputs:
    """Return examples for control models, which learned nothing: fewer and shorter ones than `eval_inputs` returns.

    Few examples suffice, because the measures of controls vary more between heads than between examples.
    """
    if model.task.output_type == "class":
        length = min(cast(ClassTask, model.task).trained_lengths[1] if length is None else length, CONTROL_LONGEST)
    inputs_seen = eval_inputs(model, length)
    return inputs_seen.some(max(1, min(CONTROL_MOST, CONTROL_PAIRS // inputs_seen.width**2)))
