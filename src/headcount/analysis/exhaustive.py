"""Is every answer right? Not on a test set: on every example there is.

One forward pass per example decides whether free-running generation is right (training/answers.py). A sample spread
over the domain, and every example found wrong, is also decoded for real; if the two ways ever disagree there is no
certificate. Nor is there one if the walk left out an example or came by one twice.

Numbers of single precision are rounded, and another machine may round them otherwise. So the tightest examples and the
sample are computed again in double precision: by how much margins moved says how far the tightest is from tipping over.
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
"""Wrong answers that are decoded for real and listed: a model that is hardly ever right has hundreds of thousands."""
N_NEAREST = 1000
"""Examples that are computed again in double precision, beside the sample."""


@dataclass(frozen=True)
class Certificate(Result):
    """Every example of the domain, checked."""

    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    total: Positive
    errors: Count
    wrong: tuple[WrongAnswer, ...]
    """Those that were decoded for real: the first `MOST_DECODED`."""
    least_margin: float | None
    """The narrowest win of a right token over its best rival, in logits; None if some answer is wrong."""
    tightest: str
    """The example it was found on."""
    decoded: Count
    """Examples that were also decoded for real, with the same verdict."""
    distinct: Count
    """Examples that were walked, each once: the whole domain."""
    float_error: Size | None
    """The most that a margin, right or wrong, moved between this precision and double precision, in logits.

    None for a model of others that does not compute in double precision.
    """
    n_recomputed: Count
    """Examples that was measured on: the tightest, and those that were decoded."""
    undecided: Count
    """How many of the tightest are nearer to tipping over than that: another machine may answer otherwise."""
    environment: Mapping[str, str]
    """What it was made on."""
    audit: str = ""
    """What is at the bottom of what quick checks found; empty if none fails."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare every count with the size of the domain, and the errors with the list of wrong answers."""
        for name in ("errors", "decoded", "undecided"):
            if getattr(self, name) > self.total:
                yield name, f"at most total, {self.total:,}"
        if self.n_recomputed > 2 * self.total:  # an example may be both among the tightest and in the sample
            yield "n_recomputed", f"at most twice total, {2 * self.total:,}"
        yield from unequal(self, distinct=self.total)
        listed = min(self.errors, MOST_DECODED)
        if len({each.example for each in self.wrong}) != listed or len(self.wrong) != listed:
            yield "wrong", f"a list of {listed:,} different answers, as errors says, not of {len(self.wrong):,}"
        if self.decoded < len(self.wrong):
            yield "decoded", f"at least {len(self.wrong):,}, as every wrong answer in the list was decoded"
        if (self.least_margin is None) != (self.errors > 0) or (self.least_margin or 0) < 0:
            yield "least_margin", "a margin above 0 if no answer is wrong, and null otherwise"
        if self.float_error is None and self.n_recomputed:
            yield "n_recomputed", "0, as float_error is null"
        if self.undecided > N_NEAREST:
            yield "undecided", f"at most {N_NEAREST:,}, as only so many examples are recomputed"

    @property
    def times_error(self) -> float | None:
        """The narrowest win over what rounding does."""
        return None if self.least_margin is None or not self.float_error else self.least_margin / self.float_error


