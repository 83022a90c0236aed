"""Save results under names that contain their settings, so that no result replaces another.

>>> result_name("ablation", replacements=("zero",), n=500), result_name("ablation", replacements=None, n=None)
('ablation-zero-n500', 'ablation')
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from matplotlib.figure import Figure

from headcount.data.dataset import EvalDataset
from headcount.data.tables import TextLines, is_dataset
from headcount.errors import InputError
from headcount.experiments.models import SPLITS, OpenModel
from headcount.figures.style import png
from headcount.files import claim_output, read_bytes
from headcount.heads import HeadId
from headcount.results import Result
from headcount.runs.folder import RunFolder, digest
from headcount.runs.run import Run

T = TypeVar("T")
R = TypeVar("R", bound=Result)
Place: TypeAlias = bool | str | Path
"""Where to save a result: False for nowhere, True for the model's own folder, or the path of a folder."""
_Places: TypeAlias = tuple[list[Place], str | Path | None]
BARE = ("replacements", "metric", "negatives", "lengths", "data")
"""Settings that a file name shows by their value alone: `ablation-zero`, not `ablation-replacements-zero`."""


@dataclass(frozen=True)
class Saved(Generic[T]):
    """A result, and the files that it was saved in."""

    result: T
    data: tuple[Path, ...] = ()
    """JSON files of the result; empty if it was not saved."""
    figures: tuple[Path, ...] = ()
    """Paths of the figures of the result."""
    others: tuple[Path, ...] = ()
    """Paths of other files: tables as Markdown and CSV, or one figure per head."""

    def __repr__(self) -> str:
        results = self.result if isinstance(self.result, tuple) else (self.result,)
        files = [*self.data, *self.figures, *self.others]
        where = f"saved: {files[0]}" + (f" and {len(files) - 1} more files" if files[1:] else "") if files else ""
        return "\n".join([*map(repr, results), where or "not saved: no folder was given"])

    def _repr_html_(self) -> str:
        """Return the result as HTML for Jupyter, which shows it below a cell."""
        results = self.result if isinstance(self.result, tuple) else (self.result,)
        return "".join(result._repr_html_() for result in results if isinstance(result, Result))


def folder_for(model: OpenModel | Run, save: Place) -> RunFolder | None:
    """Return the folder in which a model's results are saved, as the argument `save` says; None to save nothing.

    Raise an error if the folder holds another model or cannot be written.
    """
    if save is False:
        return None
    folder = model.output if save is True else RunFolder(Path(save))
    if folder.holds_a_run and not _is_home_of(folder.path, model):
        raise InputError(f"{folder.path} holds another model, whose results would be replaced", "name another folder")
    folder.require_writable()
    return folder


def _is_home_of(folder: Path, model: OpenModel | Run) -> bool:
    """Return whether a folder is the model's own folder."""
    own = model.output.path if isinstance(model, Run) or model.has_output else None
    return own is not None and own.resolve() == folder.resolve()


def save_in(
    folder: RunFolder | None, name: str, result: R, draw: Callable[[str, R], Mapping[str, Figure]] = lambda *_: {}
) -> Saved[R]:
    """Write a result and its figures into a folder; without a folder, write nothing.

    Return the result with its paths.
    """
    if folder is None:
        return Saved(result)
    return Saved(result, (folder.write_result(name, result),), write_figures(folder, lambda: draw(name, result)))


def write_figures(folder: RunFolder | None, draw: Callable[[], Mapping[str, Figure]]) -> tuple[Path, ...]:
    """Draw figures and write them under their names; return the paths. Without a folder, draw nothing."""
    if folder is None:
        return ()
    return tuple(folder.write_figure(f"{name}.png", png(figure)) for name, figure in draw().items())


