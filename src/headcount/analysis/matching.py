"""Which heads of two runs attend alike, write alike, and do the same job? By what they do, not by their index.

The overlap of two heads on one query is the attention that they share, sum_k min(w_k, w'_k): 1 if they attend alike, 0
if nowhere together (1 less the total variation distance). Its mean over examples, and over the queries that see more
than one key, says how alike two heads attend. Heads of one kind of site, of any layer, are paired one to one so that
the sum of overlaps is largest.

The best pairing finds partners among heads that have nothing to do with each other, too. So what it finds is compared
with what it finds in models that cannot have learned the same (pairing.py): a pair attends alike if it shares more than
its head does with untrained models in the other run's place, than its partner does with untrained ones in this run's
place, and than its head does with the other run relabelled, each corrected over all heads. The family-wise error is
5 %: if one of the two runs is untrained, no more than one comparison in twenty calls any head alike.

Attention is not a job. What two heads write is compared by CKA (pairing.py) against the same models, and the partner's
output is put in the head's place (transplants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, cast

import numpy as np
from torch import nn

from headcount.analysis.head_measures import Matrix, eval_inputs, matrix_of, rounded
from headcount.analysis.labels import NOT_DRAWN
from headcount.analysis.pairing import (
    Activity,
    Draws,
    Measure,
    Pairing,
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
from headcount.analysis.roles import control_makers
from headcount.analysis.transplants import Transplant, transplant
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError, shortened
from headcount.experiments.task_attention import TaskAttention
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.results import Contradiction, Count, HeadName, Positive, Result, Share, is_close, unequal
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.stats import holm, share_above, step_down
from headcount.tasks.base import Examples

Progress = Callable[[int, int], None]
LONGEST = 1024
"""The weights of three models are held at once."""
MOST, FEWEST, PAIRS = 128, 4, 2**20
"""Examples: as many as there are pairs of a query and a key for, between these. Every stand-in sees them too."""
SHAPE = ("d_model", "n_heads", "n_layers", "n_encoder_layers", "n_decoder_layers")
ERROR_RATE = 0.05
"""Family-wise: of calling any head alike where none is."""
HALF = 0.5
"""Of a head's effect: a partner that restores less, at the lower bound, does not do its job; nor does one that
restores less there than some untrained stand-in."""
NOT_ALIKE, ALIKE, WRITES_ALIKE, SAME_JOB = "not alike", "attend alike", "attend, write alike", "same job"
ALONE = "no partner"
NEED_RUNS = "what heads write, and transplants, which need two runs"


@dataclass(frozen=True)
class Effort:
    """How many draws of each null; the least p of one is 1 / (draws + 1)."""

    untrained: int = 99
    """And as many relabellings for outputs."""
    relabelled: int = 999
    """For attention: cheap, and corrected by Holm, which 99 draws would not allow with more than five heads."""
    transplants: int = 19
    """Untrained stand-ins whose heads are transplanted as well; 0 for no transplants at all."""
    seed: int = 0
    """Of all draws."""


@dataclass(frozen=True)
class Likeness:
    """How alike a pair is, and how alike the partners are that a best pairing finds by chance."""

    value: float
    """Attention: the overlap. Outputs: CKA."""
    se: float | None
    """Over examples; of overlaps only."""
    untrained: float
    """With its partner in 95 of 100 untrained stand-ins, the head is at most so much alike."""
    relabelled: float
    """And with its partner in the other run with keys relabelled."""
    any: float
    """On average with all heads of that kind in the other run."""
    p_untrained: Share
    """The larger of both directions; corrected over heads (max-T)."""
    p_relabelled: Share
    """Corrected over heads (attention: Holm; outputs: max-T)."""
    p: Share
    """The larger of both."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the p that counts with the two that it is the larger of."""
        return unequal(self, p=max(self.p_untrained, self.p_relabelled))


