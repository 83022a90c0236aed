"""Check the scores of one forward pass against real decoding, and describe the answers that an ablation breaks.

Whether a decoded answer is right can be computed from one teacher-forced forward pass, without decoding
(training/answers.py). As a check, some examples are also decoded under every ablation, and must get the same scores.

An ablation breaks an answer if the answer is right with all heads and wrong under the ablation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.dataset import FREE, Answers, EvalBatch, Rows
from headcount.errors import CheckFailed
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import BatchOutcome
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Gates, closed_gates, eval_mode
from headcount.hooks.intervention_proof import first_tensor
from headcount.hooks.replay import Intervention
from headcount.models.transformer import SequenceTransformer, greedy
from headcount.results import Contradiction, Count, HeadName, Positive
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.evaluation import WrongAnswer, wrong_answers

CHECKED = 8
"""Number of examples that are decoded under each ablation, to check the scores from one forward pass."""
CHECKED_WHOLE = 32
"""Number of examples that are decoded with all heads, to check the scores from one forward pass before any ablation."""
LISTED = 5
"""Largest number of answers that an error message lists."""
EXPLAINED = 100
"""Largest number of broken answers that are decoded for each ablation, to describe their mistakes."""
Picks = list[tuple[int, int]]
"""The answers to decode, as pairs: the index of an intervention (ablation), and the row (example) in a batch."""


class DecodingCheck:
    """A callback for `run_interventions` that checks scores against decoding, and collects broken answers.

    Some answers of the first batch are decoded under every ablation. With `explain`, the answers that an ablation
    breaks (right with all heads, wrong under it) are collected, if the metric is an accuracy on examples of a task.
    After each block of examples, call `next_block`.
    """

    def __init__(self, experiment: Experiment, interventions: Sequence[Intervention], *, explain: bool) -> None:
        self.experiment, self.interventions = experiment, interventions
        is_free = experiment.metric is FREE
        self.decodes = is_free and experiment.task is not None and isinstance(experiment.model, SequenceTransformer)
        self.generates = is_free and experiment.decode is not None
        self.explains = explain and experiment.metric.is_accuracy and experiment.task is not None
        self.decoded = 0
        self.decoded_replacements: tuple[str, ...] = ()
        self._broken: dict[tuple[HeadId, str], list[Failure]] = {_pair(each): [] for each in interventions}
        self._counted: dict[tuple[HeadId, str], list[int]] = {_pair(each): [] for each in interventions}
        self._examples: list[Examples] = []
        """The examples of all blocks before the current block."""

    @property
    def is_needed(self) -> bool:
        """Whether the next batch must be given to this callback: to be checked, or to collect its broken answers."""
        return self.explains or (not self.decoded and (self.decodes or self.generates))

    def __call__(self, outcome: BatchOutcome) -> None:
        """Check a batch's scores against decoding (first batch only), and collect answers that ablations make wrong."""
        if self.decodes and not self.decoded:
            self._check(outcome)
        if self.generates and not self.decoded:
            self._check_generated(outcome)
        if self.explains:
            self._collect(outcome)

    def next_block(self, experiment: Experiment) -> None:
        """Keep the examples of the current block, and go on to the next block of examples, `experiment`."""
        if self.explains:
            self._examples.append(cast(Examples, self.experiment.examples))
        self.experiment = experiment

    def failures(self, n_measured: Mapping[tuple[HeadId, str], int] | None = None) -> tuple[FailureProfile, ...]:
        """Return a summary of the broken answers for each ablation; resample ablation counts its first donor only.

        `n_measured` has, for each pair of head and replacement, the number of examples that it was measured on.
        """
        if not self.explains:
            return ()
        task = cast(Task, self.experiment.task)
        examples = np.concatenate([*self._examples, *([] if n_measured else [self.experiment.examples])])
        return tuple(
            failure_profile(
                task,
                examples[: n_measured[pair] if n_measured else len(examples)],
                str(pair[0]),
                pair[1],
                np.array(rows, dtype=int),
                self._broken[pair],
            )
            for pair, rows in self._counted.items()
        )

    def _check(self, outcome: BatchOutcome) -> None:
        picks = [(i, int(row)) for i in range(len(self.interventions)) for row in _checked_rows(outcome.batch)]
        task = cast(SequenceTask, self.experiment.task)
        examples = cast(Examples, self.experiment.examples)[outcome.batch.rows[[row for _, row in picks]]]
        right = (self._decode(outcome, picks) == task.encode(examples).answer).all(axis=1)
        scored_right = np.array([outcome.scores[pick] > 0.5 for pick in picks])
        if (right != scored_right).any():
            first = int((right != scored_right).argmax())
            head = self.interventions[picks[first][0]].heads[0]
            raise CheckFailed(
                f"with {head} ablated, one teacher-forced forward pass and free-running decoding disagree on whether "
                f"the model answers {task.show(examples[first])} correctly",
                "this is a fault in the pipeline, not in the model: please report it",
            )
        self.decoded = len(picks)
        self.decoded_replacements = tuple(dict.fromkeys(each.replacement for each in self.interventions))

    def _check_generated(self, outcome: BatchOutcome) -> None:
        """Raise an error if scores under zero ablation disagree with answers of the model's own decoding code.

        Other ablations replace a different output at each position, which does not work if the model's code runs one
        position at a time.
        """
        assert self.experiment.decode is not None, "self.generates is true"
        sites, batch, checked = self.experiment.sites, outcome.batch, _checked_rows(outcome.batch)
        rows = batch.rows[checked]
        for each, scores in zip(outcome.interventions, outcome.scores[:, checked], strict=True):
            if each.values:
                continue
            with Gates(sites, closed_gates(sites, each.heads)):
                right = self.experiment.decode(rows)
                if (apart := right != (scores > 0.5)).any():
                    logits = first_tensor(self.experiment.model(*batch.inputs))
                    when = f"with {each.heads[0]} ablated"
                    raise _disagreement(self.experiment, when, batch, checked, apart, logits)
            self.decoded += len(rows)
            self.decoded_replacements = tuple(dict.fromkeys((*self.decoded_replacements, each.replacement)))

    def _collect(self, outcome: BatchOutcome) -> None:
        picks: Picks = []
        first = sum(map(len, self._examples))
        for i, each in enumerate(outcome.interventions):
            if each.draw == 0:
                rows = np.flatnonzero((outcome.clean > 0.5) & (outcome.scores[i] <= 0.5))
                self._counted[_pair(each)] += (first + outcome.batch.rows[rows]).tolist()
                picks += [(i, int(row)) for row in rows[: max(0, EXPLAINED - len(self._broken[_pair(each)]))]]
        if not picks:
            return
        predicted: Sequence[Tokens | None] = [None] * len(picks)
        if self.decodes:
            predicted = list(self._decode(outcome, picks))
        elif self.generates:
            numbers = range(len(outcome.interventions))
            predicted = [tokens for i in numbers for tokens in self._generate(outcome, picks, i)]
        for (i, row), tokens in zip(picks, predicted, strict=True):
            example = first + int(outcome.batch.rows[row])
            self._broken[_pair(outcome.interventions[i])].append(Failure(example, tokens))

    def _decode(self, outcome: BatchOutcome, picks: Picks) -> Tokens:
        """Decode one answer per pick (an ablation and an example of the batch), one token at a time."""
        model, sites = cast(SequenceTransformer, self.experiment.model), self.experiment.sites
        task = cast(SequenceTask, self.experiment.task).sized_for(cast(Examples, self.experiment.examples))
        start = task.decoding_start
        with Gates(sites, *_gates_and_values(outcome, picks), allow_prefix=True):
            memory: Any = model.encode(outcome.batch.inputs[0][torch.tensor([row for _, row in picks])])
            predicted = greedy(model, memory, start.first, start.n_tokens, use_cache=False, end_id=task.end_id)
        given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(predicted), len(start.given)))
        return np.concatenate([given, predicted.cpu().numpy()], axis=1)

    def _generate(self, outcome: BatchOutcome, picks: Picks, number: int) -> list[Tokens | None]:
        """Return answers that the model's own code generates under the zero ablation with index `number`.

        Picks of other ablations get None.
        """
        rows = outcome.batch.rows[[row for i, row in picks if i == number]]
        intervention, sites = outcome.interventions[number], self.experiment.sites
        if not len(rows) or intervention.values or self.experiment.generate is None:
            return [None] * len(rows)
        with Gates(sites, closed_gates(sites, intervention.heads)):
            return list(map(cast(SequenceTask, self.experiment.task).read_answer, self.experiment.generate(rows)))


