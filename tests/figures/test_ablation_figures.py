"""Figures of ablations, from results that went through JSON; people judge how they look."""

import subprocess
import sys
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from headcount.analysis.ablation import Ablation, AblationCondition, Effect
from headcount.analysis.gradient_importance import Agreement, Importance
from headcount.figures import ablation as view
from headcount.figures.style import png
from headcount.heads import HeadId
from headcount.hooks.intervention_proof import SiteProof
from headcount.stats import RankAgreement

pytestmark = pytest.mark.slow  # together they take over 5 s

SITES = ("encoder.0.self", "decoder.0.self", "decoder.0.cross")
BANDS = ("critical", "important", "redundant", "undecided")
AGREEMENT = RankAgreement(0.5, 0.1, 0.8, 0.0123, 4)


def effect(head, kind, i, length=None):
    """Every number differs, so that none can stand for another."""
    drop = 0.4 / (i + 1) + 0.001 * len(kind) - 0.05
    return Effect(
        head=head,
        short=HeadId.parse(head).short,
        replacement=kind,
        metric="free-running",
        clean=0.9,
        ablated=0.9 - drop,
        drop=drop,
        low=drop - 0.02,
        high=drop + 0.03,
        p=0.04 if i < 2 else 0.06,
        band=BANDS[i % 4],
        examples_needed=1234 if i == 3 else 3210 if i == 11 else None,
        examples_needed_most=98765 if i == 3 else None,
        worse=5,
        better=1,
        n=2000 + 38000 * (i == 2),
        rank_low=i + 1,
        rank_high=i + 1 + i % 3,
        carried=0.1 * (i % 9),
        length=length,
    )


def condition(heads, kinds, length=None):
    return AblationCondition(
        length=length,
        data="the test set",
        n=2000,
        clean=0.9,
        clean_interval=(0.88, 0.92),
        majority_baseline=0.5,
        decoded=80,
        decoded_replacements=("zero",),
        importances=tuple(Importance(head, 0.01 * (i + 1), 0.001, 0.1 * (i + 1)) for i, head in enumerate(heads)),
        agreements=tuple(Agreement(kind, False, len(heads), AGREEMENT) for kind in kinds),
        n_mean=32768,
        donors=4,
        decided_on="40,000 fresh examples",
    )


def made(kinds=("zero", "mean", "resample"), heads=None, lengths=(None,)):
    """A result as it is read from a file."""
    heads = heads or [f"{site}.{i}" for site in SITES for i in range(3)]
    return Ablation(
        name="runs/add",
        weights_sha256="digest",
        metric="free-running",
        unit="points",
        is_accuracy=True,
        replacements=tuple(kinds),
        heads=tuple(effect(h, k, i, length) for length in lengths for k in kinds for i, h in enumerate(heads)),
        conditions=tuple(condition(heads, kinds, length) for length in lengths),
        proof=tuple(SiteProof(site, 1e-7, 2e-7, 3.0, 0.0, True) for site in SITES),
    )


def as_loss(result):
    effects = tuple(
        replace(e, metric="loss", clean=-0.25, ablated=-0.25 - e.drop, band=None, examples_needed=None)
        for e in result.heads
    )
    conditions = tuple(replace(each, clean=-0.25, clean_interval=(-0.3, -0.2)) for each in result.conditions)
    changes = {"metric": "loss", "unit": "nats", "is_accuracy": False, "heads": effects, "conditions": conditions}
    return replace(result, **changes)


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def require_drawn(figure):
    assert png(figure).startswith(b"\x89PNG")


