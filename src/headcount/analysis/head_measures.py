"""How much of a head's attention goes where, and how concentrated is it, example by example?

Weights are read a few queries at a time, so that no matrix of queries times keys is ever held. For each measure, head,
example and column the sum over queries is kept, and how many queries it counts:

    target          mass on the keys that the task calls so; at queries that may see such keys, and others beside them
    entropy         -sum w log w, in nats
    entropy share   entropy / log n, where n > 1 keys are visible
    sparsity        (sqrt n - l1 / l2) / (sqrt n - 1), where n > 1: 0 if even, 1 if on one key (Hoyer 2004,
                    "Non-negative matrix factorization with sparseness constraints", JMLR 5)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.models.attention import MultiHeadAttention, Weights
from headcount.models.finite import require_numbers
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, Model
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import AttentionTargets, ClassTask, Examples, SequenceTask, Tokens
from headcount.training.evaluation import on_device

ENTROPY, ENTROPY_SHARE, SPARSITY = "entropy", "entropy share", "sparsity"
"""How spread attention is; every other measure is a target."""
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
    run: Run,
    inputs_seen: EvalInputs,
    progress: Callable[[int, int], None] | None = None,
    *,
    norm_weighted: bool = False,
) -> dict[HeadSite, dict[str, Measured]]:
    """Every measure, by site and name, of the sites that have heads; `progress(done, total)` in examples.

    Norm-weighted, a key counts by its share of what is added instead of by its weight (`ValueNorms`).
    """
    sites = {head.site for head in run.model.heads}
    with eval_mode(run.model, gradients=False) as device, ValueNorms(run.model, norm_weighted) as norms:
        reader = HeadMeasures(run.model, len(inputs_seen), norms)
        for rows in inputs_seen.blocks():
            examples, inputs = inputs_seen[rows]
            reader.begin(rows, {site: run.task.attention_targets(site.stack, site.kind, examples) for site in sites})
            require_numbers(run.model(*on_device(device, *inputs), weights=reader), run.task.show(examples[0]))
            if progress:
                progress(rows.stop, len(inputs_seen))
    return reader.found


class HeadMeasures:
    """Reads weights as they are made, a few queries at a time."""

    def __init__(self, model: Model, n: int, norms: ValueNorms) -> None:
        self.found: dict[HeadSite, dict[str, Measured]] = {}
        self._model, self._n, self._norms = model, n, norms
        self._rows, self._targets = slice(0), dict[HeadSite, AttentionTargets]()
        self._done: dict[HeadSite, int] = {}

    def begin(self, rows: slice, targets: dict[HeadSite, AttentionTargets]) -> None:
        """These of the examples come next, from their first query on."""
        self._rows, self._targets = rows, targets
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries."""
        weights = self._norms.share(site, weights, keys)
        first, targets = self._done.get(site, 0), self._targets[site]
        self._done[site] = last = first + weights.shape[2]
        queries, here = slice(first, last), self.found.setdefault(site, {})
        column_QC = np.eye(len(targets.columns) + 1)[targets.query_column[queries]]  # -1 is the last
        sees = visible_keys(self._model, site, queries, keys, n_keys, weights.device)
        for name, *values in _values(weights, targets, queries, keys, sees):
            if name not in here:
                counts = np.zeros((self._n, column_QC.shape[1]))
                sums = np.zeros((self._n, weights.shape[1], column_QC.shape[1]))
                here[name] = Measured(sums, counts, counts.copy() if name in targets.targets else None)
            values_BHQ, counted_BQ, even_BQ = (x.cpu().numpy().astype(np.float64) for x in values)
            here[name].sums[self._rows] += (values_BHQ * counted_BQ[:, None]) @ column_QC
            here[name].counts[self._rows] += counted_BQ @ column_QC
            if (even := here[name].even) is not None:
                even[self._rows] += (even_BQ * counted_BQ) @ column_QC


