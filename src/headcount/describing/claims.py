"""Is a claim about heads true? The verdict in one sentence, and a table of the evidence for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Row, Sentence
from headcount.describing.words import amount, amount_interval, bracketed, counted, interval, percent

if TYPE_CHECKING:
    from headcount.claims.base import ClaimResult, ClaimsResult, Evidence, Statement

NOT_CORRECTED = "Each interval is the 95 % CI of one claim; the intervals are not corrected for the number of claims."


def describe(result: ClaimResult) -> list[Block]:
    """Return report blocks on one claim: the verdict, the reasons for it, and a table of the evidence."""
    blocks: list[Block] = [Conclusions(tuple(conclusions(result)))]
    if result.evidence:
        blocks.append(_evidence_table(result))
    return blocks


def conclusions(result: ClaimResult) -> Iterator[Sentence]:
    """Yield sentences: the verdict with the measured effect, failed controls, and how many examples would decide."""
    yield verdict(result)
    if result.by_construction:
        yield Sentence(f"This follows from the architecture alone: {result.by_construction}.", "evidence")
    for control in result.controls:
        if control.outcome in ("refutes", "open") and result.verdict == "undecided":
            fails = "A control fails" if control.outcome == "refutes" else "A control is undecided"
            yield Sentence(
                f"{fails}: {clause(control)}; this number must be {control.needed}.", "evidence", is_decided=False
            )
    if result.verdict == "undecided":
        yield Sentence(_more(result), "evidence", is_decided=False)
    if result.note:
        yield Sentence(result.note)


def verdict(result: ClaimResult) -> Sentence:
    """Return the verdict as one sentence, with the claim, the measured effect, its interval and n."""
    word = _verdict_words(result).capitalize()
    if result.decisive is None:
        return Sentence(f"{word}: {result.statement}: {result.reason.rstrip('.')}.", is_decided=False)
    reasons = [result.decisive]
    if result.verdict == "supported" and len(result.evidence) > 1:
        reasons.append(result.evidence[-1])  # behind the pattern, the effect
    text = f"{word}: {result.statement}: {', and '.join(map(clause, reasons))}."
    return Sentence(text, "evidence", is_decided=result.verdict != "undecided")


def _verdict_words(result: ClaimResult) -> str:
    """Return the verdict in words, such as `refuted (by construction)`."""
    if result.by_construction:
        return f"{result.verdict} (by construction)"
    is_stopped = result.verdict == "undecided" and result.failed_controls
    return f"{result.verdict} (a control fails)" if is_stopped else result.verdict


def clause(evidence: Evidence) -> str:
    """Return a clause about one measured number: `removing it costs 0.2 points (95 % CI 0.1-0.3, n = 2,000)`."""
    doubt = f"{_interval(evidence)}, n = {evidence.n:,} {evidence.of}"
    return f"{evidence.words.format(_number(evidence))} ({doubt})"


def _number(evidence: Evidence) -> str:
    return percent(evidence.value) if evidence.unit == "share" else amount(evidence.value, evidence.unit)


def _interval(evidence: Evidence) -> str:
    if evidence.unit == "share":
        return interval(evidence.low, evidence.high)
    return amount_interval(evidence.low, evidence.high, evidence.unit)


def _more(result: ClaimResult) -> str:
    """Return a sentence on how many examples would decide an undecided claim, or why no number would."""
    if result.failed_controls:
        return "More examples would not decide this claim, because a control fails."
    if result.n_needed is None:
        text = "The number of examples that would decide this claim cannot be estimated, because the measured effect "
        return f"{text}lies at the threshold."
    return f"About {result.n_needed:,} examples would decide this claim: repeat it with --n {result.n_needed}."


def _evidence_table(result: ClaimResult) -> DataTable:
    roles = [("evidence", each) for each in result.evidence] + [("control", each) for each in result.controls]
    rows: list[Row] = [
        (
            each.words.format("..."),
            "shown" if each.outcome == "shown" else role,
            Cell(_bracketed(each), each.value),
            f"{each.n:,} {each.of}",
            each.needed or "-",
            {"supports": "yes", "refutes": "no", "open": "undecided", "shown": "-"}[each.outcome],
        )
        for role, each in roles
    ]
    columns = ("what was measured", "role", "value [95 % CI]", "n", "needed", "met")
    return DataTable("evidence", f"What the verdict on “{result.text}” rests on", columns, tuple(rows))


def _bracketed(evidence: Evidence) -> str:
    if evidence.unit == "share":
        return bracketed(evidence.value, evidence.low, evidence.high, scale=1, digits=3)
    scale, digits = (100, 2) if evidence.unit == "points" else (1, 4)
    return f"{bracketed(evidence.value, evidence.low, evidence.high, scale, digits)} {evidence.unit}"


def describe_all(result: ClaimsResult) -> list[Block]:
    """Return report blocks on several claims: a sentence for each claim, and a table with its verdict on each model."""
    sentences = tuple(_summary(result, statement) for statement in result.statements)
    columns = ("claim", "who says it", *result.models, "supported in")
    rows = tuple(_row(result, statement) for statement in result.statements)
    reasons: dict[str, None] = {}
    for each in result.results:
        if each.verdict == "not judged":
            reasons[f"{each.text} on {each.name}: {each.reason.rstrip('.')}"] = None
    note = " ".join([NOT_CORRECTED, *(f"Not judged: {reason}." for reason in reasons)])
    return [Conclusions(sentences), DataTable("claims", "Claims and models", columns, rows, note)]


def _summary(result: ClaimsResult, statement: Statement) -> Sentence:
    """Return a sentence on how many models support a claim; for a single model, return the verdict on it."""
    parts = result.of(statement)
    if len(parts) == 1:
        return verdict(parts[0])
    n_supported, n_judged = result.count(statement)
    refuted, undecided = (sum(each.verdict == word for each in parts) for word in ("refuted", "undecided"))
    text = f"{statement.text}: supported in {n_supported} of {counted(n_judged, 'model')}, refuted in {refuted}"
    text += f", undecided in {undecided}" if undecided else ""
    mean = result.mean_effect(statement)
    unit = next((each.effect.unit for each in parts if each.effect is not None), "share")
    if mean is not None:
        value, low, high, n = mean
        shown = percent(value) if unit == "share" else amount(value, unit)
        doubt = interval(low, high) if unit == "share" else amount_interval(low, high, unit)
        text += f"; mean effect {shown} ({doubt} over models, n = {n} models)"
    return Sentence(f"{text}.", "claims", is_decided=n_judged > 0)


def _deciding_n(result: ClaimResult) -> str:
    """Return in brackets how many examples would decide an undecided claim: ` (--n 5000 would decide)`; else "".

    If a control fails, more examples would not decide the claim, and the text is empty, too.
    """
    if result.verdict != "undecided" or result.failed_controls:
        return ""
    return " (effect at the threshold)" if result.n_needed is None else f" (--n {result.n_needed} would decide)"


def _row(result: ClaimsResult, statement: Statement) -> Row:
    cells = []
    for each in result.of(statement):
        number = f": {_bracketed(each.decisive)}" if each.decisive is not None else ""
        words = f"{_verdict_words(each)}{_deciding_n(each)}"
        cells.append(Cell(f"{words}{number}", None, "weak" if each.verdict == "not judged" else ""))
    n_supported, n_judged = result.count(statement)
    return (statement.text, statement.says or "-", *cells, Cell(f"{n_supported} of {n_judged}", float(n_supported)))