# --- the ranking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("zero",), ("zero", "mean", "resample")], ids=len)
def test_the_ranking_has_every_head_and_its_interval(kinds):
    result = made(kinds)
    figure = view.draw_ranking(result, result.conditions[0])
    (axes,) = figure.axes
    ranked = list(result.ranking())
    assert ranked == [e.head for e in result.heads[:9]], "made in order"
    again = {effect.head for effect in result.heads if effect.n != result.conditions[0].n}
    assert again, "some were looked at again"
    names = [f"{head}  ({HeadId.parse(head).short}){' †' if head in again else ''}" for head in ranked]
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert "†" in figure.get_suptitle()
    marks = [box for box in axes.containers if hasattr(box, "lines")]
    assert [box.get_label() for box in marks] == list(kinds)
    for kind, box in zip(kinds, marks, strict=True):
        mine = [e for e in result.heads if e.replacement == kind]
        assert box.lines[0].get_xdata() == pytest.approx([100 * e.drop for e in mine])
        ends = np.array(box.lines[2][0].get_segments())[:, :, 0]
        assert ends == pytest.approx(np.array([[100 * e.low, 100 * e.high] for e in mine]))
    left, right = axes.get_xlim()
    assert left < 100 * min(e.low for e in result.heads)
    assert right > 100 * max(e.high for e in result.heads)
    assert [text.strip(" →") for text in words(figure)] == ["important", "critical"]
    assert "90.00 % [88.00, 92.00] with all heads, n = 2,000 (the test set)" in figure.get_suptitle()
    require_drawn(figure)


def test_of_many_heads_the_first_are_shown():
    result = made(("zero", "mean"), [f"layer.{i}.self.{j}" for i in range(7) for j in range(8)])
    figure = view.draw_ranking(result, result.conditions[0])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == view.MOST_ROWS == 48
    assert labels[0].startswith(next(iter(result.ranking())))
    assert "the first 48 of 56 heads" in figure.get_suptitle()
    require_drawn(figure)
    assert len(view.draw_map(result, result.conditions[0]).axes) == 3


def test_a_gain_has_its_place():
    result = made(("zero",))
    better = replace(result, heads=tuple(replace(e, drop=-0.3, low=-0.4, high=-0.2) for e in result.heads))
    figure = view.draw_ranking(better, result.conditions[0])
    assert figure.axes[0].get_xlim()[0] < -40
    require_drawn(figure)
    view.draw_map(better, result.conditions[0])


# --- the map --------------------------------------------------------------------------------------------------------


def test_the_map_has_every_number():
    result = made()
    figure = view.draw_map(result, result.conditions[0])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{kind}: drop (points)" for kind in result.replacements] + ["gradient: mean |dL/dg|"]
    for axes, kind in zip(figure.axes, result.replacements, strict=False):
        again = ["†" * (e.n != result.conditions[0].n) for e in result.heads if e.replacement == kind]
        drops = [f"{100 * e.drop:.1f}" for e in result.heads if e.replacement == kind]
        expected = [drop + mark for drop, mark in zip(drops, again, strict=True)]
        assert [text.get_text() for text in axes.texts] == expected
    assert figure.axes[-1].texts[0].get_text() == "1.0e-2"
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == ["encoder.0.self (E0)", "decoder.0.self (D0)", "decoder.0.cross (X0)"]
    require_drawn(figure)


def test_places_of_heads_that_were_cut_stay_empty():
    heads = ["encoder.0.self.0", "encoder.0.self.2", "decoder.0.cross.1"]
    result = made(("zero",), heads)
    figure = view.draw_map(result, result.conditions[0])
    drops = figure.axes[0]
    assert np.isnan(drops.images[0].get_array().astype(float).filled(np.nan)).sum() == 3
    assert {text.get_position() for text in drops.texts} == {(0, 0), (2, 0), (1, 1)}
    assert len(drops.get_yticks()) == 2, "a block without heads is not there"
    require_drawn(figure)


def test_without_gradients_there_is_no_panel_of_them():
    result = made(("zero",))
    bare = replace(result, conditions=(replace(result.conditions[0], importances=(), agreements=()),))
    assert len(view.draw_map(bare, bare.conditions[0]).axes) == 1


