"""What every verb begins with, a model by name or one that is ready; and its answer to one example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from torch import nn

from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel, no_task
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.proof import prove
from headcount.hooks.sites import Sites
from headcount.rendering.progress import announcer
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Prediction, Run, load

if TYPE_CHECKING:
    from headcount.external.models import ExternalModel

AnyModel: TypeAlias = "str | Path | Run | ExternalModel | OpenModel | nn.Module"
PROVEN_ON = 4
"""Test examples that show that the gates act on the model."""


def open_model(model: AnyModel, *, sites: Sites | None = None, run_adapter: bool = False, label: str = "") -> OpenModel:
    """Open a model, whoever wrote it; a pruned folder's adapter is run only if `run_adapter` says so.

    `label` is what a model of others is called in titles, and the name of the folder for its results.
    """
    if isinstance(model, OpenModel):
        return model
    if isinstance(model, nn.Module):
        return OpenModel.of_module(model, sites)
    if isinstance(model, Run) or (_is_sample(model) and not run_adapter):
        return RunModel.of(open_run(model))
    from headcount.experiments.external_models import LoadedModel  # what samples need not wait for
    from headcount.external.models import ExternalModel, code_of, is_external, load_external

    if isinstance(model, ExternalModel):
        return LoadedModel.of(model)
    if run_adapter or is_external(model):
        code = code_of(model, run_adapter=run_adapter)
        if code is not None and not label:  # a course says so once, for all
            announcer(quiet=False)(f"running {code} to build the model")
        return LoadedModel.of(replace(load_external(model, run_adapter=run_adapter), title=label))
    return RunModel.of(open_run(model))


def open_on_task(model: AnyModel, *, run_adapter: bool = False, label: str = "") -> OpenModel:
    """Open a model that may have a task; a Hugging Face folder is refused before it is read."""
    if isinstance(model, str | Path) and not _is_sample(model):
        from headcount.external.models import has_only_an_adapter, is_adapter_class, is_external

        if is_external(model) and not (is_adapter_class(model) or has_only_an_adapter(model)):
            raise no_task(str(model))
    return open_model(model, run_adapter=run_adapter, label=label)


def open_run(run: AnyModel, what: str = "this") -> Run:
    """The run itself, for what needs its settings; a model without any is refused before its code is run."""
    if isinstance(run, RunModel):
        return run.run
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path) and _is_sample(run):
        return load(run)
    from headcount.external.models import is_external

    if not isinstance(run, str | Path) or is_external(run):
        raise InputError(
            f"{what} needs a run: a model whose task and settings are known, and "
            f"{run if isinstance(run, str | Path) else getattr(run, 'name', type(run).__name__)} is none",
            "train one: headcount train addition",
            "or use sample:addition",
        )
    if str(run).endswith(".py") and Path(run).is_file():
        raise InputError(f"which class of {run}?", f"say {run}:Class, one that inherits headcount.Adapter")
    if not (Path(run) / "config.json").exists():
        raise InputError(
            f"no run and no model in {run}",
            "give a run folder, sample:addition, a folder of a Hugging Face model, or my_adapter.py:Class",
        )
    return load(run)


def _is_sample(name: object) -> bool:
    return isinstance(name, str | Path) and str(name).startswith(SAMPLE)


@dataclass(frozen=True)
class Change:
    """One position of the output that is another without the heads."""

    position: str
    clean: str
    without: str


@dataclass(frozen=True)
class PredictionPair:
    """What a model outputs, and what it outputs with some heads ablated."""

    clean: Prediction
    heads: tuple[HeadId, ...] = ()
    """Those whose outputs were set to 0 (zero ablation)."""
    without: Prediction | None = None
    """With these heads ablated; None if none were named."""
    changes: tuple[Change, ...] = ()
    n_sites: int = 0
    """Attention blocks at which the ablation was proven to act."""


def predict(
    model: AnyModel, text: str, without: Sequence[str | HeadId] = (), *, run_adapter: bool = False
) -> PredictionPair:
    """The model's own answer; with `without`, also its answer while these heads are ablated, decoded for real.

    >>> found = predict("sample:addition", "999+100", without=["E0H2"])
    >>> found.clean.predicted, found.without.predicted
    ('1099', '1199')
    """
    opened = open_model(model, run_adapter=run_adapter)
    heads = tuple(dict.fromkeys(opened.find_head(head) for head in without))
    clean = opened.predict(text)
    if not heads:
        return PredictionPair(clean)
    proof = prove(opened.module, opened.sites, opened.some_inputs(PROVEN_ON))
    with Gates(opened.sites, closed_gates(opened.sites, heads)):  # an error if no pass came through them
        ablated = opened.predict(text)
    pairs = list(zip(clean.positions, clean.output_tokens, ablated.output_tokens, strict=False))
    pairs = pairs or [("class", clean.predicted, ablated.predicted)]
    changes = tuple(Change(position, one, other) for position, one, other in pairs if one != other)
    return PredictionPair(clean, heads, ablated, changes, len(proof))
