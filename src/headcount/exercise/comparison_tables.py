"""Describe how numbers of the five published reports compare with ours: how many agree, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Row, Section, Sentence
from headcount.describing.published import PublishedFigures
from headcount.describing.words import counted, number, some
from headcount.exercise.comparison import ComparedFigure, PublishedComparison, Verdict, compare

RULE = (
    "A published figure agrees if it lies in the 95 % prediction interval for one more training of ours, measured on a "
    "test set of the report's size. The interval includes the spread over our seeds and, for accuracies and drops, the "
    "sampling errors of both test sets. With few seeds, the interval is wide: then agreement is weak evidence, and "
    "disagreement is strong evidence. About one figure of 20 lies outside by chance."
)
NAMES = (
    "Names of heads cannot be compared between two trainings. A drop is therefore compared with our drop of the same "
    "rank; the name of our head with this rank is given beside our value."
)
TABLES = {
    "accuracy": "Addition: accuracy and prunable heads",
    "drops": "Addition: drops of single heads",
    "attention": "Addition: what heads attend to, and carries",
    "sortedness": "Sortedness",
}
STATISTICS = ("specialisation", "column_alignment", "carry")
DECIDED: tuple[Verdict, ...] = ("agrees", "differs")
OTHERS: tuple[Verdict, ...] = ("undecided", "not comparable", "not measured")
MOST_NAMED = 8
"""Largest number of published numbers that a sentence names."""


def table_of(figure: ComparedFigure) -> str:
    """Return the key in `TABLES` of the table that lists a published number."""
    name = figure.key.split(".")[1] if figure.key else ""
    if figure.task == "sortedness":
        return "sortedness"
    if name in ("drops", "critical"):
        return "drops"
    return "attention" if name in STATISTICS else "accuracy"


def describe(result: PublishedComparison) -> Section:
    """Return a section on all published numbers: a sentence and a table for each kind, and the rule of comparison."""
    blocks: list[Block] = []
    sentences, missing = list[Sentence](), list[str]()
    for name, caption in TABLES.items():
        figures = [figure for figure in result.figures if table_of(figure) == name]
        if not any(figure.values for figure in figures):
            missing.append(caption)
        else:
            sentences.append(_sentence(caption, figures, f"published-{name}"))
            note = NAMES if name == "drops" else ""
            columns = (
                *("report", "figure", "published", "ours with the fault", "every value", "agrees if within"),
                *("sound model", "agrees?", "cause"),
            )
            rows = tuple(map(_row, figures))
            blocks.append(DataTable(f"published-{name}", caption, columns, rows, note, n_keys=2))
    notes = [Paragraph(RULE)]
    if missing:
        notes.append(Paragraph(f"These tables are left out, as no run has numbers for them: {'; '.join(missing)}."))
    return Section("published", "Published figures and ours", (Conclusions(tuple(sentences)), *notes, *blocks))


def _sentence(caption: str, figures: Sequence[ComparedFigure], rests_on: str) -> Sentence:
    """Return a sentence that counts the published numbers of one table by verdict, and names those that differ."""
    published = [figure for figure in figures if figure.key]
    counts = {verdict: sum(figure.verdict == verdict for figure in published) for verdict in (*DECIDED, *OTHERS)}
    words = [f"{counts[verdict]} {_verb(verdict, counts[verdict])}" for verdict in counts if counts[verdict]]
    text = f"{caption}: of {counted(len(published), 'published figure')}, {some(words)}."
    if differing := [f"{figure.what} ({figure.report})" for figure in published if figure.verdict == "differs"]:
        text += f" These figures differ: {some(differing, MOST_NAMED)}."
    return Sentence(text, rests_on, is_decided=any(counts[verdict] for verdict in DECIDED))


def _verb(verdict: Verdict, n: int) -> str:
    if verdict in DECIDED:
        return {"agrees": "agree", "differs": "differ"}[verdict] if n > 1 else verdict
    return f"{'is' if n == 1 else 'are'} {verdict}"


def _row(figure: ComparedFigure) -> Row:
    mark = "strong" if figure.verdict == "differs" else ""
    verdict = Cell(figure.verdict, None, "strong" if mark else "")
    return (
        figure.report,
        figure.what,
        Cell(figure.published or "-", _scaled(figure.published_low, figure.unit)),
        Cell(_mean(figure) or "-", _scaled(figure.mean, figure.unit)),
        ", ".join(_values(figure)) or "-",
        _within(figure) or "-",
        ", ".join(_number(value, figure.unit) for value in figure.sound) or "-",
        verdict,
        "; ".join(filter(None, (figure.cause, figure.why))),
    )


def _mean(figure: ComparedFigure) -> str:
    """Return the mean over our runs with its 95 % CI as text; without it if runs are few or all values are equal."""
    if figure.mean is None or "answer" in figure.what:
        return ""
    mean, unit = _number(figure.mean, figure.unit), "%" if figure.unit == "share" else figure.unit
    if figure.low is None or figure.high is None:
        return f"{mean} {unit}"
    return f"{mean} [{_number(figure.low, figure.unit)}, {_number(figure.high, figure.unit)}] {unit}"


def _within(figure: ComparedFigure) -> str:
    if figure.expected_low is None or figure.expected_high is None or figure.verdict not in DECIDED:
        return ""
    return f"{_number(figure.expected_low, figure.unit)} to {_number(figure.expected_high, figure.unit)}"


def _values(figure: ComparedFigure) -> Iterator[str]:
    for value, name in zip(figure.values, figure.names, strict=True):
        if "answer" in figure.what:
            yield name
        else:
            yield f"{_number(value, figure.unit)} ({name})" if name else _number(value, figure.unit)


def _number(value: float, unit: str) -> str:
    """Return a value as text without its unit: shares in percent, drops in points, other values unchanged."""
    return number(100 * value, 2 if abs(value) < 1 else 1) if unit in ("share", "points") else f"{value:.4g}"


def _scaled(value: float | None, unit: str) -> float | None:
    return value if value is None or unit not in ("share", "points") else 100 * value


PART = PublishedFigures(compare, describe)
