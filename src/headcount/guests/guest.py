"""A model that others wrote, ready to be asked.

>>> looks_like_guest("my_adapter.py:Model"), looks_like_guest("runs/addition-0")
(True, False)
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.guests.adapter import Adapted, Adapter, load_adapted, load_adapter
from headcount.guests.asking import exam_of
from headcount.guests.exams import read_exam
from headcount.guests.exams.base import Candidate, Exam
from headcount.heads import HeadId
from headcount.instruments.sites import Sites
from headcount.instruments.wrapping import Wrapped, wrap
from headcount.runs.folder import RunFolder

ADAPTED = "headcount.json"
"""What a folder has whose model an adapter brought."""
LENGTH = 128
"""Tokens that a model is shown at once, unless told otherwise."""


@dataclass(frozen=True)
class Guest:
    """A model, what it is called, and what goes with it."""

    name: str
    model: Wrapped | Adapted
    output: RunFolder
    """Where analyses of it are written."""
    digest: str
    """Of the weights; every result names it."""
    tokenizer: Any = None
    adapter: Adapter | None = None
    length: int = LENGTH

    @classmethod
    def of(cls, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, length: int = LENGTH) -> Guest:
        """A Hugging Face model (or a wrapped one) and its tokenizer."""
        wrapped = wrap(model)
        name = name or type(wrapped.model).__name__
        return cls(name, wrapped, _output(name), digest_of(wrapped.model), tokenizer, length=length)

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
    if re.search(r"\.py:\w+$", str(name)) or (Path(name) / ADAPTED).is_file():
        return True
    file = Path(name) / "config.json"
    try:
        return "model_type" in json.loads(file.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def load_guest(name: str | Path, device: str | torch.device = "cpu", *, length: int = LENGTH) -> Guest:
    """From `my_adapter.py:Model`, or from a folder that Hugging Face or headcount wrote."""
    if re.search(r"\.py:\w+$", str(name)):
        adapter = load_adapter(str(name))
        model, sites = load_adapted(adapter)
        adapted = Adapted(adapter, model, sites).to(device)
        return Guest(str(name), adapted, _output(str(name)), digest_of(model), adapter=adapter)
    if (Path(name) / ADAPTED).is_file():
        from headcount.guests.foreign_saving import load_cut

        adapter, adapted = load_cut(Path(name))
        return Guest(str(name), adapted.to(device), _output(str(name)), digest_of(adapted.model), adapter=adapter)
    from headcount.guests.saving import load_model

    found, tokenizer = load_model(Path(name), device), load_tokenizer(Path(name))
    return Guest(str(name), wrap(found), _output(str(name)), digest_of(found), tokenizer, length=length)


def load_tokenizer(folder: Path) -> Any:
    """What a model's folder has for texts; None if it has nothing, as models of images."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


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


def _output(name: str) -> RunFolder:
    stem = re.sub(r"[^\w.-]+", "-", name.rstrip("/").rpartition("/")[2]).strip("-.") or "model"
    path = Path("runs") / stem
    return RunFolder(path if path.resolve() != Path(name).resolve() else path.with_name(f"{stem}-results"))
