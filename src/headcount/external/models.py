"""A model that others wrote, ready to be asked.

>>> is_external("my_adapter.py:Model"), is_external("runs/addition-0")
(True, False)
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InputError, RunError
from headcount.external.adapter import Adapted, Adapter, load_adapted, load_adapter
from headcount.files import read_bytes, read_json
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.models.finite import require_finite_model
from headcount.runs.folder import RunFolder, claimed_folder, digest

ADAPTED = "headcount.json"
"""What a folder has whose model an adapter brought."""
LENGTH = 128
"""Tokens that a model is shown at once, unless told otherwise."""


@dataclass(frozen=True)
class ExternalModel:
    """A model, what it is called, and what goes with it."""

    name: str
    model: Wrapped | Adapted
    weights_sha256: str
    """Every result names it."""
    origin: str
    """Where it comes from, in full: two models of one name are told apart by that."""
    tokenizer: Any = None
    adapter: Adapter | None = None
    length: int = LENGTH

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, length: int = LENGTH
    ) -> ExternalModel:
        """A Hugging Face model (or a wrapped one) and its tokenizer."""
        wrapped = wrap(model)
        name = name or type(wrapped.model).__name__
        require_fit(wrapped.model, tokenizer, name)
        require_finite_model(wrapped.model, name)
        return cls(name, wrapped, digest_of(wrapped.model), name, tokenizer, length=length)

    @cached_property
    def output(self) -> RunFolder:
        """Where analyses of it are written; whoever asks first makes it this model's own."""
        stem = re.sub(r"[^\w.-]+", "-", self.label).strip("-.") or "model"
        is_itself = (Path("runs") / stem).resolve() == Path(self.name).resolve()
        return RunFolder(claimed_folder(f"{stem}-results" if is_itself else stem, self.origin, self._identity))

    @property
    def _identity(self) -> str:
        """Of weights and of the adapter's file: what is asked of a model stands there."""
        if self.adapter is None or not self.adapter.origin:
            return self.weights_sha256
        return digest(self.weights_sha256.encode() + read_bytes(Path(self.adapter.origin.rpartition(":")[0])))

    @property
    def label(self) -> str:
        """A short name, for titles."""
        return self.name.rstrip("/").rpartition("/")[2]

    @property
    def sites(self) -> Sites:
        """Where its heads are."""
        return self.model.head_sites

    @property
    def inner(self) -> nn.Module:
        """The model as others wrote it."""
        return self.model.model

    def find_head(self, head: str | HeadId) -> HeadId:
        """The head of that name, if this model has it."""
        found = HeadId.parse(head) if isinstance(head, str) else head
        self.sites.head_slots((found,))
        return found


def is_external(name: str | Path) -> bool:
    """Whether a name means a model of others: an adapter's class, or a folder of a model that is none of ours."""
    if is_adapter_class(name) or has_only_an_adapter(name):
        return True
    try:
        settings = read_json(Path(name) / "config.json")
    except RunError:
        return False
    return isinstance(settings, dict) and "model_type" in settings


def is_adapter_class(name: str | Path) -> bool:
    """Whether a name names code, `my_adapter.py:Model`, and is not a folder that happens to be called so."""
    return re.search(r"\.py:\w+$", str(name)) is not None and not Path(name).is_dir()


def has_only_an_adapter(name: str | Path) -> bool:
    """Whether a folder's model needs an adapter; one that is something else as well is taken for that."""
    return (Path(name) / ADAPTED).is_file() and not os.path.lexists(Path(name) / "config.json")


def code_of(name: str | Path, *, run_adapter: bool = False) -> Path | None:
    """The user's file that is run when this is loaded, None if none is; only what was named or allowed is run."""
    if is_adapter_class(name):
        return Path(str(name).rpartition(":")[0]).resolve()
    if has_only_an_adapter(name):
        from headcount.external.adapter_folder import adapter_file

        file = adapter_file(Path(name))
        if not run_adapter:
            raise InputError(
                f"to load the model in {name}, {file} would be run",
                "if you trust that file, say so: --run-adapter, or run_adapter=True from Python",
            )
        return file
    if run_adapter:
        what = "has a model of its own besides" if (Path(name) / ADAPTED).exists() else "has no"
        raise InputError(f"{name} {what} {ADAPTED}, so no adapter is run", "leave --run-adapter out")
    return None


def load_external(
    name: str | Path, device: str | torch.device = "cpu", *, length: int = LENGTH, run_adapter: bool = False
) -> ExternalModel:
    """From `my_adapter.py:Model`, or from a folder that Hugging Face or headcount wrote.

    A folder that was pruned from an adapter's model names the adapter's file, which is run only with `run_adapter`.
    """
    code = code_of(name, run_adapter=run_adapter)
    if is_adapter_class(name):
        adapter = load_adapter(str(name))
        adapted = Adapted(adapter, *load_adapted(adapter)).to(device)
        return ExternalModel(str(name), adapted, digest_of(adapted.model), adapter.origin, adapter=adapter)
    origin = str(Path(name).resolve())
    if code is not None:
        from headcount.external.adapter_folder import load_cut

        adapter, adapted = load_cut(Path(name))
        return ExternalModel(str(name), adapted.to(device), digest_of(adapted.model), origin, adapter=adapter)
    from headcount.external.hugging_face import load_model, load_tokenizer

    found, tokenizer = load_model(Path(name), device), load_tokenizer(Path(name))
    require_fit(found, tokenizer, str(name))
    return ExternalModel(str(name), wrap(found), digest_of(found), origin, tokenizer, length=length)


def require_fit(model: nn.Module, tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for; more embeddings than tokens are common."""
    table = getattr(getattr(model, "get_input_embeddings", lambda: None)(), "weight", None)
    if tokenizer is None or table is None or not hasattr(tokenizer, "get_vocab"):
        return
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= len(table):
        raise InputError(
            f"the tokenizer of {name} has tokens up to number {largest:,}, the model {len(table):,} embeddings",
            "they do not belong together: save the model's own tokenizer into its folder",
        )


def digest_of(model: nn.Module) -> str:
    """SHA-256 of all weights, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def longest_of(model: nn.Module) -> int:
    """The longest sequence that a model has positions for, as far as its configuration says."""
    config = getattr(model, "config", None)
    sizes = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    # RoBERTa's positions begin after its padding token.
    first = (getattr(config, "pad_token_id", 0) or 0) + 1 if getattr(config, "model_type", "") in _LATE else 0
    return min((size - first for size in sizes if isinstance(size, int) and size > 0), default=10**9)


_LATE = ("roberta", "xlm-roberta", "camembert")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
