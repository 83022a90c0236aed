"""Hugging Face models as folders, those without some of their heads too.

    save_model(cut_heads(model, ["L0H3"]), "smaller", tokenizer)
    model = load_model("smaller")

A folder has what Hugging Face's have: config.json, model.safetensors, the settings for generating and the files of the
tokenizer. The configuration's `headcount_cut` says which heads are missing, and the file of weights, in its header,
which names mean the same parameter and what precision buffers have that are computed anew. A folder of a model that
misses no heads can be read by their library too, and folders that their library wrote can be read here. Where heads are
missing, their library would make up random ones for whole layers; so the weights are then in headcount.safetensors,
where it finds none and stops: use `load_model`.

Nothing is unpickled, no code that comes with a model is run, and nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError
from headcount.guests.cutting import apply_cut, known_family
from headcount.instruments.families import family_of, model_types
from headcount.instruments.wrapping import CUT, Wrapped
from headcount.runs.draft import drafted
from headcount.runs.storage import explained, write_atomically

CONFIG, WEIGHTS, GENERATION = "config.json", "model.safetensors", "generation_config.json"
CUT_WEIGHTS = "headcount.safetensors"
"""Of a model without some heads: named so that from_pretrained finds no weights and stops."""
HEADER = "headcount"
"""Where the header of a file of weights keeps what else there is to know."""


@dataclass(frozen=True)
class Notes:
    """What else there is to know."""

    shared: dict[str, str]
    """Further names of parameters, and the names that they are stored by."""
    buffers: dict[str, str]
    """Precision of buffers that are not stored, for a model that was cast has them cast."""


def save_model(model: nn.Module, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a model to a new folder, which is there as a whole or not at all, and read it again to be sure."""
    if isinstance(model, Wrapped):
        model = model.model
    known_family(model)
    path = Path(folder)
    with drafted(path) as draft, explained(f"write {path}"):
        _write(model, draft.path)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft.path)
        _require_same(load_model(draft.path), model, path)
    return path


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """The model in a folder, ready to be asked."""
    path = Path(folder)
    settings = _settings(path)
    kind = _class_of(path, settings)
    _require_weights(path)
    notes = _notes(weights_file(path, settings))
    if notes is None and settings.get(CUT):
        raise InputError(f"heads are missing from the model in {path}, which save_model did not write", "save it again")
    model = _from_elsewhere(path, kind) if notes is None else _from_here(path, kind, notes)
    return model.to(device).eval()


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(model: nn.Module, path: Path) -> None:
    tensors, shared = _stored(model)
    notes = {"shared": shared, "buffers": _buffer_types(model)}
    config: Any = model.config
    file = weights_file(path, {CUT: getattr(config, CUT, None)})
    write_atomically(file, save(tensors, {"format": "pt", HEADER: json.dumps(notes)}))
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(path)
    first = next(each for each in tensors.values() if each.is_floating_point())
    settings = config.to_dict() | {"architectures": [type(model).__name__], "dtype": _name(first)}
    write_atomically(path / CONFIG, (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())


def weights_file(path: Path, settings: Mapping[str, Any]) -> Path:
    """Where the weights are: under a name of our own if heads are missing."""
    return path / (CUT_WEIGHTS if settings.get(CUT) else WEIGHTS)


def _stored(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, and its further names."""
    tensors, shared = dict[str, Tensor](), dict[str, str]()
    homes = dict[tuple[int, torch.Size], str]()
    for name, tensor in model.state_dict().items():
        home = homes.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        if home == name:
            tensors[name] = tensor.cpu().contiguous()
        else:
            shared[name] = home
    return tensors, shared


def _buffer_types(model: nn.Module) -> dict[str, str]:
    stored = model.state_dict().keys()
    others = [(name, each) for name, each in model.named_buffers() if name not in stored]
    return {name: _name(each) for name, each in others if each.is_floating_point()}


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _require_same(read: nn.Module, written: nn.Module, path: Path) -> None:
    """Bit by bit."""
    one, other = read.state_dict(), written.state_dict()
    odd = sorted(one.keys() ^ other.keys()) or [
        name for name, tensor in other.items() if not _same(one[name], tensor.cpu())
    ]
    if odd:
        raise CheckFailed(
            f"{odd[0]} is not what was written to {path}: nothing was kept",
            "this is a fault in headcount, not in the model: please report it",
        )


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))


# --- reading ----------------------------------------------------------------------------------------------------------


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise InputError(f"no folder {path}", "give a folder that save_model or save_pretrained wrote")
    if not (path / CONFIG).exists():
        raise InputError(f"{path} is no model's folder: it has no {CONFIG}", "was it written to the end?")
    try:
        settings = json.loads((path / CONFIG).read_bytes())
        return dict(settings)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path / CONFIG} is damaged: {error}", "restore the folder, or save the model again"
        ) from error


def _class_of(path: Path, settings: dict[str, Any]) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(f"{path} needs transformers", "install it: pip install 'headcount[hf]'") from error

    model_type = settings.get("model_type")
    if family_of(str(model_type)) is None:
        raise InputError(
            f"the model in {path} is of no family that headcount knows (model_type {model_type!r})",
            f"headcount knows {', '.join(model_types())}",
        )
    names = settings.get("architectures") or [None]
    kind = getattr(transformers, str(names[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise InputError(
            f"{path / CONFIG} names no class of transformers (architectures {names})",
            "code that comes with a model is not run; name the class that it was saved from",
        )
    if getattr(kind.config_class, "model_type", None) != model_type:
        raise InputError(f"a {kind.__name__} cannot be of model_type {model_type!r}", f"correct {path / CONFIG}")
    return kind


def _require_weights(path: Path) -> None:
    if not any(path.glob("*.safetensors")):
        others = sorted(each.name for each in path.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".h5"))
        raise InputError(
            f"{path} has no {WEIGHTS}" + (f", only {others[0]}, which headcount does not unpickle" if others else ""),
            "save the model again, as safetensors" if others else "was it written to the end?",
        )


def _from_elsewhere(path: Path, kind: Any) -> nn.Module:
    try:
        with _without_bars():
            model, told = kind.from_pretrained(
                path, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"could not read the model in {path}: {error}", "is it whole? copy or save it again"
        ) from error
    if missing := sorted(told["missing_keys"]):
        raise _odd(path, "is missing", missing)
    whole: nn.Module = model
    return whole


@contextmanager
def _without_bars() -> Iterator[None]:
    """A model that is read in a second needs no progress bar."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_here(path: Path, kind: Any, notes: Notes) -> nn.Module:
    try:
        model = _built(path, kind, notes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{CONFIG} and the weights in {path} do not belong together: {error}", "copy or save the model again"
        ) from error
    with explained(f"read {path}"):
        tensors = load_file(weights_file(path, _settings(path)))
    _fill(model, tensors | {name: tensors[home] for name, home in notes.shared.items() if home in tensors}, path)
    _tie(model, notes.shared)
    return model


def _built(path: Path, kind: Any, notes: Notes) -> nn.Module:
    """All but the weights."""
    import transformers
    from transformers.initialization import no_init_weights

    with explained(f"read {path}"):
        config = kind.config_class.from_pretrained(path, local_files_only=True)
        with no_init_weights():  # not on the meta device: buffers are computed here
            model: Any = kind(config)
        if (path / GENERATION).exists():
            model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    _tie(model, notes.shared)  # what shares its weights is cut together
    apply_cut(model)
    for name, dtype in notes.buffers.items():
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, model.get_buffer(name).to(getattr(torch, dtype)))
    built: nn.Module = model
    return built


def _notes(file: Path) -> Notes | None:
    """If save_model wrote this file."""
    if not file.exists():
        return None  # there are several
    try:
        with safe_open(file, "pt") as opened:
            told = (opened.metadata() or {}).get(HEADER)
        return None if told is None else Notes(**json.loads(told))
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise InputError(f"{file} is damaged or cut short: {error}", "copy or save the model again") from error


def _fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    expected = model.state_dict()
    if odd := sorted(expected.keys() - tensors.keys()):
        raise _odd(path, "is missing", odd)
    if odd := sorted(tensors.keys() - expected.keys()):
        raise _odd(path, "is too much", odd)
    if odd := sorted(name for name, tensor in tensors.items() if tensor.shape != expected[name].shape):
        raise _odd(path, "has another shape than the configuration says", odd)
    model.load_state_dict(tensors, assign=True)


def _tie(model: nn.Module, shared: dict[str, str]) -> None:
    """Make further names of a parameter mean the same one."""
    for name, home in shared.items():
        (above, _, last), (there, _, what) = name.rpartition("."), home.rpartition(".")
        setattr(model.get_submodule(above), last, getattr(model.get_submodule(there), what))


def _odd(path: Path, what: str, names: list[str]) -> InputError:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return InputError(f"in the weights of {path}, {names[0]}{more} {what}", "copy or save the model again")