def _pair(intervention: Intervention) -> tuple[HeadId, str]:
    """Return the one head that an intervention ablates, and what replaces its output."""
    return intervention.heads[0], intervention.replacement


def require_same_answers(experiment: Experiment) -> None:
    """Raise an error if the model's own decoding and one forward pass disagree on an answer, with all heads."""
    if experiment.metric is not FREE or experiment.decode is None:
        return
    batch = experiment.batches[0]
    checked = _checked_rows(batch, CHECKED_WHOLE)
    with eval_mode(experiment.model), torch.no_grad():
        logits = first_tensor(experiment.model(*batch.inputs))
        scored_right = experiment.score(batch, logits).cpu().numpy()[checked] > 0.5
        apart = experiment.decode(batch.rows[checked]) != scored_right
        if apart.any():
            raise _disagreement(experiment, "with all heads", batch, checked, apart, logits)


def _disagreement(
    experiment: Experiment, when: str, batch: EvalBatch, checked: Rows, apart: NDArray[np.bool_], logits: Tensor
) -> CheckFailed:
    """Build the error for a forward pass and decoding that disagree; it lists both answers and the likely mistake."""
    message = f"{when}, one forward pass and real decoding disagree on {int(apart.sum())} of {len(apart)} examples"
    answers = [] if experiment.answers is None else experiment.answers(batch.rows, checked[apart][:LISTED], logits)
    advice = (
        "check that encode() feeds the model as in training (with its start token), that labels of padding are -100, "
        "and that generate() stops where the labels do: teacher forcing and decoding then have the same first wrong "
        "token"
    )
    # The first mistake that explains all of these answers.
    cause = [text for explains, text in _CAUSES if answers and all(map(explains, answers))][:1]
    return CheckFailed(message, *_listing(answers), *cause, advice)