def visible_keys(
    model: Model, site: HeadSite, queries: slice, keys: slice, n_keys: int, device: torch.device
) -> Bool[Tensor, "query key"]:
    """Which of these keys each of these queries may see, where nothing is padding."""
    if isinstance(model, Classifier):
        is_causal = model.config.causal or model.positions.forces_causal
    else:
        is_causal = site.stack == "decoder" or model.source_positions.forces_causal
    masking = AttentionMask() if site.kind == "cross" else AttentionMask(causal=is_causal, window=model.config.window)
    mask = masking.mask_for(queries, keys, n_keys, n_keys, device)
    shape = queries.stop - queries.start, keys.stop - keys.start
    return torch.ones(shape, dtype=torch.bool, device=device) if mask is None else mask[0, 0]


Values = tuple[str, Float[Tensor, "batch head query"], Bool[Tensor, "#batch query"], Float[Tensor, "#batch query"]]
"""A measure: its name, its values, the queries that count, and what even attention would give them."""


def _values(
    weights: Weights, targets: AttentionTargets, queries: slice, keys: slice, sees: Bool[Tensor, "query key"]
) -> Iterator[Values]:
    """Attention on each target, and how concentrated it is.

    A query that may see nothing but the target, or nothing of it, has no choice.
    """
    q, k = np.arange(queries.start, queries.stop)[:, None], np.arange(keys.start, keys.stop)[None]
    n_BQ = sees.sum(dim=-1)[None]
    for name, target in targets.targets.items():
        is_target = torch.from_numpy(target(q, k)).to(weights.device) & sees
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


def rounded(value: float, digits: int = 6) -> float:
    """To so many digits that count: more would make results long and say nothing."""
    return float(f"{value:.{digits}g}")


def matrix_of(array: NDArray[np.floating[Any]]) -> Matrix:
    """Rounded, for a result."""
    return tuple(tuple(map(rounded, row)) for row in array)


# --- which examples? a held-out set, or fresh sequences of one length, without padding --------------------------------


MOST, FEWEST = 1000, 16
"""Fresh sequences: as many as `PAIRS` allows, between these."""
PAIRS = 2**26
"""Pairs of a query and a key over all fresh sequences: some ten seconds for each layer of four heads."""
LONGEST = 2**13
CONTROL_MOST, CONTROL_PAIRS, CONTROL_LONGEST = 64, 2**18, 2**9
"""What controls are measured on: examples, pairs of a query and a key over all of them, and the longest sequence."""
AT_ONCE, PAIRS_AT_ONCE = 256, 2**20
"""Examples, and pairs of a query and a key, in one forward pass."""


