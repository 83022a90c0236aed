"""Is every answer right? Check every example of the task's domain, not only a test set.

One forward pass per example decides whether free-running decoding gives the right answer (training/answers.py). All
wrong answers (up to a limit) and a sample of right ones are also decoded free-running. There is no certificate if the
two ways disagree on an answer, or if the enumeration omits or repeats an example.

Floating-point rounding differs between machines. The examples with the smallest margins and the sample are therefore
computed again in double precision. The largest change of a margin shows how close the smallest margin is to an error.
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
FAULT_IN_TASK = "this is a fault in the task: please report it"
MOST_DECODED = 50_000
"""Largest number of wrong answers that are decoded free-running and listed. A poor model has hundreds of thousands."""
N_NEAREST = 1000
"""Number of examples with the smallest margins that are computed again in double precision."""


@dataclass(frozen=True)
class Certificate(Result):
    """Result of checking every example of a task's domain, such as all 810,000 sums of two three-digit numbers."""

    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    total: Positive
    errors: Count
    wrong: tuple[WrongAnswer, ...]
    """Wrong answers as the model decodes them free-running: the first `MOST_DECODED` at most."""
    least_margin: float | None
    """Smallest margin, in logits, of a right token over the best other token; None if an answer is wrong."""
    tightest: str
    """The example with the smallest margin, as text."""
    decoded: Count
    """Number of examples that were also decoded free-running; each agreed with the forward pass."""
    distinct: Count
    """Number of different examples that were checked, which is the whole domain."""
    float_error: Size | None
    """Largest change of a margin between the model's precision and double precision, in logits.

    None if the model does not compute in double precision.
    """
    n_recomputed: Count
    """Number of examples that were computed again in double precision."""
    undecided: Count
    """Number of examples whose margin is at most `float_error`: another machine may answer them differently."""
    environment: Mapping[str, str]
    """Machine and software versions of the computation."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the counts, the size of the domain and the list of wrong answers disagree."""
        for name in ("errors", "decoded", "undecided"):
            if getattr(self, name) > self.total:
                yield name, f"at most total, {self.total:,}"
        if self.n_recomputed > 2 * self.total:  # an example may have a small margin and be in the sample too
            yield "n_recomputed", f"at most twice total, {2 * self.total:,}"
        yield from unequal(self, distinct=self.total)
        listed = min(self.errors, MOST_DECODED)
        if len({answer.example for answer in self.wrong}) != listed or len(self.wrong) != listed:
            yield "wrong", f"a list of {listed:,} different answers, according to errors, not of {len(self.wrong):,}"
        if self.decoded < len(self.wrong):
            yield "decoded", f"at least {len(self.wrong):,}, as every wrong answer in the list was decoded"
        if (self.least_margin is None) != (self.errors > 0) or (self.least_margin or 0) < 0:
            yield "least_margin", "a margin above 0 if no answer is wrong, and null otherwise"
        if self.float_error is None and self.n_recomputed:
            yield "n_recomputed", "0, as float_error is null"
        if self.undecided > N_NEAREST:
            yield "undecided", f"at most {N_NEAREST:,}, the number of examples that are recomputed"

    @property
    def verdict(self) -> str:
        """`proved` if every answer is right, otherwise `refuted`."""
        return "refuted" if self.errors else "proved"

    @property
    def times_error(self) -> float | None:
        """Return the smallest margin divided by the rounding error; None if either is unknown or the error is 0."""
        return None if self.least_margin is None or not self.float_error else self.least_margin / self.float_error


def check_every_example(
    model: OpenModel, *, sample: int = 2000, progress: Callable[[int, int], None] | None = None
) -> Certificate:
    """Check every example of the task's domain; return the certificate. `progress(done, total)` is called per block.

    The task must have at most `LARGEST_DOMAIN` examples; see `domain_size`. `sample` right answers are also decoded.
    """
    total = domain_size(model)
    if total is None or total > LARGEST_DOMAIN:
        n = "infinitely many" if total is None else f"{total:,}"
        raise InputError(
            f"{n} examples are too many to check one by one (at most {LARGEST_DOMAIN:,})",
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
            f"no certificate: the task enumerated {done:,} examples, but its domain has {total:,}", FAULT_IN_TASK
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
    """Mark a block of examples as seen; raise an error if one of them was seen before."""
    index = task.index(examples)
    again = seen[index]
    if again.any() or len(np.unique(index)) < len(index):
        raise CheckFailed(
            f"no certificate: the task enumerated an example twice, {task.show(examples[again.argmax()])} or one in "
            "the same block",
            FAULT_IN_TASK,
        )
    seen[index] = True


class Nearest:
    """The `n` examples whose margins are closest to 0, right or wrong, among all examples added so far."""

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
    """Decode the `wrong` and the `right` examples free-running, and return the wrong answers.

    Raise an error if decoding contradicts the verdict of the forward pass.
    """
    listed, task, examples = list[WrongAnswer](), answers.task, np.concatenate([wrong, right])
    total = task.domain_size
    for i in range(0, len(examples), DECODED_AT_ONCE):
        part = examples[i : i + DECODED_AT_ONCE]
        decoded = answers.answer(part)
        if decoded.free is None:
            raise InputError(
                "checking every example needs answers that the model decodes itself", "write generate() in the adapter"
            )
        is_right = np.asarray(np.all(decoded.free_hits, axis=1))
        expected = np.arange(i, i + len(part)) >= len(wrong)
        if (is_right != expected).any():
            row = int((is_right != expected).argmax())
            verdict = "right" if expected[row] else "wrong"
            raise CheckFailed(
                f"no certificate: one forward pass and free-running decoding disagree on {task.show(part[row])}",
                f"one pass: {verdict}; decoded answer: {task.show_tokens(decoded.free[row])}",
                "this is a fault in the pipeline, not in what the model has learned",
            )
        texts = [decoded.texts[j] for j in np.flatnonzero(~is_right).tolist()] if len(decoded.texts) else ()
        listed += wrong_answers(task, part[~is_right], decoded.free[~is_right], texts)
        if progress:
            progress(total + i + len(part), total + len(examples))
    return tuple(listed)
