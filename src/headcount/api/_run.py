"""What every function here begins with: a run or a model of others, by name or ready."""

from __future__ import annotations

from pathlib import Path

from headcount.errors import InputError
from headcount.guests.guest import Guest, code_of, load_guest, looks_like_guest
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Run, load
from headcount.views.progress import announcer

AnyRun = str | Path | Run
AnyModel = AnyRun | Guest


def loaded(run: AnyModel) -> Run:
    """The run itself, whatever was given; a model of others is refused before anything of it is loaded or run."""
    if isinstance(run, Guest) or (not isinstance(run, Run) and looks_like_guest(run)):
        raise InputError(
            f"{run.name if isinstance(run, Guest) else run} is a model that others wrote",
            "this works on headcount's own runs: headcount train addition",
        )
    found = ready(run)
    assert isinstance(found, Run), "it does not look like a guest"
    return found


def label_of(model: Run | Guest) -> str:
    """What results and titles call it."""
    return model.label if isinstance(model, Guest) else model.name


def ready(model: AnyModel, *, run_adapter: bool = False) -> Run | Guest:
    """The run, or the model of others; a pruned folder's adapter is run only if `run_adapter` says so."""
    if isinstance(model, Run | Guest):
        return model
    if run_adapter or looks_like_guest(model):
        if (code := code_of(model, run_adapter=run_adapter)) is not None:
            announcer(quiet=False)(f"running {code} to build the model")
        return load_guest(model, run_adapter=run_adapter)
    if str(model).endswith(".py") and Path(model).is_file():
        raise InputError(f"which class of {model}?", f"say {model}:Class, one that inherits headcount.Adapter")
    if not str(model).startswith(SAMPLE) and not (Path(model) / "config.json").exists():
        raise InputError(
            f"no run and no model in {model}",
            "give a run folder, sample:addition, a folder of a Hugging Face model, or my_adapter.py:Class",
        )
    return load(model)
