"""Is every answer right? Describe each outcome of `headcount verify`: a proof, a counterexample, or neither.

Each kind of outcome is described in a file of its own. The file has `conclusions` (sentences, the verdict first),
`details` (tables and figures) and `clearest` (the wrong answer to show).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from headcount.describing import certificate, context_proof, counterexamples, worst_margins
from headcount.describing.blocks import Block, Conclusions, DataTable, Picture, Sentence
from headcount.describing.words import counted
from headcount.describing.wrong_answers import SHOWN, see_it, wrong_table

if TYPE_CHECKING:
    from headcount.analysis.verification import Verification
    from headcount.stats import Proportion

KINDS: Mapping[str, ModuleType] = {
    "Certificate": certificate,
    "ContextCertificate": context_proof,
    "WorstMargins": worst_margins,
    "CounterexampleSearch": counterexamples,
}
"""Maps the class name of an outcome of `headcount verify` to the module that describes it."""


def describe(outcome: Verification, title: str = "") -> list[Block]:
    """Return report blocks on the outcome of `headcount verify`; the first sentence is the verdict.

    If a wrong answer was found, the last block is a command that shows it.
    """
    kind = KINDS[type(outcome).__name__]
    blocks = [Conclusions(tuple(conclusions(outcome, title or outcome.name))), *details(outcome)]
    if not outcome.wrong:
        return blocks
    tables = wrong_table("wrong", outcome.wrong, "Wrong answers", SHOWN, n_wrong(outcome))
    return [*blocks, *tables, *see_it(outcome.name, kind.clearest(outcome))]


def conclusions(
    outcome: Verification, title: str, rests_on: str = "", tested: Proportion | None = None
) -> list[Sentence]:
    """Return sentences on the verdict and the reasons for it; `tested` is the accuracy on the test set, to compare."""
    first, *others = KINDS[type(outcome).__name__].conclusions(outcome, title, rests_on)
    if tested is None or not outcome.wrong:
        return [first, *others]
    missed = tested.n - tested.correct
    shown = counted(missed, "wrong answer") if missed else "no wrong answer, because a sample misses rare errors"
    return [first, Sentence(f"The test set of {tested.n:,} examples shows {shown}.", rests_on), *others]


def details(outcome: Verification, prefix: str = "") -> list[Block]:
    """Return the tables and figures on the outcome of a verification; their ids begin with `prefix`."""
    blocks: list[DataTable | Picture] = KINDS[type(outcome).__name__].details(outcome)
    return [replace(block, id=f"{prefix}-{block.id}") for block in blocks] if prefix else [*blocks]


def verdict(outcome: Verification, title: str, rests_on: str = "") -> Sentence:
    """Return a sentence with the verdict on whether all answers are right: proved, refuted or undecided."""
    return conclusions(outcome, title, rests_on)[0]


def proved_briefly(outcome: Verification) -> str:
    """Return in a few words what was proved, such as `right at every length`; "" if an answer is wrong or undecided."""
    kind = type(outcome).__name__
    if kind == "ContextCertificate" and getattr(outcome, "verdict", "") == "proved":
        return "right at every length"
    return f"right on all {getattr(outcome, 'total', 0):,}" if kind == "Certificate" and not outcome.wrong else ""


def n_wrong(outcome: Verification) -> int:
    """Return the number of wrong answers that were found; the stored result may list only some of them."""
    return getattr(outcome, "errors", len(outcome.wrong))