# --- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(16,), (16, 64, 256)], ids=len)
@pytest.mark.parametrize("kinds", [("zero",), ("zero", "mean", "resample")], ids=len)
def test_lengths_are_drawn_head_by_head(kinds, lengths):
    result = made(kinds, [f"layer.0.self.{i}" for i in range(4)], lengths)
    figure = view.draw_lengths(result)
    assert [axes.get_title() for axes in figure.axes] == [f"ablated by {kind}" for kind in kinds]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(length) for length in lengths]
        assert [box.get_label() for box in axes.containers] == ["L0H0", "L0H1", "L0H2", "L0H3"]
        assert all(len(cast(ErrorbarContainer, box).lines[0].get_ydata()) == len(lengths) for box in axes.containers)
    title = " ".join(figure.get_suptitle().split())
    assert "; ".join(f"{length}: 90.00 % [88.00, 92.00] (n = 2,000)" for length in lengths) in title
    require_drawn(figure)
    assert all(len(result.ranking(each.length)) == 4 for each in result.conditions)


def test_lengths_of_many_heads_do_not_run_into_each_other():
    result = made(("zero",), [f"layer.{i}.self.{j}" for i in range(6) for j in range(8)], (16, 32, 64))
    boxes = cast(list[ErrorbarContainer], view.draw_lengths(result).axes[0].containers)
    places = np.array([box.lines[0].get_xdata() for box in boxes])
    assert len(places) == 48
    assert (places[:, :-1].max(axis=0) < places[:, 1:].min(axis=0)).all()


# --- loss -----------------------------------------------------------------------------------------------------------


def test_a_loss_is_shown_as_a_rise():
    result = as_loss(made(("zero", "mean"), lengths=(4, 6)))
    ranking, at = view.draw_ranking(result, result.conditions[0]), result.conditions[0]
    assert ranking.axes[0].get_xlabel().startswith("rise of the loss (nats)")
    assert words(ranking) == [], "a loss has no bands"
    assert "0.2500 [0.2000, 0.3000] with all heads" in ranking.get_suptitle()
    assert view.draw_map(result, at).axes[0].get_title() == "zero: rise of the loss (nats)"
    assert view.draw_lengths(result).axes[0].get_ylabel().startswith("rise of the loss (nats)")
    require_drawn(ranking)


def test_the_clean_score_has_its_own_interval():
    result = made(("zero",))
    at = replace(result.conditions[0], clean_interval=(0.88, 0.92))
    assert "90.00 % [88.00, 92.00] with all heads" in view.draw_ranking(result, at).get_suptitle()
    loss = as_loss(result)
    at = replace(loss.conditions[0], clean_interval=(-0.3, -0.2))
    assert "0.2500 [0.2000, 0.3000] with all heads" in view.draw_ranking(loss, at).get_suptitle()


def test_a_figure_needs_no_torch():
    """Draw and describe plain data in a process where torch cannot be imported."""
    text = made(("zero",), lengths=(4, 6)).to_json()
    program = (
        "import sys, json\n"
        "from types import SimpleNamespace\n"
        "sys.modules['torch'] = None\n"
        "from headcount.describing.sections.ablation import describe\n"
        "from headcount.describing.sections.pruning import describe as describe_pruning\n"
        "from headcount.figures import ablation as view, pruning\n"
        "class Plain(SimpleNamespace):\n"
        "    ranked_by = 'zero'\n"
        "    harmless = lambda self, length: ()\n"
        "    def effects(self, replacement, length=None):\n"
        "        return [e for e in self.heads if (e.replacement, e.length) == (replacement, length)]\n"
        "    def ranking(self, length=None):\n"
        "        return {e.head: {'zero': e} for e in self.effects('zero', length)}\n"
        "result = json.load(sys.stdin, object_hook=lambda data: Plain(**data))\n"
        "for effect in result.heads:\n"
        "    effect.rank = '1'\n"
        "view.draw_ranking(result, result.conditions[0]), view.draw_map(result, result.conditions[1])\n"
        "view.draw_lengths(result)\n"
        "assert describe(result)\n"
    )
    subprocess.run([sys.executable, "-c", program], input=text, text=True, check=True)
