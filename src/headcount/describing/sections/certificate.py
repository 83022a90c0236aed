"""Is it right on everything? Not on a test set: on every example there is, each checked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.accuracy import main_share
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Notice, Paragraph, Section, Sentence
from headcount.describing.story import Material, Subject
from headcount.describing.words import counted, percent, some
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.analysis.exhaustive import Certificate

TABLE = "certificate-checked"
MADE_ON = ("hardware", "device", "dtype", "threads", "torch")
SHOWN = 50
"""Wrong answers listed; all of them are in the result file."""


def section(material: Material) -> Section | None:
    """Every model whose whole domain was walked."""
    subjects = material.with_("certificate")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A test set is a sample; here every example there is was checked, so shares have no interval. One forward "
            "pass decides whether an answer is right. Some answers are decoded token by token as well: had one of "
            "them come to another verdict, there would be no certificate."
        )
    ]
    for subject in subjects:
        found = subject.certificate
        assert found is not None, "asked of a model that was walked"
        blocks += [Notice("fail", f"{subject.title}: {found.audit}.")] if found.audit else []
        blocks.append(Conclusions(tuple(conclusions(subject))))
    blocks += [_table(subjects), *(_wrong(material, each) for each in subjects if each.certificate.wrong)]  # type: ignore[union-attr]
    return Section("certificate", "Is it right on everything?", tuple(blocks), _answer(subjects))


def conclusions(subject: Subject) -> list[Sentence]:
    """How many answers are right, how near the nearest is to tipping over, and whether rounding could tip it."""
    found = subject.certificate
    assert found is not None, "asked of a model that was walked"
    return [_verdict(subject), *_margin(found), _rounding(found)]


def _answer(subjects: Sequence[Subject]) -> Sentence:
    """Of one model, its verdict; of several, how many are right on everything."""
    pairs = [(each.title, each.certificate) for each in subjects if each.certificate]
    if len(pairs) == 1:
        return _verdict(subjects[0])
    right = [title for title, found in pairs if not found.errors]
    wrong = [f"{title} ({found.errors:,} wrong of {found.distinct:,})" for title, found in pairs if found.errors]
    text = f"{len(right)} of {len(pairs)} models are right on every example there is"
    text += f": {some(right)}" if right else ""
    return Sentence(f"{text}; not {some(wrong)}." if wrong else f"{text}.", TABLE)


def _verdict(subject: Subject) -> Sentence:
    """Of all there are; and what the test set shows of what is wrong."""
    found, what = subject.certificate, "sums" if subject.task == "addition" else "examples"
    assert found is not None, "asked of a model that was walked"
    if not found.errors:
        return Sentence(f"{subject.title} is right on all {found.distinct:,} {what} there are, each checked.", TABLE)
    share = percent(found.errors / found.distinct)
    text = f"{subject.title} is wrong on {found.errors:,} of all {found.distinct:,} {what} there are ({share})"
    tested = None if subject.evaluation is None else main_share(subject.evaluation)
    if tested is None:
        return Sentence(f"{text}.", TABLE)
    missed = tested.n - tested.correct
    shown = f"{missed:,} of them" if missed else "none of them: a sample misses what is rare"
    return Sentence(f"{text}; its test set of {tested.n:,} shows {shown}.", TABLE)


def _margin(found: Certificate) -> list[Sentence]:
    """The narrowest win, where all are wins; and what was decoded."""
    decoded = f"{counted(found.decoded, 'answer')} were also decoded token by token, each with the same verdict."
    if found.least_margin is None:
        return [Sentence(decoded, TABLE)]
    text = f"The narrowest win of a right token over its best rival is {found.least_margin:.2f} logits, on "
    return [Sentence(f"{text}{found.tightest}; {decoded}", TABLE)]


def _rounding(found: Certificate) -> Sentence:
    """Whether another machine, which rounds otherwise, could come to another verdict."""
    if found.float_error is None:
        text = "Whether another machine would come to the same verdicts is undecided: this model does not compute in "
        return Sentence(f"{text}double precision, so what rounding does to it is not known.", TABLE, is_decided=False)
    moved = f"double precision moves margins by at most {found.float_error:.1e} logits (n = {found.n_recomputed:,})"
    if found.undecided:
        text = f"Of {counted(found.undecided, 'example')} the verdict is undecided: {moved}, and they are nearer to "
        return Sentence(
            f"{text}tipping over than that, so another machine may come to another one.", TABLE, is_decided=False
        )
    times = found.times_error
    apart = "" if times is None else f"; the narrowest win is about {float(f'{times:.2g}'):,.0f} times that"
    return Sentence(f"No verdict hangs on rounding: {moved}{apart}.", TABLE)


def _table(subjects: Sequence[Subject]) -> DataTable:
    rows: list[tuple[Cell | str, ...]] = []
    for subject in subjects:
        found = subject.certificate
        assert found is not None, "asked of a model that was walked"
        made = found.environment
        rows.append(
            (
                subject.title,
                Cell(f"{found.distinct:,}", found.distinct),
                Cell(f"{found.errors:,}", found.errors, "strong" if found.errors else ""),
                Cell("", None) if found.least_margin is None else Cell(f"{found.least_margin:.2f}", found.least_margin),
                found.tightest,
                Cell(f"{found.decoded:,}", found.decoded),
                Cell("not known") if found.float_error is None else Cell(f"{found.float_error:.1e}", found.float_error),
                Cell(f"{found.undecided:,}", found.undecided),
                ", ".join(f"{key} {made[key]}" for key in MADE_ON if key in made),
            )
        )
    columns = (
        "model",
        "checked",
        "wrong",
        "narrowest win (logits)",
        "tightest on",
        "decoded",
        "rounding moves (logits)",
        "within rounding",
        "made on",
    )
    command = "; ".join(f"headcount verify {argument(each.name)}" for each in subjects)
    return DataTable(TABLE, "Every example there is, checked", columns, tuple(rows), command=command)


def _wrong(material: Material, subject: Subject) -> DataTable:
    """The first ones, with what went wrong."""
    found = subject.certificate
    assert found is not None, "asked of a model that was walked"
    rows = tuple((each.example, each.predicted, each.right, each.explanation) for each in found.wrong[:SHOWN])
    more = f": the first {len(rows)} of {found.errors:,}" if found.errors > len(rows) else ""
    name = f"{material.block_id('certificate', subject)}-wrong"
    caption = f"What {subject.title} gets wrong{more}"
    return DataTable(name, caption, ("example", "predicted", "right", "what went wrong"), rows)


PART = section
