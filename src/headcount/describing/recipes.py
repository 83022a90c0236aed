"""Describe how runs were trained: shared settings as a paragraph, different ones and final losses as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.describing.blocks import Block, Cell, DataTable, Paragraph
from headcount.describing.report import ModelResults
from headcount.describing.words import counted, some
from headcount.runs.folder import FINAL_STEPS, TrainingRecord

Settings = Mapping[str, Any]
FAULTS = {
    "start_token": (False, "the decoder is fed no start token, so the first digit is given and never predicted"),
    "loss_ignores_zero": (True, "the loss ignores every 0 as if it were padding"),
    "splits_may_overlap": (True, "training, validation and test set may share examples"),
    "padding_is_zero": (True, "padding is a 0, which is also a number"),
}
"""Settings that make a run faulty on purpose, with the faulty value and its effect."""
LEFT_OUT = ("task_name", "device", "threads", "eval_every", "checkpoint_every", "n_validation", "n_test")
"""Settings that change neither the model nor its training."""
NOT_RECORDED = "not recorded"


def recipe_blocks(task: str | None, models: Sequence[ModelResults], name: str) -> list[Block]:
    """Describe the settings of all runs of one task; nothing for models that headcount did not train."""
    runs = [each for each in models if each.settings]
    if not runs:
        return []
    if len(runs) == 1:
        structure = given_structure(runs[0])
        given = f" It was given structure: {some(structure)}." if structure else ""
        return [Paragraph(recipe_words(runs[0].title, task, runs[0].settings) + given)]
    same = {key: value for key, value in shared(runs).items() if key != "seed"}
    names = differing(runs)
    columns = ("model", *(each.replace("_", " ") for each in names), "given structure")
    rows: list[tuple[Cell | str, ...]] = [
        (each.title, *(_cell(each.settings.get(key)) for key in names), _given(each)) for each in runs
    ]
    return [
        Paragraph(recipe_words(f"Each of {len(runs)} models", task, same)),
        DataTable(f"{name}-settings", "Settings in which these models differ", columns, tuple(rows)),
    ]


def _given(model: ModelResults) -> str:
    structure = given_structure(model)
    is_known = model.stretch is not None or model.positions is not None
    return some(structure) if structure else "none" if is_known else "not known"


def _cell(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}", float(value))
    return Cell("" if value is None else str(value))


def losses_table(name: str, records: Sequence[tuple[str, TrainingRecord]]) -> DataTable:
    """Tabulate steps, final losses, seconds and device of each run."""
    rows: list[tuple[Cell | str, ...]] = [
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
    """Format a number of a training record, or say that the record lacks it."""
    return Cell(NOT_RECORDED, None, "weak") if value is None else Cell(f"{value:{form}}", float(value))


def shared(models: Sequence[ModelResults]) -> dict[str, Any]:
    """Return the settings that have the same value in all runs."""
    first, *others = (each.settings for each in models)
    return {
        name: value for name, value in first.items() if all(name in each and each[name] == value for each in others)
    }


def differing(models: Sequence[ModelResults]) -> list[str]:
    """Return the names of the settings in which runs differ."""
    names = dict.fromkeys(name for each in models for name in each.settings)
    same = shared(models)
    return [name for name in names if name not in same and name not in LEFT_OUT]


def recipe_words(whose: str, task: str | None, settings: Settings) -> str:
    """Describe the settings in sentences; settings that are missing are left out."""
    task_words = f"{whose} was trained {_task(task, settings) or 'by headcount'}."
    return " ".join(filter(None, (task_words, _size(settings), _steps(settings), _faults(settings))))


def given_structure(model: ModelResults) -> list[str]:
    """Return the structure of the task that a model was given instead of having to learn it."""
    structure: list[str] = []
    if model.stretch is not None:
        structure += model.stretch.hard_codes
    elif model.positions is not None:
        structure += filter(None, [model.positions.encoding.hard_codes])
    if given := getattr(model.evaluation, "given", ""):
        structure.append(f"the first token of every answer, “{given}”")
    return structure


def _task(task: str | None, settings: Settings) -> str:
    """Say what the model learned to do."""
    if task == "addition" and "digits" in settings:
        order = "least" if settings.get("least_first") else "most"
        return f"to write the sums of two {settings['digits']}-digit numbers, {order} significant digit first"
    if task == "sortedness" and {"shortest", "longest"} <= settings.keys():
        kinds = f" (negatives: {settings['negatives']})" if "negatives" in settings else ""
        return f"to tell whether {settings['shortest']} to {settings['longest']} numbers are sorted{kinds}"
    return ""


def _size(settings: Settings) -> str:
    """Describe the layers, heads, width, encoding and pooling."""
    stacks = {"n_encoder_layers": "encoder", "n_decoder_layers": "decoder", "n_layers": ""}
    parts = [counted(settings[key], f"{name} layer".strip()) for key, name in stacks.items() if key in settings]
    parts += [f"{counted(settings['n_heads'], 'head')} in each attention block"] if "n_heads" in settings else []
    parts += [f"width {settings['d_model']}"] if "d_model" in settings else []
    parts += [f"{settings['encoding']} positions"] if "encoding" in settings else []
    parts += [f"{settings['pooling']} pooling"] if settings.get("pooling") else []
    parts += [f"attention within ±{settings['window']}"] if settings.get("window") else []
    return f"It has {some(parts, len(parts))}." if parts else ""


def _steps(settings: Settings) -> str:
    """Say how long the model was trained, on which examples and with which seed."""
    if "steps" not in settings:
        return ""
    steps = f"{settings['steps']:,} steps"
    steps += f" of {settings['batch_size']} examples" if "batch_size" in settings else ""
    n_train = settings.get("n_train", 0)
    examples = f"from a fixed set of {n_train:,}" if n_train else "drawn anew at each step"
    examples += "" if settings.get("splits_may_overlap") else " and never held-out"
    seed = f", with seed {settings['seed']}" if "seed" in settings else ""
    return f"Training took {steps}, {examples}{seed}."


def _faults(settings: Settings) -> str:
    """Name the known faults with which a run was trained."""
    faults = [words for name, (value, words) in FAULTS.items() if settings.get(name) is value]
    return f"It was trained with {counted(len(faults), 'known fault')}: {'; '.join(faults)}." if faults else ""
