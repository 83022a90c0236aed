"""Models that an adapter brought, without some of their heads, as folders.

headcount.json     the adapter's file (from this folder) and its class, what was cut, and what it was cut from; if means
                   of the heads were folded into biases, over how many examples
model.safetensors  the weights

The adapter's file is needed to load the model, and is run for that: it builds the whole model, the cuts are carried out
again, and the weights are read. The adapter's load() is not called and its checkpoint not needed any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headcount.errors import CheckFailed, HeadcountError, InputError, RunError
from headcount.external.adapter import Adapted, Adapter, built, load_adapter
from headcount.external.models import ADAPTED, digest_of
from headcount.external.user_code import user_code_errors
from headcount.files import friendly_os_errors, read_json, require_regular, write_atomically
from headcount.hooks.gates import eval_mode
from headcount.hooks.proof import difference
from headcount.hooks.sites import Sites
from headcount.models.finite import require_finite_model
from headcount.runs.folder import staged
from headcount.surgery.plan import SitePlan, apply_to_sites
from headcount.surgery.tracing import FAILURES

SCHEMA = 1
WEIGHTS = "model.safetensors"
TOLERANCE = 1e-5
"""Most that a model and what is read of it may differ, as a share of the largest value."""


def save_cut(adapted: Adapted, parent: str, folder: Path, inputs: Sequence[Tensor], *, folded_over: int = 0) -> None:
    """Write a new folder, which is there as a whole or not at all; it is read again, and asked, to be sure."""
    if not adapted.adapter.origin:
        raise InputError(
            "this model's adapter came from no file", "load it by name: load_external('my_adapter.py:Model')"
        )
    with staged(folder) as draft, friendly_os_errors(f"write {folder}"):
        write_atomically(draft / WEIGHTS, save(_tensors(adapted.model)))
        told = json.dumps(_told(adapted, parent, folder, folded_over), indent=2)
        write_atomically(draft / ADAPTED, f"{told}\n".encode())
        _require_same(adapted, draft, folder, inputs)


def load_cut(folder: Path) -> tuple[Adapter, Adapted]:
    """The adapter and the model in a folder."""
    told = _read(folder)
    cuts = _cuts(folder, told)
    require_regular(folder / WEIGHTS)
    adapter = load_adapter(f"{_file(folder, told)}:{told['class']}")
    model = built(adapter).eval()
    sites = _cut_again(cuts, model, adapter, folder)
    with friendly_os_errors(f"read {folder}"):
        try:
            tensors = load_file(folder / WEIGHTS)
        except (SafetensorError, ValueError) as error:
            raise InputError(
                f"{folder / WEIGHTS} is damaged or cut short: {error}", "copy or prune it again"
            ) from error
    _fill(model, tensors, folder)
    if digest_of(model) != told["digest"]:
        raise InputError(f"the weights in {folder} are not those that were written", "copy the folder, or prune again")
    require_finite_model(model, str(folder))
    adapted = Adapted(adapter, model, sites)
    adapted.cuts = cuts
    return adapter, adapted


def adapter_file(folder: Path) -> Path:
    """The file that is run to load the model in a folder."""
    return _file(folder, _read(folder))


# --- writing ----------------------------------------------------------------------------------------------------------


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Those that layers share are written for each."""
    state = model.state_dict()
    if odd := [name for name, each in state.items() if not isinstance(each, Tensor)]:
        raise InputError(f"{odd[0]} in the model's state is no tensor", "such models cannot be saved without pickle")
    return {name: each.detach().cpu().clone().contiguous() for name, each in state.items()}


@torch.no_grad()
def _require_same(adapted: Adapted, draft: Path, folder: Path, inputs: Sequence[Tensor]) -> None:
    try:
        _, read = load_cut(draft)
    except InputError as error:
        raise CheckFailed(f"what was written to {folder} cannot be read again: nothing was kept", str(error)) from error
    read.to(next(adapted.parameters()).device)
    with eval_mode(adapted), eval_mode(read):
        apart = difference(read(*inputs), adapted(*inputs))
    if not apart <= TOLERANCE:
        raise CheckFailed(
            f"the model that is read from {folder} would have another output (by {apart:.2g}): nothing was kept",
            "does load() of the adapter do more than fill in weights? let build() do that",
        )


def _told(adapted: Adapted, parent: str, folder: Path, folded_over: int) -> dict[str, Any]:
    file, _, kind = adapted.adapter.origin.rpartition(":")
    with suppress(ValueError):  # another drive
        file = Path(os.path.relpath(file, folder.resolve())).as_posix()
    gone = [f"{cut.site}.{index}" for cut in adapted.cuts for i, index in enumerate(cut.heads) if i not in cut.keep]
    return {
        "schema": SCHEMA,
        "adapter": file,
        "class": kind,
        "heads": sorted(gone),
        "parent": parent,
        "digest": digest_of(adapted.model),
        "cuts": [cut.to_dict() for cut in adapted.cuts],
    } | ({"folded_over": folded_over} if folded_over else {})


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(folder: Path) -> dict[str, Any]:
    file = folder / ADAPTED
    try:
        told = read_json(file)
    except RunError as error:
        raise InputError(error.what, "copy the folder, or prune again") from error
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        raise InputError(f"{file} is of another kind or version", f"this headcount reads schema {SCHEMA}")
    kinds = {"adapter": str, "class": str, "digest": str, "cuts": list}
    if odd := [key for key, kind in kinds.items() if not isinstance(told.get(key), kind)]:
        raise InputError(f"{file} does not say {', '.join(map(repr, odd))}", "copy the folder, or prune again")
    return told


def _cuts(folder: Path, told: dict[str, Any]) -> tuple[SitePlan, ...]:
    try:
        return tuple(map(SitePlan.from_dict, told["cuts"]))
    except (KeyError, TypeError, AttributeError, ValueError, HeadcountError) as error:
        raise InputError(f"'cuts' in {folder / ADAPTED} is damaged: {error!r}", "prune again") from error


def _file(folder: Path, told: dict[str, Any]) -> Path:
    file = Path(os.path.normpath(folder.resolve() / told["adapter"]))
    if not _is_python(file):
        raise InputError(
            f"the model in {folder} needs its adapter, and there is no file {file}",
            f'has it moved? say where it is: "adapter" in {folder / ADAPTED}, as a path from {folder} or a full one',
        )
    return file


def _is_python(file: Path) -> bool:
    try:
        return file.suffix == ".py" and file.is_file()
    except (OSError, ValueError):  # too long, or with a character that no path has
        return False


def _cut_again(cuts: tuple[SitePlan, ...], model: nn.Module, adapter: Adapter, folder: Path) -> Sites:
    with user_code_errors(adapter, "sites"):
        sites = adapter.sites(model)
    custom = Adapted(adapter, model, sites).custom_cut
    for cut in cuts:
        try:
            sites = apply_to_sites(cut, model, sites, custom)
        except FAILURES as error:  # somebody's code, or not what it was
            raise InputError(
                f"{adapter.origin} no longer builds the model that {folder} was cut from, or cuts it in another way",
                f"at {cut.site}: {type(error).__name__}: {error}",
            ) from error
    return sites


def _fill(model: nn.Module, tensors: dict[str, Tensor], folder: Path) -> None:
    expected = model.state_dict()
    odd = sorted(expected.keys() ^ tensors.keys())
    odd += [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if odd:
        raise InputError(
            f"the weights in {folder} do not fit the model that its adapter builds: {odd[0]}",
            "was the model's code changed?",
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in tensors:
            tensor.data = tensor.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
