"""headcount: which heads count, and how far they reach.

The names below are the Python twin of the command line; each is imported when it is first used, so that
`import headcount` and `headcount --help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headcount.api import (
        ablate_heads,
        evaluate,
        head_stats,
        match_heads,
        predict,
        prune_heads,
        show_head,
        show_heads,
        show_positions,
        stretch,
        summarise_attention,
        train,
        verify,
    )
    from headcount.errors import HeadcountError
    from headcount.external.adapter import Adapter
    from headcount.external.hugging_face import load_model, save_model
    from headcount.external.models import ExternalModel, load_external
    from headcount.heads import HeadId, HeadSite
    from headcount.hooks.sites import Sites
    from headcount.hooks.wrapping import wrap
    from headcount.runs.config import RunConfig
    from headcount.runs.run import Run, load
    from headcount.surgery.cutting import cut_heads

_HOMES = {
    "ablate_heads": "headcount.api",
    "evaluate": "headcount.api",
    "summarise_attention": "headcount.api",
    "head_stats": "headcount.api",
    "match_heads": "headcount.api",
    "predict": "headcount.api",
    "prune_heads": "headcount.api",
    "show_head": "headcount.api",
    "show_heads": "headcount.api",
    "show_positions": "headcount.api",
    "stretch": "headcount.api",
    "train": "headcount.api",
    "verify": "headcount.api",
    "HeadcountError": "headcount.errors",
    "Adapter": "headcount.external.adapter",
    "ExternalModel": "headcount.external.models",
    "Sites": "headcount.hooks.sites",
    "cut_heads": "headcount.surgery.cutting",
    "load_external": "headcount.external.models",
    "load_model": "headcount.external.hugging_face",
    "save_model": "headcount.external.hugging_face",
    "wrap": "headcount.hooks.wrapping",
    "HeadId": "headcount.heads",
    "HeadSite": "headcount.heads",
    "RunConfig": "headcount.runs.config",
    "Run": "headcount.runs.run",
    "load": "headcount.runs.run",
}

__all__ = [
    "Adapter",
    "ExternalModel",
    "HeadId",
    "HeadSite",
    "HeadcountError",
    "Run",
    "RunConfig",
    "Sites",
    "__version__",
    "ablate_heads",
    "cut_heads",
    "evaluate",
    "head_stats",
    "load",
    "load_external",
    "load_model",
    "match_heads",
    "predict",
    "prune_heads",
    "save_model",
    "show_head",
    "show_heads",
    "show_positions",
    "stretch",
    "summarise_attention",
    "train",
    "verify",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headcount' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
