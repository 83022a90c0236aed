"""Two questions never share a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headcount.api.saving import file_name, result_name


def test_the_same_question_has_the_same_name() -> None:
    assert result_name("ablation", kinds=None, n=None, examples=False) == "ablation"
    assert result_name("ablation", kinds=["zero"], n=5) == result_name("ablation", kinds=("zero",), n=5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 5}, {"batch": 5}),
        ({"kinds": ("zero", "mean")}, {"kinds": ("mean",)}),
        ({"loss": 0.01234561}, {"loss": 0.01234562}),
        ({"metric": lambda output, rows: output[:, 0]}, {"metric": lambda output, rows: output[:, 1]}),
        ({"data": np.zeros((2, 3))}, {"data": np.zeros((3, 2))}),
        ({"data": np.zeros(3)}, {"data": np.ones(3)}),
        ({"metric": "a/b"}, {"metric": "a b"}),
        ({"metric": "x" * 200}, {"metric": "x" * 201}),
    ],
)
def test_another_question_has_another_name(one: dict[str, object], other: dict[str, object]) -> None:
    names = [result_name("ablation", **asked) for asked in (one, other, {})]
    assert len(set(names)) == 3


def test_a_file_is_named_by_what_is_in_it(tmp_path: Path) -> None:
    names = []
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "data.tsv").write_text(f"text {i}")
        names.append(result_name("ablation", data=tmp_path / str(i) / "data.tsv"))
    assert names[0] != names[1]
    assert all(name.startswith("ablation-data-") for name in names)


def test_examples_are_told_apart() -> None:
    """One has a folder, several have a page: their names begin otherwise."""
    one = ["a b", "a_b", "a  b", "a\nb", "a_b_c", *(f"{'x' * 60} {middle} {'y' * 60}" for middle in "12")]
    several = [("a", "b"), ("a b", "c"), ("a", "b c"), ("a", "b", "c"), ("a_b", "c")]
    assert len({file_name(each) for each in one}) == len(one)
    assert len({file_name(*each) for each in several}) == len(several)
    assert (file_name("374+814"), file_name("3 5 5 9"), file_name("3+4", "9+9")) == ("374+814", "3_5_5_9", "3+4_9+9")


@pytest.mark.parametrize("text", ["../../etc", ".hidden", "a/b", "x\0y", "\udcff", "中" * 100, ".."])
def test_a_name_stays_in_its_folder(text: str) -> None:
    name = file_name(text)
    assert name[0] not in "./"
    assert not {"/", "\0"} & set(name)
    assert len(name.encode(errors="replace")) < 256
