"""What does a model know of positions? What is added, how like each other positions are, and what was never trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.reaches import EXERCISE, is_plain
from headcount.describing.story import Material, Subject
from headcount.describing.verdicts import POSITIONS, notices
from headcount.describing.words import counted, percent, some
from headcount.errors import argument
from headcount.figures.positions import EXACT, draw_positions, draw_side_by_side, positions_rows

if TYPE_CHECKING:
    from headcount.analysis.positions import PositionsShown, TableRow

TURNED = 1 - 1e-6
"""A cosine above this is that of a row which was shrunk or stretched, but never turned."""
AS_GUESSING = 0.95
"""A share of its own size by which a step is missed, from where on it tells next to nothing."""


def section(material: Material) -> Section | None:
    """Every model whose positions were looked at."""
    subjects = material.with_("positions")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "An encoding may add a vector P(p) to what stands at position p, turn queries and keys, or add a bias to "
            "scores. K(t, s) is how like each other it makes two positions. Dashed lines stand behind the last "
            "position that training met."
        )
    ]
    blocks += _side_by_side(subjects)
    answers = []
    for subject in subjects:
        found = conclusions(subject, material.block_id("positions", subject))
        # What a model that is stretched is warned of stands where it is seen how far it reaches.
        warned = [] if subject.stretch else notices(subject, [POSITIONS])
        blocks += [*warned, Conclusions(tuple(found)), *_shown(material, subject)]
        answers.append((not (subject.positions and subject.positions.rows), not subject.stretch, found[0]))
    answer = min(answers, key=lambda each: each[:2])[-1]  # of a learned table, and one that is asked to go on
    return Section("positions", "What does a model know of positions?", tuple(blocks), answer)


def _side_by_side(subjects: Sequence[Subject]) -> list[Picture]:
    """Draw the exercise's encodings beside each other, as the report's models have them; nothing if there is one."""
    shown = {name: each.positions for name in EXERCISE for each in reversed(subjects) if _has_encoding(each, name)}
    found = [each for each in shown.values() if each is not None]
    if len(found) < 2:
        return []
    names = some([each.encoding.name for each in found])
    caption = f"Encodings side by side, as the models of this report have them: {names}"
    parts = [f"{each.encoding.name} acts on {each.encoding.acts_on}" for each in found]
    alt = f"What each encoding does at every position, and how alike it makes two positions: {'; '.join(parts)}."
    return [Picture("positions-side-by-side", caption, alt, lambda: draw_side_by_side(found))]


def _has_encoding(subject: Subject, name: str) -> bool:
    """Whether this sorter has this encoding and nothing else that is special."""
    shown, result = subject.positions, subject.stretch
    if shown is None or shown.encoding.name != name or subject.task != "sortedness":
        return False
    return result is None or is_plain(result)


def conclusions(subject: Subject, rests_on: str = "") -> list[Sentence]:
    """What was trained of what is shown; then whether one step is like another."""
    shown = subject.positions
    assert shown is not None, "asked of a model whose positions were looked at"
    if shown.rows:
        return [_rows(subject.title, shown, rests_on), *_moved(shown, rests_on), *_next_row(shown, rests_on)]
    return [_step(subject.title, shown, rests_on)]


def _rows(title: str, shown: PositionsShown, rests_on: str) -> Sentence:
    """How many rows of a learned table never met a gradient."""
    states = [row.state for row in shown.rows]
    n, never, past = len(states), states.count("never trained"), states.count("past the table")
    if not never + past:
        text = f"Each of {n} positions of {title} that are shown has a row of its table, and training met all of them."
        return Sentence(text, rests_on)
    parts = [f"{never} {'has' if never == 1 else 'have'} a row that was never trained"] if never else []
    lie = "lies" if past == 1 else "lie"
    parts += [f"{past} {lie} past the end of its table, where {_stand_in(shown.rows)}"] if past else []
    last = f"the last trained one is {shown.n_trained - 1}"
    return Sentence(f"Of {n} positions of {title} that are shown, {' and '.join(parts)}; {last}.", rests_on)


def _stand_in(rows: Sequence[TableRow]) -> str:
    past = [row.norm for row in rows if row.state == "past the table"]
    return "its last row is repeated" if len(set(past)) == 1 < len(past) else "random rows stand in"


def _moved(shown: PositionsShown, rests_on: str) -> list[Sentence]:
    """How far training moved the rows it met, and those it did not."""
    found = {state: [row for row in shown.rows if row.state == state] for state in ("trained", "never trained")}
    if not found["trained"]:
        return []
    if any(row.moved is None for rows in found.values() for row in rows):
        norms = [row.norm for row in found["trained"]]
        text = "Where its rows began is not known, so how far training moved them is open; trained rows are "
        return [Sentence(f"{text}{min(norms):.2f} to {max(norms):.2f} long.", rests_on, is_decided=False)]
    text = f"Training moved its {counted(len(found['trained']), 'row')} by {_span(found['trained'])}"
    if not (others := found["never trained"]):
        return [Sentence(f"{text} from where they began.", rests_on)]
    if not any(row.moved for row in others):
        return [Sentence(f"{text}, and the {len(others)} that it never met not at all.", rests_on)]
    least = min(row.cosine for row in others if row.cosine is not None)
    turned = "none of them turned: only their length changed, as weight decay does"
    turned = turned if least > TURNED else f"but they turned (least cosine {least:.3f}), so something met them"
    return [Sentence(f"{text}, and the {len(others)} that it never met by {_span(others)}; {turned}.", rests_on)]


def _span(rows: Sequence[TableRow]) -> str:
    moved = [row.moved for row in rows if row.moved is not None]
    return " to ".join(dict.fromkeys(f"{each:.2f}" for each in (min(moved), max(moved))))


def _next_row(shown: PositionsShown, rests_on: str) -> list[Sentence]:
    """Whether trained rows tell what the next one would be."""
    linear = shown.encoding.shift.linear
    if linear is None:
        return []
    text = f"A linear step fitted on its {linear.n_rows} trained rows misses one that it was not fitted on by "
    text += f"{percent(linear.held_out)} of its size: "
    if linear.held_out >= AS_GUESSING:
        return [Sentence(f"{text}no better than a guess of 0, so trained rows tell nothing of the next.", rests_on)]
    return [Sentence(f"{text}better than a guess of 0, so trained rows tell something of the next.", rests_on)]


def _step(title: str, shown: PositionsShown, rests_on: str) -> Sentence:
    """Of what is not learned row by row: whether only distances matter, or nothing."""
    encoding, past = shown.encoding, shown.n_positions - shown.n_trained
    if encoding.acts_on == "nothing":
        text = f"All {shown.n_positions} positions are alike to {title}: its encoding does nothing, and K is 0."
        return Sentence(text, rests_on)
    share = encoding.shift.variance_beyond_distance
    beyond = f", at the {past} positions past the last trained one as well" if past > 0 else ""
    name = f"In {title}{'' if encoding.name in title else f' ({encoding.name})'}, t - s"
    if share < EXACT:
        error, largest = encoding.shift.rotation_error, encoding.shift.largest_entry
        turned = ""
        if error is not None and largest is not None and error < EXACT * largest:
            within = f"to within {error:.1g} of entries up to {largest:.2g}"
            turned = f": one rotation takes every P(p) to P(p + k), {within}"
        at = (
            f" in sequences of {encoding.at_length}, though not as it does at other lengths"
            if encoding.at_length
            else ""
        )
        return Sentence(f"{name} alone decides how like two positions are{at}{beyond}{turned}.", rests_on)
    text = f"{name} does not decide how like two positions are: it leaves {percent(share)} of the variance of K open"
    return Sentence(f"{text}, over {shown.n_positions} positions.", rests_on)


def _shown(material: Material, subject: Subject) -> list[Block]:
    shown, name = subject.positions, material.block_id("positions", subject)
    assert shown is not None, "asked of a model whose positions were looked at"
    command = f"headcount positions {argument(subject.name)}"
    rows = positions_rows(shown)
    caption = f"Positions of {subject.title}: {shown.encoding.name}, trained on 0 to {shown.n_trained - 1}"
    alt = f"{caption}; {shown.n_positions} are shown. " + " ".join(f"{what}: {told}." for what, told in rows[2:4])
    about = f"What its encoding does, in words: {subject.title}"
    table = DataTable(f"{name}-table", about, ("asked", "found"), tuple(rows), command=command)
    if shown.encoding.acts_on == "nothing":  # there is nothing to be seen
        return [replace(table, id=name)]
    return [Picture(name, caption, alt, lambda: draw_positions(shown), command), table]


PART = section