def _listing(answers: Sequence[Answers]) -> list[str]:
    """Return a plain-text table, as lines with a header, of the answers to some questions; empty without answers."""
    rows: list[tuple[str, ...]] = [("question", "right answer", "labels", "one pass", "generate")]
    for each in answers:
        rows.append((each.question, each.right, _joined(each.labels), _joined(each.one_pass), each.generated))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines if answers else []


def _joined(tokens: Sequence[str]) -> str:
    """Return tokens as one text: words are joined with spaces, characters and tokens such as <end> without."""
    return ("" if all(len(token) == 1 or token.startswith("<") for token in tokens) else " ").join(tokens)


_CAUSES: tuple[tuple[Callable[[Answers], bool], str], ...] = (
    (
        lambda each: each.one_pass[:-1] == each.labels[1:] and each.one_pass != each.labels,
        "predictions of one pass are one token ahead of the labels: label each position with the token after the one "
        "fed there",
    ),
    (
        lambda each: each.one_pass[1:] == each.labels[:-1] and each.one_pass != each.labels,
        "predictions of one pass are one token behind the labels: feed the decoder one token less at the start",
    ),
    (
        lambda each: each.one_pass[: (n := len(each.right))] == each.labels[:n] and each.generated == each.right,
        "one pass is right up to the end of the answer: labels after the end should be -100",
    ),
    (
        lambda each: each.generated == each.right[::-1] != each.right,
        "generate() returns answers in reverse order: reverse them there",
    ),
    (
        lambda each: each.generated != each.right and each.generated.strip(" 0") == each.right.strip(" 0"),
        "answers are padded with zeros or spaces in generate() only: encode() gets questions and answers as people "
        "write them, 7+94 and 101, so if the model needs 07+94, pad them in encode() as generate() does",
    ),
    (
        lambda each: each.generated != each.right and each.generated.startswith(each.right),
        "generate() continues after the answer: cut its output off at the end token",
    ),
    (
        lambda each: each.one_pass == each.labels and each.generated != each.right,
        "teacher forcing is right, but decoding is wrong: check that the decoder's mask is causal (it must not see the "
        "token that it predicts), and that generate() feeds the model as encode() does",
    ),
)
"""Common mistakes in an adapter's encode() or generate(), the most certain first.

Each mistake is a pair: a test of the answers to one example, and advice to print if the test is true for all examples.
"""


def _checked_rows(batch: EvalBatch, n: int = CHECKED) -> Rows:
    """Return `n` evenly spaced rows (examples) of a batch, to be decoded."""
    return np.unique(np.linspace(0, len(batch.rows) - 1, n).astype(int))


