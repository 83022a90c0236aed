"""Is every answer right? Not on a test set: on every example there is.

One forward pass per example decides whether free-running generation is right (training/evaluation.py). A sample spread
over the domain, and every example found wrong, is also decoded for real; if the two ways ever disagree there is no
certificate. Nor is there one if the walk left out an example or came by one twice.

Numbers of single precision are rounded, and another machine may round them otherwise. So the tightest examples and the
sample are computed again in double precision: by how much margins moved says how far the tightest is from tipping over.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from headcount.errors import CheckFailed, InputError, argument
from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.transformer import EncoderDecoder
from headcount.results import Result
from headcount.runs.run import Run
from headcount.runs.train import environment
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.device import hardware, n_cores, workers
from headcount.training.evaluation import WrongAnswer, answer, margins, wrong_answers

LARGEST_DOMAIN = 100_000_000
DECODED_AT_ONCE = 4096
FAULT_IN_TASK = "this is a fault in the task: please report it"
N_NEAREST = 1000
"""Examples that are computed again in double precision, beside the sample."""


@dataclass(frozen=True)
class Certificate(Result):
    """Every example of the domain, checked."""

    SCHEMA: ClassVar[int] = 3
    FORMER: ClassVar[Mapping[str, str]] = {
        "run": "name",
        "model": "weights_sha256",
        "said": "predicted",
        "why": "explanation",
    }
    name: str
    weights_sha256: str
    total: int
    errors: int
    wrong: tuple[WrongAnswer, ...]
    least_margin: float | None
    """The narrowest win of a right token over its best rival, in logits; None if some answer is wrong."""
    tightest: str
    """The example it was found on."""
    decoded: int
    """Examples that were also decoded for real, with the same verdict."""
    distinct: int
    """Examples that were walked, each once: the whole domain."""
    float_error: float
    """The most that a margin, right or wrong, moved between this precision and double precision, in logits."""
    n_recomputed: int
    """Examples that was measured on: the tightest, and those that were decoded."""
    undecided: int
    """How many of the tightest are nearer to tipping over than that: another machine may answer otherwise."""
    environment: Mapping[str, str]
    """What it was made on."""

    @property
    def times_error(self) -> float | None:
        """The narrowest win over what rounding does."""
        return None if self.least_margin is None or not self.float_error else self.least_margin / self.float_error


def verify(run: Run, *, sample: int = 2000, progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Check every example; `progress(done, total)` is told as it goes."""
    model = run.model
    if not isinstance(model, EncoderDecoder):
        raise InputError(
            f"{run.task.name} has no end of examples to check",
            f"see how far {run.name} reaches instead: headcount stretch {argument(run.name)}",
        )
    task = cast(SequenceTask, run.task)
    total = task.domain_size
    if total > LARGEST_DOMAIN:
        raise InputError(
            f"{total:,} examples are too many to check one by one (at most {LARGEST_DOMAIN:,})",
            "measure it on its test set instead: headcount evaluate",
        )
    nth, done, wrong, right, leads = max(1, total // sample), 0, [], [], []
    least, tightest, near, seen = np.inf, "", Nearest(), np.zeros(total, dtype=bool)
    with eval_mode(model, gradients=False), workers(model) as compute:
        for examples, lead in compute(lambda block: (block, margins(model, task, block)), task.iter_domain()):
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
    predicted = _decode_for_real(model, task, np.concatenate(wrong), np.concatenate(right), progress)
    recomputed, moved = np.concatenate([near.examples, *right]), 0.0
    if len(recomputed):
        in_double = margins(copy.deepcopy(model).cpu().double(), task, recomputed)
        moved = float(np.abs(in_double - np.concatenate([near.leads, *leads])).max())
    weight = next(model.parameters())
    made_with = {"hardware": hardware(weight.device), "dtype": str(weight.dtype).removeprefix("torch.")}
    return Certificate(
        name=run.name,
        weights_sha256=run.weights_sha256,
        total=total,
        errors=sum(map(len, wrong)),
        wrong=predicted,
        least_margin=None if predicted else least,
        tightest=tightest,
        decoded=len(predicted) + sum(map(len, right)),
        distinct=done,
        float_error=moved,
        n_recomputed=len(recomputed),
        undecided=int((np.abs(near.leads) <= moved).sum()),
        environment=environment(weight.device) | made_with | {"threads": str(n_cores())},
    )


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

    def add(self, examples: Examples, leads: NDArray[np.float64]) -> None:
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
    model: EncoderDecoder,
    task: SequenceTask,
    wrong: Examples,
    right: Examples,
    progress: Callable[[int, int], None] | None,
) -> tuple[WrongAnswer, ...]:
    """Decode what was found wrong and a sample of what was found right; each must come out as it was found."""
    found, total, everything = list[WrongAnswer](), task.domain_size, np.concatenate([wrong, right])
    for i in range(0, len(everything), DECODED_AT_ONCE):
        part = everything[i : i + DECODED_AT_ONCE]
        predicted = answer(model, task, part).free
        is_right = (predicted == task.encode(part).answer).all(axis=1)
        expected = np.arange(i, i + len(part)) >= len(wrong)
        if (is_right != expected).any():
            example = task.show(part[(is_right != expected).argmax()])
            raise CheckFailed(
                f"one forward pass and real decoding disagree on {example}: there can be no certificate",
                "this is a fault in the pipeline, not in the model's arithmetic: please report it",
            )
        found += wrong_answers(task, part[~is_right], predicted[~is_right])
        if progress:
            progress(total + i + len(part), total + len(everything))
    return tuple(found)
