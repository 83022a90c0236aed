"""Two questions never share a file, and none is written unless a folder is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import nn

from headcount import api
from headcount.api.saving import file_name, folder_for, result_name
from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.hooks.sites import Sites
from headcount.runs.run import Run, load


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


def test_an_audit_of_some_checks_is_named_by_their_ids(tmp_path: Path) -> None:
    saved = api.audit("sample:sortedness", n=20, only=["one-answer", "HC303"], save=tmp_path, quiet=True)
    assert [path.name for path in saved.data] == ["audit-n20-only-HC301-HC303.json"]


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


# --- where results go -------------------------------------------------------------------------------------------------

ASKED_LENGTHS: dict[str, Any] = {"lengths": [4], "n": 4, "negatives": None, "batch_size": None, "draw": None}
ASKED: dict[str, Callable[..., Any]] = {
    "ablate_heads": lambda adder, sorter, **how: api.ablate_heads(adder, n=4, replacements=["zero"], quiet=True, **how),
    "audit": lambda adder, sorter, **how: api.audit(adder, only=["HC101"], quiet=True, **how),
    "audit_all": lambda adder, sorter, **how: api.audit_all([adder.name], only=["HC101"], quiet=True, **how),
    "evaluate": lambda adder, sorter, **how: api.evaluate(adder, **how),
    "evaluate_all": lambda adder, sorter, **how: api.evaluate_all([adder.name], quiet=True, **how),
    "head_roles": lambda adder, sorter, **how: api.head_roles(
        texts.model(hub.build("gpt2"), "$A"), texts.TEXTS[0], n_controls=0, quiet=True, **how
    ),
    "head_stats": lambda adder, sorter, **how: api.head_stats(sorter, quiet=True, **how),
    "match_heads": lambda adder, sorter, **how: api.match_heads(sorter, sorter, quiet=True, **how),
    "patch_pair": lambda adder, sorter, **how: api.patch_pair(adder, "3+4", "8+4", ["E0H1"], **how),
    "prune_heads": lambda adder, sorter, **how: api.prune_heads(adder, n=10, n_orders=1, quiet=True, **how),
    "routes": lambda adder, sorter, **how: api.routes(adder, n=20, quiet=True, **how),
    "routes_all": lambda adder, sorter, **how: api.routes_all([adder], n=20, quiet=True, **how),
    "show_head": lambda adder, sorter, **how: api.show_head(adder, "X0H1", ["3+4", "9+9"], **how),
    "show_heads": lambda adder, sorter, **how: api.show_heads(adder, "3+4", **how),
    "show_positions": lambda adder, sorter, **how: api.show_positions(sorter, 4, **how),
    "stretch": lambda adder, sorter, **how: api.stretch(sorter, lengths=[4], n=4, quiet=True, **how),
    "stretch_all": lambda adder, sorter, **how: api.stretch_all([sorter.name], **ASKED_LENGTHS, quiet=True, **how),
    "summarise_attention": lambda adder, sorter, **how: api.summarise_attention(
        texts.model(hub.build("gpt2"), "$A"), texts.TEXTS[0], "L0H1", **how
    ),
    "weights": lambda adder, sorter, **how: api.weights(sorter, n=64, quiet=True, **how),
    "verify": lambda adder, sorter, **how: api.verify(adder, quiet=True, **how),
}
"""Every function that can write, asked for little."""


def files() -> list[Path]:
    return sorted(path for path in Path().rglob("*") if path.is_file())


@pytest.fixture
def runs(
    tiny_run: Run, tiny_sorter: Run, in_tmp: Path, little_work: None, monkeypatch: pytest.MonkeyPatch
) -> list[Run]:
    """Copies in this folder, so that whatever is written is seen."""
    monkeypatch.setattr("headcount.api.pruning.CRITICAL", -1.0)  # hardly trained, it is searched all the same
    for name, run in (("adder", tiny_run), ("sorter", tiny_sorter)):
        shutil.copytree(run.folder.path, name, ignore=shutil.ignore_patterns("results", "figures"))
    return [load("adder"), load("sorter")]


def test_every_function_that_writes_is_asked() -> None:
    found = {
        name for name in api.__all__ if callable(each := getattr(api, name)) and "save" in signature(each).parameters
    }
    assert found == set(ASKED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_written_unless_a_folder_is_named(
    name: str, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files()
    with monkeypatch.context() as without_figures:
        without_figures.setattr(Figure, "__init__", lambda *_, **__: pytest.fail("a figure was drawn for nobody"))
        shown = ASKED[name](*runs)
    assert files() == before
    if isinstance(shown, api.Saved):
        assert (shown.data, shown.figures, shown.others) == ((), (), ())
    named = ASKED[name](*runs, save="mine/here")
    written = set(files()) - set(before)
    assert {path.parts[:2] for path in written} == {("mine", "here")}
    assert {path.parts[2] for path in written} <= {"results", "figures"}
    own = ASKED[name](*runs, save=True)
    at_home = set(files()) - set(before) - written - set(Path("runs").glob("*/model.json"))
    assert len(at_home) == len(written)
    assert {path.parts[0] for path in at_home} <= {"adder", "sorter", "runs"}
    if isinstance(shown, api.Saved):
        assert named.result == shown.result == own.result
        assert {*named.data, *named.figures, *named.others} == written
        assert {*own.data, *own.figures, *own.others} == at_home


@pytest.mark.slow
def test_several_runs_in_one_folder_are_kept_apart(runs: list[Run]) -> None:
    shutil.copytree("sorter", "again")
    shown = api.stretch(runs[1], "again", lengths=[4], n=4, save="here", quiet=True)
    assert len(set(shown.data)) == 2
    assert shown.figures[-1].parent == Path("here/figures")
    (shared,) = api.stretch(*runs[1:], "again", lengths=[4], n=4, out="there", quiet=True).figures
    assert shared.parent == Path("there/figures")


def test_a_bare_module_has_no_place_of_its_own() -> None:
    with pytest.raises(InputError, match="the results of a PyTorch module have no folder to be saved in"):
        folder_for(OpenModel("model", "", "", nn.Linear(1, 1), Sites.empty(), None), True)