def _gates_and_values(outcome: BatchOutcome, picks: Picks) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
    """Return gates and replacement outputs, by attention block, for one row per pick (an ablation and an example)."""
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


# --- broken answers: at which places, with which mistakes, in which groups of examples --------------------------------


SHOWN = 5
"""Largest number of broken answers that a result lists for each ablation."""


class Failure(NamedTuple):
    """An answer that an ablation breaks: the index of its example, and the predicted tokens (None if not decoded)."""

    example: int
    predicted: Tokens | None


@dataclass(frozen=True)
class Group:
    """The number of answers that an ablation breaks in one group of examples, such as those of length 8.

    An answer is broken if it is right with all heads and wrong under the ablation.
    """

    facet: str
    """The property by which examples are grouped, such as the number of carries or the length."""
    group: str
    """The value of the property (the facet) that the examples of this group share, such as "8"."""
    broken: Count
    n: Count
    """The number of examples in the group."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if there are more broken answers than examples."""
        if self.broken > self.n:
            yield "broken", f"at most n, {self.n:,}"


@dataclass(frozen=True)
class FailureProfile:
    """A summary of the answers that ablating one head breaks: right with all heads, wrong under the ablation."""

    head: HeadName
    replacement: str
    """The kind of ablation, such as `zero`."""
    n_broken: Count
    """The number of broken answers."""
    n: Positive
    """The number of examples on which the head was ablated."""
    places: tuple[Group, ...]
    """For each place of the answer, the number of decoded broken answers whose token at this place is wrong."""
    faults: tuple[Group, ...]
    """For each kind of mistake, the number of decoded broken answers with it; the most frequent kind comes first."""
    groups: tuple[Group, ...]
    """For each group of examples, such as those of one length, the number of broken answers."""
    examples: tuple[WrongAnswer, ...]
    """Some of the broken answers (at most `SHOWN`), with the right answers."""
    n_event_errors: int | None = None
    """The number of decoded broken answers whose mistakes all concern an event such as a carry; None if not counted."""


def failure_profile(
    task: Task, examples: Examples, head: str, replacement: str, rows: NDArray[np.int64], broken: Sequence[Failure]
) -> FailureProfile:
    """Return a summary of the answers that an ablation of `head` breaks.

    `rows` are the indices of all examples with a broken answer, and `broken` are those answers that were decoded.
    """
    groups: list[Group] = []
    for facet, labels in task.facets(examples).items():
        total, broke = Counter(labels), Counter(labels[i] for i in rows)
        groups += [Group(facet, group, broke[group], total[group]) for group in sorted(total)]
    profile = FailureProfile(head, replacement, len(rows), len(examples), (), (), tuple(groups), ())
    if task.output_type == "class":
        wrong = (_wrong_class(cast(ClassTask, task), examples[failure.example]) for failure in broken[:SHOWN])
        return replace(profile, examples=tuple(wrong))
    decoded = [(failure.example, failure.predicted) for failure in broken if failure.predicted is not None]
    if not decoded:
        return profile
    sequence_task, n = cast(SequenceTask, task), len(decoded)
    failed, predicted = examples[[i for i, _ in decoded]], np.stack([tokens for _, tokens in decoded])
    n_wrong = (predicted != sequence_task.encode(failed).answer).sum(axis=0).tolist()
    places = zip(sequence_task.answer_positions, n_wrong, strict=True)
    by_answer = [sequence_task.faults(*pair) for pair in zip(failed, predicted, strict=True)]
    counts, event = Counter(fault for faults in by_answer for fault in faults), task.words.event
    n_event_errors = None
    if event:
        n_event_errors = sum(bool(faults) and all(event.name in fault for fault in faults) for faults in by_answer)
    return replace(
        profile,
        places=tuple(Group(task.words.place, position.label, count, n) for position, count in places),
        faults=tuple(Group("fault", fault, count, n) for fault, count in counts.most_common()),
        examples=wrong_answers(sequence_task, failed[:SHOWN], predicted[:SHOWN]),
        n_event_errors=n_event_errors,
    )


def _wrong_class(task: ClassTask, example: Examples) -> WrongAnswer:
    right = int(task.encode(example[None]).labels[0])
    predicted = len(task.classes) - 1 - right
    return WrongAnswer(
        task.show(example), task.classes[right], task.classes[predicted], task.explain(example, predicted)
    )