def verify(model: OpenModel, *, sample: int = 2000, progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Check every example; `progress(done, total)` is told as it goes."""
    answers = require_domain(model)
    task, total = answers.task, answers.task.domain_size
    nth, done, wrong, right, leads = max(1, total // sample), 0, [], [], []
    least, tightest, near, seen = np.inf, "", Nearest(), np.zeros(total, dtype=bool)
    side_by_side = workers(model.module) if model.runs_in_threads else nullcontext(map)
    with eval_mode(model.module, gradients=False), side_by_side as compute:
        for examples, lead in compute(lambda block: (block, answers.margins(block)), task.iter_domain()):
            require_numbers(float(lead.sum()), task.show(examples[0]))
            _mark_seen(task, seen, examples)
            near.add(examples, lead)
            picked = (np.arange(len(examples)) % nth == -done % nth) & (lead > 0)
            wrong.append(examples[lead <= 0])
            right.append(examples[picked])
            leads.append(lead[picked])
            if lead.min() < least:
                least, tightest = float(lead.min()), task.show(examples[lead.argmin()])
            done += len(examples)
            if progress:
                progress(done, total)
    if done != total:
        raise CheckFailed(
            f"the walk came by {done:,} of {total:,} examples: there can be no certificate", FAULT_IN_TASK
        )
    errors = np.concatenate(wrong)
    predicted = _decode_for_real(answers, errors[:MOST_DECODED], np.concatenate(right), progress)
    recomputed = np.concatenate([near.examples, *right])
    moved = _moved(model, recomputed, np.concatenate([near.leads, *leads]))
    weight = next(model.module.parameters())
    made_with = {"dtype": str(weight.dtype).removeprefix("torch.")}
    return Certificate(
        name=model.name,
        weights_sha256=model.weights_sha256,
        total=total,
        errors=len(errors),
        wrong=predicted,
        least_margin=None if predicted else least,
        tightest=tightest,
        decoded=len(predicted) + sum(map(len, right)),
        distinct=done,
        float_error=moved,
        n_recomputed=0 if moved is None else len(recomputed),
        undecided=int((np.abs(near.leads) <= (moved or 0.0)).sum()),
        environment=environment(weight.device) | made_with | {"threads": str(n_cores())},
    )


def require_domain(model: OpenModel) -> SequenceModel:
    """The model on its task, if that has an end of examples to check."""
    answers = cast(SequenceModel, model.answers)
    task = answers.task
    if task.output_type != "sequence":
        raise InputError(
            f"{task.name} has no end of examples to check",
            f"see how far {model.name} reaches instead: headcount stretch {argument(model.name)}",
        )
    if task.domain_size > LARGEST_DOMAIN:
        raise InputError(
            f"{task.domain_size:,} examples are too many to check one by one (at most {LARGEST_DOMAIN:,})",
            "measure it on its test set instead: headcount evaluate",
        )
    return answers


def _moved(model: OpenModel, examples: Examples, leads: NDArray[np.float64]) -> float | None:
    """The most that double precision moves a margin; None if a model of others does not compute in it."""
    if not len(examples):
        return 0.0
    try:
        in_double = cast(SequenceModel, model.in_double()).margins(examples)
    except UserCodeError:
        return None
    return float(np.abs(in_double - leads).max())


def _mark_seen(task: SequenceTask, seen: NDArray[np.bool_], examples: Examples) -> None:
    """Each must be an example of the domain, and new."""
    index = task.index(examples)
    again = seen[index]
    if again.any() or len(np.unique(index)) < len(index):
        raise CheckFailed(
            f"the walk came by {task.show(examples[again.argmax()])} or one beside it twice", FAULT_IN_TASK
        )
    seen[index] = True


class Nearest:
    """The examples that are nearest to tipping over, right or wrong."""

    def __init__(self, n: int = N_NEAREST) -> None:
        self._n, self._bound = n, np.inf
        self.examples: Examples = np.empty((0, 2), dtype=np.int64)
        self.leads = np.empty(0)

    def add(self, examples: Examples, leads: NDArray[np.floating]) -> None:
        """Keep those of them that are nearer."""
        near = np.isfinite(leads) & (np.abs(leads) < self._bound)
        if not near.any():
            return
        self.examples = np.concatenate([self.examples, examples[near]]) if len(self.leads) else examples[near]
        self.leads = np.concatenate([self.leads, leads[near]])
        kept = np.argsort(np.abs(self.leads), kind="stable")[: self._n]
        self.examples, self.leads = self.examples[kept], self.leads[kept]
        if len(kept) == self._n:
            self._bound = float(np.abs(self.leads[-1]))


def _decode_for_real(
    answers: SequenceModel,
    wrong: Examples,
    right: Examples,
    progress: Callable[[int, int], None] | None,
) -> tuple[WrongAnswer, ...]:
    """Decode what was found wrong and a sample of what was found right; each must come out as it was found."""
    found, task, everything = list[WrongAnswer](), answers.task, np.concatenate([wrong, right])
    total = task.domain_size
    for i in range(0, len(everything), DECODED_AT_ONCE):
        part = everything[i : i + DECODED_AT_ONCE]
        decoded = answers.answer(part)
        if decoded.free is None:
            raise InputError("a certificate needs answers that are decoded for real", "write generate() in the adapter")
        is_right = np.asarray(np.all(decoded.free_hits, axis=1))
        expected = np.arange(i, i + len(part)) >= len(wrong)
        if (is_right != expected).any():
            odd = int((is_right != expected).argmax())
            passed = "wrong" if i + odd < len(wrong) else "right"
            raise CheckFailed(
                f"one forward pass and real decoding disagree on {task.show(part[odd])}: there can be no certificate",
                f"one pass has it {passed}, decoded it is {task.show_tokens(decoded.free[odd])}",
                "this is a fault in the pipeline, not in the model's arithmetic",
            )
        texts = [decoded.texts[j] for j in np.flatnonzero(~is_right).tolist()] if len(decoded.texts) else ()
        found += wrong_answers(task, part[~is_right], decoded.free[~is_right], texts)
        if progress:
            progress(total + i + len(part), total + len(everything))
    return tuple(found)
