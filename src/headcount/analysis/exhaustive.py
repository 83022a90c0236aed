"""Is every answer right? Not on a test set: on every example there is.

One forward pass per example decides whether free-running generation is right (training/margins.py). A sample spread
over the domain, and every example found wrong, is also decoded for real; if the two ways ever disagree there is no
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.errors import CheckFailed, InputError, argument
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.models.finite import require_numbers
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.evaluation import WrongAnswer, answer, evaluating, wrong_answers
from headcount.training.margins import margins
from headcount.training.workers import workers

LARGEST_DOMAIN = 100_000_000
DECODED_AT_ONCE = 4096


@dataclass(frozen=True)
class Certificate(Result):
    """Every example of the domain, checked."""

    run: str
    model: str
    """The digest of the weights that were checked."""
    total: int
    errors: int
    wrong: tuple[WrongAnswer, ...]
    least_margin: float | None
    """The narrowest win of a right token over its best rival, in logits; None if some answer is wrong."""
    tightest: str
    """The example it was found on."""
    decoded: int
    """Examples that were also decoded for real, with the same verdict."""


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
    nth, done, wrong, right = max(1, total // sample), 0, [], []
    least, tightest = np.inf, ""
    with evaluating(model), workers(model) as compute:
        for examples, lead in compute(lambda block: (block, margins(model, task, block)), task.walk()):
            require_numbers(float(lead.sum()), task.show(examples[0]))
            picked = np.arange(len(examples)) % nth == -done % nth
            wrong.append(examples[lead <= 0])
            right.append(examples[picked & (lead > 0)])
            if lead.min() < least:
                least, tightest = float(lead.min()), task.show(examples[lead.argmin()])
            done += len(examples)
            if progress:
                progress(done, total)
    said = _decode_for_real(model, task, np.concatenate(wrong), np.concatenate(right), progress)
    return Certificate(
        run=run.name,
        model=run.digest,
        total=total,
        errors=sum(map(len, wrong)),
        wrong=said,
        least_margin=None if said else least,
        tightest=tightest,
        decoded=len(said) + sum(map(len, right)),
    )


def _decode_for_real(
    model: EncoderDecoder,
    task: SequenceTask,
    wrong: Examples,
    right: Examples,
    progress: Callable[[int, int], None] | None,
) -> tuple[WrongAnswer, ...]:
    """Decode what was found wrong and a sample of what was found right; each must come out as it was found."""
    found: list[WrongAnswer] = []
    total = task.domain_size
    everything = np.concatenate([wrong, right])
    for i in range(0, len(everything), DECODED_AT_ONCE):
        part = everything[i : i + DECODED_AT_ONCE]
        said = answer(model, task, part).free
        is_right = (said == task.encode(part).answer).all(axis=1)
        expected = np.arange(i, i + len(part)) >= len(wrong)
        if (is_right != expected).any():
            example = task.show(part[(is_right != expected).argmax()])
            raise CheckFailed(
                f"one forward pass and real decoding disagree on {example}: there can be no certificate",
                "this is a fault in the pipeline, not in the model's arithmetic: please report it",
            )
        found += wrong_answers(task, part[~is_right], said[~is_right])
        if progress:
            progress(total + i + len(part), total + len(everything))
    return tuple(found)
