"""A model that others wrote, ready to be asked.

>>> looks_like_guest("my_adapter.py:Model"), looks_like_guest("runs/addition-0")
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
from headcount.guests.adapter import Adapted, Adapter, load_adapted, load_adapter
from headcount.guests.asking import exam_of
from headcount.guests.exams import read_exam
from headcount.guests.exams.base import Candidate, Exam
from headcount.heads import HeadId
from headcount.instruments.sites import Sites
from headcount.instruments.wrapping import Wrapped, wrap
from headcount.models.finite import require_finite_model
from headcount.runs.folder import RunFolder, claimed_folder, digest
from headcount.runs.storage import read_bytes, read_json

ADAPTED = "headcount.json"
"""What a folder has whose model an adapter brought."""
LENGTH = 128
"""Tokens that a model is shown at once, unless told otherwise."""


@dataclass(frozen=True)
class Guest:
    """A model, what it is called, and what goes with it."""

    name: str
    model: Wrapped | Adapted
    digest: str
    """Of the weights; every result names it."""
    origin: str
    """Where it comes from, in full: two models of one name are told apart by that."""
    tokenizer: Any = None
    adapter: Adapter | None = None
    length: int = LENGTH

    @classmethod
    def of(cls, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, length: int = LENGTH) -> Guest:
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
            return self.digest
        return digest(self.digest.encode() + read_bytes(Path(self.adapter.origin.rpartition(":")[0])))

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

    def exam(self, data: str | Path | Exam | None = None) -> Exam:
        """What it is asked: a file, or the split of an adapter's task."""
        if isinstance(data, Exam):
            return data
        if isinstance(self.model, Adapted):
            assert self.adapter is not None, "adapted by one"
            return exam_of(self.adapter, self.model, str(data or "test"))
        if data is None:
            raise InputError(
                f"what shall {self.name} be asked?",
                "add --data FILE: plain text, or a table with tabs and a header: text label; first second score; "
                "source target",
            )
        return read_exam(data, self.candidate)

    @property
    def candidate(self) -> Candidate:
        """The model with its tokenizer."""
        if isinstance(self.model, Wrapped) and "pixel_values" in self.model.inputs:
            raise InputError(
                f"{self.name} takes images", "ask it from Python: headcount.ablate_heads(model, pixels, metric)"
            )
        if not isinstance(self.model, Wrapped) or self.tokenizer is None:
            raise InputError(f"{self.name} came without a tokenizer", "save the tokenizer into the model's folder")
        return Candidate(self.model, self.tokenizer, min(self.length, longest_of(self.inner)))

    def find_head(self, head: str | HeadId) -> HeadId:
        """The head of that name, if this model has it."""
        found = HeadId.parse(head) if isinstance(head, str) else head
        self.sites.by_site((found,))
        return found


def looks_like_guest(name: str | Path) -> bool:
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
        from headcount.guests.foreign_saving import adapter_file

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


def load_guest(
    name: str | Path, device: str | torch.device = "cpu", *, length: int = LENGTH, run_adapter: bool = False
) -> Guest:
    """From `my_adapter.py:Model`, or from a folder that Hugging Face or headcount wrote.

    A folder that was pruned from an adapter's model names the adapter's file, which is run only with `run_adapter`.
    """
    code = code_of(name, run_adapter=run_adapter)
    if is_adapter_class(name):
        adapter = load_adapter(str(name))
        adapted = Adapted(adapter, *load_adapted(adapter)).to(device)
        return Guest(str(name), adapted, digest_of(adapted.model), adapter.origin, adapter=adapter)
    origin = str(Path(name).resolve())
    if code is not None:
        from headcount.guests.foreign_saving import load_cut

        adapter, adapted = load_cut(Path(name))
        return Guest(str(name), adapted.to(device), digest_of(adapted.model), origin, adapter=adapter)
    from headcount.guests.saving import load_model, load_tokenizer

    found, tokenizer = load_model(Path(name), device), load_tokenizer(Path(name))
    require_fit(found, tokenizer, str(name))
    return Guest(str(name), wrap(found), digest_of(found), origin, tokenizer, length=length)


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
