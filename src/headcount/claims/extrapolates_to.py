"""The claim that a classifier is still right at a length beyond training, on the negatives that are hardest to see."""

from __future__ import annotations

from typing import cast

from headcount.analysis.length_generalisation import LengthResult, stretch
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement
from headcount.errors import InputError
from headcount.limits import ACCURATE
from headcount.tasks.base import ClassTask


def measure(case: ClaimCase) -> Judgement:
    """Measure the accuracy at the claimed length and, for comparison, at the longest training length."""
    if case.model.task is None or case.model.task.output_type != "class":
        raise InputError(
            f"this claim is about classifiers, and {case.model.name} does not classify sequences",
            "choose a model that classifies sequences",
        )
    length, trained = int(case.claim.objects[0]), case.model.trained
    if trained is not None and length <= trained[1]:
        raise InputError(
            f"{case.model.name} was trained on lengths {trained[0]} to {trained[1]}, and {length} is not beyond them",
            f"claim a length above {trained[1]}",
        )
    kind = cast(ClassTask, case.model.task).local_negative
    lengths = [length] if trained is None else [trained[1], length]
    outcome = stretch(case.model, lengths, [kind], case.n, draw=case.seed, explain=False)
    if length in outcome.refused_lengths:
        refused = Evidence(
            f"the model refuses sequences of {length:,} tokens, so it answers {{}} of them right",
            0,
            0,
            0,
            0,
            "examples",
            "share",
        )
        return Judgement(
            (refused.at_least(ACCURATE),), by_construction="the model's table of positions ends before this length"
        )
    cells = {cell.length: cell for cell in outcome.cells}
    note = f"The model answers {cells[length].constant_class} to nearly all examples." if cells[length].constant else ""
    controls = tuple(_accuracy(cells[at], kind) for at in lengths[:-1])
    return Judgement((_accuracy(cells[length], kind).above(ACCURATE),), controls, note=note)


def _accuracy(cell: LengthResult, kind: str) -> Evidence:
    words = f"at length {cell.length:,}, with negatives of the kind “{kind}”, the model answers {{}} right"
    return Evidence(words, cell.accuracy, cell.low, cell.high, cell.n, "sequences", "share")


PART = ClaimKind(
    grammar="model extrapolates-to LENGTH",
    phrase="extrapolates to length {object}",
    supported_if="the whole 95 % CI of the accuracy at this length, for negatives with one error, lies above 90 %",
    refuted_if="the whole 95 % CI of the accuracy at this length lies below 90 %, or the model refuses the length",
    controls="the accuracy at the longest training length is shown; half of the examples are positives",
    measure=measure,
)
