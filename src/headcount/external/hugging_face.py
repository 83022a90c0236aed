"""Load and save Hugging Face models as folders, including models with some heads removed.

    save_model(cut_heads(model, ["L0H3"]), "smaller", tokenizer)
    model = load_model("smaller")

A folder has the files of a Hugging Face folder: config.json, model.safetensors, the settings for generation and the
files of the tokenizer. `headcount_cut` in the configuration lists the heads that were cut out. The header of the
weights file says which names mean the same parameter, and the precision of buffers that are computed at loading.

transformers and headcount read each other's folders if no heads were cut out. Otherwise, transformers would fill whole
layers with random weights. The weights are then in headcount.safetensors, which transformers does not find, so it stops
with an error; `load_model` reads the file.

No code that comes with a model is run, and nothing is downloaded. From an older folder's pytorch_model.bin, only
tensors are read (`weights_only=True`); any other pickled object is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headcount.errors import CheckFailed, HeadcountError, InputError, RunError, argument
from headcount.external.adapter import read_tensors
from headcount.files import friendly_os_errors, read_json, require_regular, write_atomically
from headcount.hooks.families import family_of, model_types
from headcount.hooks.wrapping import CUT, Wrapped, base_of, unknown_family
from headcount.limits import require_room
from headcount.models.finite import require_finite_model
from headcount.runs.folder import staged
from headcount.surgery.cutting import apply_cut, known_family

CONFIG, WEIGHTS, GENERATION = "config.json", "model.safetensors", "generation_config.json"
PROCESSOR = "preprocessor_config.json"
PICKLED = "pytorch_model.bin"
CUT_WEIGHTS = "headcount.safetensors"
"""Name of the weights file of a pruned model; from_pretrained does not find this name and stops with an error."""
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers"),
    *("decoder_layers", "num_hidden_groups", "inner_group_num", "attention_types"),
)
"""Settings of a Hugging Face configuration that determine how many modules are built."""
MOST_CLASSES = 10**6
"""Largest number of classes that a configuration may have, because reading it creates a name for each class."""
MOST_LAYERS = 1000
"""Largest number of layers of a model whose layers share weights; for others, the number of stored tensors."""
MOST_TOKENIZER = 2**27
"""Largest size of one tokenizer file, in bytes."""
_FORMER_BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|masked_bias|inv_freq|attn\.bias|attention\.bias)$")
"""Matches names of masks and positions that older versions of transformers stored and newer versions compute."""
HEADER = "headcount"
"""The key under which headcount stores its notes (`Notes`) in the header of a weights file."""
_AGAIN = "copy or save the model again"


@dataclass(frozen=True)
class Notes:
    """What headcount stores in the header of a weights file: shared parameters, and the precision of some buffers."""

    shared: dict[str, str]
    """Maps each further name of a shared parameter to the name under which the parameter is stored."""
    buffers: dict[str, str]
    """The precision of each buffer that is computed at loading and not stored, by name, such as "float16"."""


def save_model(model: nn.Module, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write a Hugging Face model to a new folder, check that the same weights can be read, and return the path.

    After an error, there is no folder. The model may have lost heads by `cut_heads`.
    """
    if isinstance(model, Wrapped):
        model = model.model
    known_family(model)
    path = Path(folder)
    with staged(path) as draft, friendly_os_errors(f"write {path}"):
        _write(model, draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
        read, written = load_model(draft).state_dict(), model.state_dict()
        odd = sorted(read.keys() ^ written.keys()) or [
            name  # must be equal bit by bit
            for name, tensor in written.items()
            if read[name].dtype != tensor.dtype or not torch.equal(read[name], tensor.cpu())
        ]
        if odd:
            raise CheckFailed(
                f"the weight {odd[0]}, read again from {path}, differs from the model's, so the folder was not kept",
                "this is a fault in headcount, not in the model: please report it",
            )
    return path


def load_model(folder: str | Path, device: str | torch.device = "cpu", *, any_family: bool = False) -> nn.Module:
    """Return the Hugging Face model in a folder, also if heads were cut out of it.

    With `any_family`, the model may be of a family whose heads headcount does not know.
    """
    path = Path(folder)
    settings = _settings(path)
    model_class = _class_of(path, settings)
    is_known = family_of(settings["model_type"]) is not None
    if not is_known and not any_family:
        advice = f"write an adapter, which says where its heads are: headcount adapt {argument(path)}"
        raise unknown_family(module_tree(path), advice)
    _require_files(path)
    pickled = None if any(path.glob("*.safetensors")) else _pickled_weights(path)
    file = _weights_file(path, settings)
    notes = _notes(file)
    if notes is None and settings.get(CUT):
        raise InputError(
            f"according to its configuration, heads were removed from the model in {path}, but its weights were not "
            "written by headcount.save_model",
            "save the model again with headcount.save_model",
        )
    _require_possible(path, model_class, settings, _n_tensors(path) if pickled is None else len(pickled))
    model = (
        _loaded_by_transformers(path, model_class, pickled)
        if notes is None
        else _loaded_by_headcount(path, model_class, file, notes)
    )
    require_finite_model(model, str(path))
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in a model's folder, or None if the folder has none."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    _require_files(folder)
    from transformers import AutoTokenizer

    with _their_library(f"could not read the tokenizer in {folder}", "copy or save the tokenizer again"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer("a")  # settings of a wrong type raise an error here
        tokenizer("a", truncation=True, max_length=8)
        return tokenizer


def load_image_processor(folder: Path) -> Any:
    """Return the image processor in a model's folder, or None if the folder has none; torchvision is not needed."""
    if not (folder / PROCESSOR).exists():
        return None
    _require_files(folder)
    from transformers import AutoImageProcessor

    with _their_library(f"could not read {folder / PROCESSOR}", "copy or save the image processor again"):
        return AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False, backend="pil")


@contextmanager
def _their_library(what: str, advice: str = _AGAIN) -> Iterator[None]:
    """Turn any error of the transformers library inside the context into an InputError, such as "could not read FILE".

    `what` begins the message, and `advice` says what to do.
    """
    try:
        yield
    except HeadcountError:
        raise
    except BaseException as error:
        # A damaged file may raise any error; a panic of compiled code is not even an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        explanation = " ".join(str(error).split())[:200] or "no reason given"
        raise InputError(f"{what}: {type(error).__name__}: {explanation}", advice) from error


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(model: nn.Module, path: Path) -> None:
    """Write a model's weights and configuration to a folder; a tensor with several names is stored once.

    The header of the weights file holds headcount's notes (`Notes`).
    """
    tensors, notes, homes = dict[str, Tensor](), Notes({}, {}), dict[tuple[int, torch.Size], str]()
    state = model.state_dict()
    for name, tensor in state.items():
        home = homes.setdefault((tensor.data_ptr(), tensor.shape), name) if tensor.numel() else name
        if home == name:
            tensors[name] = tensor.cpu().contiguous()
        else:
            notes.shared[name] = home
    for name, buffer in model.named_buffers():
        if name not in state and buffer.is_floating_point():
            notes.buffers[name] = _dtype_name(buffer)
    config: Any = model.config
    file = _weights_file(path, {CUT: getattr(config, CUT, None)})
    write_atomically(file, save(tensors, {"format": "pt", HEADER: json.dumps(asdict(notes))}))
    generation: Any = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(path)
    first = next(each for each in tensors.values() if each.is_floating_point())
    settings = config.to_dict() | {"architectures": [type(model).__name__], "dtype": _dtype_name(first)}
    write_atomically(path / CONFIG, (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())


def _weights_file(path: Path, settings: Mapping[str, Any]) -> Path:
    """Return the path of the weights file in a model's folder, which has another name if heads were cut out."""
    return path / (CUT_WEIGHTS if settings.get(CUT) else WEIGHTS)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# --- reading ----------------------------------------------------------------------------------------------------------


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise InputError(f"there is no folder {path}", "give a folder that save_model or save_pretrained wrote")
    if not (path / CONFIG).exists():
        raise InputError(
            f"{path} is not the folder of a model: it has no {CONFIG}", "if it is incomplete, save the model again"
        )
    try:
        settings = read_json(path / CONFIG)
    except RunError as error:
        raise InputError(error.what, "restore the folder, or save the model again") from error
    if not isinstance(settings, dict):
        raise InputError(
            f"{path / CONFIG} is damaged: it holds a {type(settings).__name__} instead of settings",
            "save the model again",
        )
    return settings


def _class_of(path: Path, settings: dict[str, Any]) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            f"opening {path} needs the package transformers", "install it: pip install 'headcount[hf]'"
        ) from error

    model_type, names = settings.get("model_type"), settings.get("architectures")
    if not isinstance(model_type, str):
        raise InputError(
            f"the model in {path} is of no family that headcount knows (model_type {model_type!r})",
            f"give a model of one of these types: {', '.join(model_types())}",
        )
    name = names[0] if isinstance(names, list) and names else None
    model_class = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise InputError(
            f"{path / CONFIG} names no class of transformers (architectures {str(names)[:80]})",
            "headcount runs no code that comes with a model: write the name of its class in transformers there",
        )
    if getattr(model_class.config_class, "model_type", None) != model_type:
        raise InputError(
            f"a {model_class.__name__} cannot be of model_type {model_type!r}",
            f"correct the architectures or the model_type in {path / CONFIG}",
        )
    return model_class


def _require_files(path: Path) -> None:
    """Raise an error if a folder has oversized tokenizer files, or files that are not regular, such as pipes."""
    for file in sorted(path.iterdir()):
        if file.exists() and not file.is_dir():
            require_regular(file)
            if file.suffix in (".json", ".txt", ".model") and file.stat().st_size > MOST_TOKENIZER:
                raise InputError(
                    f"{file} is too large: it has {file.stat().st_size:,} bytes, and headcount reads .json, .txt and "
                    f".model files of a model up to {MOST_TOKENIZER:,}",
                    f"the file may be damaged: {_AGAIN}",
                )


def module_tree(folder: Path) -> nn.Module:
    """Return the model in a folder without weights (on the meta device), to look at its modules."""
    settings = _settings(folder)
    model_class = _class_of(folder, settings)
    _require_files(folder)
    _require_possible(folder, model_class, settings, MOST_LAYERS)
    return cast(nn.Module, _built(folder, model_class, without_memory=True))


def _n_tensors(path: Path) -> int:
    """Return the number of tensors in a folder's weights files, read from the headers of the files."""
    n_tensors = 0
    for file in sorted(path.glob("*.safetensors")):
        with _header(file) as header:
            n_tensors += len(header.keys())
    return n_tensors


def _pickled_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a folder's pytorch_model.bin, or in its parts; code in these files is never run."""
    files = sorted(path.glob("pytorch_model-*.bin")) if not (whole := path / PICKLED).exists() else [whole]
    if not files:
        others = sorted(each.name for each in path.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".h5"))
        raise InputError(
            f"{path} has no {WEIGHTS}" + (f", only {others[0]}" if others else ""),
            "save the model again, as safetensors" if others else "if it is incomplete, copy or save it again",
        )
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= read_tensors(file, "save the model again, as safetensors")
    return weights


