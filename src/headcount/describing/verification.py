"""Is every answer right? What each outcome of `headcount verify` says: a proof, a counterexample, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headcount.describing import certificate as certificates
from headcount.describing import counterexamples as searches
from headcount.describing import worst_margins as margins
from headcount.describing.blocks import Block, Commands, Conclusions, Sentence
from headcount.describing.certificate import SHOWN, wrong_tables
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.analysis.context_proof import ContextCertificate
    from headcount.analysis.counterexamples import CounterexampleSearch
    from headcount.analysis.exhaustive import Certificate
    from headcount.analysis.verification import Verification
    from headcount.analysis.worst_margins import WorstMargins
    from headcount.stats import Proportion
    from headcount.training.evaluation import WrongAnswer


def describe(outcome: Verification, title: str = "") -> list[Block]:
    """Describe an outcome of `headcount verify`; the first sentence is the verdict."""
    match type(outcome).__name__:
        case "Certificate":
            return certificates.describe(cast("Certificate", outcome))
        case "ContextCertificate":
            return _describe_contexts(cast("ContextCertificate", outcome), title or outcome.name)
        case "WorstMargins":
            return margins.describe(cast("WorstMargins", outcome), title)
        case _:
            return searches.describe(cast("CounterexampleSearch", outcome))


def verdict(outcome: Verification, title: str, rests_on: str = "", tested: Proportion | None = None) -> Sentence:
    """Return the verdict in one sentence; `tested` is the accuracy on the test set, for comparison."""
    match type(outcome).__name__:
        case "Certificate":
            return certificates.verdict(cast("Certificate", outcome), title, rests_on, tested)
        case "ContextCertificate":
            return _context_verdict(cast("ContextCertificate", outcome), title, rests_on, tested)
        case "WorstMargins":
            return Sentence(margins.verdict(cast("WorstMargins", outcome), title).text, rests_on)
        case _:
            return Sentence(searches.verdict(cast("CounterexampleSearch", outcome), title), rests_on)


def conclusions(
    outcome: Verification, title: str, rests_on: str = "", tested: Proportion | None = None
) -> list[Sentence]:
    """Return the verdict and what it rests on."""
    first = verdict(outcome, title, rests_on, tested)
    match type(outcome).__name__:
        case "Certificate":
            return certificates.conclusions(cast("Certificate", outcome), title, rests_on, tested)
        case "ContextCertificate":
            return [first, *_context_sentences(cast("ContextCertificate", outcome), rests_on)]
        case "WorstMargins":
            result = cast("WorstMargins", outcome)
            others = [margins.training_lengths(result), *margins.constant_stretches(result)]
            return [first, *(Sentence(each.text, rests_on, each.is_decided) for each in others)]
        case _:
            return [first, *searches.reasons(cast("CounterexampleSearch", outcome), rests_on)]


# --- contexts ---------------------------------------------------------------------------------------------------------


def _describe_contexts(result: ContextCertificate, title: str) -> list[Block]:
    sentences = (_context_verdict(result, title), *_context_sentences(result))
    tables = wrong_tables("wrong", result.wrong, "Wrong answers", SHOWN, len(result.wrong))
    if not result.wrong:
        return [Conclusions(sentences), *tables]
    command = " ".join(["headcount", "predict", argument(result.name), argument(in_range(result).example)])
    return [Conclusions(sentences), *tables, Commands((command,), "See it")]


def in_range(result: ContextCertificate) -> WrongAnswer:
    """Return the shortest wrong sequence of a training length, or the shortest of all if there is none."""
    shortest, longest = result.trained
    lengths = [len(answer.example.split()) for answer in result.wrong]
    fits = (answer for answer, n in zip(result.wrong, lengths, strict=True) if shortest <= n <= longest)
    return next(fits, result.wrong[0])


def _context_verdict(
    result: ContextCertificate, title: str, rests_on: str = "", tested: Proportion | None = None
) -> Sentence:
    if result.verdict == "proved":
        return Sentence(f"Proved: {title} is {result.claim}.", rests_on)
    if result.verdict == "undecided":
        text = f"Undecided: rounding could change an answer of {title}, so it is neither proved nor refuted that it is "
        return Sentence(f"{text}{result.claim}.", rests_on, is_decided=False)
    wrong = in_range(result)
    text = f"Refuted: {title} calls {wrong.example} {wrong.predicted}, and it is {wrong.right}"
    if tested is not None and tested.correct == tested.n:
        text += (
            f". It is right on all {tested.n:,} random {result.example}s of its test set: a sample misses rare errors"
        )
    return Sentence(f"{text}.", rests_on)


def _context_sentences(result: ContextCertificate, rests_on: str = "") -> list[Sentence]:
    """Say what was checked, how small the smallest lead is, and what rounding can do."""
    n = result.n_contexts
    seen = f"A position of this model sees {result.width} neighbours at most, so {n:,} contexts decide every length"
    counts = f"{result.n_wrong_contexts:,} of {result.n_unbroken:,} contexts of {result.last_class} {result.example}s"
    sentences = [f"{seen}. All of them were checked."]
    if result.verdict == "proved":
        sentences.append(
            f"The least certain answers lead by {result.least_quiet:.2f} logits ({result.last_class}: any "
            f"{result.example} with {result.tightest_quiet}) and {result.least_firing:.2f} logits "
            f"({result.first_class}: {result.tightest_firing}). Rounding in double precision moves a lead by at most "
            f"{result.double_error:.1e} logits, in any order of summation."
        )
    else:
        sentences.append(
            f"{counts} have the wrong sign, and {result.n_wrong_paths:,} other contexts lie on {result.first_class} "
            f"{result.example}s that no context reveals."
        )
    sentences.append(
        "The model runs in single precision: measured over all contexts, that moves a lead by "
        f"{result.single_error:.1e} logits at most (first-order estimate: {result.first_order_error:.1e}). This is "
        "measured, not proved."
    )
    return [Sentence(text, rests_on) for text in sentences]
