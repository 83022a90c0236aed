"""Find out which heads of two models attend alike, write alike and do the same job, whatever their indices.

The overlap of two heads at one query is the attention that they share, sum_k min(w_k, w'_k), which is 1 minus the
total variation distance: 1 for equal attention, 0 for disjoint attention. It is averaged over examples and over the
queries that see more than one key. Heads of one kind of attention, of any layer, are paired one to one so that the
sum of overlaps is largest.

The best pairing also finds partners for unrelated heads. It is therefore compared with the best pairing of null
models, which cannot have learned the same (matching_pairs.py). A pair attends alike if its overlap is significantly
larger, with a family-wise error rate of 5 %, than all three of these:

- the overlap of the head with its partner in untrained models that stand in for the other model;
- the overlap of the partner with its own partner in untrained models that stand in for this model;
- the overlap of the head with its partner in the other model after the keys of that model were relabelled.

Two heads that attend alike need not do the same job. Their outputs are compared by CKA against the same null models
(matching_pairs.py), and the partner's output is put in the head's place (matching_transplants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, cast

import numpy as np
from torch import nn

from headcount.analysis.attention_measures import eval_inputs
from headcount.analysis.head_labels import NOT_DRAWN
from headcount.analysis.matching_pairs import (
    Activity,
    Draws,
    Pairing,
    PairMeasure,
    StandIn,
    in_common,
    observe,
    observe_inputs,
    pair_cka,
    pair_overlap,
    pair_with_relabelled,
    pair_with_stand_ins,
    stand_in_seed,
)
from headcount.analysis.matching_transplants import transplant
from headcount.analysis.matching_verdicts import SAME_JOB, Evidence, KindMatch, Overall
from headcount.analysis.roles import control_makers
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError, shortened
from headcount.experiments.task_attention import TaskAttention
from headcount.hooks.sites import Sites
from headcount.limits import SIGNIFICANT
from headcount.results import Contradiction, Positive, Result, Share
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import Examples

Progress = Callable[[int, int], None]
LONGEST = 1024
"""Largest length of a sequence in tokens: the attention weights of three models must fit into memory at once."""
MOST, FEWEST, PAIRS = 128, 4, 2**20
"""Largest and smallest number of examples; in between, all examples together have at most PAIRS query-key pairs."""
SHAPE = ("d_model", "n_heads", "n_layers", "n_encoder_layers", "n_decoder_layers")
NEED_RUNS = "the comparison and the transplants of head outputs, which need two models trained by headcount"
NO_COMMON_KIND = (
    "{} and {} have no kind of attention in common (the kinds are encoder self-, decoder self- and cross-attention)"
)


@dataclass(frozen=True)
class Effort:
    """Number of null models of each kind, which show what matching finds by chance.

    The smallest possible p-value is 1 / (number of null models + 1).
    """

    untrained: int = 99
    """Number of untrained models with which attention is compared, and of random relabellings of keys for outputs."""
    relabelled: int = 999
    """Number of random relabellings of keys with which attention is compared.

    With 99, no head would be significant after Holm correction over 6 heads.
    """
    transplants: int = 19
    """Number of untrained models whose heads are also transplanted (put in place of a head); 0 for no transplants."""
    seed: int = 0
    """Seed of the random null models, which show what matching finds by chance."""


@dataclass(frozen=True)
class Matching(Result):
    """A comparison of the heads of two models: the best partner of each head, and how alike the two are."""

    ROWS: ClassVar[tuple[str, ...]] = ("kinds.pairs",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    other: str
    other_model: str
    n: Positive
    """Number of examples on which the heads are compared."""
    data: str
    """Description in words of the examples on which the heads are compared."""
    error_rate: Share
    """Family-wise error rate: the probability that any two unrelated heads are called alike."""
    effort: Effort
    overall: Overall
    kinds: tuple[KindMatch, ...]
    left_out: str = ""
    """Comparisons that were not possible, with the reason; empty if all were possible."""
    stand_ins: str = "untrained"
    """Kind of null models: `untrained`, or `shuffled` (each weight matrix with its entries permuted)."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the counts and the mean over all heads disagree with the pairs."""
        pairs, overall = [pair for kind in self.kinds for pair in kind.pairs], self.overall
        alike, same_job = sum(pair.is_alike for pair in pairs), sum(pair.verdict == SAME_JOB for pair in pairs)
        counts = alike, same_job, sum(pair.partner is not None for pair in pairs)
        if (overall.alike, overall.same_job, overall.of) != counts:
            yield "overall", f"alike, same_job, of = {', '.join(map(str, counts))}, which are the counts over the pairs"
        values = [pair.attention.value for pair in pairs if pair.attention]
        if values and abs(sum(values) / len(values) - overall.matched) > 1e-3:  # every value is rounded
            yield "overall", f"matched = {sum(values) / len(values)}, the mean overlap of the pairs"

    @property
    def words(self) -> str:
        """Return a few sentences that summarise which heads of the two models are alike."""
        overall, effort = self.overall, self.effort
        fewest, most = overall.untrained_alike
        low, high = overall.untrained
        few, many = overall.relabelled
        return (
            f"{overall.alike} of {overall.of} heads attend alike (family-wise error {100 * self.error_rate:.0f} %); "
            f"{overall.same_job} can be shown to do the same job. With each of {effort.untrained} {self.stand_ins} "
            f"models in place of {self.other}, {fewest} to {most} heads pass the test against these models; any head "
            f"passes in {100 * overall.untrained_any:.0f} % of them. The mean overlap of the pairs is "
            f"{overall.matched:.2f} ({self.stand_ins}: {low:.2f} to {high:.2f}; relabelled: {few:.2f} to {many:.2f}; "
            f"p {'≤' if overall.p <= 1 / (effort.untrained + 1) else '='} {overall.p:.2g})"
            + (f". Left out: {self.left_out}" if self.left_out else "")
        )


