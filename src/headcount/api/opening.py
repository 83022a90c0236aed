"""Open models, and predict the answer to one example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch import nn

from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel, no_task
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.sites import Sites
from headcount.rendering.progress import announcer
from headcount.runs.folder import SAMPLE
from headcount.runs.run import Prediction, Run, load, locate

AnyModel: TypeAlias = "str | Path | Run | OpenModel | nn.Module"
PROVEN_ON = 4
"""Number of test examples on which the gates (the hooks that ablate heads) are verified to act on the model."""


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
            f"no run and no model in {run}",
            "give a run folder, sample:addition, a folder of a Hugging Face model, or my_adapter.py:Class",
        )
    return load(run)


def _is_sample(name: object) -> bool:
    return isinstance(name, str | Path) and str(name).startswith(SAMPLE)


@dataclass(frozen=True)
class Change:
    """One position of an answer that changes when heads are ablated: its name, and its token before and after."""

    position: str
    clean: str
    without: str


@dataclass(frozen=True)
class PredictionPair:
    """A model's answer to one example, and its answer with some heads ablated."""

    clean: Prediction
    heads: tuple[HeadId, ...] = ()
    """Heads whose outputs were set to zero."""
    without: Prediction | None = None
    """The answer with these heads ablated, or None if no heads were named."""
    changes: tuple[Change, ...] = ()
    n_sites: int = 0
    """Number of attention blocks at which the ablation was verified to act."""


def predict(
    model: AnyModel, text: str, without: Sequence[str | HeadId] = (), *, run_adapter: bool = False
) -> PredictionPair:
    """Return a model's answer to one example, with and without some heads.

    `without` lists heads to set to zero; the model then decodes its answer again. `run_adapter` allows running the
    adapter (the user's Python file) that the folder of a pruned model names. The result holds both answers and the
    positions that changed.

    >>> pair = predict("sample:addition", "999+100", without=["E0H2"])
    >>> pair.clean.predicted, pair.without.predicted
    ('1099', '1199')
    """
    opened = open_model(model, run_adapter=run_adapter)
    heads = tuple(dict.fromkeys(opened.find_head(head) for head in without))
    clean = opened.predict(text)
    if not heads:
        return PredictionPair(clean)
    proof = prove(opened.module, opened.sites, opened.some_inputs(PROVEN_ON))
    with Gates(opened.sites, closed_gates(opened.sites, heads)):  # raises an error if no pass reached them
        ablated = opened.predict(text)
    pairs = list(zip(clean.positions, clean.output_tokens, ablated.output_tokens, strict=False))
    pairs = pairs or [("class", clean.predicted, ablated.predicted)]
    changes = tuple(Change(position, one, other) for position, one, other in pairs if one != other)
    return PredictionPair(clean, heads, ablated, changes, len(proof))
