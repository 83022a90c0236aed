"""Figures and tables of ablations, from results that went through JSON; how they look is looked at by people."""

import csv
import io
import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import cast

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from rich.console import Console

from headcount.analysis.ablation import Ablation, AblationCondition, Effect
from headcount.analysis.importance import Agreement, Importance
from headcount.experiments.decoding_check import FailureProfile, Group
from headcount.figures import ablation as view
from headcount.figures.style import png
from headcount.heads import HeadId
from headcount.hooks.proof import SiteProof
from headcount.stats import RankAgreement
from headcount.training.evaluation import WrongAnswer

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


def printed(table):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def require_drawn(figure):
    assert png(figure).startswith(b"\x89PNG")


def test_an_ablation_is_printed_with_the_costliest_head_to_remove_first():
    heads = [f"layer.0.self.{i}" for i in range(3)]
    result = made(("resample", "zero"), heads)
    drops = {"zero": (0.01, 0.3, 0.2), "resample": (0.9, 0.0, 0.1)}
    effects = tuple(replace(e, drop=drops[e.replacement][heads.index(e.head)]) for e in result.heads)
    result = replace(result, heads=effects)
    expected = ["L0H1", "L0H2", "L0H0"]
    columns, rows = view.ablation_rows(result, result.conditions[0])
    assert ([row[0] for row in rows], columns[1]) == (expected, "rank (zero)")
    markdown = view.ablation_markdown(result)
    assert re.findall(r"^\| (L0H\d)", markdown, re.M) == expected
    assert re.findall(r"^layer\S+ +(\S+) +zero", repr(result), re.M) == expected


# --- the ranking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("zero",), ("zero", "mean", "resample")], ids=len)
def test_the_ranking_has_every_head_and_its_interval(kinds):
    result = made(kinds)
    figure = view.draw_ranking(result, result.conditions[0])
    (axes,) = figure.axes
    ranked = view.ranking(result, None)
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
    assert labels[0].startswith(view.ranking(result, None)[0])
    assert "the first 48 of 56 heads" in figure.get_suptitle()
    require_drawn(figure)
    assert len(view.draw_map(result, result.conditions[0]).axes) == 3
    assert sum("L" in line for line in printed(view.ablation_table(result, result.conditions[0])).splitlines()) == 56


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
    assert "rank correlation" not in " ".join(view.ablation_notes(bare, bare.conditions[0]))


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
    assert all(len(view.ranking(result, each.length)) == 4 for each in result.conditions)


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
    assert "0.25 [0.2, 0.3] with all heads" in ranking.get_suptitle()
    assert view.draw_map(result, at).axes[0].get_title() == "zero: rise of the loss (nats)"
    assert view.draw_lengths(result).axes[0].get_ylabel().startswith("rise of the loss (nats)")
    require_drawn(ranking)
    table = printed(view.ablation_table(result, at))
    first = result.heads[0]
    assert f"{first.drop:.4f}*[{first.low:.4f}, {first.high:.4f}]" in table
    notes = " ".join(view.ablation_notes(result, at))
    assert "McNemar" not in notes
    assert "undecided" not in notes


# --- words ----------------------------------------------------------------------------------------------------------


def test_the_table_has_the_numbers():
    result = made()
    text = printed(view.ablation_table(result, result.conditions[0]))
    for e in result.heads:
        star = "*" if e.p < 0.05 else " "
        again = " (n=40,000)" if e.n == 40_000 else ""
        assert f"{100 * e.drop:.2f}{star}[{100 * e.low:.2f}, {100 * e.high:.2f}] {e.band}{again}" in text
    assert "1.0e-02" in text
    assert "│ 6-8 " in text, "a rank has its doubt"


