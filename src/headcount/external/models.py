"""A model that others wrote, ready to be asked; and what is left of it without some of its heads.

>>> is_external("my_adapter.py:Model"), is_external("runs/addition-0")
(True, False)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError, RunError
from headcount.external.adapter import (
    ADAPTED,
    TOLERANCE,
    Adapted,
    Adapter,
    adapter_file,
    digest_of,
    load_adapted,
    load_adapter,
    load_cut,
    save_cut,
)
from headcount.external.hugging_face import load_image_processor, load_model, load_tokenizer, save_model
from headcount.files import read_bytes, read_json
from headcount.heads import HeadId
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.models.finite import require_finite_model
from headcount.runs.folder import RunFolder, claimed_folder, digest
from headcount.runs.prune import cut_and_prove
from headcount.surgery.cutting import Cut, Inputs, Size

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
    """Of a model that takes images, its image processor."""
    adapter: Adapter | None = None
    length: int = LENGTH
    title: str = ""
    """What it is called in a course, such as `alice`; its results go to a folder of that name."""

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: Any = None, *, name: str | None = None, length: int = LENGTH
    ) -> ExternalModel:
        """A Hugging Face model (or a wrapped one) and its tokenizer or image processor."""
        wrapped = wrap(model)
        name = name or type(wrapped.model).__name__
        require_fit(wrapped.model, tokenizer, name)
        require_finite_model(wrapped.model, name)
        return cls(name, wrapped, digest_of(wrapped.model), name, tokenizer, length=length)

    def __repr__(self) -> str:
        n, what = sum(each.numel() for each in self.inner.parameters()), type(self.inner).__name__
        name = f"{self.name}: {what}" if self.name != what else what
        return f"{name}, {len(self.sites.heads)} heads, {n:,} parameters"

    @cached_property
    def output(self) -> RunFolder:
        """Where analyses of it are written; whoever asks first makes it this model's own."""
        stem = re.sub(r"[^\w.-]+", "-", self.label).strip("-.") or "model"
        if (Path("runs") / stem).resolve() == Path(self.name).resolve():
            stem = f"{stem}-results"
        identity = self.weights_sha256
        if self.adapter is not None and self.adapter.origin:  # what is asked of a model stands in the adapter's file
            identity = digest(identity.encode() + read_bytes(Path(self.adapter.origin.rpartition(":")[0])))
        return RunFolder(claimed_folder(stem, self.origin, identity, is_title=bool(self.title)))

    @property
    def label(self) -> str:
        """A short name, for titles."""
        return self.title or self.name.rstrip("/").rpartition("/")[2]

    @property
    def sites(self) -> Sites:
        """Where its heads are."""
        return self.model.head_sites

    @property
    def inner(self) -> nn.Module:
        """The model as others wrote it."""
        return self.model.model

    @property
    def takes_images(self) -> bool:
        """Whether it is given pixels."""
        return "pixel_values" in getattr(self.model, "inputs", ())

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
        file, _ = adapter_file(Path(name))
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
    path, code = Path(name), code_of(name, run_adapter=run_adapter)
    origin = str(path.resolve())
    if code is None:
        found = load_model(path, device)
        wrapped = wrap(found)
        tokenizer = load_image_processor(path) if "pixel_values" in wrapped.inputs else load_tokenizer(path)
        require_fit(found, tokenizer, str(name))
        return ExternalModel(str(name), wrapped, digest_of(found), origin, tokenizer, length=length)
    if is_adapter_class(name):
        adapted = load_adapted(load_adapter(str(name))).to(device)
        origin = adapted.adapter.origin
    else:
        adapted = load_cut(path).to(device)
    known = str(name), adapted, digest_of(adapted.model), origin
    if (adapter := adapted.adapter).pretrained is None or type(adapter).encode is not Adapter.encode:
        return ExternalModel(*known, adapter=adapter)
    tokenizer = load_tokenizer(adapter.folder / adapter.pretrained)
    require_fit(adapted.model, tokenizer, str(name))
    return ExternalModel(*known, tokenizer, length=length)


def prune_external(
    model: ExternalModel,
    heads: Iterable[str | HeadId],
    out: Path,
    inputs: Sequence[Tensor],
    means: Sequence[Inputs] = (),
    n_means: int = 0,
) -> Cut[ExternalModel]:
    """Cut these heads out, proven on `inputs`; write a folder, read it, and prove it again.

    If there are batches to take `means` over, what the heads output on average over their `n_means` examples stays in
    the biases.
    """
    gone = tuple(dict.fromkeys(model.find_head(head) for head in heads))
    if len(gone) == len(model.sites.heads):
        raise InputError(f"all heads of {model.name} would go", "lower --loss, or name the heads: --heads")
    cut, difference, prove = cut_and_prove(model.model, gone, inputs, means, n_means)
    is_adapted = isinstance(cut, Adapted)  # whose code was run already, and is asked to be run again
    if is_adapted:
        save_cut(cut, model.weights_sha256, out, inputs, folded_over=n_means)
    else:
        save_model(cut, out, model.tokenizer)
    left = load_external(out, next(model.inner.parameters()).device, length=model.length, run_adapter=is_adapted)
    again = prove(left.model)
    if not again <= TOLERANCE:
        raise CheckFailed(f"what was written to {out} differs by {again:.1e} from what was cut", "please report this")
    return Cut(left, gone, max(difference, again), Size.of(model.inner), Size.of(left.inner), n_means)


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


def longest_of(model: nn.Module) -> int:
    """The longest sequence that a model has positions for, as far as its configuration says."""
    config = getattr(model, "config", None)
    sizes = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    # RoBERTa's positions begin after its padding token.
    is_late = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
    first = (getattr(config, "pad_token_id", 0) or 0) + 1 if is_late else 0
    return min((size - first for size in sizes if isinstance(size, int) and size > 0), default=10**9)
