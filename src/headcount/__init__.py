"""Measure which attention heads matter, and how far a model extrapolates.

The functions below do in Python what the command line does. Each name is imported when it is first used, so that
`import headcount` and `headcount --help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headcount.api import ablate_heads as ablate_heads
    from headcount.api import ablated as ablated
    from headcount.api import attention as attention
    from headcount.api import audit as audit
    from headcount.api import claim as claim
    from headcount.api import claim_all as claim_all
    from headcount.api import compare_runs as compare_runs
    from headcount.api import evaluate as evaluate
    from headcount.api import head_outputs as head_outputs
    from headcount.api import head_roles as head_roles
    from headcount.api import head_stats as head_stats
    from headcount.api import match_heads as match_heads
    from headcount.api import patch_pair as patch_pair
    from headcount.api import patched as patched
    from headcount.api import path_patched as path_patched
    from headcount.api import predict as predict
    from headcount.api import prune_heads as prune_heads
    from headcount.api import report as report
    from headcount.api import routes as routes
    from headcount.api import routes_all as routes_all
    from headcount.api import run_study as run_study
    from headcount.api import show_head as show_head
    from headcount.api import show_heads as show_heads
    from headcount.api import show_positions as show_positions
    from headcount.api import streams as streams
    from headcount.api import stretch as stretch
    from headcount.api import summarise_attention as summarise_attention
    from headcount.api import train as train
    from headcount.api import verify as verify
    from headcount.api import weights as weights
    from headcount.auditing.interventions import audit_intervention as audit_intervention
    from headcount.errors import HeadcountError as HeadcountError
    from headcount.experiments.external_models import ExternalModel as ExternalModel
    from headcount.experiments.external_models import load_external as load_external
    from headcount.external.adapter import Adapter as Adapter
    from headcount.external.hugging_face import load_model as load_model
    from headcount.external.hugging_face import save_model as save_model
    from headcount.heads import HeadId as HeadId
    from headcount.heads import HeadSite as HeadSite
    from headcount.hooks.sites import Sites as Sites
    from headcount.hooks.wrapping import wrap as wrap
    from headcount.runs.config import RunConfig as RunConfig
    from headcount.runs.run import Run as Run
    from headcount.runs.run import load as load
    from headcount.surgery.cutting import cut_heads as cut_heads

_EXPORTS = {
    "api": "ablate_heads ablated attention audit claim claim_all compare_runs evaluate head_outputs head_roles "
    "head_stats match_heads patch_pair patched path_patched predict prune_heads report routes routes_all run_study "
    "show_head show_heads show_positions streams stretch summarise_attention train verify weights",
    "auditing.interventions": "audit_intervention",
    "errors": "HeadcountError",
    "external.adapter": "Adapter",
    "external.hugging_face": "load_model save_model",
    "experiments.external_models": "ExternalModel load_external",
    "heads": "HeadId HeadSite",
    "hooks.sites": "Sites",
    "hooks.wrapping": "wrap",
    "runs.config": "RunConfig",
    "runs.run": "Run load",
    "surgery.cutting": "cut_heads",
}
"""For each module, the names defined in it that `import headcount` exports, separated by spaces."""
_HOMES = {name: f"headcount.{module}" for module, names in _EXPORTS.items() for name in names.split()}

_SHOWN = (
    *("load", "load_external", "wrap", "Sites", "Adapter", "ExternalModel", "Run", "HeadId"),  # models and their heads
    *("train", "evaluate", "verify", "audit", "stretch", "predict"),  # measuring a model
    *("ablate_heads", "ablated", "patched", "attention", "head_outputs", "show_heads", "head_stats"),  # studying heads
    *("prune_heads", "cut_heads", "HeadcountError"),
)
"""The names that tab completion offers after `headcount.`; all other exported names work too."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *_SHOWN]