def test_notes_count_bands_and_say_what_would_decide():
    result = made(("zero",), [f"layer.0.self.{i}" for i in range(12)])
    notes = view.ablation_notes(result, result.conditions[0])
    assert notes[0] == "Removing L0H0 costs most (35.4 points; 95 % interval 33.4 to 38.4; n = 2,000)."
    assert "p is corrected over the 12 heads of each replacement (Holm), the 95 % intervals are not" in notes[1]
    assert "removing a head (zero): 3 critical, 3 important, 3 redundant, 3 undecided" in notes[2]
    assert "L0H3 (1,200 to 99,000 examples would decide), L0H7 (it lies on a border)" in notes[2]
    assert "L0H11 (3,200 examples or more would decide; it may lie on the border)" in notes[2]
    told = "rank correlation 0.50 [0.10, 0.80], p = 0.0123, 4 of 12 drops tied"
    assert f"gradient importance against zero: {told}" in notes
    assert any("40,000 fresh examples alone" in note for note in notes)
    assert any("mean: over 32,768 inputs" in note for note in notes)
    verified = "head contributions + bias = block output (max error 1e-07); with all heads off, only the bias remains"
    own = "each head's slice of z follows its own attention pattern"
    assert notes[-1] == f"Verified at 3 attention blocks: {verified}; {own}."
    some = replace(result, proof=(replace(result.proof[0], follows_attention=False), *result.proof[1:]))
    assert view.ablation_notes(some, some.conditions[0])[-1] == (
        f"Verified at 3 attention blocks: {verified}. Not checked at 1 of them: whether {own}."
    )
    assert "80 answers of ablations decoded for real gave the same results" in notes[-2]
    (agreement,) = result.conditions[0].agreements
    flat = replace(result.conditions[0], agreements=(replace(agreement, found=None),), decoded=0)
    flat_notes = view.ablation_notes(replace(result, conditions=(flat,)), flat)
    assert "gradient importance against zero: all drops are equal" in flat_notes
    assert not any("decoded" in note for note in flat_notes)


def test_notes_say_first_what_removal_costs_and_then_what_swapping_does():
    result = made(("resample", "zero", "mean"))
    notes = view.ablation_notes(result, result.conditions[0])
    assert notes[0].startswith("Removing ")
    assert re.match(r"(Whether s|S)wapping \S+'s output with another example's misleads most", notes[1])
    kinds = [note.split(" (")[1].split(")")[0] for note in notes if re.search(r"\): \d+ critical", note)]
    assert kinds == ["zero", "resample", "mean"]
    harmless = [head for head in dict.fromkeys(e.head for e in result.heads) if head in result.harmless()]
    assert harmless
    assert f"redundant in all 3 ways: {len(harmless)}: {HeadId.parse(harmless[0]).short}" in " ".join(notes)


def test_a_loss_that_few_examples_carry_is_marked():
    loss = as_loss(made(("zero",)))
    notes = " ".join(view.ablation_notes(loss, loss.conditions[0]))
    few = [e.short for e in loss.heads if e.carried > 0.5]
    assert few
    assert f"over half of all differences in {', '.join(f'{name} (zero)' for name in few)}" in notes
    even = replace(loss, heads=tuple(replace(e, carried=0.2) for e in loss.heads))
    assert "FEW EXAMPLES" not in " ".join(view.ablation_notes(even, even.conditions[0]))


def test_the_clean_score_has_its_own_interval():
    result = made(("zero",))
    at = replace(result.conditions[0], clean_interval=(0.88, 0.92))
    bare = replace(result, heads=tuple(replace(e, band=None, examples_needed=None) for e in result.heads))
    assert "90.00 % [88.00, 92.00] with all heads" in view.draw_ranking(result, at).get_suptitle()
    assert "90.00 % [88.00, 92.00] with all heads" in " ".join(printed(view.ablation_table(result, at)).split())
    assert "with all heads 90.00 % [88.00, 92.00] is reached" in " ".join(view.ablation_notes(bare, at))
    loss = as_loss(result)
    at = replace(loss.conditions[0], clean_interval=(-0.3, -0.2))
    assert "0.25 [0.2, 0.3] with all heads" in view.draw_ranking(loss, at).get_suptitle()


