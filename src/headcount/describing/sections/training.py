"""What was trained, and how accurate is it? Settings, losses and accuracies of the report's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.describing.blocks import (
    Block,
    Cell,
    Conclusions,
    DataTable,
    Notice,
    Paragraph,
    Picture,
    Row,
    Section,
    Sentence,
)
from headcount.describing.evaluation import (
    EACH_SEED,
    accuracy_table,
    comparison,
    conclusions,
    main_share,
    models_table,
    right_words,
)
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import ONE_SEED, briefly, counted, percent, some
from headcount.errors import argument
from headcount.figures.training import draw_accuracy, draw_curves, draw_learning
from headcount.runs.folder import FINAL_STEPS, TrainingRecord
from headcount.tasks import TASKS

Settings = Mapping[str, Any]
FAULTS = {
    "start_token": (False, "the decoder is fed no start token, so the first digit is given and never predicted"),
    "loss_ignores_zero": (True, "the loss ignores every 0 as if it were padding"),
    "splits_may_overlap": (True, "training, validation and test set may share examples"),
    "padding_is_zero": (True, "padding is a 0, which is also a number"),
}
"""Maps a setting that can make a run faulty on purpose to the faulty value and its effect in words."""
LEFT_OUT = ("task_name", "device", "threads", "eval_every", "checkpoint_every", "n_validation", "n_test")
"""Settings that a report does not list, because they change neither the model nor its training."""
NOT_RECORDED = "not recorded"


def recipe_blocks(task: str | None, models: Sequence[ModelResults], name: str) -> list[Block]:
    """Return report blocks on the settings of all runs of one task; none for models that headcount did not train."""
    runs = [each for each in models if each.settings]
    if not runs:
        return []
    if len(runs) == 1:
        structure = given_structure(runs[0])
        gift = f" The model has built-in structure of the task: {some(structure)}." if structure else ""
        return [Paragraph(recipe_words(runs[0].title, task, runs[0].settings) + gift)]
    same = {key: value for key, value in shared(runs).items() if key != "seed"}
    names = differing(runs)
    columns = ("model", *(each.replace("_", " ") for each in names), "built-in structure")
    rows = list[Row]()
    for each in runs:
        rows.append((each.title, *(_cell(each.settings.get(key)) for key in names), _given(each)))
    return [
        Paragraph(recipe_words(f"Each of {len(runs)} models", task, same)),
        DataTable(f"{name}-settings", "Settings in which these models differ", columns, tuple(rows)),
    ]


def _given(model: ModelResults) -> str:
    """Return in words the structure of the task that is built into a model, or `none`, or `not known`."""
    structure = given_structure(model)
    is_known = model.stretch is not None or model.positions is not None
    return some(structure) if structure else "none" if is_known else "not known"


def _cell(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}", float(value))
    return Cell("" if value is None else str(value))


def losses_table(name: str, records: Sequence[tuple[str, TrainingRecord]]) -> DataTable:
    """Return a table of the number of training steps, the final losses, the seconds and the device of each run."""
    rows: list[Row] = [
        (
            title,
            _recorded(record.steps, ",.0f"),
            _recorded(record.training_loss, ".3g"),
            _recorded(record.validation_loss, ".3g"),
            _recorded(record.seconds, ",.1f"),
            record.device or NOT_RECORDED,
        )
        for title, record in records
    ]
    note = f"Losses are cross-entropies in nats. The training loss is the mean over the last {FINAL_STEPS} steps; the "
    note += "validation loss is from the last evaluation. Seconds are wall-clock time and include evaluations."
    if any(cell in (NOT_RECORDED, Cell(NOT_RECORDED, None, "weak")) for row in rows for cell in row):
        note += f" “{NOT_RECORDED.capitalize()}”: the run's folder does not hold this number."
    columns = ("model", "steps", "training loss", "validation loss", "seconds", "device")
    return DataTable(name, "Training time and final losses", columns, tuple(rows), note)


def _recorded(value: float | None, form: str) -> Cell:
    """Return a table cell with a number of a training record, or `not recorded` if the record lacks it."""
    return Cell(NOT_RECORDED, None, "weak") if value is None else Cell(f"{value:{form}}", float(value))


def shared(models: Sequence[ModelResults]) -> dict[str, Any]:
    """Return the settings that have the same value in all of these runs."""
    first, *others = (each.settings for each in models)
    return {
        name: value for name, value in first.items() if all(name in each and each[name] == value for each in others)
    }


def differing(models: Sequence[ModelResults]) -> list[str]:
    """Return the names of the settings in which these runs differ."""
    names = dict.fromkeys(name for each in models for name in each.settings)
    same = shared(models)
    return [name for name in names if name not in same and name not in LEFT_OUT]


def recipe_words(whose: str, task: str | None, settings: Settings) -> str:
    """Return sentences that describe the task, size and training of a run; what is not known is left out."""
    data = TASKS.get(task).describe_data(settings) if task in TASKS.names() else ""
    task_words = f"{whose} was trained {data or 'by headcount'}."
    return " ".join(filter(None, (task_words, _size(settings), _steps(settings), _faults(settings))))


def given_structure(model: ModelResults) -> list[str]:
    """Return the structure of the task that is built into a model, so that the model does not have to learn it."""
    structure: list[str] = []
    if model.stretch is not None:
        structure += model.stretch.hard_codes
    elif model.positions is not None:
        structure += filter(None, [model.positions.encoding.hard_codes])
    if given := getattr(model.evaluation, "given", ""):
        structure.append(f"the first token of every answer, “{given}”")
    return structure


def _size(settings: Settings) -> str:
    """Return a sentence on the layers, heads, width, encoding and pooling of a model."""
    stacks = {"n_encoder_layers": "encoder", "n_decoder_layers": "decoder", "n_layers": ""}
    parts = [counted(settings[key], f"{name} layer".strip()) for key, name in stacks.items() if key in settings]
    parts += [f"{counted(settings['n_heads'], 'head')} in each attention block"] if "n_heads" in settings else []
    parts += [f"width {settings['d_model']}"] if "d_model" in settings else []
    parts += [f"{settings['encoding']} positions"] if "encoding" in settings else []
    parts += [f"{settings['pooling']} pooling"] if settings.get("pooling") else []
    parts += [f"attention within ±{settings['window']}"] if settings.get("window") else []
    return f"It has {some(parts, len(parts))}." if parts else ""


def _steps(settings: Settings) -> str:
    """Return sentences on how long the model was trained, on which examples and with which seed."""
    if "steps" not in settings:
        return ""
    steps = f"{settings['steps']:,} steps"
    steps += f" of {settings['batch_size']} examples" if "batch_size" in settings else ""
    n_train = settings.get("n_train", 0)
    examples = f"came from a fixed set of {n_train:,}" if n_train else "were drawn anew at each step"
    examples += "" if settings.get("splits_may_overlap") else ", never from the held-out sets"
    seed = f" with seed {settings['seed']}" if "seed" in settings else ""
    snapshot = f" This model is the snapshot after {settings['snapshot']:,} steps." if "snapshot" in settings else ""
    return f"Training took {steps}{seed}.{snapshot} The training examples {examples}."


def _faults(settings: Settings) -> str:
    """Return a sentence on the known faults that a run was trained with on purpose; empty if there are none."""
    faults = [words for name, (value, words) in FAULTS.items() if settings.get(name) is value]
    return f"It was trained with {counted(len(faults), 'known fault')}: {'; '.join(faults)}." if faults else ""


# --- the section of a report ------------------------------------------------------------------------------------------


def section(results: ReportResults) -> Section | None:
    """Return the section on the settings and accuracies of all models, task by task; None if nothing is known."""
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
            faults = [(each.title, each.evaluation.audit) for each in measured if each.evaluation]
            blocks += [Notice("fail", f"{title}: {fault}.") for title, fault in faults if fault]
            blocks += [Conclusions(tuple(sentences)), table]
        records = [(each.title, each.training) for each in all_models if each.training is not None]
        blocks += [losses_table(f"{name}-losses", records)] if records else []
        blocks += _pictures(all_models, name)
    answer = _answer(answers, results.models[0].settings)
    return Section("training", "What was trained, and how accurate is it?", tuple(blocks), answer) if blocks else None


def _accuracies(all_models: Sequence[ModelResults], name: str) -> tuple[list[Sentence], DataTable]:
    """Return sentences and a table on accuracy: by group of examples for one model, or a comparison of several."""
    models = [(each.title, each.evaluation) for each in all_models if each.evaluation is not None]
    title, evaluation = models[0]
    command = f"headcount evaluate {' '.join(argument(each.name) for each in all_models)}"
    if len(models) > 1:
        return comparison(models, name), models_table(name, models, evaluation.split, command)
    return conclusions(title, evaluation, name), accuracy_table(name, title, evaluation, command)


def _answer(first: Sequence[Sentence], settings: Mapping[str, Any]) -> Sentence | None:
    """Return one sentence that joins the given sentences, one for each task; None if there are none."""
    if not first:
        return None
    parts = [
        each.text.removesuffix(ONE_SEED).removesuffix(EACH_SEED).partition("; least often")[0].rstrip(". ")
        for each in first
    ]
    return Sentence(briefly(". ".join(parts), settings), first[0].rests_on, all(each.is_decided for each in first))


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(all_models: Sequence[ModelResults], name: str) -> list[Block]:
    """Return figures of training: for one model, its curves and accuracy by group; for several, all curves in one."""
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
    caption = f"Training curves of {model.title}"
    return Picture(f"{name}-curves", caption, alt, lambda: draw_curves(model.log, model.title))


def _groups(model: ModelResults, name: str) -> Picture:
    evaluation = model.evaluation
    assert evaluation is not None, "only models that were measured are drawn"
    caption = f"Accuracy of {model.title} by group of examples on the {evaluation.split} set"
    alt = f"Over all examples, {right_words(main_share(evaluation))}."
    command = f"headcount evaluate {argument(model.name)}"
    return Picture(f"{name}-accuracy", caption, alt, lambda: draw_accuracy(evaluation, model.title), command)


def _last(log: Sequence[Any]) -> str:
    """Return the score of the last evaluation in a training log, such as `99.9 % at step 2,000`."""
    last = [line for line in log if "n" in line][-1]
    key = next(key for key in ("free_running", "accuracy", "teacher_forced") if key in last)
    return f"{percent(last[key])} at step {last['step']:,}"


PART = section
