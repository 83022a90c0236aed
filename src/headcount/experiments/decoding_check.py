"""Check scores of one forward pass against real decoding, and describe the answers that break.

Free-running exact match needs no decoding loop (training/answers.py), with heads ablated or not; a sample of every
intervention is decoded all the same, and must come out as found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.dataset import FREE, Answers, EvalBatch, Rows
from headcount.errors import CheckFailed
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import BatchOutcome
from headcount.heads import HeadSite
from headcount.hooks.gates import Gates, closed_gates, eval_mode
from headcount.hooks.proof import first_tensor
from headcount.hooks.replay import Intervention
from headcount.models.transformer import EncoderDecoder, greedy
from headcount.results import Contradiction, Count, HeadName
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.evaluation import WrongAnswer, wrong_answers

CHECKED = 8
"""Examples of each intervention that are decoded to check the scores of one pass."""
CHECKED_WHOLE = 32
"""Examples that the whole model decodes before heads are ablated."""
LISTED = 5
"""Answers that an error lists, at most."""
EXPLAINED = 100
"""Broken examples of each intervention that are decoded to describe what broke."""
Picks = list[tuple[int, int]]
"""The number of an intervention, and a row of a batch."""


class DecodingCheck:
    """A check that sees each batch with its scores."""

    def __init__(self, experiment: Experiment, interventions: Sequence[Intervention], *, explain: bool) -> None:
        self.experiment, self.interventions = experiment, interventions
        is_free = experiment.metric is FREE
        self.decodes = is_free and experiment.task is not None and isinstance(experiment.model, EncoderDecoder)
        self.generates = is_free and experiment.decode is not None
        self.explains = explain and experiment.metric.is_accuracy and experiment.task is not None
        self.decoded = 0
        self.decoded_replacements: tuple[str, ...] = ()
        self._broken: list[list[Failure]] = [[] for _ in interventions]
        self._counted: list[list[int]] = [[] for _ in interventions]

    def __call__(self, outcome: BatchOutcome) -> None:
        """Check the first batch against decoding, and collect broken examples of every batch."""
        if self.decodes and not self.decoded:
            self._check(outcome)
        if self.generates and not self.decoded:
            self._check_generated(outcome)
        if self.explains:
            self._collect(outcome)

    def failures(self) -> tuple[FailureProfile, ...]:
        """Return what broke for each intervention; of several donors, the first counts."""
        if not self.explains:
            return ()
        task, examples = cast(Task, self.experiment.task), cast(Examples, self.experiment.examples)
        return tuple(
            failure_profile(task, examples, str(each.heads[0]), each.replacement, np.array(rows, dtype=int), broken)
            for each, rows, broken in zip(self.interventions, self._counted, self._broken, strict=True)
            if each.draw == 0
        )

    def _check(self, outcome: BatchOutcome) -> None:
        picks = [(i, int(row)) for i in range(len(self.interventions)) for row in _checked_rows(outcome.batch)]
        task = cast(SequenceTask, self.experiment.task)
        examples = cast(Examples, self.experiment.examples)[outcome.batch.rows[[row for _, row in picks]]]
        right = (self._decode(outcome, picks) == task.encode(examples).answer).all(axis=1)
        found = np.array([outcome.scores[pick] > 0.5 for pick in picks])
        if (right != found).any():
            wrong = int((right != found).argmax())
            head = self.interventions[picks[wrong][0]].heads[0]
            raise CheckFailed(
                f"without {head}, one forward pass and real decoding disagree on {task.show(examples[wrong])}",
                "this is a fault in the pipeline, not in the model: please report it",
            )
        self.decoded = len(picks)
        self.decoded_replacements = tuple(dict.fromkeys(each.replacement for each in self.interventions))

    def _check_generated(self, outcome: BatchOutcome) -> None:
        """Decode by the model's own code; only for zero ablation, because that code may run one token at a time."""
        assert self.experiment.decode is not None, "asked for by generates"
        sites, batch, checked = self.experiment.sites, outcome.batch, _checked_rows(outcome.batch)
        rows = batch.rows[checked]
        for each, scores in zip(outcome.interventions, outcome.scores[:, checked], strict=True):
            if each.values:
                continue
            with Gates(sites, closed_gates(sites, (*outcome.cached.base, *each.heads))):
                right = self.experiment.decode(rows)
                if (apart := right != (scores > 0.5)).any():
                    logits = first_tensor(self.experiment.model(*batch.inputs))
                    raise _disagreement(self.experiment, f"without {each.heads[0]}", batch, checked, apart, logits)
            self.decoded += len(rows)
            self.decoded_replacements = tuple(dict.fromkeys((*self.decoded_replacements, each.replacement)))

    def _collect(self, outcome: BatchOutcome) -> None:
        picks: Picks = []
        for i in (i for i, each in enumerate(self.interventions) if each.draw == 0):
            rows = np.flatnonzero((outcome.clean > 0.5) & (outcome.scores[i] <= 0.5))
            self._counted[i] += outcome.batch.rows[rows].tolist()
            picks += [(i, int(row)) for row in rows[: max(0, EXPLAINED - len(self._broken[i]))]]
        if not picks:
            return
        predicted: Sequence[Tokens | None] = [None] * len(picks)
        if self.decodes:
            predicted = list(self._decode(outcome, picks))
        elif self.generates:
            predicted = [tokens for i in range(len(self.interventions)) for tokens in self._generate(outcome, picks, i)]
        for (i, row), tokens in zip(picks, predicted, strict=True):
            self._broken[i].append(Failure(int(outcome.batch.rows[row]), tokens))

    def _decode(self, outcome: BatchOutcome, picks: Picks) -> Tokens:
        """Decode whole answers one token at a time, with the heads of each pick's intervention ablated."""
        model, sites = cast(EncoderDecoder, self.experiment.model), self.experiment.sites
        start = cast(SequenceTask, self.experiment.task).decoding_start
        base = Gates(sites, closed_gates(sites, outcome.cached.base))
        with base, Gates(sites, *_gates_and_values(outcome, picks), allow_prefix=True):
            memory = model.encode(outcome.batch.inputs[0][torch.tensor([row for _, row in picks])])
            predicted = greedy(model, memory, start.first, start.n_tokens, use_cache=False).cpu().numpy()
        given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(predicted), len(start.given)))
        return np.concatenate([given, predicted], axis=1)

    def _generate(self, outcome: BatchOutcome, picks: Picks, number: int) -> list[Tokens | None]:
        """Generate answers by the model's own code, with the heads of one zero ablation removed."""
        rows = outcome.batch.rows[[row for i, row in picks if i == number]]
        intervention, sites = outcome.interventions[number], self.experiment.sites
        if not len(rows) or intervention.values or self.experiment.generate is None:
            return [None] * len(rows)
        with Gates(sites, closed_gates(sites, (*outcome.cached.base, *intervention.heads))):
            return list(map(cast(SequenceTask, self.experiment.task).read_answer, self.experiment.generate(rows)))


