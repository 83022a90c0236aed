"""Is a classifier right at every length? What a check of every context says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Sentence
from headcount.describing.wrong_answers import in_range, mistake

if TYPE_CHECKING:
    from headcount.analysis.context_proof import ContextCertificate
    from headcount.training.evaluation import WrongAnswer


def conclusions(result: ContextCertificate, title: str, rests_on: str = "") -> list[Sentence]:
    """Return the verdict, what was checked, the smallest lead, and what rounding can do."""
    seen = f"A position of this model sees {result.width} neighbours at most"
    checked = f"{seen}, so {result.n_contexts:,} contexts decide every length. All of them were checked."
    texts = [checked, _leads(result) if result.verdict == "proved" else _violations(result), _rounding(result)]
    return [_verdict(result, title, rests_on), *(Sentence(text, rests_on) for text in texts)]


def details(result: ContextCertificate) -> list[Block]:
    """Return no blocks: the sentences say everything."""
    return []


def clearest(result: ContextCertificate) -> WrongAnswer:
    """Return the shortest wrong sequence of a training length, or the shortest of all if there is none."""
    return in_range(result.wrong, result.trained)


def _verdict(result: ContextCertificate, title: str, rests_on: str) -> Sentence:
    if result.verdict == "proved":
        return Sentence(f"Proved: {title} is {result.claim}.", rests_on)
    if result.verdict == "refuted":
        return Sentence(f"Refuted: {mistake(clearest(result), title)}.", rests_on)
    text = f"Undecided: rounding could change an answer of {title}, so it is neither proved nor refuted that it is "
    return Sentence(f"{text}{result.claim}.", rests_on, is_decided=False)


def _leads(result: ContextCertificate) -> str:
    return (
        f"The least certain answers lead by {result.least_quiet:.2f} logits ({result.last_class}: any "
        f"{result.example} with {result.tightest_quiet}) and {result.least_firing:.2f} logits "
        f"({result.first_class}: {result.tightest_firing}). Rounding in double precision moves a lead by at most "
        f"{result.double_error:.1e} logits, in any order of summation."
    )


def _violations(result: ContextCertificate) -> str:
    return (
        f"{result.n_wrong_contexts:,} of {result.n_unbroken:,} contexts of {result.last_class} {result.example}s have "
        f"the wrong sign, and {result.n_wrong_paths:,} other contexts lie on {result.first_class} {result.example}s "
        "that no context reveals."
    )


def _rounding(result: ContextCertificate) -> str:
    return (
        "The model runs in single precision: measured over all contexts, that moves a lead by "
        f"{result.single_error:.1e} logits at most (first-order estimate: {result.first_order_error:.1e}). This is "
        "measured, not proved."
    )