@dataclass(frozen=True)
class EvalInputs:
    """Examples of one length, and what a model is fed of them."""

    examples: Examples
    inputs: tuple[Tokens, ...]
    data: str
    """Which examples these are, in words."""

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, rows: slice) -> tuple[Examples, tuple[Tokens, ...]]:
        return self.examples[rows], tuple(tokens[rows] for tokens in self.inputs)

    def some(self, n: int) -> EvalInputs:
        """At most `n` of them, spread over all."""
        every = slice(None, None, -(-len(self) // n))
        examples, inputs = self[every]
        return EvalInputs(examples, inputs, self.data)

    def blocks(self) -> Iterator[slice]:
        """A forward pass' worth at a time."""
        width = max(tokens.shape[1] for tokens in self.inputs)
        size = max(1, min(AT_ONCE, PAIRS_AT_ONCE // width**2))
        return (slice(i, min(i + size, len(self))) for i in range(0, len(self), size))


def eval_inputs(run: Run, length: int | None = None) -> EvalInputs:
    """The test set; of a classifier, fresh sequences of this length (the longest trained one)."""
    if not isinstance(run.model, Classifier):
        if length is not None:
            raise InputError(
                f"the examples of {run.name} all have one length",
                "leave --length out: it is for runs that classify sequences",
            )
        examples = run.task.split("test")
        if len(examples) < 2:
            raise InputError(f"{run.name} has a test set of one example: it says nothing of errors", "raise --n-test")
        batch = cast(SequenceTask, run.task).encode(examples)
        return EvalInputs(examples, (batch.source, batch.decoder_input), "the test set")
    task = cast(ClassTask, run.task)
    length = task.trained_lengths[1] if length is None else length
    if not 2 <= length <= LONGEST:
        raise InputError(f"sequences of {length:,} cannot be measured", f"choose a --length from 2 to {LONGEST:,}")
    # Half of the last class, half of the first, over all ways to make one.
    each = max(FEWEST, min(MOST, PAIRS // length**2)) // (2 * len(task.negatives))
    rng, n = stream(0, "watched", length), each * len(task.negatives)
    parts = [task.sample_of_length(rng, length, negative, each) for negative in task.negatives]
    examples = np.concatenate([*parts, task.sample_of_length(rng, length, None, n)])
    what = f"fresh sequences of {length:,}, half of them {task.classes[-1]}"
    return EvalInputs(examples, (task.encode(examples).source,), what)


def control_inputs(run: Run, length: int | None = None) -> EvalInputs:
    """Fewer of the same examples, and none too long: what controls show differs more between heads than examples."""
    if isinstance(run.model, Classifier):
        length = min(cast(ClassTask, run.task).trained_lengths[1] if length is None else length, CONTROL_LONGEST)
    inputs_seen = eval_inputs(run, length)
    width = max(tokens.shape[1] for tokens in inputs_seen.inputs)
    return inputs_seen.some(max(1, min(CONTROL_MOST, CONTROL_PAIRS // width**2)))


# --- norm-weighted attention: how much does each key add to what a head writes? ---------------------------------------


WEIGHTINGS = ("attention weight", "norm-weighted attention")
"""How a key may count: without and with norms."""
SMALLEST = 1e-30
"""A row that attends nowhere stays 0."""


class ValueNorms(ExitStack):
    """||f(x_j)|| of every head and key, of the last pass made inside the context.

    A large weight on a key whose value is small adds little. What key j adds at query i is a_ij f(x_j), where f is the
    head's value projection and then its part of the output projection; its norm is a_ij ||f(x_j)|| (Kobayashi et al.
    2020, "Attention is not only a weight", arXiv 2004.10102). Shown is each key's share of these norms, so that rows
    sum to 1 like those of weights, and equal them where all norms are alike.
    """

    def __init__(self, model: Model, is_wanted: bool = True) -> None:
        super().__init__()
        found = {site: block.attention for site, block in model.blocks.items()} if is_wanted else {}
        self.attentions = {site: each for site, each in found.items() if isinstance(each, MultiHeadAttention)}
        self.values: dict[HeadSite, Float[Tensor, "batch head length d_head"]] = {}
        self._norms: dict[HeadSite, Float[Tensor, "batch head key"]] = {}

    def __enter__(self) -> Self:
        for site, attention in self.attentions.items():
            self.callback(attention.value.register_forward_hook(partial(self._keep, site)).remove)
        return super().__enter__()

    def _keep(self, site: HeadSite, module: nn.Module, args: tuple[Any, ...], value_BKF: Tensor) -> None:
        self.values[site] = value_BKF.unflatten(-1, (-1, self.attentions[site].d_head)).transpose(1, 2)
        self._norms.pop(site, None)

    def share(self, site: HeadSite, weights: Weights, keys: slice = slice(None)) -> Weights:
        """Each key's share of the norms that a query gathers; where these are not wanted, the weights as they are."""
        if not self.attentions:
            return weights
        if site not in self._norms:
            attention = self.attentions[site]
            output_HED = attention.output.weight.detach().T.unflatten(0, (-1, attention.d_head))
            self._norms[site] = (self.values[site] @ output_HED).norm(dim=-1)
        weighted = weights * self._norms[site][:, :, keys].to(weights)[:, :, None]
        return weighted / weighted.sum(dim=-1, keepdim=True).clamp(min=SMALLEST)
