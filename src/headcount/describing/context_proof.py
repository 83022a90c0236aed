"""Is a classifier right at every length? Sentences on a check of every context (the tokens that one position sees)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Sentence
from headcount.describing.wrong_answers import in_range, mistake

if TYPE_CHECKING:
    from headcount.analysis.context_proof import ContextCertificate
    from headcount.training.evaluation import WrongAnswer


def conclusions(result: ContextCertificate, title: str, rests_on: str = "") -> list[Sentence]:
    """Return sentences on the verdict, what was checked, the smallest margins or wrong answers, and rounding."""
    texts = [_checked(result), _leads(result) if result.verdict == "proved" else _violations(result), _rounding(result)]
    return [_verdict(result, title, rests_on), *(Sentence(text, rests_on) for text in texts)]


def details(result: ContextCertificate) -> list[Block]:
    """Return an empty list, because this certificate is described by sentences alone, without tables or figures."""
    return []


def clearest(result: ContextCertificate) -> WrongAnswer:
    """Return the shortest wrong sequence of a training length, or of any length if no training length has one."""
    return in_range(result.wrong, result.trained)


def _checked(result: ContextCertificate) -> str:
    """Return sentences on what a context is, how many contexts there are, and the outcome of checking all of them."""
    outcomes = {
        "proved": f"none of them allows a wrong answer, so no {result.example} of any length gets one",
        "refuted": f"some of them make the model answer a {result.example} wrong",
        "undecided": "for some of them, rounding errors could change the answer",
    }
    return (
        f"Each position of this model sees a context of at most {result.width} neighbouring tokens, itself included. "
        f"All {result.n_contexts:,} possible contexts were checked: {outcomes[result.verdict]}."
    )


def _verdict(result: ContextCertificate, title: str, rests_on: str) -> Sentence:
    if result.verdict == "proved":
        return Sentence(f"Proved: {title} is {result.claim}.", rests_on)
    if result.verdict == "refuted":
        return Sentence(f"Refuted: {mistake(clearest(result), title)}.", rests_on)
    text = f"Undecided: rounding errors could change an answer of {title}, so it is neither proved nor refuted that "
    return Sentence(f"{text}{title} is {result.claim}.", rests_on, is_decided=False)


def _leads(result: ContextCertificate) -> str:
    return (
        f"The right class leads by at least {result.least_quiet:.2f} logits on {result.last_class} {result.example}s "
        f"(closest: any {result.example} with {result.tightest_quiet}), and by at least {result.least_firing:.2f} "
        f"logits on {result.first_class} ones (closest: {result.tightest_firing}). Rounding in double precision moves "
        f"such a lead by at most {result.double_error:.1e} logits, in any order of summation."
    )


def _violations(result: ContextCertificate) -> str:
    return (
        f"{result.n_wrong_contexts:,} of {result.n_unbroken:,} contexts that occur in {result.last_class} "
        f"{result.example}s wrongly make the model answer {result.first_class}. {result.n_wrong_paths:,} other "
        f"contexts occur in {result.first_class} {result.example}s that the model calls {result.last_class}, because "
        f"none of their contexts makes it answer {result.first_class}."
    )


def _rounding(result: ContextCertificate) -> str:
    return (
        f"The model itself runs in single precision, which changes a lead by at most {result.single_error:.1e} logits "
        f"over all contexts. This bound is measured, not proved; a first-order estimate of the rounding error is "
        f"{result.first_order_error:.1e} logits."
    )
