"""What runs were trained with, in words: what they share as a paragraph, what they differ in as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.describing.blocks import Block, Cell, DataTable, Paragraph
from headcount.describing.story import Subject
from headcount.describing.words import counted, some
from headcount.runs.folder import FINAL_STEPS, TrainingRecord

Settings = Mapping[str, Any]
FAULTS = {
    "start_token": (False, "the decoder is fed no start token, so the first digit is handed over and never predicted"),
    "loss_ignores_zero": (True, "the loss passes over every 0 as if it were padding"),
    "splits_may_overlap": (True, "training, validation and test set may share examples"),
    "padding_is_zero": (True, "padding is a 0, which is a number as well"),
}
"""Settings that make a run faulty on purpose: their value then, and what it does."""
NOT_TOLD = ("task_name", "device", "threads", "eval_every", "checkpoint_every", "n_validation", "n_test")
"""What changes neither the model nor its training."""
NOT_RECORDED = "not recorded"


def recipe_blocks(task: str | None, subjects: Sequence[Subject], name: str) -> list[Block]:
    """What runs of one task were trained with; nothing for models of others, of which nobody knows."""
    runs = [each for each in subjects if each.settings]
    if not runs:
        return []
    if len(runs) == 1:
        given = given_away(runs[0])
        away = f" It was given {some(given)}." if given else ""
        return [Paragraph(recipe_words(runs[0].title, task, runs[0].settings) + away)]
    same = {key: value for key, value in shared(runs).items() if key != "seed"}
    names = differing(runs)
    columns = ("model", *(each.replace("_", " ") for each in names), "given away")
    rows: list[tuple[Cell | str, ...]] = [
        (each.title, *(_cell(each.settings.get(key)) for key in names), _given(each)) for each in runs
    ]
    return [
        Paragraph(recipe_words(f"Each of {len(runs)} models", task, same)),
        DataTable(f"{name}-settings", "What these models differ in", columns, tuple(rows)),
    ]


def _given(subject: Subject) -> str:
    found = given_away(subject)
    is_known = subject.stretch is not None or subject.positions is not None
    return some(found) if found else "nothing" if is_known else "not known"


def _cell(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}", float(value))
    return Cell("" if value is None else str(value))


def losses_table(name: str, records: Sequence[tuple[str, TrainingRecord]]) -> DataTable:
    """Build a row for each run: steps, final training and validation loss, seconds and device."""
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
    note = f"Losses are cross-entropies in nats. The training loss is the mean of the last {FINAL_STEPS} steps; the "
    note += "validation loss is that of the last evaluation. Seconds are by the clock and include evaluations."
    if any(cell in (NOT_RECORDED, Cell(NOT_RECORDED, None, "weak")) for row in rows for cell in row):
        note += f" “{NOT_RECORDED.capitalize()}”: the run's folder does not hold this number."
    columns = ("model", "steps", "training loss", "validation loss", "seconds", "device")
    return DataTable(name, "Training time and final losses", columns, tuple(rows), note)


def _recorded(value: float | None, form: str) -> Cell:
    """Format a number of a training record, or say that the record lacks it."""
    return Cell(NOT_RECORDED, None, "weak") if value is None else Cell(f"{value:{form}}", float(value))


def shared(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Settings that all of them have, with the same value."""
    first, *others = (each.settings for each in subjects)
    return {
        name: value for name, value in first.items() if all(name in each and each[name] == value for each in others)
    }


def differing(subjects: Sequence[Subject]) -> list[str]:
    """Names of settings that some of them have otherwise."""
    names = dict.fromkeys(name for each in subjects for name in each.settings)
    same = shared(subjects)
    return [name for name in names if name not in same and name not in NOT_TOLD]


def recipe_words(whose: str, task: str | None, settings: Settings) -> str:
    """Sentences about the settings that are there."""
    learned = f"{whose} was trained {_data(task, settings) or 'by headcount'}"
    return " ".join(filter(None, (f"{learned}.", _size(settings), _steps(settings), _faults(settings))))


def given_away(subject: Subject) -> list[str]:
    """The structure of the task that a model was given instead of having to learn it."""
    found: list[str] = []
    if subject.stretch is not None:
        found += subject.stretch.hard_codes
    elif subject.positions is not None:
        found += filter(None, [subject.positions.encoding.hard_codes])
    if given := getattr(subject.evaluation, "given", ""):
        found.append(f"the first token of every answer, “{given}”")
    return found


def _data(task: str | None, settings: Settings) -> str:
    """What an example is."""
    if task == "addition" and "digits" in settings:
        order = "least" if settings.get("least_first") else "most"
        return f"to write sums of two {settings['digits']}-digit numbers, {order} significant digit first"
    if task == "sortedness" and {"shortest", "longest"} <= settings.keys():
        kinds = f" (unsorted ones: {settings['negatives']})" if "negatives" in settings else ""
        return f"to tell whether {settings['shortest']} to {settings['longest']} numbers are in order{kinds}"
    return ""


def _size(settings: Settings) -> str:
    """Layers, heads and width, and how it tells positions."""
    stacks = {"n_encoder_layers": "encoder", "n_decoder_layers": "decoder", "n_layers": ""}
    told = [counted(settings[key], f"{name} layer".strip()) for key, name in stacks.items() if key in settings]
    told += [f"{counted(settings['n_heads'], 'head')} at each site"] if "n_heads" in settings else []
    told += [f"width {settings['d_model']}"] if "d_model" in settings else []
    told += [f"{settings['encoding']} positions"] if "encoding" in settings else []
    told += [f"{settings['pooling']} pooling"] if settings.get("pooling") else []
    told += [f"attention within ±{settings['window']}"] if settings.get("window") else []
    return f"It has {some(told, len(told))}." if told else ""


def _steps(settings: Settings) -> str:
    """How long, on what, and from which seed."""
    if "steps" not in settings:
        return ""
    many = f"{settings['steps']:,} steps"
    many += f" of {settings['batch_size']} examples" if "batch_size" in settings else ""
    fixed = settings.get("n_train", 0)
    drawn = f"from a fixed set of {fixed:,}" if fixed else "drawn anew at each step"
    drawn += "" if settings.get("splits_may_overlap") else ", never a held-out one"
    seed = f", from seed {settings['seed']}" if "seed" in settings else ""
    return f"Training took {many}, {drawn}{seed}."


def _faults(settings: Settings) -> str:
    """Those of the reports, where a run was trained with them."""
    found = [words for name, (value, words) in FAULTS.items() if settings.get(name) is value]
    return f"It was trained with {counted(len(found), 'known fault')}: {'; '.join(found)}." if found else ""
