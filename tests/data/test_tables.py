"""Files, folders and objects as tables: quotes, other names for columns, and faults by file and line."""

from __future__ import annotations

import csv
import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.tables import ALSO_CALLED, TextLines, read_table, text_lines
from headcount.errors import InputError

File = Callable[[str, str], Path]


@pytest.fixture
def file(tmp_path: Path) -> File:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return write


# --- one table, however it is written ---------------------------------------------------------------------------------

ROWS = [("a cat, and a dog", "cat"), ('she said "a dog"', "dog"), ("two\nlines", "bird"), ("semi;colon", "0")]
QUOTED = """text,label
"a cat, and a dog",cat
"she said ""a dog\""",dog
"two
lines",bird
semi;colon,0
"""


def test_quoted_cells_hold_commas_quotes_and_line_breaks(file: File) -> None:
    for text in (QUOTED, QUOTED.replace("\n", "\r\n"), "\ufeff" + QUOTED):
        table = read_table(file("data.csv", text))
        assert table.rows("text", "label") == ROWS
        assert [table.where(i).partition(" of ")[0] for i in range(4)] == ["line 2", "line 3", "line 4", "line 6"]


def test_csv_of_other_places(file: File) -> None:
    for separator in ";\t":
        text = f'text{separator}label\n"a{separator}b"{separator}x\nc, d{separator}y\n'
        assert read_table(file("data.csv", text)).rows("text", "label") == [(f"a{separator}b", "x"), ("c, d", "y")]
    one = read_table(file("data.csv", 'text\n"a, b"\nc\n'))
    assert one.texts() == ["a, b", "c"]
    long = "the old cat " * 20_000
    assert read_table(file("data.csv", f'text,label\n"{long}",x\nb,y\n')).rows("text", "label")[0][0] == long.strip()
    assert csv.field_size_limit() == 131072, "the module's own bound is put back"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.csv", 'label,text\nx,short\ny,"{}"\n'),
        ("data.csv", "label,text\nx,short\ny,{}\n"),
        ("data.tsv", "label\ttext\nx\tshort\ny\t{}\n"),
        ("data.jsonl", '{{"label": "x", "text": "short"}}\n\n{{"label": "y", "text": "{}"}}\n'),
    ],
)
def test_a_cell_has_a_limit(file: File, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer takes a hundred times the memory of the text that it is given."""
    monkeypatch.setattr("headcount.data.tables.MOST_CELL", 1000)
    with pytest.raises(
        InputError, match=rf"line 3 of .*{name}: the cell in the column text holds 1,20\d characters, but at most 1,000"
    ):
        read_table(file(name, text.format("the old cat " * 100))).rows("text", "label")
    assert len(read_table(file("data.txt", "the old cat " * 100)).texts()[0]) == 1199, "a running text has no cells"


def test_a_long_cell_is_refused_with_little_memory(file: File) -> None:
    path = file("data.csv", 'text,label\n"' + "the old cat " * 200_000 + '",x\nb,y\n')
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"line 2 of .*: the cell in the column text holds 2,400,000 characters, but at most 1,048,576"
    ):
        read_table(path).rows("text", "label")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * path.stat().st_size


CELLS = st.text(st.sampled_from(" ab\",;\n\t'")).map(lambda inside: f"x{inside}x")


@given(st.lists(st.tuples(CELLS, CELLS), min_size=2))
def test_what_python_writes_as_csv_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("source", "target"), *rows])
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(written.getvalue().encode())
    assert read_table(path).rows("source", "target") == rows


def test_json_lines(file: File) -> None:
    objects = [{"label": label, "text": text, "idx": i} for i, (text, label) in enumerate(ROWS)]
    lines = "\n\n".join(json.dumps(each, ensure_ascii=False) for each in objects)
    table = read_table(file("data.jsonl", lines))
    assert table.rows("text", "label") == ROWS
    assert table.where(2) == f"line 5 of {file('data.jsonl', lines)}"
    odd = [{"text": "a b", "label": True}, {"text": "c", "label": 0}]  # a separator of lines that JSON does not know
    assert read_table(file("data.jsonl", "\n".join(json.dumps(each, ensure_ascii=False) for each in odd))).rows(
        "text", "label"
    ) == [("a b", "1"), ("c", "0")]
    assert read_table(file("data.jsonl", '"one text"\n"another"\n')).texts() == ["one text", "another"]


def test_lines_and_running_text(file: File) -> None:
    path = file("data.txt", "a cat\n\n  a dog\tran \nx,y\n")
    table = read_table(TextLines(path))
    assert (table.texts(), table.is_running) == (["a cat", "a dog\tran", "x,y"], False)
    assert table.where(1) == f"line 3 of {path}"
    running = read_table(path)
    assert (running.is_running, len(running.texts())) == (True, 1)
    assert read_table(file("data.tsv", "text\na cat\na dog\n")).texts() == ["a cat", "a dog"]
    assert read_table(file("data.tsv", "a text of words\nand more\n")).is_running


@pytest.mark.parametrize(("column", "name"), [(column, name) for column in ALSO_CALLED for name in ALSO_CALLED[column]])
def test_columns_go_by_other_names_and_that_is_said(file: File, column: str, name: str) -> None:
    table = read_table(file("data.csv", f"idx,{name.title()}\n1,a\n2,b\n"))
    assert [row[0] for row in table.rows(column)] == ["a", "b"]
    assert table.note(column) == f" (columns taken: {name.title()} as {column})"


def test_the_proper_name_goes_first(file: File) -> None:
    table = read_table(file("data.csv", "sentence,text,content\na,b,c\nd,e,f\n"))
    assert table.texts() == ["b", "e"]
    assert table.note("text") == ""
    assert read_table(file("data.csv", "content,sentence\na,b\nc,d\n")).texts() == ["b", "d"]


# --- faults -----------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str, str]] = {
    "an open quote": (
        "x.csv",
        'text,label\na,b\n"c,d\ne,f\n',
        r"line 3 of .*x.csv cannot be read as CSV[\s\S]*double the quotes",
    ),
    "a stray quote": ("x.csv", 'text,label\n"a" b,c\n', r"line 2 of .*x.csv cannot be read as CSV"),
    "ragged": (
        "x.csv",
        'text,label\n"a\nb",c\nd\n',
        r"line 4 of .*x.csv has 1 cells, but the header has 2[\s\S]*quote",
    ),
    "empty": (
        "x.csv",
        "text,label\na,b\n,c\n",
        r"line 3 of .*x.csv has an empty cell\s+every row needs a value in each of these columns: text, label",
    ),
    "few": ("x.csv", "text,label\na,b\n", "x.csv has too few examples: 1"),
    "no JSON": (
        "x.jsonl",
        '{"text": "a", "label": "b"}\n{"text": \n',
        r"line 2 of .*x.jsonl is not JSON[\s\S]*one object",
    ),
    "a number": (
        "x.jsonl",
        '"a"\n3\n',
        r"line 2 of .*x.jsonl holds 3, which is neither a JSON object nor a JSON string",
    ),
    "a mixture": (
        "x.jsonl",
        '{"text": "a", "label": 1}\n\n"b"\n',
        r"line 3 of .*x.jsonl holds JSON of the type str, but the lines before it hold dict",
    ),
    "an array": ("x.json", '[\n{"text": "a", "label": 1}\n]\n', "line 1 of .*x.json is not JSON"),
    "missing": ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r"line 2 of .*x.jsonl has an empty cell"),
    "null": ("x.jsonl", '{"text": "a", "label": 1}\n{"text": null, "label": 1}\n', r"line 2 of .* has an empty cell"),
    "a list": (
        "x.jsonl",
        '{"text": ["a", "b"], "label": 1}\n',
        r"line 1 of .*: the cell in the column text holds \['a', 'b'\], of the type list\s+a cell must hold a text",
    ),
    "nested": ("x.jsonl", "[" * 100_000 + "\n", "line 1 of .*x.jsonl is not JSON"),
}


@pytest.mark.parametrize(("name", "text", "explanation"), WRONG.values(), ids=WRONG)
def test_faults_are_told_with_file_and_line(file: File, name: str, text: str, explanation: str) -> None:
    with pytest.raises(InputError, match=explanation):
        read_table(file(name, text)).rows("text", "label")


def test_lines_are_for_plain_text(file: File, tmp_path: Path) -> None:
    for path in (file("data.csv", QUOTED), file("data.jsonl", '"a"\n"b"\n'), tmp_path):
        with pytest.raises(InputError, match=r"is a table or a folder[\s\S]*leave --lines out"):
            read_table(TextLines(path))
    with pytest.raises(InputError, match=r"name the file: --data texts\.txt --lines"):
        text_lines(None)


# --- Hugging Face's datasets ------------------------------------------------------------------------------------------


class Feature:
    names = ("neg", "pos")


class FakeDataset:
    """As datasets.Dataset looks from outside."""

    features: ClassVar = {"label": Feature(), "sentence": None, "photo": None}
    column_names = ("photo", "sentence", "label")

    def __getitem__(self, name: str) -> list[Any]:
        assert name != "photo", "columns that nobody asked for are not read"
        return ["a cat", "a dog", None] if name == "sentence" else [np.int64(0), True, -1]

    def __len__(self) -> int:
        return 3


class FakeSplits(dict[str, Any]):
    @property
    def column_names(self) -> dict[str, Any]:
        return {split: data.column_names for split, data in self.items()}


class FakeStream:
    column_names = None


def test_objects_that_look_like_datasets() -> None:
    table = read_table(FakeDataset())
    assert table.texts() == ["a cat", "a dog", ""]
    assert (table.class_names, table.where(2)) == ({"label": ("neg", "pos")}, "row 2 of the dataset")
    assert table.column("label") == ["0", "1", "-1"]
    with pytest.raises(InputError, match="row 2 of the dataset has an empty cell"):
        table.rows("text", "label")
    with pytest.raises(
        InputError,
        match=r"the splits train, test, and none of them was chosen\s+choose one, such as data\['test'\]",
    ):
        read_table(FakeSplits(train=FakeDataset(), test=FakeDataset()))
    with pytest.raises(InputError, match=r"is a streaming dataset[\s\S]*take its first"):
        read_table(FakeStream())


def test_without_the_library_its_folders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"not installed\s+install it: pip install datasets"):
        read_table(tmp_path)


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_datasets_of_the_library_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="an optional library: what it would give is imitated above")
    features = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["n", "p"])})
    made = datasets.Dataset.from_dict({"sentence": [row[0] for row in ROWS], "label": [0, 1, 1, 0]}, features=features)
    splits = datasets.DatasetDict({"train": made.select([0, 1]), "test": made})
    made.save_to_disk(tmp_path / "one")
    splits.save_to_disk(tmp_path / "all")
    for data in (made, made.with_format("numpy"), tmp_path / "one", str(tmp_path / "all" / "test")):
        table = read_table(data)
        assert table.rows("text", "label") == list(zip([row[0] for row in ROWS], "0110", strict=True))
        assert table.class_names == {"label": ("n", "p")}
    with pytest.raises(
        InputError,
        match=r"the splits train, test, and none of them was chosen\s+choose one, such as data\['test'\]",
    ):
        read_table(splits)
    with pytest.raises(
        InputError,
        match=r"is divided into the splits train, test, and none of them was chosen\s+choose one, such as .*/all/test",
    ):
        read_table(tmp_path / "all")
    with pytest.raises(InputError, match="is a stream"):
        read_table(made.to_iterable_dataset())
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(InputError, match="could not read the dataset in"):
        read_table(tmp_path / "one")


def test_data_that_memory_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many.tsv").write_text("text\tlabel\n" + "a dog\t1\n" * 1000)
    monkeypatch.setattr("headcount.limits.available_memory", lambda: 1_000_000)
    with pytest.raises(InputError, match=r"many.tsv, 8 kB of data, would need about 1 MB.*\n.*give a part of it"):
        read_table(tmp_path / "many.tsv")
