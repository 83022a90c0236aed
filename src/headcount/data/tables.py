"""Read texts, labels and scores from files, folders and Hugging Face datasets; all become a `Table`.

    .txt, .tsv  a running text; or, with tabs in its first line, a table whose cells have no tabs or line breaks
    .csv        a table as spreadsheets write it (RFC 4180): cells with commas, quotes or line breaks are in quotes
    .jsonl      an object on every line, or a text in quotes
    TextLines   a file with one text on every line
    a folder    written by `save_to_disk` of Hugging Face's datasets; or with one subfolder of images per class
    an object   with `column_names` and a list of values per column, such as a datasets.Dataset

Columns have the names in `ALSO_CALLED`: headcount's own names, or the names of public datasets.
"""

import csv
import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from headcount.errors import InputError, shortened
from headcount.files import friendly_os_errors, read_bytes
from headcount.limits import MOST_CELL, format_bytes, require_room

MOST_DATA = 2**30
"""Largest size of a data file, in bytes."""
MEMORY_PER_BYTE = 150
"""Bytes of memory needed per byte of data, for texts, rows and tokens; measured on short rows and on a running text."""
ALSO_CALLED = {
    "text": ("sentence", "content"),
    "label": ("labels",),
    "first": ("sentence1", "text1", "premise"),
    "second": ("sentence2", "text2", "hypothesis"),
    "score": ("similarity_score", "similarity"),
    "source": ("input", "document"),
    "target": ("output", "summary"),
    "image": ("img", "file_name"),
}
"""For each column that formats need, the names under which a table may have the column; the first match is used."""
IMAGES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class TextLines:
    """Marks a file as having one text on every line."""

    file: str | Path


class Columns(Protocol):
    """The part of the interface of a Hugging Face dataset that headcount uses."""

    @property
    def column_names(self) -> Any:
        """The names of the dataset's columns."""

    def __getitem__(self, name: Any) -> Any:
        """Return the values of the column called `name`, one for each row."""


@dataclass(frozen=True)
class Table:
    """A table of texts, labels or scores, with named columns."""

    name: str
    """Name of the data, such as the file's name, which messages use."""
    header: tuple[str, ...]
    cells: Callable[[str], Sequence[Any]]
    """A function that takes the name of a column in the header and returns the column's cells."""
    where: Callable[[int], str]
    """A function that takes the index of a row and describes where the row is, such as "line 3 of FILE"."""
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For columns of class numbers: the names of the classes, by column; empty if the data has no names."""
    folder: Path = Path()
    """The folder to which file paths in cells are relative."""
    is_running: bool = False
    """Whether the data are a single running text."""

    @property
    def columns(self) -> dict[str, str]:
        """Maps headcount's names of columns, such as `label`, to the names in the table's header."""
        return columns_in(self.header)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the table's rows with only these columns, given by headcount's names, such as `label`.

        Raise an error for an empty cell, or if there are fewer than 2 rows.
        """
        own = [self.columns[column] for column in columns]
        rows = list(zip(*map(self.column, own), strict=True))
        for i, row in enumerate(rows):
            if "" in row:
                raise InputError(
                    f"{self.where(i)} has an empty cell",
                    f"every row needs a value in each of these columns: {', '.join(own)}",
                )
        if len(rows) < 2:
            raise InputError(f"{self.name} has too few examples: {len(rows)}", "give at least 2 examples")
        return rows

    def texts(self) -> list[str]:
        """Return the texts in the column `text`; some may be empty."""
        return self.column(self.columns["text"])

    def note(self, *columns: str) -> str:
        """Return a note that lists those of `columns` that have other names in the header; empty if there are none."""
        taken = [f"{self.columns[each]} as {each}" for each in columns if self.columns[each].strip().lower() != each]
        return f" (columns taken: {', '.join(taken)})" if taken else ""

    def column(self, name: str) -> list[Any]:
        """Return the cells of the column called `name` in the header; numbers become texts, images stay images."""
        return [self._cell(i, name, value) for i, value in enumerate(self.cells(name))]

    def _cell(self, row: int, column: str, value: Any) -> Any:
        """Return a cell's value as text, or an image as it is; raise an error for a value of any other type."""
        if isinstance(value, str):
            if len(value) > MOST_CELL and not self.is_running:
                raise InputError(  # a tokenizer would need gigabytes of memory
                    f"{self.where(row)}: the cell in the column {column} holds {len(value):,} characters, but at "
                    f"most {MOST_CELL:,} are allowed",
                    "split the text into several rows",
                )
            return value.strip()
        if isinstance(value, Real):  # also numpy's numbers
            return str(int(value) if isinstance(value, bool) else value)
        if value is None or hasattr(value, "convert"):
            return "" if value is None else value
        raise InputError(
            f"{self.where(row)}: the cell in the column {column} holds {shortened(repr(value), 40)}, of the type "
            f"{type(value).__name__}",
            "a cell must hold a text or a number",
        )


