"""`headcount routes` on several models: one table and one file per model, and one map of all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import known_carries as known
import pytest

from headcount import api
from headcount.analysis.routes import Routes
from headcount.cli import main
from headcount.errors import InputError
from headcount.runs.run import Run

N = 20
"""Smallest number of quartets."""


@pytest.mark.slow
def test_several_runs_have_a_file_each_and_one_map(
    in_tmp: Path, tiny_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "other"):
        shutil.copytree(tiny_run.folder.path, name)
    assert main(["routes", "one", "other", "one", "--n", str(N), "--quiet", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in printed["runs"]] == ["one", "other"]
    assert [Routes.from_json(Path(file).read_text()).name for file in printed["files"]["data"]] == ["one", "other"]
    *own, together = map(Path, printed["files"]["pictures"])
    assert [path.parts[0] for path in own] == ["one", "other"]
    assert (str(together.parent), together.name[:-12]) == ("runs/routes/figures", "routes-n20-of-2-runs-")
    assert all(path.exists() for path in (*own, together))
    assert main(["routes", "one", "other", "--n", str(N), "--quiet", "-o", "here"]) == 0
    assert len(list(Path("here/figures").glob("routes-n20-of-2-runs-*.png"))) == 1
    text = capsys.readouterr().out
    assert all(f"It was not measured which heads of {name} move" in " ".join(text.split()) for name in ("one", "other"))


@pytest.mark.slow
def test_several_models_in_python(in_tmp: Path) -> None:
    task = known.task_of(1)
    models = [known.one_carrier(task), known.digit_movers(task)]
    saved = api.routes_all(models, n=N, quiet=True, save="mine")
    alone = [api.routes(model, n=N, quiet=True).result for model in models]
    assert list(saved.result) == alone
    assert [len(path.parts) for path in saved.data] == [4, 4], "a subfolder per model"
    assert saved.figures[-1].parent == Path("mine/figures")


def test_models_without_an_event_are_refused_before_anything_is_measured(tiny_run: Run, tiny_sorter: Run) -> None:
    with pytest.raises(InputError, match="the task sortedness has no intermediate result"):
        api.routes_all([tiny_run, tiny_sorter], n=N)
    with pytest.raises(InputError, match="no model was given"):
        api.routes_all([])
