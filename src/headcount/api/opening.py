"""Open a model by its name, or from an object in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from torch import nn

from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel, no_task
from headcount.hooks.sites import Sites
from headcount.rendering.progress import announcer
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Run, load, locate

AnyModel: TypeAlias = "str | Path | Run | OpenModel | nn.Module"


def open_model(model: AnyModel, *, sites: Sites | None = None, run_adapter: bool = False, label: str = "") -> OpenModel:
    """Open a run, a Hugging Face folder, an adapter's model or a PyTorch module.

    `run_adapter` allows running the adapter (the user's Python file) that the folder of a pruned model names. `label`
    is the name of an external model in titles, and the name of the folder for its results.
    """
    if isinstance(model, OpenModel):
        return model
    if isinstance(model, nn.Module):
        return OpenModel.of_module(model, sites)
    if isinstance(model, Run) or (_is_sample(model) and not run_adapter):
        return RunModel.of(open_run(model))
    from headcount.experiments.external_models import load_external  # imported late, so that samples open quickly
    from headcount.external.models import code_of, is_external

    if run_adapter or is_external(model):
        code = code_of(model, run_adapter=run_adapter)
        if code is not None and not label:  # a course prints one message for all submissions
            announcer(quiet=False)(f"running {code} to build the model")
        return load_external(model, run_adapter=run_adapter, title=label)
    return RunModel.of(open_run(model))


def open_on_task(model: AnyModel, *, run_adapter: bool = False, label: str = "") -> OpenModel:
    """Open a model for a method that needs a task, such as addition.

    Raise an error for a Hugging Face folder, which has no task, before its weights are read.
    """
    if isinstance(model, str | Path) and not _is_sample(model):
        from headcount.external.models import has_only_an_adapter, is_adapter_class, is_external

        if is_external(model) and not (is_adapter_class(model) or has_only_an_adapter(model)):
            raise no_task(str(model))
    return open_model(model, run_adapter=run_adapter, label=label)


def open_run(run: AnyModel, what: str = "this") -> Run:
    """Open a run (a model that headcount trained); raise an error for any other model, without running its code.

    `what` names the caller in the error, such as `attention during decoding`.
    """
    if isinstance(run, RunModel):
        return run.run
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path) and _is_sample(run):
        return load(run)
    from headcount.external.models import is_external

    if not isinstance(run, str | Path) or is_external(run):
        name = run if isinstance(run, str | Path) else getattr(run, "name", type(run).__name__)
        raise InputError(
            f"{what} needs a run (a model that headcount trained), and {name} is not a run",
            "train one: headcount train addition",
            "or use sample:addition",
        )
    if str(run).endswith(".py") and Path(run).is_file():
        raise InputError(
            f"{run} is a Python file, but no class in it was named",
            f"name one that inherits headcount.Adapter: {run}:Class",
        )
    folder = locate(run)
    if not folder.holds_a_run or is_external(folder.config_file.parent):
        raise InputError(
            f"there is no model in {run}",
            "give the folder of a model that headcount trained, sample:addition, the folder of a Hugging Face model, "
            "or my_adapter.py:Class, where Class inherits headcount.Adapter",
        )
    return load(run)


def _is_sample(name: object) -> bool:
    return isinstance(name, str | Path) and str(name).startswith(SAMPLE)
