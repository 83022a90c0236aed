"""What was trained, and how accurate is it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.describing.blocks import Block, Conclusions, DataTable, Notice, Picture, Section, Sentence
from headcount.describing.evaluation import (
    EACH_SEED,
    accuracy_table,
    comparison,
    conclusions,
    main_share,
    models_table,
    right_words,
)
from headcount.describing.recipes import losses_table, recipe_blocks
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import ONE_SEED, briefly, percent, some
from headcount.errors import argument
from headcount.figures.training import draw_accuracy, draw_curves, draw_learning


def section(results: ReportResults) -> Section | None:
    """Build the section: settings and accuracies of all models, task by task."""
    blocks: list[Block] = []
    answers = []
    for task in dict.fromkeys(each.task for each in results.models):
        all_models = [each for each in results.models if each.task == task and (each.settings or each.evaluation)]
        measured = [each for each in all_models if each.evaluation]
        name = f"training-{task or 'other'}"
        blocks += recipe_blocks(task, all_models, name)
        if measured:
            sentences, table = _accuracies(measured, name)
            answers.append(sentences[0])
            blocks += [*_notices(measured), Conclusions(tuple(sentences)), table]
        blocks += [*_losses(all_models, name), *_pictures(all_models, name)]
    return (
        Section(
            "training",
            "What was trained, and how accurate is it?",
            tuple(blocks),
            _answer(answers, results.models[0].settings),
        )
        if blocks
        else None
    )


def _accuracies(all_models: Sequence[ModelResults], name: str) -> tuple[list[Sentence], DataTable]:
    """Describe one model by group, or compare several."""
    models = [(each.title, each.evaluation) for each in all_models if each.evaluation is not None]
    title, evaluation = models[0]
    command = f"headcount evaluate {' '.join(argument(each.name) for each in all_models)}"
    if len(models) > 1:
        return comparison(models, name), models_table(name, models, evaluation.split, command)
    return conclusions(title, evaluation, name), accuracy_table(name, title, evaluation, command)


def _answer(first: Sequence[Sentence], settings: Mapping[str, Any]) -> Sentence | None:
    """Join the first sentence of every task into one."""
    if not first:
        return None
    parts = [
        each.text.removesuffix(ONE_SEED).removesuffix(EACH_SEED).partition("; least often")[0].rstrip(". ")
        for each in first
    ]
    text = "; ".join([parts[0], *(f"{part[:1].lower()}{part[1:]}" for part in parts[1:])])
    return Sentence(briefly(text, settings), first[0].rests_on, all(each.is_decided for each in first))


def _notices(all_models: Sequence[ModelResults]) -> list[Block]:
    """Return the faults that the quick audit found."""
    faults = [(each.title, each.evaluation.audit) for each in all_models if each.evaluation]
    return [Notice("fail", f"{title}: {fault}.") for title, fault in faults if fault]


def _losses(all_models: Sequence[ModelResults], name: str) -> list[DataTable]:
    """Build the table of durations and final losses of all runs; nothing for models that headcount did not train."""
    records = [(each.title, each.training) for each in all_models if each.training is not None]
    return [losses_table(f"{name}-losses", records)] if records else []


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(all_models: Sequence[ModelResults], name: str) -> list[Block]:
    """Draw the training curves and the accuracy by group of one model; of several models, one figure of all curves."""
    logs = [(each.title, each.log) for each in all_models if any("n" in line for line in each.log)]
    if len(all_models) > 1:
        caption = "Validation accuracy during training"
        alt = some([f"{title}: {_last(log)}" for title, log in logs], 12)
        return [Picture(f"{name}-curves", caption, alt, lambda: draw_learning(logs, caption))] if logs else []
    return [
        *(_curves(each, name) for each in all_models if logs),
        *(_groups(each, name) for each in all_models if each.evaluation),
    ]


def _curves(model: ModelResults, name: str) -> Picture:
    alt = f"Loss and scores by training step; at the end of training {_last(model.log)}."
    return Picture(
        f"{name}-curves", f"Training curves of {model.title}", alt, lambda: draw_curves(model.log, model.title)
    )


def _groups(model: ModelResults, name: str) -> Picture:
    evaluation = model.evaluation
    assert evaluation is not None, "only models that were measured are drawn"
    caption, alt = (
        f"Accuracy of {model.title} by group on the {evaluation.split} set",
        f"Over all examples, {right_words(main_share(evaluation))}.",
    )
    command = f"headcount evaluate {argument(model.name)}"
    return Picture(f"{name}-accuracy", caption, alt, lambda: draw_accuracy(evaluation, model.title), command)


def _last(log: Sequence[Any]) -> str:
    """Write the score of the last evaluation in a log."""
    last = [line for line in log if "n" in line][-1]
    key = next(key for key in ("free_running", "accuracy", "teacher_forced") if key in last)
    return f"{percent(last[key])} at step {last['step']:,}"


PART = section