def match(
    model: TaskAttention,
    other: TaskAttention,
    length: int | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Matching:
    """Match the heads of two models of the same task, such as two training seeds, on the same examples."""
    if length is not None and length > LONGEST:
        raise InputError(
            f"--length must be at most {LONGEST:,}, got {length:,}",
            "attention on longer sequences needs too much memory",
        )
    _require_one_task(model, other)
    effort, inputs = effort or Effort(), eval_inputs(model, length)
    _require_same_examples(model, other, inputs.examples)
    shared = np.intersect1d(model.aligned_examples(inputs.examples).rows, other.aligned_examples(inputs.examples).rows)
    n = min(len(shared), max(FEWEST, min(MOST, PAIRS // inputs.width**2)))
    if n < FEWEST:
        raise InputError(
            f"heads are matched by their outputs on examples that suit both models, and only {n} examples suit both "
            f"{model.name} and {other.name}",
            f"choose models that share at least {FEWEST} examples of the same format and length",
        )
    rows = np.sort(shared[stream(0, "matching").permutation(len(shared))[:n]])  # examples may be ordered by class
    examples = inputs.examples[rows]
    ours, theirs = in_common(observe(model, examples), observe(other, examples))
    if not ours:
        raise InputError(NO_COMMON_KIND.format(model.name, other.name), "choose models with heads of the same kind")

    def untrained(side: TaskAttention) -> StandIn:
        return lambda i: observe(side.untrained(stand_in_seed(i, effort.seed)), examples)

    # The number of transplants is known only when they begin, after the draws of the null models.
    report, n_draws = progress or (lambda done, total: None), 2 * effort.untrained + effort.relabelled
    theirs_at = untrained(other)
    ours_at = theirs_at if model.shape == other.shape else untrained(model)
    evidence = _evidence(ours, theirs, ours_at, theirs_at, effort, lambda done: report(done, n_draws))
    left_out = ""
    if not (isinstance(model, Run) and isinstance(other, Run)):
        left_out = NEED_RUNS
    elif effort.transplants:
        stand_ins = [
            (partial(other.untrained, stand_in_seed(i, effort.seed)), partners)
            for i, partners in enumerate(evidence.untrained[0].partners[: effort.transplants])
        ]
        partners, last = evidence.pairing.partners, lambda done, of: report(n_draws + done, n_draws + of)
        evidence = replace(evidence, transplants=transplant(model, other, partners, stand_ins, length, last))
    return _matching(
        (model.name, model.weights_sha256, other.name, other.weights_sha256),
        n,
        inputs.data if n == len(inputs) else f"{n:,} of {inputs.data}",
        effort,
        evidence,
        left_out,
    )


@dataclass(frozen=True)
class ModelOnInputs:
    """A model without a task, and the tokenized inputs on which its heads are compared."""

    name: str
    weights_sha256: str
    module: nn.Module
    sites: Sites
    rows: Sequence[TokenizedText]

    def activity(self, n: int) -> Activity:
        """Return the attention weights of all heads on the first `n` tokenized inputs."""
        return observe_inputs(self.module, self.sites, [row.inputs for row in self.rows[:n]])

    def stand_ins(self, n: int) -> tuple[str, StandIn]:
        """Return the kind of null models (`untrained`, else `shuffled`), and a function that observes the i-th one.

        Null models cannot have learned what the model has learned.
        """
        kind, make = next(iter(control_makers(self.module, self.sites).items()))
        return kind, lambda i: observe_inputs(*make(i), [row.inputs for row in self.rows[:n]])


def match_inputs(
    model: ModelOnInputs,
    other: ModelOnInputs,
    data: str,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Matching:
    """Match the heads of two models without a task, on the same tokenized inputs."""
    effort, n_given = effort or Effort(), min(len(model.rows), len(other.rows))
    if n_given < FEWEST:
        raise InputError(f"{n_given} inputs are too few to match heads", f"give at least {FEWEST}")
    for i, rows in enumerate(zip(model.rows, other.rows, strict=True)):
        ours, theirs = ({stack: list(tokens) for stack, tokens in row.tokens.items()} for row in rows)
        if ours != theirs:
            raise InputError(
                f"input {i} has different tokens in {model.name} and in {other.name}",
                "choose models with the same tokenizer",
            )
    width = max(len(tokens) for row in model.rows for tokens in row.tokens.values())
    n = min(n_given, max(FEWEST, min(MOST, PAIRS // width**2)))
    activities = in_common(model.activity(n), other.activity(n))
    if not activities[0]:
        raise InputError(NO_COMMON_KIND.format(model.name, other.name), "choose models with heads of the same kind")
    (kind, ours_at), (_, theirs_at) = model.stand_ins(n), other.stand_ins(n)
    n_draws, report = effort.untrained + effort.relabelled, progress or (lambda done, total: None)
    evidence = _evidence(*activities, ours_at, theirs_at, effort, lambda done: report(done, n_draws))
    names = model.name, model.weights_sha256, other.name, other.weights_sha256
    data = data if n == n_given else f"{n:,} of {data}"
    return replace(_matching(names, n, data, effort, evidence, NEED_RUNS), stand_ins=kind)


def _evidence(
    ours: Activity,
    theirs: Activity,
    ours_at: StandIn,
    theirs_at: StandIn,
    effort: Effort,
    step: Callable[[int], None],
) -> Evidence:
    """Pair the heads of two models with each other and with null models, which show what pairing finds by chance.

    `step` is called with the number of null models that are done.
    """
    done, pairing = count(1), Pairing.best(ours, theirs)

    def report() -> None:
        step(next(done))

    untrained = pair_with_stand_ins(ours_at, theirs_at, pairing, effort.untrained, report)
    n_draws: dict[PairMeasure, int] = {pair_overlap: effort.relabelled, pair_cka: effort.untrained}
    relabelled: dict[PairMeasure, Draws] = {
        measure: pair_with_relabelled(pairing, measure, n_draws[measure], effort.seed, report)
        for measure in pairing.measures
    }
    return Evidence(pairing, untrained, relabelled, {})


def _matching(
    names: tuple[str, str, str, str], n: int, data: str, effort: Effort, evidence: Evidence, left_out: str
) -> Matching:
    kinds = evidence.kinds()
    return Matching(
        *names,
        n=n,
        data=data,
        error_rate=SIGNIFICANT,
        effort=effort,
        overall=evidence.overall(kinds),
        kinds=kinds,
        left_out=left_out,
    )


def _require_one_task(model: TaskAttention, other: TaskAttention) -> None:
    """Raise an error unless two models have the same task and untrained models of their shapes can be made.

    Two runs must also have equal settings of data and shape.
    """
    if model.task.name != other.task.name:
        what = f"{model.name} has the task {model.task.name} and {other.name} has the task {other.task.name}"
        raise InputError(f"{what}: their heads cannot be matched", "choose two models of one task")
    for side in (model, other):
        if "untrained" not in side.controls:
            raise InputError(f"matching the heads of {side.name} needs untrained models of the same shape: {NOT_DRAWN}")
    if not (isinstance(model, Run) and isinstance(other, Run)):
        return
    ours, theirs = model.config, other.config
    sections = ((ours.task, theirs.task, None), (ours.model, theirs.model, SHAPE))
    differ = [
        f"{field.name}: {getattr(a, field.name)} in {model.name}, {getattr(b, field.name)} in {other.name}"
        for a, b, names in sections
        for field in fields(a)
        if (names is None or field.name in names) and getattr(a, field.name) != getattr(b, field.name)
    ]
    if differ:
        what = f"the heads of {model.name} and {other.name} cannot be matched: their settings of data or shape differ"
        raise InputError(what, *differ, "choose runs that differ only in their seed or training")


def _require_same_examples(model: TaskAttention, other: TaskAttention, examples: Examples) -> None:
    """Raise an error unless two models encode the same examples equally; only the first and the last are tested."""
    task = other.task
    try:
        parsed = np.concatenate([task.parse(model.task.show(example)) for example in examples[:: len(examples) - 1]])
        first, second = (cast(Any, side).encode(parsed).source for side in (model.task, task))
        is_same = bool(np.array_equal(first, second))
    except InputError:
        is_same = False
    if not is_same:
        shown = model.task.show(examples[0])
        raise InputError(
            f"{other.name} cannot read the examples of {model.name}, such as {shortened(shown)}",
            "choose models of one task with the same task settings",
        )