def within(folder: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return the same figures, with the name of a folder and a slash before each name."""
    return {f"{folder}/{title}": figure for title, figure in figures.items()}


def join(parts: Sequence[Saved[T]], *more: Path) -> Saved[tuple[T, ...]]:
    """Join several saved results into one, whose `result` is a tuple; `more` are paths of figures about all of them."""
    return Saved(
        tuple(part.result for part in parts),
        tuple(path for part in parts for path in part.data),
        (*(path for part in parts for path in part.figures), *more),
    )


def join_with_figure(
    parts: Sequence[Saved[R]], folder: str | Path | None, name: str, draw: Callable[[Sequence[R]], Figure]
) -> Saved[tuple[R, ...]]:
    """Join the saved results of several models into one, and save one figure of all models in the folder.

    The name of the figure contains the number of models and a digest of their weights.
    """
    if len(parts) < 2:
        return join(parts)
    results = [part.result for part in parts]
    weights = digest("".join(str(getattr(result, "weights_sha256", "")) for result in results).encode())
    name = f"{name}-of-{len(results)}-runs-{weights[:8]}"
    shared = RunFolder(Path(folder)) if folder else None
    if shared:
        claim_output(shared.figure_file(f"{name}.png"), ".png", force=None)
    return join(parts, *write_figures(shared, lambda: {name: draw(results)}))


def places_for(models: Sequence[OpenModel], save: Place, out: str | Path | None, default: str) -> _Places:
    """Return a folder for each model's own result, and a folder for a figure of all models.

    Raise an error if a folder cannot be written. With `save=True`, each model has its own folder, and the figure
    goes to `out`, or else to `default`. If `save` names a folder, several models have a subfolder each.
    """
    shared = out or (default if save is True else save or None)
    if shared and len(models) > 1:
        RunFolder(Path(shared)).require_writable()
    if isinstance(save, bool) or len(models) == 1:
        return [save] * len(models), shared
    names = (f"{file_name(Path(model.label).name)}-{model.weights_sha256[:8]}" for model in models)
    return [Path(save) / name for name in names], shared


# --- names ------------------------------------------------------------------------------------------------------------


def data_setting(data: Any) -> Any:
    """Return a value that stands for the given data in a file name (see `result_name`); None for the default data."""
    if data is None or (isinstance(data, str) and data == "test"):
        return None
    if isinstance(data, EvalDataset):
        return data.data
    if isinstance(data, TextLines):
        return (data_setting(data.file), "lines")
    if isinstance(data, str | Path):
        return Path(data) if data not in SPLITS and Path(data).exists() else str(data)
    if is_dataset(data):  # the fingerprint of a Hugging Face dataset is a digest of its content
        content = getattr(data, "_fingerprint", None) or repr([(name, list(data[name])) for name in data.column_names])
        return f"dataset-{digest(content.encode(errors='surrogatepass'))[:8]}"
    return np.asarray(data)


def unless_default(default: Any, value: Any) -> Any:
    """Return the value of a setting, or None if it is the default, so that `result_name` leaves the setting out."""
    return None if value == default else value


def result_name(verb: str, **settings: Any) -> str:
    """Return a file name made of a verb and its settings; settings that are None or False are left out."""
    parts = [verb]
    for name, value in settings.items():
        if value is not None and value is not False:
            text = "" if value is True else _text(value)
            parts.append(text if text and name in BARE else f"{name.replace('_', '-')}{text}")
    return _safe("-".join(parts))


def file_name(*texts: str) -> str:
    """Return a readable file name for texts; different texts have different names."""
    name = "_".join(texts).replace(" ", "_")
    is_unique = not any("_" in text for text in texts) and (len(texts) == 1 or " " not in "".join(texts))
    return _safe(name, name if is_unique else repr(texts))


def _safe(name: str, meaning: str | None = None) -> str:
    """Return a name that every file system allows. A long or changed name ends in a digest of `meaning`."""
    plain, meaning = re.sub(r"[^\w.,+=-]", "-", name), name if meaning is None else meaning
    plain = plain if not plain.startswith(".") else f"_{plain}"
    if name == plain == meaning and len(name) <= 80:
        return name
    return f"{plain[:60]}-{digest(meaning.encode(errors='surrogatepass'))[:12]}"


def _text(value: Any) -> str:
    """Return a setting's value as part of a file name; files, functions and arrays become a digest of their content."""
    if isinstance(value, Path):
        return f"{value.stem}-{digest(_content(value))[:8]}"  # another file may have the same name
    if isinstance(value, HeadId):
        return value.short
    if isinstance(value, str):
        return value
    if callable(value):
        code = getattr(value, "__code__", None)
        meaning = repr((code.co_code, code.co_consts, code.co_names)) if code else repr(value)
        return f"{getattr(value, '__name__', 'score')}-{digest(meaning.encode())[:8]}"
    if isinstance(value, np.ndarray):
        return digest(repr((value.shape, value.dtype)).encode() + value.tobytes())[:8]
    return "-".join(map(_text, value)) if isinstance(value, Iterable) else str(value)


def _content(path: Path) -> bytes:
    """Return the bytes of a file or, for a folder, the names and digests of all files in it."""
    if path.is_file():
        return read_bytes(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return repr([(str(file.relative_to(path)), digest(read_bytes(file))) for file in files]).encode()
