"""Is every answer right? Check a model on every possible example of its task, not only on a test set.

One teacher-forced forward pass per example decides whether free-running decoding gives the right answer
(training/answers.py). All wrong answers (up to a limit) and a sample of right ones are also decoded free-running. There
is no certificate if both disagree on an answer, or if the enumeration omits or repeats an example.

Floating-point rounding differs between machines. The examples with the smallest margins and the sample of right ones
are therefore computed again in double precision. The largest change of a margin shows how close the smallest margin is
to an error.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from headcount.errors import CheckFailed, InputError, argument
from headcount.experiments.models import OpenModel
from headcount.external.user_code import UserCodeError
from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.results import Contradiction, Count, Positive, Result, Size, unequal
from headcount.runs.train import environment
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.device import n_cores, workers
from headcount.training.evaluation import SequenceModel, WrongAnswer, wrong_answers

LARGEST_DOMAIN = 100_000_000
DECODED_AT_ONCE = 4096
FAULT_IN_TASK = "this is a fault in the definition of the task: please report it"
MOST_DECODED = 50_000
"""Largest number of wrong answers that are decoded free-running and listed; a poor model has hundreds of thousands."""
N_NEAREST = 1000
"""Number of examples whose margins are closest to 0 that are computed again in double precision."""


@dataclass(frozen=True)
class Certificate(Result):
    """Result of checking a model on every example of its task, such as all 810,000 sums of two three-digit numbers."""

    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    total: Positive
    errors: Count
    wrong: tuple[WrongAnswer, ...]
    """The first wrong answers, at most `MOST_DECODED`, as the model decodes them free-running."""
    least_margin: float | None
    """Smallest margin, in logits, of a right token over the best other token; None if any answer is wrong."""
    tightest: str
    """The example whose answer has the smallest margin, as text."""
    decoded: Count
    """Number of examples whose answer was also decoded free-running; all agreed with the teacher-forced pass."""
    distinct: Count
    """Number of different examples that were checked, which is the number of examples of the task."""
    float_error: Size | None
    """Largest change of a margin, in logits, between the model's precision and double precision.

    None if the model does not compute in double precision.
    """
    n_recomputed: Count
    """Number of examples that were computed again in double precision."""
    undecided: Count
    """Number of examples whose margin is at most `float_error`, so that another machine may answer them differently."""
    environment: Mapping[str, str]
    """Machine and software versions with which the examples were checked."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the counts, the number of examples and the list of wrong answers disagree."""
        for name in ("errors", "decoded", "undecided"):
            if getattr(self, name) > self.total:
                yield name, f"at most {self.total:,}, the value of total"
        if self.n_recomputed > 2 * self.total:  # an example may have a small margin and be in the sample too
            yield "n_recomputed", f"at most {2 * self.total:,}, twice the value of total"
        yield from unequal(self, distinct=self.total)
        listed = min(self.errors, MOST_DECODED)
        if len({answer.example for answer in self.wrong}) != listed or len(self.wrong) != listed:
            yield "wrong", f"{listed:,} different answers, which follows from errors; {len(self.wrong):,} are listed"
        if self.decoded < len(self.wrong):
            yield "decoded", f"at least {len(self.wrong):,}, as every listed wrong answer was decoded"
        if (self.least_margin is None) != (self.errors > 0) or (self.least_margin or 0) < 0:
            yield "least_margin", "a margin above 0 if no answer is wrong, and null otherwise"
        if self.float_error is None and self.n_recomputed:
            yield "n_recomputed", "0, as nothing was computed in double precision (float_error is null)"
        if self.undecided > N_NEAREST:
            yield "undecided", f"at most {N_NEAREST:,}, the largest number of recomputed examples"

    @property
    def verdict(self) -> str:
        """The verdict: `proved` if every answer is right, otherwise `refuted`."""
        return "refuted" if self.errors else "proved"

    @property
    def times_error(self) -> float | None:
        """Return the smallest margin divided by the rounding error; None if either is unknown or the error is 0."""
        return None if self.least_margin is None or not self.float_error else self.least_margin / self.float_error


