"""A result prints as a short table, becomes a frame, and is drawn without a file."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import hub_models as hub
import pytest
from answer_lengths import answer_stretch
from matplotlib.figure import Figure
from routes_by_hand import routes
from rows_by_hand import over_training
from tests.figures import test_every_figure as every
from weights_by_hand import weights

from headcount import ExternalModel, api, load, wrap
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.figures.plotting import PLOTS
from headcount.result_tables import SHOWN_ROWS
from headcount.results import Result
from headcount.runs.run import Run

SHAPE = every.SHAPES["two"]
MADE: dict[str, Any] = {
    "Ablation": lambda: every.ablated(every.SHAPES["many"]),
    "AnswerStretch": answer_stretch,
    "Attention": lambda: every.looked(SHAPE),
    "Emergence": lambda: over_training(seeds=3),
    "EncodingsShown": lambda: every.encodings(2),
    "Evaluation": lambda: every.evaluated(SHAPE),
    "HeadFindings": lambda: every.found_over_seeds(SHAPE),
    "HeadRoles": lambda: every.with_roles(SHAPE),
    "HeadWeights": weights,
    "Matching": lambda: every.matched(SHAPE),
    "PairPatch": lambda: every.pair_patch(SHAPE),
    "PoolingComparison": lambda: every.pooled(SHAPE),
    "PositionsShown": lambda: every.placed(SHAPE, "learned"),
    "Pruning": lambda: every.pruned(SHAPE),
    "Routes": routes,
    "SeedSummary": lambda: every.over_seeds(SHAPE),
    "Specialisation": lambda: every.specialised(SHAPE),
    "Stretch": lambda: every.sample_of_length(SHAPE),
    "WorstMargins": lambda: every.worst(SHAPE),
}
ROWS = {
    "Ablation": lambda found: len(found.heads),
    "AnswerStretch": lambda found: len(found.cells),
    "Attention": lambda found: sum(len(site.heads) for site in found.sites),
    "Emergence": lambda found: sum(len(run.snapshots) for run in found.runs),
    "EncodingsShown": lambda found: len(found.encodings),
    "Evaluation": lambda found: 1 + len(found.digits) + len(found.groups),
    "HeadFindings": lambda found: sum(len(variant.places) for variant in found.variants),
    "HeadWeights": lambda found: len(found.heads),
    "HeadRoles": lambda found: sum(len(head.standings) for head in found.heads),
    "Matching": lambda found: sum(len(kind.pairs) for kind in found.kinds),
    "PairPatch": lambda found: len(found.ranking),
    "PoolingComparison": lambda found: sum(len(model.cells) for model in found.models),
    "PositionsShown": lambda found: len(found.rows),
    "Pruning": lambda found: sum(len(curve.points) for curve in found.curves),
    "SeedSummary": lambda found: len(found.variants),
    "Specialisation": lambda found: len(found.heads),
    "Routes": lambda found: len(found.heads),
    "Stretch": lambda found: len(found.cells),
    "WorstMargins": lambda found: len(found.rows),
}


@pytest.mark.parametrize("name", MADE)
def test_a_result_prints_as_a_short_table(name: str) -> None:
    result = MADE[name]()
    lines, rows = repr(result).splitlines(), result.to_rows()
    assert len(rows) == ROWS[name](result) > 0
    assert lines[0].startswith(type(result).__name__)
    assert max(map(len, lines[1:])) <= 110
    assert len(lines) == 2 + min(SHOWN_ROWS, len(rows)) + (len(rows) > SHOWN_ROWS)
    if len(rows) > SHOWN_ROWS:
        assert lines[-1] == f"... {len(rows) - SHOWN_ROWS:,} more"


def test_a_table_has_what_the_rows_have() -> None:
    result = every.ablated(every.SHAPES["many"])
    for row, effect in zip(result.to_rows(), result.heads, strict=True):
        assert (row["head"], row["ablated"], row["low"]) == (effect.head, effect.ablated, effect.low)
    curves = MADE["Pruning"]()
    names = [curve.name for curve in curves.curves for _ in curve.points]
    assert [row["name"] for row in curves.to_rows()] == names, "each point with its curve"


@pytest.mark.parametrize("name", MADE)
def test_csv_has_every_row_and_every_column(name: str) -> None:
    """Rows of one result may have different columns; each value stays in its own column."""
    rows = MADE[name]().to_rows()
    lines = list(csv.DictReader(io.StringIO(MADE[name]().to_csv(), newline="")))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert set(line) >= set(row)
        assert all(line[key] == ("" if value is None else str(value)) for key, value in row.items())


def test_a_frame_without_pandas_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas[\s\S]*pip install pandas"):
        MADE["Ablation"]().to_frame()


@pytest.mark.parametrize("name", MADE)
def test_a_frame_has_the_rows(name: str) -> None:
    pytest.importorskip("pandas", reason="pandas is no requirement: the frame is tested where it is installed")
    result = MADE[name]()
    frame = result.to_frame()
    assert len(frame) == len(result.to_rows())
    assert list(frame.columns) == list(dict.fromkeys(column for row in result.to_rows() for column in row))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_plot_is_a_figure_and_no_file(name: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = MADE[name]()
    monkeypatch.setattr(Figure, "savefig", lambda *a, **k: pytest.fail("it was written"))
    assert isinstance(result.plot(), Figure)
    with pytest.raises(InputError, match="has no figure with the name 'nonsense'"):
        result.plot("nonsense")
    assert not list(in_tmp.iterdir())


@pytest.mark.usefixtures("painted")
def test_a_figure_may_be_named() -> None:
    result = every.ablated(SHAPE)
    titles = {name: [axes.get_title() for axes in result.plot(name).axes] for name in ("ranking", "map")}
    assert titles["ranking"] != titles["map"]


def kinds_of_result() -> set[str]:
    return {each.__name__ for each in Result.__subclasses__() if each.__module__.startswith("headcount.")}


def test_every_kind_of_result_is_drawn_or_has_nothing_to_draw(tiny_run: Run) -> None:
    without_figure = {"Certificate", "ContextCertificate", "CounterexampleSearch", "Cost", "Audit", "InterventionAudit"}
    without_figure |= {"ClaimResult", "ClaimsResult", "PublishedComparison"}
    assert kinds_of_result() - without_figure == set(PLOTS)
    assert set(PLOTS) - {"Classification"} == set(MADE)
    certificate = api.verify(tiny_run, quiet=True)
    with pytest.raises(InputError, match="Certificate has no figure"):
        certificate.plot()
    assert repr(certificate).splitlines()[1].split()[:3] == ["name", "total", "errors"]


def test_what_was_saved_says_where(in_tmp: Path, tiny_sorter: Run) -> None:
    shown = api.show_positions(tiny_sorter, 4)
    assert repr(shown) == f"{shown.result!r}\nnot saved: no folder was given"
    saved = api.show_positions(tiny_sorter, 4, save="here")
    assert repr(saved).endswith("saved: here/results/positions-n4.json and 3 more files")


def test_a_run_is_one_line() -> None:
    run = load("sample:addition")
    n = sum(each.numel() for each in run.model.parameters())
    assert repr(run) == f"sample:addition: a run on addition, 24 heads, {n:,} parameters"
    assert repr(RunModel.of(run)) == f"sample:addition: EncoderDecoder, 24 heads, {n:,} parameters"


def test_models_of_others_are_one_line() -> None:
    made = hub.build("gpt2")
    line = f"GPT2LMHeadModel, 12 heads, {sum(each.numel() for each in made.parameters()):,} parameters"
    assert repr(wrap(made)) == repr(ExternalModel.of(made)) == repr(api.open_model(made)) == line
    assert repr(ExternalModel.of(made, name="story")) == f"story: {line}"
    assert str(wrap(made)).startswith("GPT2LMHeadModel: 12 heads\n"), "where they are"
