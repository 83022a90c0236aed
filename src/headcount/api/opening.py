"""What every verb begins with: a model by name, or one that is ready."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from headcount.errors import InputError
from headcount.experiments.models import LoadedModel, OpenModel, RunModel
from headcount.external.models import ExternalModel, code_of, is_external, load_external
from headcount.hooks.sites import Sites
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Run, load
from headcount.views.progress import announcer

AnyRun = str | Path | Run
AnyModel = AnyRun | ExternalModel | OpenModel | nn.Module


def open_model(model: AnyModel, *, sites: Sites | None = None, run_adapter: bool = False) -> OpenModel:
    """The model, whoever wrote it; a pruned folder's adapter is run only if `run_adapter` says so."""
    if isinstance(model, OpenModel):
        return model
    if isinstance(model, Run):
        return RunModel.of(model)
    if isinstance(model, ExternalModel):
        return LoadedModel.of(model)
    if isinstance(model, nn.Module):
        return OpenModel.of_module(model, sites)
    if run_adapter or is_external(model):
        if (code := code_of(model, run_adapter=run_adapter)) is not None:
            announcer(quiet=False)(f"running {code} to build the model")
        return LoadedModel.of(load_external(model, run_adapter=run_adapter))
    return RunModel.of(open_run(model))


def open_run(run: AnyModel, what: str = "this") -> Run:
    """The run itself, for what needs its settings; a model without any is refused before its code is run."""
    if isinstance(run, RunModel):
        return run.run
    if isinstance(run, Run):
        return run
    if not isinstance(run, str | Path) or is_external(run):
        raise InputError(
            f"{what} needs a run: a model whose task and settings are known, and "
            f"{run if isinstance(run, str | Path) else getattr(run, 'name', type(run).__name__)} is none",
            "train one: headcount train addition",
            "or use sample:addition",
        )
    if str(run).endswith(".py") and Path(run).is_file():
        raise InputError(f"which class of {run}?", f"say {run}:Class, one that inherits headcount.Adapter")
    if not str(run).startswith(SAMPLE) and not (Path(run) / "config.json").exists():
        raise InputError(
            f"no run and no model in {run}",
            "give a run folder, sample:addition, a folder of a Hugging Face model, or my_adapter.py:Class",
        )
    return load(run)
