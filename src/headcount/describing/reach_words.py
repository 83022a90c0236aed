"""What length generalisation comes to, in sentences: models that were given structure are never ranked among others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headcount.describing.blocks import Sentence
from headcount.describing.reaches import (
    EXERCISE,
    Reach,
    at,
    causes_of,
    is_plain,
    is_right,
    is_wrong,
    named,
    reach_of,
    up_to,
)
from headcount.describing.story import Subject
from headcount.describing.words import counted, interval, once, percent, sentence, some
from headcount.figures.length_generalisation import mark

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch

TableId = Callable[[str], str]
"""Of the table of a kind of negative."""
ASKED = "Trained on lengths"
"""How the exercise's answer begins."""
EASIEST = "shuffle"
SPOKEN = {"none": "a model without positions"}
"""Of encodings."""


def conclusions(subjects: Sequence[Subject], kind: str, table: TableId) -> list[Sentence]:
    """The exercise's answer first, if its encodings are there; then each model, and what fails first."""
    stretched = [(each, each.stretch) for each in subjects if each.stretch]
    found = [(each, result, reach) for each, result in stretched if (reach := reach_of(result, kind))]
    own = [_own(subject, result, reach, table(kind)) for subject, result, reach in found]
    exercise = [(each.encoding, reach) for _, each, reach in found if _is_asked(each)]
    trained = {each.trained for _, each, _ in found if _is_asked(each)}
    first = []
    if len({name for name, _ in exercise}) > 1 and len(trained) == 1 and (span := trained.pop()):
        first = [exercise_answer(exercise, span, table(kind))]
    return [
        *first,
        *_farthest(
            [(s.title, reach) for s, each, reach in found if not each.hard_codes], "generic models", table(kind)
        ),
        *_farthest(
            [(f"{s.title} ({mark(each)})", reach) for s, each, reach in found if each.hard_codes],
            "models that were given structure",
            table(kind),
        ),
        *own,
        *_easy(found, table),
        *_one_answer(found, table(kind)),
        *(each for s, result, reach in found for each in _lost(s, result, reach, table("causes"))),
    ]


def exercise_answer(found: Sequence[tuple[str, Reach]], trained: tuple[int, int], rests_on: str) -> Sentence:
    """Which of sinusoidal, learned and none go beyond the lengths they were trained on."""
    reaches = {
        SPOKEN.get(name, name): [reach for each, reach in found if each == name]
        for name in EXERCISE
        if name in dict(found)
    }
    told = list[str]()
    for name, mine in reaches.items():
        runs = f" ({counted(len(mine), 'run')})" if len(mine) > 1 else ""
        far = some(list(dict.fromkeys(map(up_to, mine))))
        told.append(f"{name}{runs} {'' if told else 'is right '}{far}")
    what, is_decided = _beyond(reaches, trained[1])
    n = _sizes([cell for _, reach in found for cell in reach.cells])
    seeds = "one seed each" if len(found) == len(reaches) else f"{len(found)} runs"
    text = f"{ASKED} {trained[0]} to {trained[1]} and tried on {named(found[0][1].kind)}, {some(told)}"
    return Sentence(f"{text}: {what} ({n} per length, {seeds}).", rests_on, is_decided)


def _beyond(reaches: Mapping[str, Sequence[Reach]], longest: int) -> tuple[str, bool]:
    """Which do in all runs, in some, perhaps, or not; and whether that is decided."""
    beyond, mixed, may, no = list[str](), list[str](), list[str](), list[str]()
    for name, mine in reaches.items():
        n = sum(reach.length > longest for reach in mine)
        is_open = any(reach.length <= longest < reach.most for reach in mine)
        kind = may if is_open else beyond if n == len(mine) else mixed if n else no
        kind.append(f"{name} in {n} of {len(mine)} runs" if kind is mixed else name)
    if len(no) == len(reaches):
        return f"{'neither' if len(no) == 2 else 'not one'} of them goes beyond training", True
    goes = [*beyond, *mixed]
    parts = [f"{some(goes)} {'goes' if len(goes) == 1 else 'go'} beyond training"] if goes else []
    parts += [f"whether {some(may)} {'goes' if len(may) == 1 else 'go'} beyond training is undecided"] if may else []
    return ", and ".join(parts) + (f", {some(no)} {'does' if len(no) == 1 else 'do'} not" if no else ""), not may


def beyond_training(subjects: Sequence[Subject], kind: str, answer: Sentence) -> list[str]:
    """Beside the exercise's answer, if it is one: others that are right beyond training, and what they were given."""
    if not answer.text.startswith(ASKED):
        return []
    found = [(each.title, each.stretch, reach_of(each.stretch, kind)) for each in subjects if each.stretch]
    told = [
        f"{title} ({result.label}; {mark(result)}) {up_to(reach)} ({at(reach.last)})"
        for title, result, reach in found
        if reach and reach.last and result.trained and reach.length > result.trained[1] and not _is_asked(result)
    ]
    return [f"Right beyond training: {some(told)}."] if told else []


def _is_asked(result: Stretch) -> bool:
    """Whether it is one of the exercise's."""
    return is_plain(result) and result.encoding in EXERCISE


def _sizes(cells: Sequence[LengthResult]) -> str:
    """`n = 200`, `n = 200 to 1,000`."""
    sizes = [cell.n for cell in cells]
    return f"n = {' to '.join(f'{n:,}' for n in dict.fromkeys((min(sizes), max(sizes))))}"