@dataclass(frozen=True)
class Pair:
    """One head and its partner in the other run; None where there are fewer heads there."""

    head: HeadName
    partner: HeadName | None
    same_index: float | None
    """The overlap with the other run's head of the same name, if there is one."""
    attention: Likeness | None
    outputs: Likeness | None
    transplant: Transplant | None
    verdict: str

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the verdict with what it rests on."""
        if (self.partner is None) != (self.attention is None):
            yield "partner", "a head if the two were compared, and null otherwise"
        yield from unequal(self, verdict=_verdict(self.attention, self.outputs, self.transplant))

    @property
    def is_alike(self) -> bool:
        """Whether the two attend alike, whatever else they share."""
        return self.verdict in (ALIKE, WRITES_ALIKE, SAME_JOB)


@dataclass(frozen=True)
class KindMatch:
    """The heads of one kind of site, in all layers."""

    stack: str
    kind: str
    heads: tuple[HeadName, ...]
    others: tuple[HeadName, ...]
    overlaps: Matrix
    """[head][other head]: the mean over examples."""
    errors: Matrix
    """Their standard errors."""
    pairs: tuple[Pair, ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the pairs and the tables with the heads of both runs."""
        yield from unequal(self, heads=tuple(each.head for each in self.pairs))
        for name in ("overlaps", "errors"):
            if [*map(len, getattr(self, name))] != [len(self.others)] * len(self.heads):
                yield name, f"a table of {len(self.heads)} by {len(self.others)} heads"
                return
        partners = [each.partner for each in self.pairs if each.partner is not None]
        if len(set(partners)) != len(partners) or set(partners) - set(self.others):
            yield "pairs", "different partners, all of them in others"
            return
        for pair, row in zip(self.pairs, self.overlaps, strict=False):
            overlap = None if pair.partner is None else row[self.others.index(pair.partner)]
            if overlap is not None and pair.attention and not is_close(pair.attention.value, overlap):
                yield "pairs", f"an overlap of {overlap} for {pair.head}, as the table says"


@dataclass(frozen=True)
class Overall:
    """All heads together."""

    alike: Count
    """Heads that attend alike."""
    same_job: Count
    of: Count
    """Heads that have a partner."""
    matched: float
    """Mean overlap of the pairs."""
    untrained: tuple[float, float]
    """The least and the most that it is with an untrained stand-in for the other run."""
    relabelled: tuple[float, float]
    p: Share
    """That the mean overlap is no larger than by chance: the largest over the nulls."""
    untrained_alike: tuple[int, int]
    """Heads that are called alike with a stand-in in the other run's place, each among all others: fewest and most."""
    untrained_any: Share
    """With which share of the stand-ins any head is called alike."""