def text_lines(data: Any) -> TextLines:
    """Return a file as `TextLines`, for the option --lines; raise an error for other data than a file."""
    if not isinstance(data, str | Path):
        raise InputError(
            "--lines needs a file of texts, which it reads line by line", "name the file: --data texts.txt --lines"
        )
    return TextLines(data)


def columns_in(header: Sequence[str]) -> dict[str, str]:
    """Return headcount's names of the columns that a table has, mapped to their names in the header.

    >>> columns_in(["idx", "Sentence", "label"])
    {'text': 'Sentence', 'label': 'label'}
    """
    own = {name.strip().lower(): name for name in reversed(header)}
    names = {column: (column, *others) for column, others in ALSO_CALLED.items()}
    by_column = {column: next((own[name] for name in known if name in own), None) for column, known in names.items()}
    return {column: name for column, name in by_column.items() if name is not None}


def read_table(data: Any) -> Table:
    """Return the data in a file, a folder or a Hugging Face dataset as a table."""
    if isinstance(data, TextLines):
        return _text_lines(Path(data.file))
    if is_dataset(data):
        name = getattr(getattr(data, "info", None), "dataset_name", None) or "the dataset"
        return _of_columns(data, name, lambda split: f"data[{split!r}]")
    path = Path(data)
    if path.is_dir():
        saved = ("dataset_dict.json", "dataset_info.json", "state.json")
        return _from_disk(path) if any((path / name).is_file() for name in saved) else _image_folder(path)
    text = _read_text(path)
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        return _from_jsonl(path, text)
    return _from_csv(path, text) if path.suffix == ".csv" else _from_text(path, text)


def _read_text(path: Path) -> str:
    try:
        data = read_bytes(path, MOST_DATA)
        size = f"{path}, {format_bytes(len(data))} of data,"
        require_room(MEMORY_PER_BYTE * len(data), size, "give a part of it: a few thousand examples are enough")
        return data.decode("utf-8-sig").replace("\r\n", "\n")  # as spreadsheets write it
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid UTF-8 text: {error}", "save it as plain text, in UTF-8") from error


def _of_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]], lines: Sequence[int]) -> Table:
    """Return a table of the rows of a file; `lines` are the line numbers at which the rows begin."""
    places = {name: list(header).index(name) for name in header}
    return Table(
        path.name,
        tuple(header),
        lambda name: [row[places[name]] for row in rows],
        lambda i: f"line {lines[i]} of {path}",
        folder=path.parent,
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _text_lines(path: Path) -> Table:
    """Return the texts of a plain text file as a table; every line that is not blank is one text."""
    if path.is_dir() or path.suffix in (".csv", ".jsonl", ".ndjson", ".json"):
        raise InputError(f"--lines is for plain text files, but {path} is a table or a folder", "leave --lines out")
    lines = [(i, line) for i, line in enumerate(_read_text(path).split("\n"), start=1) if line.strip()]
    return _of_rows(path, ("text",), [(line,) for _, line in lines], [i for i, _ in lines])


def _from_text(path: Path, text: str) -> Table:
    """Return the contents of a text file as a table: with tabs between cells or, without tabs, as a running text."""
    first, *lines = text.split("\n")
    header = first.split("\t")
    table = _of_rows(path, header, (), ())
    if len(header) == 1 and not (path.suffix == ".tsv" and table.columns):
        return Table(path.name, ("text",), lambda _: [text], lambda _: str(path), is_running=True)
    rows, numbers = list[list[str]](), list[int]()
    for number, line in enumerate(lines, start=2):  # the csv module would give quotes a meaning
        if line.strip():
            rows.append(line.split("\t"))
            numbers.append(number)
            _require_width(path, number, rows[-1], header, "one tab each, and hold no tabs or line breaks themselves")
    return _of_rows(path, header, rows, numbers)


def _from_csv(path: Path, text: str) -> Table:
    """Return the contents of a CSV file as a table; cells are separated by commas, semicolons or tabs."""
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, numbers, end = list[list[str]](), list[int](), 0
    limit = csv.field_size_limit(MOST_DATA)  # no limit here: the table checks cells, and its error names the cell
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                numbers.append(end + 1)
                _require_width(path, end + 1, row, rows[0], f"{separator!r}; quote those that hold one")
            end = reader.line_num
    except csv.Error as error:
        raise InputError(
            f"line {end + 1} of {path} cannot be read as CSV: {error}",
            "put a cell that contains commas, quotes or line breaks in quotes, and double the quotes inside it: "
            '"say ""a"""',
        ) from error
    finally:
        csv.field_size_limit(limit)
    return _of_rows(path, rows[0] if rows else [], rows[1:], numbers[1:])


def _require_width(path: Path, number: int, row: Sequence[str], header: Sequence[str], separated: str) -> None:
    if len(row) != len(header):
        raise InputError(
            f"line {number} of {path} has {len(row)} cells, but the header has {len(header)}",
            f"cells are separated by {separated}",
        )


def _from_jsonl(path: Path, text: str) -> Table:
    """Return the contents of a JSONL file as a table: every line has one object or one text.

    The keys of the first object are the columns.
    """
    numbered = [(i, _parsed(path, i, line)) for i, line in enumerate(text.split("\n"), start=1) if line.strip()]
    kind = type(numbered[0][1]) if numbered else dict
    for i, value in numbered:
        if not isinstance(value, kind):
            raise InputError(
                f"line {i} of {path} holds JSON of the type {type(value).__name__}, but the lines before it hold "
                f"{kind.__name__}",
                "write a JSON object (dict) on every line, or a JSON string (str) on every line",
            )
    values, numbers = [value for _, value in numbered], [i for i, _ in numbered]
    if kind is str:
        return _of_rows(path, ("text",), [(value,) for value in values], numbers)
    header = list(values[0]) if values else []
    return _of_rows(path, header, [[value.get(name) for name in header] for value in values], numbers)


def _parsed(path: Path, number: int, line: str) -> Any:
    """Return the object or text on one line of a JSONL file; raise an error for anything else."""
    allowed = 'write one object or text on every line: {"text": "A cat.", "label": "cat"}, or "A cat."'
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number} of {path} is not JSON: {error}", allowed) from error
    if not isinstance(value, dict | str):
        raise InputError(
            f"line {number} of {path} holds {shortened(line, 40)}, which is neither a JSON object nor a JSON string",
            allowed,
        )
    return value


