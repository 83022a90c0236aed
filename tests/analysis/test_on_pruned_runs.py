"""All analyses work on runs without some heads, without whole blocks, and without any heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from asked_runs import stretch, verify

from headcount.analysis.attention import AttentionPatterns, average_patterns, patterns_on
from headcount.analysis.positions import positions_of
from headcount.figures.attention import draw_heads, draw_pages
from headcount.figures.length_generalisation import draw_dispersion
from headcount.figures.style import png
from headcount.heads import HeadId
from headcount.runs.config import RunConfig
from headcount.runs.prune import prune_run
from headcount.runs.run import Run
from headcount.runs.train import train_run

pytestmark = pytest.mark.slow  # together they take over 5 s

CUTS = {"one": ["E0H0"], "uneven": ["D0H0", "D1H1", "X1H0", "X1H1"], "all": None}


@pytest.fixture(scope="module", params=CUTS)
def cut(request: pytest.FixtureRequest, tiny_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    heads = CUTS[request.param] or tiny_run.model.heads
    return prune_run(tiny_run, heads, tmp_path_factory.mktemp("cut") / request.param).model


def require_all_heads(patterns: AttentionPatterns, run: Run) -> None:
    shown = [head for site in patterns.sites for head in site.heads]
    assert [head.head for head in shown] == [str(head) for head in run.model.heads]
    for head in shown:
        np.testing.assert_allclose(np.sum(head.weights, axis=1), 1, atol=1e-4)


def test_heads_are_shown_by_their_own_names(cut: Run) -> None:
    on_one, on_all = patterns_on(cut, "3+4"), average_patterns(cut, "test")
    require_all_heads(on_one, cut)
    require_all_heads(on_all, cut)
    for site in on_one.sites:
        for head in site.heads:
            np.testing.assert_allclose(head.weights, cut.attention("3+4", head.head), atol=1e-5)
    assert list(draw_heads(on_one)) == [str(head) for head in cut.model.heads]


@pytest.mark.usefixtures("painted")
def test_a_page_leaves_the_place_of_a_missing_head_empty(cut: Run) -> None:
    pages = draw_pages(patterns_on(cut, "3+4"))
    sites = dict.fromkeys(f"{site.stack}-{site.kind}" for site in cut.model.sites)
    assert list(pages) == list(sites)
    for kind, figure in pages.items():
        assert png(figure).startswith(b"\x89PNG")
        heads = [head for head in cut.model.heads if f"{head.site.stack}-{head.site.kind}" == kind]
        titles = [axes.get_title() for axes in figure.axes if axes.axison and axes.get_title()]
        assert titles == [f"{head}  ({head.short})" for head in heads]
        for axes in figure.axes[:-1]:
            assert axes.axison == bool(axes.images)
            first = axes.axison and axes.get_ylabel() != ""
            assert first == any(f"({head.short})" in axes.get_title() for head in _first_of_each_row(cut))


def _first_of_each_row(run: Run) -> list[HeadId]:
    return [run.model.heads_at(site)[0] for site in run.model.sites]


@pytest.mark.usefixtures("painted")
def test_a_page_of_unequal_rows(tiny_run: Run, tmp_path: Path) -> None:
    run = prune_run(tiny_run, ["D0H0", "X1H0", "X1H1"], tmp_path / "cut").model
    page = draw_pages(patterns_on(run, "3+4"))["decoder-self"]
    assert [axes.get_title() for axes in page.axes[:4]] == [
        "",
        "decoder.0.self.1  (D0H1)",
        "decoder.1.self.0  (D1H0)",
        "decoder.1.self.1  (D1H1)",
    ]
    assert [bool(axes.get_xlabel()) for axes in page.axes[1:4]] == [False, True, True]


def test_answers_are_evaluated_and_verified(cut: Run) -> None:
    """Verification also decodes free-running the answers that the forward pass calls right or wrong."""
    evaluation = cut.evaluate("test")
    assert evaluation.exact.teacher_forced == evaluation.exact.free_running
    certificate = verify(cut, sample=30)
    assert certificate.total == 100
    assert certificate.decoded >= 30
    assert cut.predict("3+4")


def test_rows_of_a_position_table_began_as_the_parents_did(cut: Run, tiny_run: Run) -> None:
    before, after = (positions_of(run.name, "", run.encoding_in_use()) for run in (tiny_run, cut))
    assert after.rows == before.rows != ()


@pytest.mark.parametrize("gone", [["L0H0"], ["L0H0", "L0H1"]], ids="-".join)
def test_a_classifier_is_stretched(tiny_sorter: Run, tmp_path: Path, gone: list[str]) -> None:
    run = prune_run(tiny_sorter, gone, tmp_path / "cut").model
    result = stretch(run, [4, 9], ["adjacent"], 8)
    heads = [str(head) for head in run.model.heads]
    assert [(share.length, share.head) for share in result.attention_shares] == [
        (n, head) for n in (4, 9) for head in heads
    ]
    assert png(draw_dispersion(result)).startswith(b"\x89PNG")
    assert result.label.endswith(f"less {len(gone)} heads")
    require_all_heads(average_patterns(run, "test"), run)


def test_cut_later_is_another_recipe_than_trained_without(tiny_sorter: Run, tmp_path: Path) -> None:
    control = RunConfig.build("sortedness", base=tiny_sorter.config, pruned="L0H1")
    runs = [
        tiny_sorter,
        prune_run(tiny_sorter, ["L0H1"], tmp_path / "cut").model,
        prune_run(tiny_sorter, ["L0H1"], tmp_path / "tuned", fine_tune=3).model,
        train_run(control, tmp_path / "control"),
    ]
    assert runs[1].config == runs[2].config == runs[3].config
    assert len({stretch(run, [4], ["adjacent"], 2).recipe for run in runs}) == 4
