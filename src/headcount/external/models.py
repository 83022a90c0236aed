"""Find out what the name of a model means: a run, a Hugging Face folder, an adapter's class or a pruned model's folder.

>>> is_external("my_adapter.py:Model"), is_external("runs/addition-0")
(True, False)
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torch import nn

from headcount.errors import InputError, RunError
from headcount.external.adapter import ADAPTED, adapter_file
from headcount.files import read_json


def is_external(name: str | Path) -> bool:
    """Return whether a name means a model that headcount did not train: an adapter's class, or a model's folder."""
    if is_adapter_class(name) or has_only_an_adapter(name):
        return True
    try:
        settings = read_json(Path(name) / "config.json")
    except RunError:
        return False
    return isinstance(settings, dict) and "model_type" in settings


def is_adapter_class(name: str | Path) -> bool:
    """Return whether a name means a class in a file, such as `my_adapter.py:Model`, and not a folder."""
    return re.search(r"\.py:\w+$", str(name)) is not None and not Path(name).is_dir()


def has_only_an_adapter(name: str | Path) -> bool:
    """Return whether a model folder can be loaded only through its adapter, because it has no config.json."""
    return (Path(name) / ADAPTED).is_file() and not os.path.lexists(Path(name) / "config.json")


def code_of(name: str | Path, *, run_adapter: bool = False) -> Path | None:
    """Return the user's Python file that must be run to load this model; None if no code must be run.

    If the file is named by a pruned model's folder and not by the user, raise an error unless `run_adapter` is true.
    """
    if is_adapter_class(name):
        return Path(str(name).rpartition(":")[0]).resolve()
    if has_only_an_adapter(name):
        file, _ = adapter_file(Path(name))
        if not run_adapter:
            raise InputError(
                f"loading the model in {name} runs the Python file {file}, which needs your permission",
                "if you trust this file, add --run-adapter (in Python: run_adapter=True)",
            )
        return file
    if run_adapter:
        what = "can be loaded without" if (Path(name) / ADAPTED).exists() else "has no"
        raise InputError(
            f"{name} {what} {ADAPTED}, the file that names an adapter (Python code that builds the model), so there "
            "is no adapter to run",
            "leave --run-adapter out",
        )
    return None


def require_fit(model: nn.Module, tokenizer: Any, name: str) -> None:
    """Raise an error if a tokenizer has tokens for which the model has no embedding.

    More embeddings than tokens are common and allowed.
    """
    table = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "weight", None)
    if tokenizer is None or table is None or not hasattr(tokenizer, "get_vocab"):
        return
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= len(table):
        raise InputError(
            f"the tokenizer of {name} has token ids up to {largest:,}, but the model has {len(table):,} embeddings",
            "the two do not belong together: save the model's own tokenizer into its folder",
        )


def longest_of(model: nn.Module) -> int:
    """Return the length of the longest sequence that a model takes according to its configuration."""
    config = getattr(model, "config", None)
    sizes = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    # RoBERTa's positions begin after its padding token.
    is_late = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
    first = (getattr(config, "pad_token_id", 0) or 0) + 1 if is_late else 0
    return min((size - first for size in sizes if isinstance(size, int) and size > 0), default=10**9)