# --- folders, and Hugging Face's datasets -----------------------------------------------------------------------------


def _from_disk(path: Path) -> Table:
    """Return a dataset in a folder that `save_to_disk` of Hugging Face's datasets wrote, as a table."""
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        what = f"{path} was written by Hugging Face's datasets, which is not installed"
        raise InputError(what, "install it: pip install datasets") from error
    try:
        data = library.load_from_disk(str(path))
    except Exception as error:  # a damaged dataset may raise anything
        explanation = shortened(" ".join(str(error).split()), 200)
        raise InputError(
            f"could not read the dataset in {path}: {type(error).__name__}: {explanation}",
            "save the dataset again with its method save_to_disk",
        ) from error
    return _of_columns(data, path.name, lambda split: str(path / split))


def is_dataset(data: Any) -> bool:
    """Return whether an object looks like a Hugging Face dataset."""
    return hasattr(data, "column_names")


def _of_columns(data: Any, name: str, split: Callable[[str], str]) -> Table:
    """Return a dataset object with `column_names` as a table called `name`.

    `split` returns the code that selects a split by name, for an error message.
    """
    if isinstance(data.column_names, Mapping):
        splits = list(data.column_names)
        raise InputError(
            f"{name} is divided into the splits {', '.join(splits)}, and none of them was chosen",
            f"choose one, such as {split(splits[-1])}",
        )
    if data.column_names is None or not hasattr(data, "__len__"):
        raise InputError(
            f"{name} is a streaming dataset, whose number of examples is not known",
            "take its first examples: datasets.Dataset.from_list(list(data.take(1000)))",
        )
    plain = data.with_format(None) if hasattr(data, "with_format") else data
    features = getattr(data, "features", None) or {}
    known = {column: getattr(features.get(own), "names", None) for column, own in columns_in(data.column_names).items()}
    return Table(
        name,
        tuple(data.column_names),
        lambda column: list(plain[column]),
        lambda i: f"row {i} of {name}",
        {column: tuple(names) for column, names in known.items() if names},
    )


def _image_folder(path: Path) -> Table:
    """Return the images in a folder with one subfolder per class as a table; classes are in alphabetical order."""
    with friendly_os_errors(f"read {path}"):
        classes = sorted(each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
        inside = [(file, i) for i, name in enumerate(classes) for file in sorted((path / name).iterdir())]
    files = [(file, i) for file, i in inside if file.suffix.lower() in IMAGES]
    if not files:
        raise InputError(
            f"{path} holds no data in a format that headcount reads",
            f"give a folder with one subfolder of images ({', '.join(IMAGES)}) for each class, "
            "or one that save_to_disk of Hugging Face's datasets wrote",
        )
    table = _of_rows(path, ("image", "label"), [(str(file.absolute()), number) for file, number in files], ())
    return replace(table, where=lambda i: str(files[i][0]), class_names={"label": classes})