def check_every_example(
    model: OpenModel, *, sample: int = 2000, progress: Callable[[int, int], None] | None = None
) -> Certificate:
    """Check a model on every example of its task, and return the certificate.

    The task must have at most `LARGEST_DOMAIN` examples; see `domain_size`. `sample` right answers are also decoded.
    `progress(done, total)` is called after each block of examples.
    """
    total = domain_size(model)
    if total is None or total > LARGEST_DOMAIN:
        n = "infinitely many" if total is None else f"{total:,}"
        raise InputError(
            f"the task of {model.name} has {n} examples, but only {LARGEST_DOMAIN:,} can be checked one by one",
            f"search for wrong answers instead: headcount verify {argument(model.name)}",
        )
    answers = cast(SequenceModel, model.answers)
    task = answers.task
    stride, done, wrong, right, right_margins = max(1, total // sample), 0, [], [], []
    least, tightest, nearest, seen = np.inf, "", Nearest(), np.zeros(total, dtype=bool)
    pool = workers(model.module) if model.runs_in_threads else nullcontext(map)
    with eval_mode(model.module, gradients=False), pool as compute:
        for examples, margins in compute(lambda block: (block, answers.margins(block)), task.iter_domain()):
            require_numbers(float(margins.sum()), task.show(examples[0]))
            _mark_seen(task, seen, examples)
            nearest.add(examples, margins)
            in_sample = (np.arange(len(examples)) % stride == -done % stride) & (margins > 0)
            wrong.append(examples[margins <= 0])
            right.append(examples[in_sample])
            right_margins.append(margins[in_sample])
            if margins.min() < least:
                least, tightest = float(margins.min()), task.show(examples[margins.argmin()])
            done += len(examples)
            if progress:
                progress(done, total)
    if done != total:
        raise CheckFailed(
            "the model cannot be proved right on every example of its task: the task listed "
            f"{done:,} examples, but states that it has {total:,}",
            FAULT_IN_TASK,
        )
    errors = np.concatenate(wrong)
    listed = _decode(answers, errors[:MOST_DECODED], np.concatenate(right), progress)
    recomputed = np.concatenate([nearest.examples, *right])
    float_error = _float_error(model, recomputed, np.concatenate([nearest.margins, *right_margins]))
    weight = next(model.module.parameters())
    precision = {"dtype": str(weight.dtype).removeprefix("torch.")}
    return Certificate(
        name=model.name,
        weights_sha256=model.weights_sha256,
        total=total,
        errors=len(errors),
        wrong=listed,
        least_margin=None if listed else least,
        tightest=tightest,
        decoded=len(listed) + sum(map(len, right)),
        distinct=done,
        float_error=float_error,
        n_recomputed=0 if float_error is None else len(recomputed),
        undecided=int((np.abs(nearest.margins) <= (float_error or 0.0)).sum()),
        environment=environment(weight.device) | precision | {"threads": str(n_cores())},
    )


def domain_size(model: OpenModel) -> int | None:
    """Return the number of possible examples of a model's task; None if there are infinitely many."""
    task = model.answers.task
    return cast(SequenceTask, task).domain_size if task.output_type == "sequence" else None


def _float_error(model: OpenModel, examples: Examples, margins: NDArray[np.float64]) -> float | None:
    """Return the largest change of a margin, in logits, between the model's precision and double precision.

    Return None if the model cannot compute in double precision.
    """
    if not len(examples):
        return 0.0
    try:
        in_double = cast(SequenceModel, model.in_double()).margins(examples)
    except UserCodeError:
        return None
    return float(np.abs(in_double - margins).max())


def _mark_seen(task: SequenceTask, seen: NDArray[np.bool_], examples: Examples) -> None:
    """Mark a block of examples as seen; raise an error if the task enumerated one of them before."""
    index = task.index(examples)
    again = seen[index]
    if again.any() or len(np.unique(index)) < len(index):
        raise CheckFailed(
            "the model cannot be proved right on every example of its task: the task listed an example twice, "
            f"{task.show(examples[again.argmax()])} or one that it listed shortly before or after it",
            FAULT_IN_TASK,
        )
    seen[index] = True


class Nearest:
    """The examples whose margins are closest to 0, right or wrong, among all examples added so far."""

    def __init__(self, n: int = N_NEAREST) -> None:
        self._n, self._bound = n, np.inf
        self.examples: Examples = np.empty((0, 2), dtype=np.int64)
        self.margins = np.empty(0)

    def add(self, examples: Examples, margins: NDArray[np.floating]) -> None:
        """Add examples with their margins, and keep only those whose margins are closest to 0."""
        near = np.isfinite(margins) & (np.abs(margins) < self._bound)
        if not near.any():
            return
        self.examples = np.concatenate([self.examples, examples[near]]) if len(self.margins) else examples[near]
        self.margins = np.concatenate([self.margins, margins[near]])
        kept = np.argsort(np.abs(self.margins), kind="stable")[: self._n]
        self.examples, self.margins = self.examples[kept], self.margins[kept]
        if len(kept) == self._n:
            self._bound = float(np.abs(self.margins[-1]))


def _decode(
    answers: SequenceModel,
    wrong: Examples,
    right: Examples,
    progress: Callable[[int, int], None] | None,
) -> tuple[WrongAnswer, ...]:
    """Decode the answers to `wrong` and `right` examples free-running, and return the wrong answers.

    Raise an error if a decoded answer contradicts the verdict of the teacher-forced pass.
    """
    listed, task, examples = list[WrongAnswer](), answers.task, np.concatenate([wrong, right])
    total = task.domain_size
    for i in range(0, len(examples), DECODED_AT_ONCE):
        part = examples[i : i + DECODED_AT_ONCE]
        decoded = answers.answer(part)
        if decoded.free is None:
            raise InputError(
                "every example cannot be checked, because this model has no generate() that decodes its answers",
                "write generate() in its headcount.Adapter class",
            )
        is_right = np.asarray(np.all(decoded.free_hits, axis=1))
        expected = np.arange(i, i + len(part)) >= len(wrong)
        if (is_right != expected).any():
            row = int((is_right != expected).argmax())
            verdict = "right" if expected[row] else "wrong"
            raise CheckFailed(
                "the model cannot be proved right on every example of its task: teacher forcing and free-running "
                f"decoding disagree on {task.show(part[row])}",
                f"the answer is {verdict} under teacher forcing; the decoded answer is "
                f"{task.show_tokens(decoded.free[row])}",
                "this is a fault in the code that runs or decodes the model, not in what the model has learned",
            )
        texts = [decoded.texts[j] for j in np.flatnonzero(~is_right).tolist()] if len(decoded.texts) else ()
        listed += wrong_answers(task, part[~is_right], decoded.free[~is_right], texts)
        if progress:
            progress(total + i + len(part), total + len(examples))
    return tuple(listed)
