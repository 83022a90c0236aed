"""A result and where it was written: under a name by what was asked, so that none is ever put over another.

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
from headcount.files import read_bytes
from headcount.heads import HeadId
from headcount.results import Result
from headcount.runs.folder import RunFolder, digest
from headcount.runs.run import Run

T = TypeVar("T")
R = TypeVar("R", bound=Result)
Place: TypeAlias = bool | str | Path
"""Where a result is written: False for nowhere, True for the model's own folder, or a folder."""
BARE = ("replacements", "metric", "negatives", "lengths", "data")
"""Settings whose value says what it is."""


@dataclass(frozen=True)
class Saved(Generic[T]):
    """What was found, and where it was written."""

    result: T
    data: tuple[Path, ...] = ()
    """The numbers; no file if no folder was named."""
    figures: tuple[Path, ...] = ()
    """Pages."""
    others: tuple[Path, ...] = ()
    """Tables as Markdown and CSV; or one picture per head."""

    def __repr__(self) -> str:
        results = self.result if isinstance(self.result, tuple) else (self.result,)
        files = [*self.data, *self.figures, *self.others]
        where = f"written: {files[0]}" + (f" and {len(files) - 1} more files" if files[1:] else "") if files else ""
        return "\n".join([*map(repr, results), where or "not written: no folder was named"])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        results = self.result if isinstance(self.result, tuple) else (self.result,)
        return "".join(each._repr_html_() for each in results if isinstance(each, Result))


def folder_for(model: OpenModel | Run, save: Place) -> RunFolder | None:
    """Return the folder that `save` means, or None for nowhere; refuse it before the measuring begins, not after."""
    if save is False:
        return None
    folder = model.output if save is True else RunFolder(Path(save))
    if folder.holds_a_run and not _is_home_of(folder.path, model):
        raise InputError(f"{folder.path} holds another model, whose results would be replaced", "name another folder")
    folder.require_writable()
    return folder


def _is_home_of(folder: Path, model: OpenModel | Run) -> bool:
    """Whether the results of a model belong into this folder, which holds a model."""
    own = model.output.path if isinstance(model, Run) or model.has_output else None
    return own is not None and own.resolve() == folder.resolve()


def save_in(
    folder: RunFolder | None, name: str, result: R, draw: Callable[[str, R], Mapping[str, Figure]] = lambda *_: {}
) -> Saved[R]:
    """Write a result and, each under a name of its own, its figures; without a folder nothing is drawn or written."""
    if folder is None:
        return Saved(result)
    return Saved(result, (folder.write_result(name, result),), write_figures(folder, lambda: draw(name, result)))


def write_figures(folder: RunFolder | None, draw: Callable[[], Mapping[str, Figure]]) -> tuple[Path, ...]:
    """Figures by name, drawn if there is a folder for them."""
    if folder is None:
        return ()
    return tuple(folder.write_figure(f"{name}.png", png(figure)) for name, figure in draw().items())


def within(folder: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Figures by title, in a folder of their own."""
    return {f"{folder}/{title}": figure for title, figure in figures.items()}


def join(parts: Sequence[Saved[T]], *more: Path) -> Saved[tuple[T, ...]]:
    """Several results and their files; then a figure of all of them, if there is one."""
    return Saved(
        tuple(each.result for each in parts),
        tuple(path for each in parts for path in each.data),
        (*(path for each in parts for path in each.figures), *more),
    )


# --- names ------------------------------------------------------------------------------------------------------------


def asked_data(data: Any) -> Any:
    """What a result's name says of the examples; nothing if they are those that are taken unasked."""
    if data is None or (isinstance(data, str) and data == "test"):
        return None
    if isinstance(data, EvalDataset):
        return data.data
    if isinstance(data, TextLines):
        return (asked_data(data.file), "lines")
    if isinstance(data, str | Path):
        return Path(data) if data not in SPLITS and Path(data).exists() else str(data)
    if is_dataset(data):  # of Hugging Face's, whose own fingerprint is of what is in it
        told = getattr(data, "_fingerprint", None) or repr([(name, list(data[name])) for name in data.column_names])
        return f"dataset-{digest(told.encode(errors='surrogatepass'))[:8]}"
    return np.asarray(data)


def unless(usual: Any, asked: Any) -> Any:
    """A setting, unless it is the default."""
    return None if asked == usual else asked


def result_name(verb: str, **asked: Any) -> str:
    """The verb, then each setting that was given (None, False and nothing are the defaults)."""
    parts = [verb]
    for name, value in asked.items():
        if value is not None and value is not False:
            text = "" if value is True else _text(value)
            parts.append(text if text and name in BARE else f"{name.replace('_', '-')}{text}")
    return _safe("-".join(parts))


def file_name(*texts: str) -> str:
    """A name for examples: readable, and another for all other texts."""
    name = "_".join(texts).replace(" ", "_")
    is_told = not any("_" in text for text in texts) and (len(texts) == 1 or " " not in "".join(texts))
    return _safe(name, name if is_told else repr(texts))


def _safe(name: str, meaning: str | None = None) -> str:
    """A name for every file system; one that is longer, or does not tell its meaning, ends in the digest of that."""
    plain, meaning = re.sub(r"[^\w.,+=-]", "-", name), name if meaning is None else meaning
    plain = plain if not plain.startswith(".") else f"_{plain}"
    if name == plain == meaning and len(name) <= 80:
        return name
    return f"{plain[:60]}-{digest(meaning.encode(errors='surrogatepass'))[:12]}"


def _text(value: Any) -> str:
    """A value in letters that a file's name may have; what is longer than that by its digest."""
    if isinstance(value, Path):
        return f"{value.stem}-{digest(_content(value))[:8]}"  # another file of that name is another question
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
    """Of a file; of a folder, the names of all files in it and what they come to."""
    if path.is_file():
        return read_bytes(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return repr([(str(each.relative_to(path)), digest(read_bytes(each))) for each in files]).encode()