@dataclass(frozen=True)
class Matching(Result):
    """Two runs, head by head."""

    ROWS: ClassVar[tuple[str, ...]] = ("kinds.pairs",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    other: str
    other_model: str
    n: Positive
    """Examples."""
    data: str
    """Which examples."""
    error_rate: Share
    """Family-wise, over all heads."""
    effort: Effort
    overall: Overall
    kinds: tuple[KindMatch, ...]
    left_out: str = ""
    """What could not be compared, and why."""
    stand_ins: str = "untrained"
    """Models that learned nothing: untrained ones; or shuffled, with the weights of each matrix in random order."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the summary of all heads with the pairs."""
        pairs, told = [pair for kind in self.kinds for pair in kind.pairs], self.overall
        alike, same_job = sum(each.is_alike for each in pairs), sum(each.verdict == SAME_JOB for each in pairs)
        counts = alike, same_job, sum(each.partner is not None for each in pairs)
        if (told.alike, told.same_job, told.of) != counts:
            yield "overall", f"alike, same_job and of = {', '.join(map(str, counts))}, as the pairs say"
        values = [each.attention.value for each in pairs if each.attention]
        if values and abs(sum(values) / len(values) - told.matched) > 1e-3:  # every value is rounded
            yield "overall", f"matched = {sum(values) / len(values)}, the mean overlap of the pairs"

    @property
    def words(self) -> str:
        """One statement for all heads."""
        all_of, effort = self.overall, self.effort
        fewest, most = all_of.untrained_alike
        low, high = all_of.untrained
        few, many = all_of.relabelled
        return (
            f"{all_of.alike} of {all_of.of} heads attend alike (family-wise error {100 * self.error_rate:.0f} %; with "
            f"each of {effort.untrained} {self.stand_ins} stand-ins for {self.other}, by that test alone, {fewest} to "
            f"{most}, any in {100 * all_of.untrained_any:.0f} %); {all_of.same_job} can be shown to do the same job. "
            f"Mean overlap of the pairs {all_of.matched:.2f}; {self.stand_ins} {low:.2f} to {high:.2f}, relabelled "
            f"{few:.2f} to {many:.2f}, p {'≤' if all_of.p <= 1 / (effort.untrained + 1) else '='} {all_of.p:.2g}"
            + (f". Left out: {self.left_out}" if self.left_out else "")
        )


def match(
    model: TaskAttention,
    other: TaskAttention,
    length: int | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Matching:
    """Pair the heads of two models of one task, such as two runs that differ in their seed, on the same examples."""
    if length is not None and length > LONGEST:
        raise InputError(f"heads cannot be matched on sequences of {length:,}", f"at most {LONGEST:,} fit into memory")
    _require_one_task(model, other)
    effort, seen = effort or Effort(), eval_inputs(model, length)
    _require_same_examples(model, other, seen.examples)
    alike = np.intersect1d(model.aligned_examples(seen.examples).rows, other.aligned_examples(seen.examples).rows)
    n = min(len(alike), max(FEWEST, min(MOST, PAIRS // seen.width**2)))
    if n < FEWEST:
        raise InputError(f"{model.name} and {other.name} have {n} examples in common", f"at least {FEWEST} are needed")
    rows = np.sort(alike[stream(0, "matching").permutation(len(alike))[:n]])  # they may stand class by class
    examples = seen.examples[rows]
    ours, theirs = in_common(observe(model, examples), observe(other, examples))
    if not ours:
        raise InputError(f"{model.name} and {other.name} have no heads of one kind", "choose models with heads")

    def untrained(each: TaskAttention) -> StandIn:
        return lambda i: observe(each.untrained(stand_in_seed(i, effort.seed)), examples)

    # Draws of the nulls, then transplants, whose number is known only when they begin.
    tell, n_draws = progress or (lambda done, total: None), 2 * effort.untrained + effort.relabelled
    theirs_at = untrained(other)
    ours_at = theirs_at if model.shape == other.shape else untrained(model)
    evidence = _evidence(ours, theirs, ours_at, theirs_at, effort, lambda done: tell(done, n_draws))
    left_out = ""
    if not (isinstance(model, Run) and isinstance(other, Run)):
        left_out = NEED_RUNS
    elif effort.transplants:
        offered = evidence.untrained[0].partners[: effort.transplants]
        seeds = [stand_in_seed(i, effort.seed) for i in range(len(offered))]
        stand_ins = [(partial(other.untrained, seed), partners) for seed, partners in zip(seeds, offered, strict=True)]
        partners, last = evidence.pairing.partners, lambda done, of: tell(n_draws + done, n_draws + of)
        evidence = replace(evidence, transplants=transplant(model, other, partners, stand_ins, length, last))
    return _matching(
        (model.name, model.weights_sha256, other.name, other.weights_sha256),
        n,
        seen.data if n == len(seen) else f"{n:,} of {seen.data}",
        effort,
        evidence,
        left_out,
    )


@dataclass(frozen=True)
class ModelOnInputs:
    """Any model with rows of inputs, and models of its shape that learned nothing."""

    name: str
    weights_sha256: str
    module: nn.Module
    sites: Sites
    rows: Sequence[TokenizedText]

    def activity(self, n: int) -> Activity:
        """Where its heads attend on the first rows."""
        return observe_inputs(self.module, self.sites, [row.inputs for row in self.rows[:n]])

    def stand_ins(self, n: int) -> tuple[str, StandIn]:
        """Untrained models of its configuration; where it has none, its own weights in random order."""
        kind, make = next(iter(control_makers(self.module, self.sites).items()))
        return kind, lambda i: observe_inputs(*make(i), [row.inputs for row in self.rows[:n]])


def match_inputs(
    model: ModelOnInputs,
    other: ModelOnInputs,
    data: str,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Matching:
    """Pair the heads of two models without a task, on the same rows of inputs."""
    effort, n_given = effort or Effort(), min(len(model.rows), len(other.rows))
    if n_given < FEWEST:
        raise InputError(f"heads cannot be matched on {n_given} inputs", f"give at least {FEWEST}")
    for i, (mine, theirs) in enumerate(zip(model.rows, other.rows, strict=True)):
        if {stack: list(each) for stack, each in mine.tokens.items()} != {
            stack: list(each) for stack, each in theirs.tokens.items()
        }:
            raise InputError(
                f"input {i} has other tokens in {model.name} than in {other.name}", "choose models with one tokenizer"
            )
    width = max(len(tokens) for row in model.rows for tokens in row.tokens.values())
    n = min(n_given, max(FEWEST, min(MOST, PAIRS // width**2)))
    activities = in_common(model.activity(n), other.activity(n))
    if not activities[0]:
        raise InputError(f"{model.name} and {other.name} have no heads of one kind", "choose models with heads")
    (kind, ours_at), (_, theirs_at) = model.stand_ins(n), other.stand_ins(n)
    n_draws, tell = effort.untrained + effort.relabelled, progress or (lambda done, total: None)
    evidence = _evidence(*activities, ours_at, theirs_at, effort, lambda done: tell(done, n_draws))
    names = model.name, model.weights_sha256, other.name, other.weights_sha256
    told = data if n == n_given else f"{n:,} of {data}"
    return replace(_matching(names, n, told, effort, evidence, NEED_RUNS), stand_ins=kind)


def _evidence(
    ours: Activity,
    theirs: Activity,
    ours_at: StandIn,
    theirs_at: StandIn,
    effort: Effort,
    step: Callable[[int], None],
) -> Evidence:
    """Pair heads, and see what the best pairing finds by chance; `step` counts draws."""
    done, pairing = count(1), Pairing.best(ours, theirs)

    def tell() -> None:
        step(next(done))

    untrained = pair_with_stand_ins(ours_at, theirs_at, pairing, effort.untrained, tell)
    times: dict[Measure, int] = {pair_overlap: effort.relabelled, pair_cka: effort.untrained}
    relabelled: dict[Measure, Draws] = {
        measure: pair_with_relabelled(pairing, measure, times[measure], effort.seed, tell)
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
        error_rate=ERROR_RATE,
        effort=effort,
        overall=evidence.overall(kinds),
        kinds=kinds,
        left_out=left_out,
    )


def _require_one_task(model: TaskAttention, other: TaskAttention) -> None:
    """Heads can be compared where the examples are the same and, of runs, the models have the same shape."""
    if model.task.name != other.task.name:
        what = f"{model.name} does {model.task.name} and {other.name} does {other.task.name}"
        raise InputError(f"{what}: their heads cannot be matched", "choose models of one task")
    for each in (model, other):
        if "untrained" not in each.controls:
            raise InputError(f"matching {each.name} needs untrained models of its shape, but there are {NOT_DRAWN}")
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
        what = f"the heads of {model.name} and {other.name} cannot be matched: their data or shape differ"
        raise InputError(what, *differ, "choose runs that differ in their seed or training alone")


def _require_same_examples(model: TaskAttention, other: TaskAttention, examples: Examples) -> None:
    """What one model is asked, the other one's task must know, with the same positions."""
    task = other.task
    try:
        known = np.concatenate([task.parse(model.task.show(example)) for example in examples[:: len(examples) - 1]])
        first, second = (cast(Any, each).encode(known).source for each in (model.task, task))
        is_same = bool(np.array_equal(first, second))
    except InputError:
        is_same = False
    if not is_same:
        shown = model.task.show(examples[0])
        raise InputError(
            f"{other.name} does not know the examples of {model.name}, such as {shortened(shown)}",
            "choose models of one task with the same settings, such as digits, least_first or n_values",
        )


@dataclass(frozen=True)
class Evidence:
    """The best pairing, and what chance gives."""

    pairing: Pairing
    untrained: tuple[Draws, Draws]
    relabelled: dict[Measure, Draws]
    transplants: dict[HeadId, Transplant]

    def kinds(self) -> tuple[KindMatch, ...]:
        """Kind by kind, head by head."""
        attention, outputs = self._likeness(pair_overlap), self._likeness(pair_cka)
        partners, found = self.pairing.partners, list[KindMatch]()
        for (stack, name), overlaps in self.pairing.overlaps.items():
            ours, theirs = (each[stack, name].heads for each in (self.pairing.ours, self.pairing.theirs))
            means, errors = overlaps.mean(axis=0), overlaps.std(axis=0, ddof=1) / np.sqrt(len(overlaps))
            pairs = tuple(
                Pair(
                    head=str(head),
                    partner=str(partners[head]) if head in partners else None,
                    same_index=rounded(means[i, theirs.index(head)]) if head in theirs else None,
                    attention=attention.get(head),
                    outputs=outputs.get(head),
                    transplant=self.transplants.get(head),
                    verdict=_verdict(attention.get(head), outputs.get(head), self.transplants.get(head)),
                )
                for i, head in enumerate(ours)
            )
            names = tuple(map(str, ours)), tuple(map(str, theirs))
            found.append(KindMatch(stack, name, *names, matrix_of(means), matrix_of(errors), pairs))
        return tuple(found)

    def overall(self, kinds: tuple[KindMatch, ...]) -> Overall:
        """All heads together."""
        pairs = [pair for kind in kinds for pair in kind.pairs]
        means = [np.array(draws.means) for draws in (*self.untrained, self.relabelled[pair_overlap])]
        untrained, _, relabelled = ((rounded(each.min()), rounded(each.max())) for each in means)
        # Of each untrained model in the other run's place, among all the others: how many heads are called alike?
        draws = np.array(self.untrained[0].values[pair_overlap])
        everyone = np.arange(len(draws))
        called = np.array([(step_down(draws[i], draws[everyone != i]) <= ERROR_RATE).sum() for i in everyone])
        return Overall(
            alike=sum(pair.is_alike for pair in pairs),
            same_job=sum(pair.verdict == SAME_JOB for pair in pairs),
            of=sum(pair.partner is not None for pair in pairs),
            matched=rounded(self.pairing.mean),
            untrained=untrained,
            relabelled=relabelled,
            p=rounded(max(float(share_above(np.array(self.pairing.mean), each)) for each in means)),
            untrained_alike=(int(called.min()), int(called.max())),
            untrained_any=rounded(float((called > 0).mean())),
        )

    def _likeness(self, measure: Measure) -> dict[HeadId, Likeness]:
        """How alike each pair is by attention or by outputs, beside chance; nothing where that is not known."""
        if measure not in self.relabelled:
            return {}
        pairing, values = self.pairing, self.pairing.each(measure)
        untrained, turned, relabelled = (
            np.array(draws.values[measure]) for draws in (*self.untrained, self.relabelled[measure])
        )
        # Each pair's head among untrained models in the other run's place, its partner among those in ours.
        heads, partners = pairing.places(0), pairing.places(1)
        p_head, p_partner = (step_down(pairing.along(i, measure), null) for i, null in enumerate((untrained, turned)))
        p_untrained = np.maximum(p_head[heads], p_partner[partners])
        if measure is pair_overlap:
            p_relabelled = np.array(holm(share_above(values, relabelled[:, heads]).tolist()))
        else:
            p_relabelled = step_down(pairing.along(0, measure), relabelled)[heads]
        found = {}
        for place, (kind, i, j) in enumerate(pairing.pairs):
            shared, others = pairing.overlaps[kind][:, i, j], range(len(pairing.theirs[kind].heads))
            found[pairing.ours[kind].heads[i]] = Likeness(
                value=rounded(values[place]),
                se=rounded(shared.std(ddof=1) / np.sqrt(len(shared))) if measure is pair_overlap else None,
                untrained=rounded(np.quantile(untrained[:, heads[place]], 0.95)),
                relabelled=rounded(np.quantile(relabelled[:, heads[place]], 0.95)),
                any=rounded(float(np.mean([measure(pairing, kind, i, other) for other in others]))),
                p_untrained=rounded(p_untrained[place]),
                p_relabelled=rounded(p_relabelled[place]),
                p=rounded(max(p_untrained[place], p_relabelled[place])),
            )
        return found


def _verdict(attention: Likeness | None, outputs: Likeness | None, moved: Transplant | None) -> str:
    """Each rests on the one before."""
    if attention is None:
        return ALONE
    if attention.p > ERROR_RATE:
        return NOT_ALIKE
    if outputs is None or outputs.p > ERROR_RATE:
        return ALIKE
    restored = None if moved is None else moved.restored
    if restored is None or restored.p > ERROR_RATE or restored.low < max(HALF, restored.untrained):
        return WRITES_ALIKE
    return SAME_JOB