def require_same_answers(experiment: Experiment) -> None:
    """Raise an error if `generate` and one pass give different answers with all heads."""
    if experiment.metric is not FREE or experiment.decode is None:
        return
    batch = experiment.batches[0]
    checked = _checked_rows(batch, CHECKED_WHOLE)
    with eval_mode(experiment.model), torch.no_grad():
        logits = first_tensor(experiment.model(*batch.inputs))
        found = experiment.score(batch, logits).cpu().numpy()[checked] > 0.5
        apart = experiment.decode(batch.rows[checked]) != found
        if apart.any():
            raise _disagreement(experiment, "with all heads", batch, checked, apart, logits)


def _disagreement(
    experiment: Experiment, when: str, batch: EvalBatch, checked: Rows, apart: NDArray[np.bool_], logits: Tensor
) -> CheckFailed:
    """Return an error that lists both answers to some questions, and the likely mistake."""
    what = f"{when}, one forward pass and real decoding disagree on {int(apart.sum())} of {len(apart)} examples"
    answers = [] if experiment.answers is None else experiment.answers(batch.rows, checked[apart][:LISTED], logits)
    advice = (
        "fed the right answer, the first wrong token is the one that it outputs running freely: is the model fed as it "
        "was trained, start token included, are labels of padding -100, and does `generate` stop where the labels do?"
    )
    return CheckFailed(what, *_listing(answers), *_likely_cause(answers), advice)


def _listing(answers: Sequence[Answers]) -> list[str]:
    """Format one line for each answer, in columns."""
    rows: list[tuple[str, ...]] = [("question", "right answer", "labels", "one pass", "generate")]
    for each in answers:
        rows.append((each.question, each.right, _joined(each.labels), _joined(each.one_pass), each.generated))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines if answers else []


def _joined(tokens: Sequence[str]) -> str:
    """Join words with spaces, and characters and numbers in brackets without."""
    return ("" if all(len(each) == 1 or each.startswith("<") for each in tokens) else " ").join(tokens)


_CAUSES: tuple[tuple[Callable[[Answers], bool], str], ...] = (
    (
        lambda each: each.one_pass[:-1] == each.labels[1:] and each.one_pass != each.labels,
        "one pass is one token ahead of the labels: the label of a position is the token after the one fed there",
    ),
    (
        lambda each: each.one_pass[1:] == each.labels[:-1] and each.one_pass != each.labels,
        "one pass is one token behind the labels: is the decoder fed one token too many at the start?",
    ),
    (
        lambda each: each.one_pass[: (n := len(each.right))] == each.labels[:n] and each.generated == each.right,
        "one pass is right as far as the answer goes: labels after its end should be -100",
    ),
    (
        lambda each: each.generated == each.right[::-1] != each.right,
        "generate() gives answers backwards: turn them round",
    ),
    (
        lambda each: each.generated != each.right and each.generated.strip(" 0") == each.right.strip(" 0"),
        "answers are filled up with zeros or spaces here and not there: questions and answers come as people write "
        "them, 7+94 and 101, so if the model has 07+94, fill them up in encode() as generate() does",
    ),
    (
        lambda each: each.generated != each.right and each.generated.startswith(each.right),
        "generate() goes on after the answer: cut it off at the end token",
    ),
    (
        lambda each: each.one_pass == each.labels and each.generated != each.right,
        "one pass is right, being fed the right answer, and decoding is not: is the decoder's mask causal, so that it "
        "cannot see the token that it is to predict, and does generate() feed the model as encode() does?",
    ),
)
"""Common mistakes, the most certain first."""


