"""What was trained, and how well? Both accuracies of a model that writes, both classes of one that classifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.describing.accuracy import EACH_SEED, groups_of, main_share, of_one, of_several, told
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Notice, Picture, Section, Sentence
from headcount.describing.recipes import losses_table, recipe_blocks
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, briefly, percent, some
from headcount.errors import argument
from headcount.figures.training import draw_accuracy, draw_curves, draw_learning
from headcount.figures.training import percent as with_interval
from headcount.stats import Proportion

BY = {"digit": "digit", "longest chain": "longest chain", "class": "right on"}
"""What has a column each where every model is a row."""


def section(material: Material) -> Section | None:
    """Models of one task together: what they were trained with, then how well they do."""
    blocks: list[Block] = []
    answers = []
    for task in dict.fromkeys(each.task for each in material.subjects):
        subjects = [each for each in material.subjects if each.task == task and (each.settings or each.evaluation)]
        measured = [each for each in subjects if each.evaluation]
        name = f"training-{task or 'other'}"
        blocks += recipe_blocks(task, subjects, name)
        if measured:
            found = of_one(measured[0], name) if len(measured) == 1 else of_several(measured, name)
            table = _by_group(measured[0], name) if len(measured) == 1 else _by_model(measured, name)
            answers.append(found[0])
            blocks += [*_notices(measured), Conclusions(tuple(found)), table]
        blocks += [*_losses(subjects, name), *_pictures(subjects, name)]
    return (
        Section(
            "training",
            "What was trained, and how well?",
            tuple(blocks),
            _answer(answers, material.subjects[0].settings),
        )
        if blocks
        else None
    )


def _answer(found: Sequence[Sentence], settings: Mapping[str, Any]) -> Sentence | None:
    """All tasks in one sentence, and of each what comes first."""
    if not found:
        return None
    parts = [
        each.text.removesuffix(ONE_SEED).removesuffix(EACH_SEED).partition("; least often")[0].rstrip(". ")
        for each in found
    ]
    text = "; ".join([parts[0], *(f"{part[:1].lower()}{part[1:]}" for part in parts[1:])])
    return Sentence(briefly(text, settings), found[0].rests_on, all(each.is_decided for each in found))


def _notices(subjects: Sequence[Subject]) -> list[Block]:
    """What quick checks found wrong with what was measured."""
    faults = [(each.title, each.evaluation.audit) for each in subjects if each.evaluation]
    return [Notice("fail", f"{title}: {fault}.") for title, fault in faults if fault]


# --- tables -----------------------------------------------------------------------------------------------------------


def _share(found: Proportion | None, n: int | None = None) -> Cell:
    """With its interval, and its n where that is not the row's."""
    if found is None:
        return Cell("not asked")
    return Cell(with_interval(found) + (f" (n = {found.n:,})" if n not in (None, found.n) else ""), found.rate)


def _by_group(subject: Subject, name: str) -> DataTable:
    """One model: all that was scored, group by group."""
    evaluation = subject.evaluation
    assert evaluation is not None, "asked of a model that was measured"
    rows: list[tuple[Cell | str, ...]] = []
    for scores in evaluation.rows:
        shares = [getattr(scores, key) for key in evaluation.COLUMNS]
        n = max(share.n for share in shares if share is not None)
        rows.append((scores.facet, scores.group.strip(), Cell(f"{n:,}", n), *(_share(share, n) for share in shares)))
    columns = ("by", "group", "n", *evaluation.COLUMNS.values())
    caption = f"How often {subject.title} is right: the {evaluation.split} set, with 95 % Wilson intervals"
    note = ""
    if hasattr(evaluation, "exact"):
        note = (
            "How many are right. Exact match: every digit of an answer. Teacher-forced: fed the right digits so far. "
        )
        note += "Free-running: fed what it wrote itself."
    return DataTable(name, caption, columns, tuple(rows), note, f"headcount evaluate {argument(subject.name)}")


def _by_model(subjects: Sequence[Subject], name: str) -> DataTable:
    """Several models: a row for each, its two accuracies or its two classes."""
    columns = dict.fromkeys(key for each in subjects for key in _cells(each.evaluation))
    rows: list[tuple[Cell | str, ...]] = []
    for each in subjects:
        n, cells = main_share(each.evaluation).n, _cells(each.evaluation)  # type: ignore[arg-type]
        rows.append((each.title, Cell(f"{n:,}", n), *(cells.get(key, Cell("")) for key in columns)))
    split = subjects[0].evaluation.split  # type: ignore[union-attr]
    caption = f"How often each model is right: the {split} set, with 95 % Wilson intervals"
    command = f"headcount evaluate {' '.join(argument(each.name) for each in subjects)}"
    return DataTable(name, caption, ("model", "n", *columns), tuple(rows), command=command)


def _cells(evaluation: Any) -> dict[str, Cell]:
    """By column: right as a whole, and by digit and carry chain; or by class, and how often it gives one of them."""
    whole = {words: _share(getattr(evaluation.rows[0], key)) for key, words in evaluation.COLUMNS.items()}
    parts = {
        f"{words} {group}": _share(share)
        for facet, words in BY.items()
        for group, share in groups_of(evaluation, facet).items()
    }
    answers = {f"answers “{row.group}”": _share(row.right) for row in getattr(evaluation, "answer_shares", ())[-1:]}
    return {**whole, **parts, **answers}


def _losses(subjects: Sequence[Subject], name: str) -> list[DataTable]:
    """Build the table of durations and final losses of all runs; nothing for models that headcount did not train."""
    records = [(each.title, each.training) for each in subjects if each.training is not None]
    return [losses_table(f"{name}-losses", records)] if records else []


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(subjects: Sequence[Subject], name: str) -> list[Block]:
    """How it learned and where it is right; of several models, how all of them learned."""
    logs = [(each.title, each.log) for each in subjects if any("n" in line for line in each.log)]
    if len(subjects) > 1:
        caption = "Right on the validation set while they were trained"
        alt = some([f"{title}: {_last(log)}" for title, log in logs], 12)
        return [Picture(f"{name}-curves", caption, alt, lambda: draw_learning(logs, caption))] if logs else []
    return [
        *(_curves(each, name) for each in subjects if logs),
        *(_groups(each, name) for each in subjects if each.evaluation),
    ]


def _curves(subject: Subject, name: str) -> Picture:
    alt = f"Loss and scores by training step; at the end of training {_last(subject.log)}."
    return Picture(
        f"{name}-curves", f"How {subject.title} learned", alt, lambda: draw_curves(subject.log, subject.title)
    )


def _groups(subject: Subject, name: str) -> Picture:
    evaluation = subject.evaluation
    assert evaluation is not None, "asked of a model that was measured"
    caption, alt = (
        f"Where {subject.title} is right: the {evaluation.split} set",
        f"As a whole {told(main_share(evaluation))}.",
    )
    command = f"headcount evaluate {argument(subject.name)}"
    return Picture(f"{name}-accuracy", caption, alt, lambda: draw_accuracy(evaluation, subject.title), command)


def _last(log: Sequence[Any]) -> str:
    """What the last evaluation of a log came to."""
    last = [line for line in log if "n" in line][-1]
    key = next(key for key in ("free_running", "accuracy", "teacher_forced") if key in last)
    return f"{percent(last[key])} at step {last['step']:,}"


PART = section