def _require_possible(path: Path, model_class: Any, settings: dict[str, Any], n_tensors: int) -> None:
    """Raise an error if a configuration asks for more layers or memory than possible; nothing is allocated before."""
    for name, value in settings.items():
        most = n_tensors if name in LAYERS else {"num_labels": MOST_CLASSES}.get(name)
        if name == "num_hidden_layers" and "num_hidden_groups" in settings:
            most = MOST_LAYERS  # layers share their tensors
        if most is not None and (too_many := [n for n in _whole_numbers(value) if not 0 <= n <= most]):
            bounds = f"it must be between 0 and {most:,} for this model"
            raise InputError(f"{name} = {too_many[0]:,} in {path / CONFIG}, but {bounds}", _AGAIN)
    with _their_library(f"{path / CONFIG} describes no model"):
        model = _built(path, model_class, without_memory=True)
    n_bytes = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    require_room(n_bytes, f"the model that {path / CONFIG} describes", "is that file damaged?")


def _whole_numbers(value: Any) -> Iterator[int]:
    """Yield all whole numbers in the value of a setting, which may be a list of lists."""
    if isinstance(value, list):
        for each in value:
            yield from _whole_numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield int(value) if abs(value) < 10**18 else 10**18


@contextmanager
def _header(file: Path) -> Iterator[Any]:
    """Yield an opened safetensors file; turn any error inside the context into one that says the file is damaged."""
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise InputError(f"{file} is damaged or cut short: {error}", _AGAIN) from error


