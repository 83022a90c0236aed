"""Python functions that do what the commands of the command line do.

Each function returns a typed result. `save` names a folder for the result and its figures; `save=True` means the
model's own folder. Each name is imported when it is first used, so that `headcount predict` does not wait for
matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.api.ablation import ablate_heads as ablate_heads
    from headcount.api.auditing import audit as audit
    from headcount.api.auditing import audit_all as audit_all
    from headcount.api.auditing import require_feedback_folder as require_feedback_folder
    from headcount.api.auditing import write_feedback as write_feedback
    from headcount.api.claiming import claim as claim
    from headcount.api.claiming import claim_all as claim_all
    from headcount.api.comparing import compare_runs as compare_runs
    from headcount.api.courses import CourseInterrupted as CourseInterrupted
    from headcount.api.courses import Submission as Submission
    from headcount.api.evaluating import evaluate as evaluate
    from headcount.api.evaluating import evaluate_all as evaluate_all
    from headcount.api.evaluating import read_evaluation as read_evaluation
    from headcount.api.heads import head_roles as head_roles
    from headcount.api.heads import head_stats as head_stats
    from headcount.api.heads import match_heads as match_heads
    from headcount.api.heads import show_head as show_head
    from headcount.api.heads import show_heads as show_heads
    from headcount.api.heads import summarise_attention as summarise_attention
    from headcount.api.intervening import ByHead as ByHead
    from headcount.api.intervening import HeadIntervention as HeadIntervention
    from headcount.api.intervening import ablated as ablated
    from headcount.api.intervening import attention as attention
    from headcount.api.intervening import head_outputs as head_outputs
    from headcount.api.intervening import patched as patched
    from headcount.api.intervening import path_patched as path_patched
    from headcount.api.intervening import streams as streams
    from headcount.api.opening import open_model as open_model
    from headcount.api.opening import open_on_task as open_on_task
    from headcount.api.opening import open_run as open_run
    from headcount.api.patching import patch_pair as patch_pair
    from headcount.api.positions import show_positions as show_positions
    from headcount.api.predicting import PredictionPair as PredictionPair
    from headcount.api.predicting import predict as predict
    from headcount.api.pruning import SavedPruning as SavedPruning
    from headcount.api.pruning import prune_heads as prune_heads
    from headcount.api.published import compare_published as compare_published
    from headcount.api.reporting import report as report
    from headcount.api.routing import routes as routes
    from headcount.api.routing import routes_all as routes_all
    from headcount.api.saving import Saved as Saved
    from headcount.api.stretching import join_stretches as join_stretches
    from headcount.api.stretching import stretch as stretch
    from headcount.api.stretching import stretch_all as stretch_all
    from headcount.api.studying import StudyOutcome as StudyOutcome
    from headcount.api.studying import estimate_training as estimate_training
    from headcount.api.studying import plan_study as plan_study
    from headcount.api.studying import run_study as run_study
    from headcount.api.studying import seconds_per_step as seconds_per_step
    from headcount.api.training import next_command as next_command
    from headcount.api.training import read_certificate as read_certificate
    from headcount.api.training import train as train
    from headcount.api.verifying import stored_verification as stored_verification
    from headcount.api.verifying import verify as verify
    from headcount.api.weighing import weights as weights

_EXPORTS: dict[str, tuple[str, ...]] = {
    "ablation": ("ablate_heads",),
    "auditing": ("audit", "audit_all", "require_feedback_folder", "write_feedback"),
    "claiming": ("claim", "claim_all"),
    "comparing": ("compare_runs",),
    "courses": ("CourseInterrupted", "Submission"),
    "evaluating": ("evaluate", "evaluate_all", "read_evaluation"),
    "heads": ("head_roles", "head_stats", "match_heads", "show_head", "show_heads", "summarise_attention"),
    "intervening": (
        *("ByHead", "HeadIntervention", "ablated", "attention", "head_outputs"),
        *("patched", "path_patched", "streams"),
    ),
    "opening": ("open_model", "open_on_task", "open_run"),
    "patching": ("patch_pair",),
    "positions": ("show_positions",),
    "predicting": ("PredictionPair", "predict"),
    "pruning": ("SavedPruning", "prune_heads"),
    "published": ("compare_published",),
    "reporting": ("report",),
    "routing": ("routes", "routes_all"),
    "saving": ("Saved",),
    "stretching": ("join_stretches", "stretch", "stretch_all"),
    "studying": ("StudyOutcome", "estimate_training", "plan_study", "run_study", "seconds_per_step"),
    "training": ("next_command", "read_certificate", "train"),
    "verifying": ("stored_verification", "verify"),
    "weighing": ("weights",),
}
_HOMES = {name: f"headcount.api.{module}" for module, names in _EXPORTS.items() for name in names}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headcount.api' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
