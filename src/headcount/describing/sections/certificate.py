"""Is every answer right? Models verified beyond a test set: on every example, on every context, or by a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Notice, Paragraph, Section, Sentence
from headcount.describing.certificate import checked_table
from headcount.describing.evaluation import main_share
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.verification import conclusions, details, n_wrong, verdict
from headcount.describing.words import some
from headcount.describing.wrong_answers import wrong_table
from headcount.errors import argument
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.exhaustive_check import Certificate
    from headcount.analysis.verification import Verification

TABLE, VERDICTS = "certificate-checked", "certificate-verdicts"
SHOWN = 50
"""Largest number of wrong answers that are listed; the result file has all of them."""
PROVED, REFUTED = "proved", "refuted"


def section(results: ReportResults) -> Section | None:
    """Return the section on the verification of models, or None if none was verified."""
    verified = [(each, each.certificate) for each in results.models if each.certificate is not None]
    if not verified:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A test set is a sample, and a sample misses rare errors. Here each model is verified in the strongest way "
            "that it allows. If its task is finite, every example is checked. If each of its positions sees only a few "
            "neighbours, every such context is checked, which decides the answers at every length. Otherwise, "
            "headcount searches for wrong answers; a search that finds none proves nothing."
        )
    ]
    for model, outcome in verified:
        audit = getattr(outcome, "audit", "")
        blocks += [Notice("fail", f"{model.title}: {audit}.")] if audit else []
        blocks.append(Conclusions(tuple(conclusions(outcome, model.title, _table_of(outcome), _tested(model)))))
    walks = [(model, cast("Certificate", each)) for model, each in verified if type(each).__name__ == "Certificate"]
    if walks:
        blocks.append(checked_table([(model.title, each) for model, each in walks], TABLE, _command(walks)))
    blocks += _verdict_table([(model, each) for model, each in verified if _table_of(each) == VERDICTS])
    for model, outcome in verified:
        blocks += details(outcome, results.block_id("certificate", model))
        name, caption = f"{results.block_id('certificate', model)}-wrong", f"Wrong answers of {model.title}"
        blocks += wrong_table(name, outcome.wrong, caption, SHOWN, n_wrong(outcome))
    return Section("certificate", "Is every answer right?", tuple(blocks), _answer(verified))


def _table_of(outcome: Verification) -> str:
    """Return the id of the table that lists the outcome of a verification, which depends on the kind of check."""
    return TABLE if type(outcome).__name__ == "Certificate" else VERDICTS


def _verdict_table(verified: list[tuple[ModelResults, Verification]]) -> list[DataTable]:
    """Return a table of models that were not verified on every example: what was checked instead, and the verdict."""
    ways = {
        "ContextCertificate": "every context",
        "WorstMargins": "worst case at each length",
        "CounterexampleSearch": "examples from a search",
    }
    rows: list[tuple[Cell | str, ...]] = []
    for model, outcome in verified:
        n = getattr(outcome, "n_contexts", getattr(outcome, "n_tried", None))
        checked = Cell("" if n is None else f"{n:,}", n)
        wrong = Cell(f"{len(outcome.wrong):,}", len(outcome.wrong), "strong" if outcome.wrong else "")
        rows.append((model.title, ways.get(type(outcome).__name__, ""), outcome.verdict, checked, wrong))
    columns = ("model", "what was checked", "verdict", "number checked", "wrong answers listed")
    return (
        [DataTable(VERDICTS, "How each model was verified", columns, tuple(rows), command=_command(verified))]
        if rows
        else []
    )


def _command(verified: Sequence[tuple[ModelResults, object]]) -> str:
    """Return the command that verifies a single model; empty for several models."""
    return f"headcount verify {argument(verified[0][0].name)}" if len(verified) == 1 else ""


def _answer(verified: list[tuple[ModelResults, Verification]]) -> Sentence:
    """Return a sentence with the verdict on a single model, or with the names of several models by verdict."""
    if len(verified) == 1:
        model, outcome = verified[0]
        return verdict(outcome, model.title, _table_of(outcome))
    by_verdict = {
        word: [model.title for model, outcome in verified if outcome.verdict == word] for word in (PROVED, REFUTED)
    }
    others = [model.title for model, outcome in verified if outcome.verdict not in by_verdict]
    parts = [f"Proved right: {some(by_verdict[PROVED]) if by_verdict[PROVED] else 'none'}."]
    parts += [f"Wrong answers found: {some(by_verdict[REFUTED])}."] if by_verdict[REFUTED] else []
    parts += [f"Neither proved nor refuted: {some(others)}."] if others else []
    return Sentence(" ".join(parts), _table_of(verified[0][1]))


def _tested(model: ModelResults) -> Proportion | None:
    return None if model.evaluation is None else main_share(model.evaluation)


PART = section
