"""How often models are right, in sentences: whether both accuracies agree, and where a model is worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headcount.describing.blocks import Sentence
from headcount.describing.story import Subject
from headcount.describing.words import ONE_SEED, percent, sentence, some, within
from headcount.figures.training import claim_note
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.training.evaluation import Classification, Evaluation

    AnyEvaluation = Evaluation | Classification

PLACES = {"digit": "at the {}", "longest chain": "where the longest carry chain is {}", "kind": "on “{}”"}
"""Facets whose worst group is worth a sentence, and how its place is called."""
EACH_SEED = "Each is one training run: other seeds may come out otherwise."
FED = "fed the right answer so far at every token"


def main_share(evaluation: AnyEvaluation) -> Proportion:
    """Whole answers that it writes by itself, or classes; of a model that was not decoded, those it is fed."""
    found = _share(evaluation.rows[0])
    assert found is not None, "an evaluation has a share"
    return found


def told(found: Proportion) -> str:
    """`1,998 of 2,000 right (99.9 %, 95 % interval 99.6 to 99.98)`."""
    return f"{found.correct:,} of {found.n:,} right ({percent(found.rate)}, {within(found.low, found.high)})"


def of_one(subject: Subject, rests_on: str) -> list[Sentence]:
    """How often, both ways or both classes, and where it is worst."""
    evaluation = subject.evaluation
    assert evaluation is not None, "asked of a model that was measured"
    is_writer = hasattr(evaluation, "exact")
    first = _writer(subject.title, evaluation) if is_writer else _classifier(subject.title, evaluation)
    found = [*first, *_worst(evaluation)]
    if evaluation.claim is not None:
        claim = evaluation.claim
        found.append(
            Sentence(sentence(f"its author's figure is {claim_note(claim)}"), is_decided=claim.agrees is not None)
        )
    return [Sentence(each.text, rests_on, each.is_decided) for each in found]


def _writer(title: str, evaluation: Any) -> list[Sentence]:
    """Of a model that writes its answers."""
    forced, free = evaluation.exact.teacher_forced, evaluation.exact.free_running
    if free is None:
        text = f"On the {evaluation.split} set {title} gets {told(forced)} {FED}; what it writes by itself was not "
        return [Sentence(f"{text}measured, so how good it is stays undecided.", is_decided=False)]
    text = f"On the {evaluation.split} set {title} gets {told(free)}, each answer written token by token without help."
    return [Sentence(f"{text} {ONE_SEED}"), *([_agreement(forced, free)] if forced is not None else [])]


def _agreement(forced: Proportion, free: Proportion) -> Sentence:
    """One number in a sound pipeline: fed the right prefix, the first wrong token is the same either way."""
    if forced.correct == free.correct and forced.n == free.n:
        text = f"The two accuracies agree, as they do in a sound pipeline: {FED}, it gets {forced.correct:,} right too."
        return Sentence(text)
    if forced.low > free.high or free.low > forced.high:
        text = f"The two accuracies do not agree: {FED}, it gets {told(forced)}. "
        return Sentence(f"{text}In a sound pipeline they are one number, so this gap is a fault of the pipeline.")
    text = f"Whether the two accuracies agree is undecided: {FED}, it gets {told(forced)}, and the intervals overlap."
    return Sentence(text, is_decided=False)


def _classifier(title: str, evaluation: Any) -> list[Sentence]:
    """Of a model that says one of two classes: each by itself, for one answer to everything is right on half."""
    right, classes = evaluation.accuracy.right, groups_of(evaluation, "class")
    text = f"On the {evaluation.split} set {title} gets {told(right)}"
    by_class = [f"{told(share)} of the {name} ones" for name, share in classes.items()]
    text += f": {some(by_class)}." if by_class else "."
    if evaluation.constant:
        text += f" It answers “{evaluation.constant}” to (nearly) everything, so it has learned nothing that counts."
    return [Sentence(f"{text} {ONE_SEED}")]


def _worst(evaluation: AnyEvaluation) -> list[Sentence]:
    """By digit, by carry chain or by kind; only an interval below all others names a place."""
    right = main_share(evaluation)
    by_facet = {facet: groups_of(evaluation, facet) for facet in PLACES}
    by_facet = {facet: groups for facet, groups in by_facet.items() if len(groups) > 1}
    if not by_facet:
        return []
    if right.correct == right.n:
        text = f"Where it is worst is undecided: on these {right.n:,} examples it is wrong nowhere."
        return [Sentence(text, is_decided=False)]
    return [_worst_of(facet, groups) for facet, groups in by_facet.items()]


def _worst_of(facet: str, groups: dict[str, Proportion]) -> Sentence:
    """Of the groups of one facet."""
    order = sorted(groups, key=lambda name: groups[name].rate)
    worst, rivals = groups[order[0]], [name for name in order[1:] if groups[name].low <= groups[order[0]].high]
    place, best = PLACES[facet].format(order[0]), PLACES[facet].format(order[-1])
    if rivals:
        text = f"By {facet}, where it is worst is undecided: it is right least often {place}, {told(worst)}, but the "
        return Sentence(f"{text}interval overlaps with that of {some(rivals)}.", is_decided=False)
    return Sentence(f"By {facet}, it is worst {place}: {told(worst)}; and best {best}: {told(groups[order[-1]])}.")


def groups_of(evaluation: AnyEvaluation, facet: str) -> dict[str, Proportion]:
    """The main share in each group of a facet."""
    return {row.group.strip(): share for row in evaluation.rows if row.facet == facet and (share := _share(row))}


def _share(row: Any) -> Proportion | None:
    """What it writes by itself, or its classes; else what it writes when it is fed."""
    found = (getattr(row, key, None) for key in ("free_running", "right", "teacher_forced"))
    return next((each for each in found if each is not None), None)


def of_several(subjects: Sequence[Subject], rests_on: str) -> list[Sentence]:
    """Which is right most often, who gives one answer to everything, and whose two accuracies are two."""
    found = [Sentence(each.text, rests_on, each.is_decided) for each in _rankings(subjects)]
    constant = [f"{each.title} (“{said}”)" for each in subjects if (said := getattr(each.evaluation, "constant", None))]
    if constant:
        found.append(Sentence(f"One answer to (nearly) everything: {some(constant, 12)}.", rests_on))
    apart = [each.title for each in subjects if _is_apart(each.evaluation)]
    if apart:
        text = f"The two accuracies do not agree, which is a fault of the pipeline: {some(apart, 12)}."
        found.append(Sentence(text, rests_on))
    return found


def _rankings(subjects: Sequence[Subject]) -> list[Sentence]:
    """Of models that were tested on the same examples; others cannot be ranked, and are told by themselves."""
    sets: dict[tuple[tuple[str, str, int], ...], list[tuple[str, Proportion]]] = {}
    for each in subjects:
        if each.evaluation is not None:
            sets.setdefault(_test_set(each.evaluation), []).append((each.title, main_share(each.evaluation)))
    together = sorted(sets.values(), key=lambda pairs: -len(pairs))
    alone = [f"{title} {told(share)}" for pairs in together if len(pairs) == 1 for title, share in pairs]
    found = [_ranking(pairs) for pairs in together if len(pairs) > 1]
    if alone and found:
        found.append(Sentence(f"Tested on other examples, and so not to be ranked with these: {some(alone, 12)}."))
    elif alone:
        text = f"Which of {len(subjects)} models is right most often is undecided, for no two were tested on the same "
        found = [Sentence(f"{text}examples: {some(alone, 12)}.", is_decided=False)]
    return [Sentence(f"{found[0].text} {EACH_SEED}", is_decided=found[0].is_decided), *found[1:]]


def _test_set(evaluation: AnyEvaluation) -> tuple[tuple[str, str, int], ...]:
    """What tells test sets apart: how many examples of each group there are."""
    return tuple((row.facet, row.group, share.n) for row in evaluation.rows if (share := _share(row)))


def _ranking(pairs: list[tuple[str, Proportion]]) -> Sentence:
    """Who is right most often, if one interval lies above all others."""
    (name, top), *others = sorted(pairs, key=lambda pair: -pair[1].rate)
    rivals = [title for title, share in others if share.high >= top.low]
    which = f"{some([title for title, _ in pairs], 12)}, tested on the same examples"
    last = "" if len(rivals) == len(others) else f"; least often {others[-1][0]}, {told(others[-1][1])}"
    if not rivals:
        return Sentence(f"Of {which}, {name} is right most often: {told(top)}{last}.")
    reach = "interval of {} reaches" if len(rivals) == 1 else "intervals of {} reach"
    text = f"Which of {which}, is right most often is undecided: {name} gets {told(top)}, and the "
    return Sentence(f"{text}{reach.format(some(rivals, 4))} as far{last}.", is_decided=False)


def _is_apart(evaluation: Any) -> bool:
    exact = getattr(evaluation, "exact", None)
    if exact is None or exact.free_running is None or exact.teacher_forced is None:
        return False
    one, other = exact.teacher_forced, exact.free_running
    return bool(one.low > other.high or other.low > one.high)