def test_where_nothing_can_be_lost_there_are_no_bands():
    result = made(("zero",), [f"layer.0.self.{i}" for i in range(4)])
    bare = replace(result, heads=tuple(replace(e, band=None, examples_needed=None) for e in result.heads))
    notes = view.ablation_notes(bare, bare.conditions[0])
    assert "NO BANDS: with all heads 90.00 % [88.00, 92.00] is reached" in " ".join(notes)
    assert "critical" not in " ".join(notes)


def test_what_broke_is_a_table_for_each_head_that_broke_something():
    result = made(("zero", "mean"))
    wrong = WrongAnswer("15+17", "032", "022", "lost the carry from the 1s")
    broke = FailureProfile(
        "encoder.0.self.0",
        "zero",
        7,
        (Group("digit", "10s", 6, 7), Group("digit", "1s", 0, 7)),
        (Group("fault", "lost the carry from the 1s", 4, 7),),
        (Group("carries", "1", 7, 900), Group("carries", "0", 0, 1100)),
        (wrong,),
    )
    harmless = replace(broke, head="encoder.0.self.1", n_broken=0)
    with_them = replace(result, conditions=(replace(result.conditions[0], failures=(broke, harmless)),))
    (table,) = view.failure_tables(with_them, with_them.conditions[0], "zero")
    text = printed(table)
    for part in ("without encoder.0.self.0 (zero): 7 of 2,000 broke", "digit: 10s", "6 of 7", "4 of 7", "7 of 900"):
        assert part in text
    assert "15+17: predicted 022, should be 032" in text
    assert "digit: 1s" not in text
    assert "1,100" not in text
    assert view.failure_tables(with_them, with_them.conditions[0], "mean") == []


def test_a_figure_needs_no_torch():
    """Plain data and one call, in a process where torch cannot be imported."""
    text = made(("zero",), lengths=(4, 6)).to_json()
    program = (
        "import sys, json\n"
        "from types import SimpleNamespace\n"
        "sys.modules['torch'] = None\n"
        "from headcount.figures import ablation as view, pruning\n"
        "result = json.load(sys.stdin, object_hook=lambda data: SimpleNamespace(**data))\n"
        "view.draw_ranking(result, result.conditions[0]), view.draw_map(result, result.conditions[1])\n"
        "view.draw_lengths(result), view.ablation_table(result, result.conditions[0])\n"
        "assert view.ablation_notes(result, result.conditions[0])\n"
    )
    subprocess.run([sys.executable, "-c", program], input=text, text=True, check=True)


# --- for other programs ---------------------------------------------------------------------------------------------


def test_markdown_has_the_ranking_as_printed_and_escapes_names():
    result = replace(made(), name="runs/a|b*c`d\ne")
    text = view.ablation_markdown(result)
    (where,) = result.conditions
    head, rows = view.ablation_rows(result, where)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("\\", "") for cell in line.strip("|").split(" | ")] for line in lines]
    assert cells == [head, ["---"] * 6, *([" ".join(cell.split()) for cell in row] for row in rows)]
    assert text.startswith("runs/a\\|b\\*c\\`d e: drop (points); ")
    notes = [line[2:].replace("\\", "") for line in text.splitlines() if line.startswith("- ")]
    assert notes == view.ablation_notes(result, where)


def test_csv_is_exact_and_holds_no_formula():
    result = made(lengths=(16, 64))
    odd = replace(result.heads[0], metric='=1+1,"x"\nnext', drop=-0.1, examples_needed=None)
    result = replace(result, heads=(odd, *result.heads[1:]))
    rows = list(csv.DictReader(io.StringIO(view.ablation_csv(result), newline="")))
    assert list(rows[0]) == [field.name for field in fields(Effect)]
    assert rows[0]["metric"] == '\'=1+1,"x"\nnext'
    assert len(rows) == 2 * 3 * 9
    for row, each in zip(rows, result.heads, strict=True):
        assert (float(row["drop"]), float(row["p"]), int(row["length"])) == (each.drop, each.p, each.length)
        assert row["examples_needed"] == ("" if each.examples_needed is None else str(each.examples_needed))
        for name, value in row.items():
            if value[:1] in tuple("=+-@") and value:
                assert float(value) == getattr(each, name), "only numbers"
