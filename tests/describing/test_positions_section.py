"""How models represent position: sentences and tables follow from results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from told_results import audit, cells, model_results, report_results, require_sound, sentences, stretch, texts

from headcount.analysis.positions import LinearShift, PositionsShown, TableRow, all_encodings
from headcount.describing.blocks import Notice, Picture
from headcount.describing.sections.positions import describe, positions_rows, section
from headcount.rendering.svg import inline_svg


@pytest.fixture(scope="module")
def profiles():
    return {each.name: each for each in all_encodings(d_model=8, n_heads=2, n_positions=6).encodings}


@pytest.fixture
def shown(profiles):
    """Six positions of an encoding, of which four were trained."""
    return lambda name, rows=(), **changes: PositionsShown(
        **{"name": "a", "weights_sha256": "digest", "n_positions": 6, "n_trained": 4, "random_positions": None}
        | {"encoding": profiles[name], "rows": tuple(rows)}
        | changes
    )


def rows(*states, moved=0.3, drift=0.01, cosine=1.0):
    return [
        TableRow(
            i, state, 1.0 + i, moved + i / 10 if state == "trained" else drift, 0.7 if state == "trained" else cosine
        )
        for i, state in enumerate(states)
    ]


NEVER = ["trained"] * 4 + ["never trained"] * 2


def report(*positions, **known):
    made = section(
        report_results(*(model_results(f"m{i}", positions=each, **known) for i, each in enumerate(positions)))
    )
    require_sound(made)
    return made


def test_without_positions_there_is_no_section():
    assert section(report_results(model_results("a"))) is None


def test_rows_that_were_never_trained_are_counted(shown):
    made = report(shown("learned", rows(*NEVER)))
    assert made.answer.text == (
        "Of 6 positions of m0 that are shown, 2 have a row that was never trained; the last trained position is 3."
    )
    assert (
        "Training moved the 4 trained rows of the table by 0.30 to 0.60 from their initial values, and the 2 untrained "
        "rows by 0.01: their "
        "direction did not change" in texts(made)
    )


def test_the_opposite_table_gives_the_opposite_sentences(shown):
    made = report(shown("learned", rows(*["trained"] * 6), n_trained=6))
    assert made.answer.text == ("All 6 positions of m0 that are shown have a trained row in its position table.")
    assert "Training moved the 6 trained rows of the table by 0.30 to 0.80 from their initial values." in texts(made)
    assert "their direction changed (smallest cosine 0.500), so they must have been trained after all" in texts(
        report(shown("learned", rows(*NEVER, cosine=0.5)))
    )
    assert "the 2 untrained rows not at all" in texts(report(shown("learned", rows(*NEVER, drift=0.0))))


def test_positions_past_the_table_are_told(shown):
    past = rows("trained", "trained", "past the table", "past the table")
    assert "2 lie beyond its table and get a random row" in texts(report(shown("learned", past)))
    same = [replace(each, norm=1.0) for each in past]
    assert "and get the table's last row" in texts(report(shown("learned", same)))
    assert "1 lies beyond its table and gets" in texts(report(shown("learned", past[:3])))


def test_where_rows_began_may_not_be_known(shown):
    unknown = [replace(each, moved=None, cosine=None) for each in rows(*NEVER)]
    (told,) = (each for each in sentences(report(shown("learned", unknown))) if not each.is_decided)
    assert "are not known" in told.text
    assert "The norms of trained rows are 1.00 to 4.00" in told.text


@pytest.mark.parametrize(
    ("held_out", "told"), [(1.2, "trained rows do not predict the next row"), (0.4, "partly predict the next row")]
)
def test_whether_one_row_tells_of_the_next(shown, profiles, held_out, told):
    learned = profiles["learned"]
    shift = replace(learned.shift, linear=LinearShift(4, 8, 0.0, held_out, 0.5))
    found = texts(report(shown("learned", rows(*NEVER), encoding=replace(learned, shift=shift))))
    assert told in found
    assert f"{100 * held_out:.1f} % of the step's size" in found


def test_what_is_not_learned_row_by_row(shown):
    made = report(shown("sinusoidal"), shown("none"), shown("learned"), shown("length-normalised"))
    told = texts(made)
    assert (
        "In m0 (sinusoidal), the similarity of two positions depends on their distance alone, also at the 2 positions "
        "beyond the last trained one" in told
    )
    assert (
        "one rotation maps the vector of every position to the vector k positions later (no entry is off by more"
        in told
    )
    assert "All 6 positions are the same to m1" in told
    assert (
        "In m2 (learned), the similarity of two positions does not depend on their distance alone: the distance leaves"
        in told
    )
    assert (
        "In m3 (length-normalised), the similarity of two positions depends on their distance alone in sequences of 6 "
        "tokens, but differs at other lengths" in told
    )
    assert "beyond the last" not in texts(report(shown("sinusoidal", n_trained=6)))


def test_a_learned_table_is_what_the_beginning_tells_of(shown):
    made = report(shown("sinusoidal"), shown("learned", rows(*NEVER)))
    assert "m1" in made.answer.text
    assert "m0" in report(shown("sinusoidal"), shown("none")).answer.text
    two = [model_results(name, positions=shown("learned", rows(*NEVER))) for name in ("adder", "sorter")]
    made = section(report_results(two[0], replace(two[1], stretch=stretch("learned"))))
    assert "sorter" in made.answer.text, "which is asked to go on"


def test_pictures_mark_the_last_trained_position(shown):
    made = report(shown("learned", rows(*NEVER)))
    (picture,) = (block for block in made.blocks if isinstance(block, Picture))
    assert picture.draw().axes[0].lines[0].get_xdata()[0] == 3.5
    assert picture.command == "headcount positions runs/m0"
    assert "4 to 5: moved by 0.01 from their initial values" in picture.alt
    assert cells(made, "positions-m0-0-table")[0] == [
        "encoding",
        "learned (no structure built in); acts on embeddings",
    ]


def test_the_table_answers_each_question(shown):
    words = dict(positions_rows(shown("learned", rows(*NEVER))))
    assert words["rows trained"] == "0 to 3: moved by 0.30 to 0.60 from their initial values, smallest cosine 0.700"
    assert words["rows never trained"] == "4 to 5: moved by 0.01 from their initial values, same direction"
    assert words["is a step of k positions one rotation?"].startswith("no: ")
    unexplained = shown("learned").encoding.shift.variance_beyond_distance
    assert f"{unexplained:.2f}" in words["does similarity depend on distance alone?"]
    waves = dict(positions_rows(shown("sinusoidal")))
    assert waves["is a step of k positions one rotation?"].startswith("yes: ")
    assert waves["does similarity depend on distance alone?"].startswith("yes: ")
    scaled = dict(positions_rows(shown("length-normalised")))
    assert scaled["is a step of k positions one rotation?"].startswith("yes, at length 6: ")


def test_one_model_is_described_by_sentences_and_the_table(shown):
    first, table = describe(shown("learned", rows(*NEVER)))
    assert first.sentences[0].text.startswith("Of 6 positions of a that are shown, 2 have a row that was never trained")
    assert table.rows == tuple(positions_rows(shown("learned", rows(*NEVER))))


def test_the_exercises_encodings_stand_side_by_side(shown):
    positions = {name: shown(name, rows(*NEVER) if name == "learned" else ()) for name in ("learned", "none", "alibi")}
    sinusoidal = shown("sinusoidal")
    models = [model_results(name, positions=each) for name, each in [*positions.items(), ("sinusoidal", sinusoidal)]]
    made = section(report_results(*models))
    require_sound(made)
    picture = next(block for block in made.blocks if isinstance(block, Picture))
    assert picture.id == "positions-side-by-side"
    assert picture.caption.endswith("sinusoidal, learned and none"), "in the exercise's order, and no other"
    titles = [axes.get_title().split("\n")[0] for axes in picture.draw().axes]
    assert titles[:3] == ["sinusoidal", "learned", "none"]
    alone = section(report_results(*models[1:3]))
    assert not any(block.id == "positions-side-by-side" for block in alone.blocks if isinstance(block, Picture))
    adder = model_results("adder", "addition", positions=sinusoidal)
    other = section(report_results(adder, models[0]))
    assert not any(block.id == "positions-side-by-side" for block in other.blocks if isinstance(block, Picture))


@pytest.mark.slow
def test_the_line_behind_the_last_trained_position_is_seen_on_heat_maps_in_a_dark_theme(shown):
    """A page turns black into the colour of its text, which is light on dark paper, and so are the maps."""
    made = report(shown("learned", rows(*NEVER)))
    (picture,) = (block for block in made.blocks if isinstance(block, Picture))
    figure = picture.draw()
    maps = [axes for axes in figure.axes if axes.images and axes.lines]
    assert len(maps) == 2
    for axes in maps:
        under, dashes = axes.lines[:2]
        assert (to_hex(under.get_color()), to_hex(dashes.get_color())) == ("#fefefe", "#010101")
        assert under.get_linewidth() > dashes.get_linewidth()
    drawn = inline_svg(figure, "a", "positions")
    dashed = [tag for tag in re.findall(r"<path[^>]*>", drawn) if "stroke-dasharray" in tag]
    assert sum('stroke="#010101"' in tag for tag in dashed) == 3, "one in the table, two in the kernel"
    hatches = re.findall(r"<pattern.*?</pattern>", drawn, re.DOTALL)
    assert hatches
    assert not any('"#ffffff"' in each for each in hatches), "no white field beside a light line"


def test_the_audit_speaks_here_unless_it_does_where_lengths_are(shown):
    found = audit({"HC501": "warn", "HC601": "fail"})
    notices = [each for each in report(shown("none"), audit=found).blocks if isinstance(each, Notice)]
    assert [each.check for each in notices] == ["HC501"]
    assert not [
        each for each in report(shown("none"), audit=found, stretch=stretch()).blocks if isinstance(each, Notice)
    ]