def _likely_cause(answers: Sequence[Answers]) -> list[str]:
    """Return the first mistake that explains all of these answers; None if none does."""
    return [cause for explains, cause in _CAUSES if answers and all(map(explains, answers))][:1]


def _checked_rows(batch: EvalBatch, n: int = CHECKED) -> Rows:
    """Return the rows of a batch that are decoded."""
    return np.unique(np.linspace(0, len(batch.rows) - 1, n).astype(int))


def _gates_and_values(outcome: BatchOutcome, picks: Picks) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
    """Return the intervention with one row for each pick."""
    gates: dict[HeadSite, Tensor] = {}
    values: dict[HeadSite, Tensor] = {}
    for i, (number, row) in enumerate(picks):
        intervention = outcome.interventions[number]
        for site, places in outcome.cached.sites.head_slots(intervention.heads).items():
            z = outcome.cached.z(site)
            gates.setdefault(site, torch.ones(len(picks), z.shape[2]))[i, list(places)] = 0.0
            if site in intervention.values:
                value = values.setdefault(site, z.new_zeros(len(picks), *z.shape[1:]))
                value[i] = intervention.values[site].expand(z.shape)[row]
    return gates, values


# --- what fails without a head: which tokens, which events, which examples -------------------------------------------


SHOWN = 5
"""Broken examples that are kept for each head, at most."""


class Failure(NamedTuple):
    """An example that was right, and the prediction without the head (None if there are only two classes)."""

    example: int
    predicted: Tokens | None


@dataclass(frozen=True)
class Group:
    """Examples of one kind, and how many of them broke."""

    facet: str
    group: str
    broken: Count
    n: Count

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the number of broken examples with the number of examples."""
        if self.broken > self.n:
            yield "broken", f"at most n, {self.n:,}"


@dataclass(frozen=True)
class FailureProfile:
    """What breaks when one head is ablated with one replacement."""

    head: HeadName
    replacement: str
    n_broken: Count
    digits: tuple[Group, ...]
    """Number of wrong tokens by position, among the broken examples that were decoded."""
    faults: tuple[Group, ...]
    """Kinds of mistake in these answers, the most frequent first."""
    groups: tuple[Group, ...]
    """Number of examples that broke in each group of a facet, such as a length."""
    examples: tuple[WrongAnswer, ...]
    n_carry_errors: int | None = None
    """Decoded answers that are wrong about the task's event, such as a carry, and nothing else; None if not counted."""


def failure_profile(
    task: Task, examples: Examples, head: str, replacement: str, rows: NDArray[np.int64], broken: Sequence[Failure]
) -> FailureProfile:
    """Summarise the broken examples: the numbers of all, and the answers to some."""
    groups: list[Group] = []
    for facet, labels in task.facets(examples).items():
        total, broke = Counter(labels), Counter(labels[i] for i in rows)
        groups += [Group(facet, group, broke[group], total[group]) for group in sorted(total)]
    if task.output_type == "class":
        shown = tuple(_wrong_class(cast(ClassTask, task), examples[each.example]) for each in broken[:SHOWN])
        return FailureProfile(head, replacement, len(rows), (), (), tuple(groups), shown)
    decoded = [(each.example, each.predicted) for each in broken if each.predicted is not None]
    if not decoded:
        return FailureProfile(head, replacement, len(rows), (), (), tuple(groups), ())
    asked = cast(SequenceTask, task)
    mine, predicted = examples[[i for i, _ in decoded]], np.stack([tokens for _, tokens in decoded])
    wrong = (predicted != asked.encode(mine).answer).sum(axis=0).tolist()
    places = [position.label for position in asked.answer_positions]
    digits = tuple(Group(asked.words.place, place, n, len(mine)) for place, n in zip(places, wrong, strict=True))
    by_answer = [asked.faults(*pair) for pair in zip(mine, predicted, strict=True)]
    counts = Counter(fault for faults in by_answer for fault in faults)
    event = asked.words.event
    n_carry_errors = (
        sum(bool(faults) and all(event.name in each for each in faults) for faults in by_answer) if event else None
    )
    faults = tuple(Group("fault", fault, n, len(mine)) for fault, n in counts.most_common())
    shown = wrong_answers(asked, mine[:SHOWN], predicted[:SHOWN])
    return FailureProfile(head, replacement, len(rows), digits, faults, tuple(groups), shown, n_carry_errors)


def _wrong_class(task: ClassTask, example: Examples) -> WrongAnswer:
    right = int(task.encode(example[None]).labels[0])
    predicted = len(task.classes) - 1 - right
    return WrongAnswer(
        task.show(example), task.classes[right], task.classes[predicted], task.explain(example, predicted)
    )
