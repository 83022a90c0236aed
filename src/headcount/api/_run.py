"""What every function here begins with: a run or a model of others, by name or ready."""

from __future__ import annotations

from pathlib import Path

from headcount.errors import InputError
from headcount.guests.guest import Guest, load_guest, looks_like_guest
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Run, load

AnyRun = str | Path | Run
AnyModel = AnyRun | Guest


def loaded(run: AnyModel) -> Run:
    """The run itself, whatever was given."""
    found = ready(run)
    if isinstance(found, Guest):
        raise InputError(
            f"{found.name} is a model that others wrote", "this works on headcount's own runs: headcount train addition"
        )
    return found


def label_of(model: Run | Guest) -> str:
    """What results and titles call it."""
    return model.label if isinstance(model, Guest) else model.name


def ready(model: AnyModel) -> Run | Guest:
    """The run, or the model of others."""
    if isinstance(model, Run | Guest):
        return model
    if looks_like_guest(model):
        return load_guest(model)
    if str(model).endswith(".py") and Path(model).is_file():
        raise InputError(f"which class of {model}?", f"say {model}:Class, one that inherits headcount.Adapter")
    if not str(model).startswith(SAMPLE) and not (Path(model) / "config.json").exists():
        raise InputError(
            f"no run and no model in {model}",
            "give a run folder, sample:addition, a folder of a Hugging Face model, or my_adapter.py:Class",
        )
    return load(model)
