"""What models know of positions, told from results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib.colors import to_hex
from told_results import audit, cells, material, require_sound, sentences, stretch, subject, texts

from headcount.analysis.positions import LinearShift, PositionsShown, TableRow, all_encodings
from headcount.describing.blocks import Notice, Picture
from headcount.describing.sections.positions import section
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
    made = section(material(*(subject(f"m{i}", positions=each, **known) for i, each in enumerate(positions))))
    require_sound(made)
    return made


def test_without_positions_there_is_no_section():
    assert section(material(subject("a"))) is None


def test_rows_that_were_never_trained_are_counted(shown):
    made = report(shown("learned", rows(*NEVER)))
    assert made.answer.text == (
        "Of 6 positions of m0 that are shown, 2 have a row that was never trained; the last trained one is 3."
    )
    assert (
        "Training moved its 4 rows by 0.30 to 0.60, and the 2 that it never met by 0.01; none of them turned"
        in texts(made)
    )


def test_the_opposite_table_gives_the_opposite_sentences(shown):
    made = report(shown("learned", rows(*["trained"] * 6), n_trained=6))
    assert made.answer.text.startswith("Each of 6 positions of m0 that are shown has a row of its table")
    assert "Training moved its 6 rows by 0.30 to 0.80 from where they began." in texts(made)
    assert "but they turned (least cosine 0.500), so something met them" in texts(
        report(shown("learned", rows(*NEVER, cosine=0.5)))
    )
    assert "never met not at all" in texts(report(shown("learned", rows(*NEVER, drift=0.0))))


def test_positions_past_the_table_are_told(shown):
    past = rows("trained", "trained", "past the table", "past the table")
    assert "2 lie past the end of its table, where random rows stand in" in texts(report(shown("learned", past)))
    same = [replace(each, norm=1.0) for each in past]
    assert "where its last row is repeated" in texts(report(shown("learned", same)))
    assert "1 lies past the end" in texts(report(shown("learned", past[:3])))


def test_where_rows_began_may_not_be_known(shown):
    unknown = [replace(each, moved=None, cosine=None) for each in rows(*NEVER)]
    (told,) = (each for each in sentences(report(shown("learned", unknown))) if not each.is_decided)
    assert "is not known" in told.text
    assert "1.00 to 4.00 long" in told.text


@pytest.mark.parametrize(("held_out", "told"), [(1.2, "trained rows tell nothing of"), (0.4, "tell something of")])
def test_whether_one_row_tells_of_the_next(shown, profiles, held_out, told):
    learned = profiles["learned"]
    shift = replace(learned.shift, linear=LinearShift(4, 8, 0.0, held_out, 0.5))
    found = texts(report(shown("learned", rows(*NEVER), encoding=replace(learned, shift=shift))))
    assert told in found
    assert f"{100 * held_out:.1f} % of its size" in found


def test_what_is_not_learned_row_by_row(shown):
    made = report(shown("sinusoidal"), shown("none"), shown("learned"), shown("length-normalised"))
    told = texts(made)
    assert "In m0 (sinusoidal), t - s alone decides how like two positions are, at the 2 positions past" in told
    assert "one rotation takes every P(p) to P(p + k), to within" in told
    assert "All 6 positions are alike to m1" in told
    assert "In m2 (learned), t - s does not decide how like two positions are: it leaves" in told
    assert "In m3 (length-normalised), t - s alone decides how like two positions are in sequences of 6, though" in told
    assert "past the last" not in texts(report(shown("sinusoidal", n_trained=6)))


def test_a_learned_table_is_what_the_beginning_tells_of(shown):
    made = report(shown("sinusoidal"), shown("learned", rows(*NEVER)))
    assert "m1" in made.answer.text
    assert "m0" in report(shown("sinusoidal"), shown("none")).answer.text
    two = [subject(name, positions=shown("learned", rows(*NEVER))) for name in ("adder", "sorter")]
    made = section(material(two[0], replace(two[1], stretch=stretch("learned"))))
    assert "sorter" in made.answer.text, "which is asked to go on"


def test_pictures_mark_the_last_trained_position(shown):
    made = report(shown("learned", rows(*NEVER)))
    (picture,) = (block for block in made.blocks if isinstance(block, Picture))
    assert picture.draw().axes[0].lines[0].get_xdata()[0] == 3.5
    assert picture.command == "headcount positions runs/m0"
    assert "4 to 5: moved by 0.01 to 0.01" in picture.alt
    assert cells(made, "positions-m0-0-table")[0] == ["encoding", "learned (generic); touches embeddings"]


def test_the_exercises_encodings_stand_side_by_side(shown):
    positions = {name: shown(name, rows(*NEVER) if name == "learned" else ()) for name in ("learned", "none", "alibi")}
    sinusoidal = shown("sinusoidal")
    subjects = [subject(name, positions=each) for name, each in [*positions.items(), ("sinusoidal", sinusoidal)]]
    made = section(material(*subjects))
    require_sound(made)
    picture = next(block for block in made.blocks if isinstance(block, Picture))
    assert picture.id == "positions-side-by-side"
    assert picture.caption.endswith("sinusoidal, learned and none"), "in the exercise's order, and no other"
    titles = [axes.get_title().split("\n")[0] for axes in picture.draw().axes]
    assert titles[:3] == ["sinusoidal", "learned", "none"]
    alone = section(material(*subjects[1:3]))
    assert not any(block.id == "positions-side-by-side" for block in alone.blocks if isinstance(block, Picture))
    adder = subject("adder", "addition", positions=sinusoidal)
    other = section(material(adder, subjects[0]))
    assert not any(block.id == "positions-side-by-side" for block in other.blocks if isinstance(block, Picture))


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
