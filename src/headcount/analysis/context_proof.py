"""Is a classifier right on every sequence of every length? Check every context that a position can see.

In a model with a window, each position sees only a few neighbours, so a finite table of contexts determines the model's
answers at every length (training/contexts.py). These words are used throughout:

    context       the tokens that one position can see
    lead          the logit of the first class (such as unsorted) minus that of the last class (such as sorted)
    fires, quiet  a context fires if its lead is positive, and is quiet otherwise
    broken pair   two neighbours that no sequence of the last class contains, such as 5 4

The table is computed in double precision with a bound of its error (context_rounding.py). The decision is exact
(training/violations.py): proved, refuted with sequences that the model answers wrong, or undecided if rounding could
change a verdict.

The model itself runs in single precision. There, the difference from double precision is measured for every context,
and estimated to first order for the contexts with leads closest to 0. Neither is a proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.analysis.context_rounding import Arithmetic, BoundedPass, first_order_error
from headcount.errors import CheckFailed
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.models.transformer import Classifier, FourierNumberEmbedding
from headcount.results import Contradiction, Count, Positive, Result, Size
from headcount.runs.train import environment
from headcount.seeds import stream
from headcount.tasks.base import EMPTY, ClassTask, Examples
from headcount.training.contexts import Contexts, ContextShape, enumerate_contexts, lead_table
from headcount.training.device import workers
from headcount.training.evaluation import ClassLearner, WrongAnswer
from headcount.training.violations import Decision, as_examples

CHECKED_LENGTHS = (1, 2, 3, 4, 7, 16, 64, 256, 1024, 4096)
"""Lengths of the whole sequences on which the model is compared with the table of what single positions see."""
N_TIGHTEST = 1000
"""Number of contexts, those with the least certain answers, whose single-precision rounding error is estimated."""
N_WRONG = 20
"""Largest number of wrongly answered sequences of each class that a refutation lists."""
TOLERANCE = 1e-2
"""Largest accepted difference, in logits, between a whole sequence and the table of what single positions see."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ContextCertificate(Result):
    """Result of checking a classifier on every context (the tokens that one position sees), valid for every length."""

    SCHEMA: ClassVar[int] = 1
    name: str
    weights_sha256: str
    buffers: Mapping[str, str]
    """SHA-256 of each constant that is computed and not stored with the weights: sine waves of numbers, and biases."""
    verdict: Literal["proved", "refuted", "undecided"]
    claim: str
    """One sentence that the certificate proves or refutes, such as `right on every sequence ... of every length`."""
    example: str
    """The task's word for one example, such as `sequence`."""
    first_class: str
    """The class of examples that have a broken pair (neighbours that the other class forbids), such as `unsorted`."""
    last_class: str
    """The class of examples that have no broken pair (neighbours that this class forbids), such as `sorted`."""
    trained: tuple[int, int]
    """Lengths of the shortest and the longest sequence in training."""
    width: Positive
    """Number of tokens in a context: the neighbours that a position sees, and its own token."""
    settings: Mapping[str, str]
    """Settings of the model that define which tokens a position sees, such as the number of layers and the window."""
    n_contexts: Positive
    n_unbroken: Count
    """Number of contexts without a broken pair (5 4), which are those that occur in sequences of the last class."""
    n_wrong_contexts: Count
    """Number of contexts without a broken pair (5 4) that may still vote for the first class, allowing for rounding."""
    n_wrong_paths: Count
    """Number of contexts with a broken pair (such as 5 4) that occur in some sequence that may be answered wrong."""
    least_quiet: float
    """Smallest margin, in logits, by which a context without a broken pair (5 4) votes for the last class.

    It is negative if such a context votes for the first class.
    """
    tightest_quiet: str
    """The context (tokens that one position sees) with the smallest margin for the last class; `-` is an edge."""
    least_firing: float
    """Smallest margin, in logits, of any sequence of the first class (such as `unsorted`); negative if one is wrong."""
    tightest_firing: str
    """The sequence of the first class (such as `unsorted`) that has the smallest margin, `least_firing`."""
    double_error: Size
    """Bound of the rounding error of the logits in double precision: the largest over all that one position can see."""
    single_error: Size
    """Largest difference of a logit difference between the model's single precision and double precision."""
    first_order_error: Size
    """First-order estimate of single-precision rounding, in logits: the largest one for the least certain answers."""
    n_sequences: Count
    """Number of whole sequences, up to 4,096 tokens, on which the model was compared with the table of contexts."""
    sequence_error: Size
    """Largest difference, in logits, between the model on a whole sequence and the table of what positions see."""
    wrong: tuple[WrongAnswer, ...]
    """Sequences that the model's own forward pass answers wrong, the shortest first; empty unless refuted."""
    environment: Mapping[str, str]
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the verdict disagrees with the wrong contexts, margins or wrong answers."""
        n_violations = self.n_wrong_contexts + self.n_wrong_paths
        if (self.verdict == "proved") != (n_violations == 0):
            yield (
                "verdict",
                f"'proved' if no context is wrong, and another verdict otherwise ({n_violations:,} are wrong)",
            )
        if (self.verdict == "refuted") != (len(self.wrong) > 0):
            yield "wrong", "at least one sequence if the verdict is refuted, and none otherwise"
        if self.verdict == "proved" and not self.double_error < min(self.least_quiet, self.least_firing):
            yield "double_error", "a bound below least_quiet and least_firing, as the verdict is proved"
        for name in ("n_unbroken", "n_wrong_contexts", "n_wrong_paths"):
            if getattr(self, name) > self.n_contexts:
                yield name, f"at most {self.n_contexts:,}, the value of n_contexts"

    @property
    def errors(self) -> int:
        """The number of wrongly answered sequences that the certificate lists."""
        return len(self.wrong)

    @property
    def least_margin(self) -> float:
        """The smallest margin of any answer, in logits; negative if an answer is wrong."""
        return min(self.least_quiet, self.least_firing)


def context_shape(model: OpenModel) -> tuple[ClassLearner, ContextShape]:
    """Return the classifier and the shape of its contexts (the tokens that one position sees).

    Raise `Undecidable` if the contexts are not bounded, so that no table can decide about every length.
    """
    answers = model.answers
    shape = ContextShape.on_task(getattr(answers, "model", None), answers.task)
    return cast(ClassLearner, answers), shape


def prove(model: OpenModel, *, seed: int = 0, progress: Progress | None = None) -> ContextCertificate:
    """Check a classifier on every context (the tokens that one position sees), and return the certificate.

    `progress` is called with (done, total). Raise `Undecidable` if the contexts are not bounded.
    """
    learner, shape = context_shape(model)
    task, classifier, rng = learner.task, learner.model, stream(seed, "proof")
    allowed = task.allowed_neighbours
    assert allowed is not None, "context_shape has checked this"
    device = classifier.to_logits.weight.device
    single = lead_table(classifier, shape)
    leads, double_error = bounded_table(classifier, shape, progress)
    n_sequences, sequence_error = _compare_with_sequences(learner, shape, single, rng)
    if sequence_error > TOLERANCE:
        raise CheckFailed(
            "the model cannot be proved right on every sequence: its logits for whole sequences differ by "
            f"{sequence_error:.2g} from logits computed separately from the few tokens that each position can see",
            "a position of this model seems to depend on tokens outside its attention window: please report this",
        )
    decision = Decision(shape, allowed, leads, double_error)
    certain = Decision(shape, allowed, leads, -double_error)
    wrong = () if decision.is_right else _wrong_answers(learner, certain, rng)
    quiet_leads = np.where(decision.unbroken, leads, -np.inf)
    tightest = np.unravel_index(int(quiet_leads.argmax()), leads.shape)
    least_firing, sequence = _least_firing(shape, allowed, leads, rng)
    weight = classifier.to_logits.weight
    return ContextCertificate(
        name=model.name,
        weights_sha256=model.weights_sha256,
        buffers=_buffer_digests(classifier),
        verdict="proved" if decision.is_right else "refuted" if wrong else "undecided",
        claim=_claim(task),
        example=task.words.example,
        first_class=task.classes[0],
        last_class=task.classes[-1],
        trained=task.trained_lengths,
        width=shape.width,
        settings=_settings(classifier, shape),
        n_contexts=shape.n_contexts,
        n_unbroken=int(decision.unbroken.sum()),
        n_wrong_contexts=len(decision.wrong_contexts),
        n_wrong_paths=len(decision.wrong_edges),
        least_quiet=float(-quiet_leads.max()),
        tightest_quiet=show_context(task, [int(token) for token in tightest]),
        least_firing=least_firing,
        tightest_firing=task.show(np.array(sequence)),
        double_error=double_error,
        single_error=float(np.nanmax(np.abs(single - leads))),
        first_order_error=_first_order(classifier, shape, leads, device),
        n_sequences=n_sequences,
        sequence_error=sequence_error,
        wrong=wrong,
        environment=environment(device) | {"dtype": str(weight.dtype).removeprefix("torch.")},
    )


def bounded_table(
    model: Classifier, shape: ContextShape, progress: Progress | None = None
) -> tuple[NDArray[np.float64], float]:
    """Return the lead of every context in double precision, and the largest bound of its rounding error.

    A context is the tokens that one position sees. Its lead is the logit of the first class minus that of the last.
    """
    table = np.full((shape.n_tokens + 1,) * shape.width, np.nan)
    bounded, largest, done = BoundedPass(model, shape.n_tokens, Arithmetic()), 0.0, 0
    with eval_mode(model, gradients=False) as device, workers(model) as compute:
        for left, right in shape.borders():
            leads, width = [], left + 1 + right

            def leads_of(tokens: Contexts, left: int = left) -> tuple[NDArray[np.float64], float]:
                block = bounded.leads(tokens.to(device), left)
                return block.value.cpu().numpy(), float(block.error.max())

            for values, error in compute(leads_of, enumerate_contexts(shape.n_tokens, width)):
                leads.append(values)
                largest, done = max(largest, error), done + len(values)
                if progress:
                    progress(done, shape.n_contexts)
            table[shape.block(left, right)] = np.concatenate(leads).reshape((shape.n_tokens,) * width)
    if not np.isfinite(largest):
        raise CheckFailed(
            "the model cannot be proved right on every sequence: its weights are so large that the rounding error of "
            "its logits has no finite bound",
            "train the model again with more weight decay",
        )
    return table, largest


def leads_of_sequence(table: NDArray[np.floating], shape: ContextShape, tokens: Sequence[int]) -> NDArray[np.floating]:
    """Return the lead at each position of a sequence, looked up in the table of contexts.

    The lead is the logit of the first class minus that of the last class, as the context of this position contributes
    it.
    """
    outside = shape.n_tokens
    padded = np.array([*[outside] * shape.left, *tokens, *[outside] * shape.right])
    windows = np.lib.stride_tricks.sliding_window_view(padded, shape.width)
    return np.asarray(table[tuple(windows.T)])


def show_context(task: ClassTask, context: Sequence[int]) -> str:
    """Return a context (the tokens that one position sees) as text, with `-` for a place outside of the sequence."""
    return " ".join("-" if token >= task.pad_id else task.tokens[token] for token in context)


def _claim(task: ClassTask) -> str:
    first, last = task.tokens[0], task.tokens[len(task.tokens) - 2]
    return f"right on every {task.words.example} of {task.words.symbols} from {first} to {last}, of every length"


def _settings(model: Classifier, shape: ContextShape) -> dict[str, str]:
    names = ("n_layers", "n_heads", "d_model", "d_ff", "window", "causal", "encoding", "norm", "numbers", "pooling")
    return {"n_tokens": str(shape.n_tokens)} | {name: str(getattr(model.config, name)) for name in names}


def _buffer_digests(model: Classifier) -> dict[str, str]:
    """Return the SHA-256 of constants that are not stored with the weights: sine waves of numbers, biases by distance.

    Both are hashed as float32 bytes.
    """
    window = model.config.window or 0
    at = torch.arange(2 * window + 1, device=model.to_logits.weight.device)
    biases = model.positions.bias(at[window], at)
    buffers = {} if biases is None else {"biases": biases}
    if isinstance(model.tokens, FourierNumberEmbedding):
        buffers["waves"] = model.tokens.waves
    return {
        name: hashlib.sha256(part.detach().cpu().float().numpy().tobytes()).hexdigest()
        for name, part in buffers.items()
    }


def _compare_with_sequences(
    learner: ClassLearner, shape: ContextShape, table: NDArray[np.float32], rng: np.random.Generator
) -> tuple[int, float]:
    """Compare the model's logits for whole sequences of both classes with those from the table of contexts.

    A context is the tokens that one position sees. Some of the sequences are padded. Return the number of sequences and
    the largest difference in logits.
    """
    task, largest, n = learner.task, 0.0, 0
    for length in CHECKED_LENGTHS:
        kinds = (None, *task.negatives) if length > 1 else (None,)
        examples = [row for kind in kinds for row in task.sample_of_length(rng, length, kind, 2)]
        examples += [row[: max(1, length // 2)] for row in examples[:2]]  # padded beside the others
        rows = as_examples([row.tolist() for row in examples], length)
        logits = learner.classify(rows).logits.astype(np.float64)
        combine = np.max if learner.model.pooling.combines == "max" else np.mean
        expected = [combine(leads_of_sequence(table, shape, row[row != EMPTY].tolist())) for row in rows]
        largest = max(largest, float(np.abs(logits[:, 0] - logits[:, -1] - expected).max()))
        n += len(rows)
    return n, largest


def _wrong_answers(learner: ClassLearner, decision: Decision, rng: np.random.Generator) -> tuple[WrongAnswer, ...]:
    """Return sequences that the model answers wrong: the shortest one, and several of the training lengths."""
    task = learner.task
    shortest, longest = task.trained_lengths
    sequences = [decision.shortest_wrong_sequence(rng), decision.shortest_wrong_sequence(rng, shortest)]
    sequences += decision.wrong_sequences(rng, range(shortest, longest + 1), N_WRONG)
    distinct = sorted({tuple(sequence) for sequence in sequences if sequence}, key=lambda each: (len(each), each))
    if not distinct:
        return ()
    rows = as_examples([list(each) for each in distinct], max(map(len, distinct)))
    return wrong_classes(learner, rows)


def wrong_classes(learner: ClassLearner, rows: Examples) -> tuple[WrongAnswer, ...]:
    """Classify examples with the model, and return those that it answers wrong."""
    task, answers = learner.task, learner.classify(rows)
    return tuple(
        WrongAnswer(
            task.show(rows[i]),
            task.classes[answers.labels[i]],
            task.classes[answers.predicted[i]],
            task.explain(rows[i], int(answers.predicted[i])),
        )
        for i in np.flatnonzero(~answers.hits)
    )


def _least_firing(
    shape: ContextShape, allowed: NDArray[np.bool_], leads: NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, list[int]]:
    """Find the sequence with a broken pair (neighbours such as 5 4) that the model recognises with the smallest margin.

    Return the margin, the largest lead of any context of the sequence, and the sequence. A sequence whose leads are all
    at most t exists if and only if contexts with a lead of at most t form a path through a broken pair. Bisection over
    the leads that occur finds the smallest such t.
    """
    values = np.unique(leads[~np.isnan(leads)])
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if len(Decision(shape, allowed, leads, float(values[middle])).wrong_edges):
            high = middle
        else:
            low = middle + 1
    at_bound = Decision(shape, allowed, leads, float(values[low]))
    return float(values[low]), at_bound.shortest_quiet_sequence(rng)


def _first_order(model: Classifier, shape: ContextShape, leads: NDArray[np.float64], device: torch.device) -> float:
    """Estimate the single-precision error, to first order, of the contexts with the least certain answers.

    A context is the tokens that one position sees. Return the largest error, in logits.
    """
    order = np.argsort(np.abs(leads), axis=None)[: min(N_TIGHTEST, shape.n_contexts)]  # NaN comes last
    contexts, largest = np.stack(np.unravel_index(order, leads.shape), axis=1), 0.0
    n_outside = contexts == shape.n_tokens
    lefts = n_outside[:, : shape.left].sum(axis=1)
    rights = n_outside[:, shape.left + 1 :].sum(axis=1)
    for left, right in shape.borders():
        rows = contexts[(lefts == shape.left - left) & (rights == shape.right - right)]
        if len(rows):
            inside = rows[:, shape.left - left : shape.left + 1 + right]
            errors = first_order_error(model, shape.n_tokens, torch.from_numpy(inside.copy()).to(device), left)
            largest = max(largest, float(errors.max()))
    return largest