def _built(path: Path, model_class: Any, *, without_memory: bool) -> Any:
    """Return the model that a folder's configuration describes, with all heads and uninitialised weights.

    With `without_memory`, the weights are on the meta device.
    """
    from transformers.initialization import no_init_weights

    config = model_class.config_class.from_pretrained(path, local_files_only=True)
    with no_init_weights(), torch.device("meta") if without_memory else nullcontext():
        return model_class(config)


def _loaded_by_transformers(path: Path, model_class: Any, pickled: dict[str, Tensor] | None) -> nn.Module:
    """Load a model with the transformers library, from the safetensors files in a folder or the tensors in `pickled`.

    Nothing is unpickled.
    """
    with (
        _their_library(f"could not read the model in {path}", "if it is incomplete, copy or save it again"),
        _without_bars(),
    ):
        given: dict[str, Any] = {"pretrained_model_name_or_path": path, "use_safetensors": True}
        if pickled is not None:
            config = model_class.config_class.from_pretrained(path, local_files_only=True)
            given = {"pretrained_model_name_or_path": None, "config": config, "state_dict": pickled}
        model, keys = model_class.from_pretrained(
            **given, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(keys["missing_keys"]):
        raise _odd(path, "is missing", missing)
    # Real checkpoints may hold weights that the loaded class does not use: the output layer of another class (`cls.*`,
    # `lm_head`), a pooler, a decoder where only the encoder is loaded, buffers of older versions. The layers compute
    # the same without them. But if the loaded model has no place for a weight inside the stack of layers (one layer
    # too many, an adapter inside a layer), the model that was trained is not the model that would be measured.
    modules, family = dict(base_of(model).named_modules(remove_duplicate=False)), family_of(model.config.model_type)
    if family is None:  # without a family, every numbered module belongs to a stack
        paths = {path.partition(".0")[0] for path in modules if path.endswith(".0")}
    else:
        paths = {blocks.path.partition(".*")[0] for blocks in family.blocks}
    stacks, prefix = tuple(f"{each}." for each in paths if each in modules), f"{model.base_model_prefix}."
    unwanted = [name for name in keys["unexpected_keys"] if name.removeprefix(prefix).startswith(stacks)]
    if unwanted := sorted(name for name in unwanted if not _FORMER_BUFFERS.search(name)):
        raise _odd(path, "has no place in the model that the configuration describes", unwanted)
    return cast(nn.Module, model)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Return a context in which the transformers library prints neither progress bars nor load reports."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _loaded_by_headcount(path: Path, model_class: Any, file: Path, notes: Notes) -> nn.Module:
    import transformers

    with _their_library(f"could not build the model in {path}"):
        model = _built(path, model_class, without_memory=False)
        if (path / GENERATION).exists():
            model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    try:
        _tie(model, notes.shared)  # what shares its weights is cut together
        apply_cut(model)
        for name, dtype in notes.buffers.items():
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, model.get_buffer(name).to(getattr(torch, dtype)))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{CONFIG} does not fit the weights in {path}: {error}", _AGAIN) from error
    with friendly_os_errors(f"read {path}"):
        tensors = load_file(file)
    tensors |= {name: tensors[home] for name, home in notes.shared.items() if home in tensors}
    expected = model.state_dict()
    if odd := sorted(expected.keys() - tensors.keys()):
        raise _odd(path, "is missing", odd)
    if odd := sorted(tensors.keys() - expected.keys()):
        raise _odd(path, "has no place in the model that the configuration describes", odd)
    if odd := sorted(name for name, tensor in tensors.items() if tensor.shape != expected[name].shape):
        raise _odd(path, "has another shape than the configuration says", odd)
    model.load_state_dict(tensors, assign=True)
    _tie(model, notes.shared)
    return cast(nn.Module, model)


def _notes(file: Path) -> Notes | None:
    """Return headcount's notes in the header of a weights file; None if `save_model` did not write the file."""
    if not file.exists():
        return None  # the weights are in several files
    with _header(file) as header:
        text = (header.metadata() or {}).get(HEADER)
        notes = None if text is None else Notes(**json.loads(text))
    for part in (notes.shared, notes.buffers) if notes else ():
        if not (isinstance(part, dict) and all(isinstance(each, str) for each in (*part, *part.values()))):
            raise InputError(f"the header of {file} is damaged", _AGAIN)
    return notes


def _tie(model: nn.Module, shared: dict[str, str]) -> None:
    """Make all names of a shared parameter refer to the same parameter; `shared` maps further names to stored names."""
    for name, home in shared.items():
        (above, _, last), (there, _, what) = name.rpartition("."), home.rpartition(".")
        setattr(model.get_submodule(above), last, getattr(model.get_submodule(there), what))


def _odd(path: Path, what: str, names: list[str]) -> InputError:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return InputError(f"in the weights of {path}, {names[0]}{more} {what}", _AGAIN)