def _farthest(found: Sequence[tuple[str, Reach]], what: str, rests_on: str) -> list[Sentence]:
    """Among models of one kind alone."""
    if len(found) < 2:
        return []
    best, kind = max(reach.length for _, reach in found), named(found[0][1].kind)
    tops = [(name, reach) for name, reach in found if reach.length == best]
    rivals = [f"{name} {up_to(reach)}" for name, reach in found if reach.most > best]
    if not best:
        over = _sizes([cell for _, reach in found for cell in reach.cells])
        text = f"Not one of {len(found)} {what} is shown to be right on {kind}, at whatever length ({over})."
        return [Sentence(text, rests_on, is_decided=not rivals)]
    last = tops[0][1].last
    assert last is not None, "it is right somewhere"
    shown = f"{best:,} ({at(last)})" if len(tops) == 1 else f"{best:,} ({_sizes([last])})"
    who = some([name for name, _ in tops])
    if rivals:
        text = f"Which of {len(found)} {what} reaches farthest on {kind} is undecided: {who} up to {shown}"
        return [Sentence(f"{text}; {some(rivals)}.", rests_on, is_decided=False)]
    reach = "reaches" if len(tops) == 1 else "reach"
    return [Sentence(f"Of {len(found)} {what}, {who} {reach} farthest on {kind}: up to {shown}.", rests_on)]


def _own(subject: Subject, result: Stretch, reach: Reach, rests_on: str) -> Sentence:
    """Of one model: how far, with the numbers on both sides of the border."""
    who = f"On {named(reach.kind)}, {subject.title} ({mark(result)}, {once(subject.settings)})"
    if reach.open:
        cell = reach.open[0]
        far = f"is right up to {reach.length:,}; beyond" if reach.last else "may reach far or not at all:"
        text = f"{who} {far} that is undecided, from {cell.length:,} on ({at(cell)})"
    elif reach.last is None:
        first = reach.cells[0]
        included = result.trained is not None and first.length <= result.trained[1]
        which = "at any length, trained ones included" if included else "at any length that was tried"
        text = f"{who} is not right {which}: at {first.length:,} {_how(first)}"
    elif (wrong := reach.first_wrong) is None:
        text = f"{who} is right at every length that was tried, up to {reach.length:,} ({at(reach.last)})"
    else:
        text = f"{who} is right up to {reach.length:,} ({at(reach.last)}) and no more at {wrong.length:,}, where "
        text += _how(wrong)
    return Sentence(f"{text}{_refused(result)}.", rests_on, is_decided=not reach.open)


def _how(cell: LengthResult) -> str:
    return at(cell) if cell.constant else f"it reaches {at(cell)}"


def _refused(result: Stretch) -> str:
    return f"; it refuses {some([f'{x:,}' for x in result.refused_lengths], 4)}" if result.refused_lengths else ""


def _easy(found: Sequence[tuple[Subject, Stretch, Reach]], table: TableId) -> list[Sentence]:
    """Models that look far-reaching on what nearly any model catches."""
    told = []
    for subject, result, reach in found:
        easy = reach_of(result, EASIEST)
        if easy and easy.last and reach.kind != EASIEST and easy.length > reach.most:
            flattered = f"{subject.title} is right on them {up_to(easy)} ({at(easy.last)})"
            told.append(f"{flattered}, on {named(reach.kind)} {up_to(reach)}")
    if not told:
        return []
    text = f"{sentence(named(EASIEST)).rstrip('.')} flatter: {'; '.join(told)}. To tell disorder is not to tell order."
    return [Sentence(text, table(EASIEST))]


def _one_answer(found: Sequence[tuple[Subject, Stretch, Reach]], rests_on: str) -> list[Sentence]:
    """Accuracies of about 50 % that say nothing."""
    told, cells = [], []
    for subject, _, reach in found:
        constant = [cell for cell in reach.cells if cell.constant]
        for answer in dict.fromkeys(cell.constant_class for cell in constant):
            lengths = some([f"{cell.length:,}" for cell in constant if cell.constant_class == answer], 4)
            told.append(f"“{answer}” from {subject.title} at {lengths}")
        cells += constant
    if not told:
        return []
    text = f"One answer to everything, or nearly, comes at some lengths: {'; '.join(told)} ({_sizes(cells)} each)"
    return [Sentence(f"{text}. The 50 % that this scores says nothing of a model.", rests_on)]


def _lost(subject: Subject, result: Stretch, reach: Reach, rests_on: str) -> list[Sentence]:
    """What breaks a model at the first length beyond its reach: the ids, the gaps between numbers, or the length."""
    known = causes_of(result, reach)
    if known is None:
        return []
    wrong, ids, gaps = known
    shares = [f"{percent(cell.accuracy)} ({interval(cell.low, cell.high)}, n = {cell.n:,})" for cell in (ids, gaps)]
    text = f"Why does {subject.title} fail at {wrong.length:,}? Sequences of {ids.length} with the last positions of "
    text += f"one of {wrong.length:,} are right in {shares[0]}, those with its small gaps in {shares[1]}: "
    if is_right(ids) and is_right(gaps):
        return [Sentence(f"{text}neither makes it fail, so it is the length itself, or several together.", rests_on)]
    told = f"unknown positions alone {_enough(ids)}, small gaps alone {_enough(gaps)}"
    told = "either makes it fail by itself" if is_wrong(ids) and is_wrong(gaps) else told
    is_decided = all(is_right(cell) or is_wrong(cell) for cell in (ids, gaps))
    return [Sentence(f"{text}{told}{'' if is_decided else ', which is undecided'}.", rests_on, is_decided)]


def _enough(cell: LengthResult) -> str:
    return "make it fail" if is_wrong(cell) else "do not" if is_right(cell) else "may do so"
