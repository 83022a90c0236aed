"""What can go together, in sentences: what greedy removal takes, the trap of harmless heads, and what luck finds."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from headcount.describing.blocks import Sentence
from headcount.describing.story import Subject
from headcount.describing.words import ONE_SEED, amount, counted, interval, percent, within
from headcount.figures.pruning import head_share

if TYPE_CHECKING:
    from headcount.analysis.pruning import Point, PrunableShare, Pruning
    from headcount.stats import PairedDifference


ORDERS = {
    "together": "in the order of their own drops",
    "every way": "in the order of the worst that any ablation did",
    "gradient": "in the order of their gradients",
}
"""Curves that are measured beside greedy removal, and what they stand for."""


def conclusions(subject: Subject, rests_on: str) -> list[Sentence]:
    """What greedy removal takes, what harmless heads leave together, what luck finds, and what was not measured."""
    result = subject.pruning
    assert result is not None, "asked of a model whose heads were removed"
    found = [greedy_sentence(subject.title, result), *share_sentences(result), *_too_many(result)]
    found += _other_orders(result)
    found += [*harmless_sentences(result), *_counted_twice(subject, result)]
    found += [*_luck(result), *_without_heads(result)]
    if result.not_measured:
        text = f"Undecided, for there was no time within {result.budget:g} s: {'; '.join(result.not_measured)}."
        found.append(Sentence(text, is_decided=False))
    return [Sentence(each.text, rests_on, each.is_decided) for each in found]


def greedy_sentence(title: str, result: Pruning) -> Sentence:
    """What goes for the asked loss where it was chosen, and what that loses on other examples."""
    asked, kept, n = _asked(result), result.kept, len(result.chosen)
    if not n:
        text = f"No head of {title} can go for at most {asked}, by greedy removal on {result.chosen_on}. {ONE_SEED}"
        return Sentence(text)
    what = f"{n} of {counted(result.n_heads, 'head')} of {title}"
    together = "together " if n > 1 else ""
    name = "" if result.is_accuracy else f"{result.metric}, "
    left = f"{point_text(result, kept)} is left of {score_text(result, result.clean)}"
    left += f" ({name}n = {result.n:,} other examples)"
    if result.share is not None:
        lost = "" if kept.drop is None else f", a loss of {_lost(result, kept.drop)}"
        return Sentence(f"Without {what}, {percent(result.share, 0)} of the heads, {left}{lost}. {ONE_SEED}")
    if kept.drop is None or kept.drop.high <= result.loss:
        return Sentence(f"{what} can go {together}for at most {asked}: {left}. {ONE_SEED}")
    text = f"{what} go {together}for at most {asked} where they were chosen; elsewhere {left}, a loss of "
    if kept.drop.low > result.loss:
        return Sentence(f"{text}{_lost(result, kept.drop)}, which is more. {ONE_SEED}")
    text += f"{_lost(result, kept.drop)}, so whether it is at most {asked} there is undecided. {ONE_SEED}"
    return Sentence(text, is_decided=False)


def share_sentences(result: Pruning) -> list[Sentence]:
    """Say which share of heads can be removed for 1 point and for 5, each alone and together."""
    return [_share_sentence(result, each) for each in result.prunable]


def _share_sentence(result: Pruning, share: PrunableShare) -> Sentence:
    asked, n = _points_asked(share.loss), share.n_together
    text = f"For at most {asked}, {head_share(share.n_alone, result.n_heads)} can each be removed alone and "
    text += f"{head_share(n, result.n_heads)} together"
    if not n or share.left.drop is None:
        return Sentence(f"{text}.")
    text += f": {point_text(result, share.left)} is left on {counted(result.n, 'other example')}"
    if share.left.drop.high <= share.loss:
        return Sentence(f"{text}.")
    text += f", a loss of {_lost(result, share.left.drop)}"
    if share.left.drop.low > share.loss:
        return Sentence(f"{text}, which is more than {asked}.")
    return Sentence(f"{text}; whether that is at most {asked} is undecided.", is_decided=False)


def _points_asked(loss: float) -> str:
    return amount(loss, "points").replace(".0 ", " ")


def _too_many(result: Pruning) -> list[Sentence]:
    """From how many heads on greedy removal is shown to lose more than was asked, and stays so."""
    if result.share is not None:
        return []
    over = takewhile(lambda each: each.drop and each.drop.low > result.loss, reversed(_points(result, "greedy")))
    *_, first = (None, *over)
    if first is None or first.n_removed <= len(result.chosen):
        return []
    text = f"Without {counted(first.n_removed, 'head')} or more, greedy removal loses more than {_asked(result)}: "
    return [Sentence(f"{text}{point_text(result, first)} is left without {first.n_removed}.")]


def _other_orders(result: Pruning) -> list[Sentence]:
    """Where a simpler order leaves more than the search at the same number of heads."""
    n, kept = len(result.chosen), result.kept
    others = {name: each for name in ORDERS for each in _points(result, name) if each.n_removed == n and n}
    if not others:
        return []
    name, best = max(others.items(), key=lambda item: item[1].score)
    if best.score <= kept.score:
        return []
    text = f"Without the first {n} {ORDERS[name]}, {point_text(result, best)} is left, more than by greedy removal"
    if best.low > kept.high:
        return [Sentence(f"{text}, which was no help here.")]
    return [Sentence(f"{text} by less than the intervals: which order is better is undecided.", is_decided=False)]


def _points(result: Pruning, name: str) -> tuple[Point, ...]:
    return next((curve.points for curve in result.curves if curve.name == name), ())


def harmless_sentences(result: Pruning) -> list[Sentence]:
    """The trap: what costs nothing alone may cost everything together."""
    found = [_together(result, len(result.by_zero), result.by_zero_left, "when removed alone")]
    if len(result.replacements) > 1:
        found.append(_together(result, len(result.harmless), result.harmless_left, "alone with every replacement"))
    return found


def _counted_twice(subject: Subject, result: Pruning) -> list[Sentence]:
    """Why the ablation counts other heads as harmless, where it does."""
    ablation, n = subject.ablation, len(result.harmless)
    if ablation is None or set(ablation.replacements) != set(result.replacements) or ablation.metric != result.metric:
        return []
    condition = ablation.conditions[0]
    other = ablation.harmless(condition.length)
    if condition.length is not None or not ablation.heads[0].band or set(other) == set(result.harmless):
        return []
    text = f"The ablation above finds {counted(len(other), 'such head')}, on {condition.decided_on or condition.data}, "
    text += f"and the search {n}, on {result.alone_on or result.chosen_on}: near the limit, other examples decide "
    text += "otherwise."
    return [Sentence(text)]


def _together(result: Pruning, n: int, left: Point, how: str) -> Sentence:
    limit = "1 point" if result.unit == "points" else f"0.01 {result.unit}".rstrip()
    if n < 2 or left.drop is None:
        few = "no head costs" if not n else f"{counted(n, 'head')} {'costs' if n == 1 else 'cost'}"
        text = f"What heads that are harmless alone leave together is undecided: {few} under {limit} {how}."
        return Sentence(text, is_decided=False)
    alone = f"cost under {limit} each {how}, on {result.alone_on or result.chosen_on},"
    text = (
        f"The {n} heads that {alone} leave {point_text(result, left)} of {score_text(result, result.clean)} when all "
    )
    text += "are removed together"
    if left.drop.low > result.loss:
        return Sentence(f"{text}: harmless alone is not harmless together.")
    if left.drop.high <= result.loss:
        return Sentence(f"{text}: here what is harmless alone is harmless together.")
    return Sentence(f"{text}: whether that is a loss of at most {_asked(result)} is undecided.", is_decided=False)


def _luck(result: Pruning) -> list[Sentence]:
    """Whether the search was worth it."""
    luck, kept = result.best_random, result.kept
    if not (result.n_tried and luck.n_removed):
        return []
    text = f"The best of {result.n_random:,} random sets of {counted(luck.n_removed, 'head')} leaves "
    text += point_text(result, luck)
    tried = f"greedy removal tried {result.n_tried:,} sets"
    if kept.low > luck.high:
        return [Sentence(f"{text}, less than greedy removal: luck alone would not have found this ({tried}).")]
    if luck.low > kept.high:
        return [Sentence(f"{text}, more than greedy removal, which was no help here ({tried}).")]
    text += f", greedy removal {point_text(result, kept)}: whether it beats luck is undecided ({tried})."
    return [Sentence(text, is_decided=False)]


def _without_heads(result: Pruning) -> list[Sentence]:
    """What the rest of the model reaches; a sum of drops is no measurement."""
    ends = [curve.points[-1] for curve in result.curves if curve.name != "alone"]
    last = next((point for point in ends if point.n_removed == result.n_heads), None)
    if last is None:
        return []
    return [Sentence(f"Without any head {point_text(result, last)} is left: what the rest of the model reaches.")]


def _asked(result: Pruning) -> str:
    return amount(result.loss, result.unit).replace(".0 ", " ")


def point_text(result: Pruning, point: Point) -> str:
    """`98.9 % (95 % interval 98.4 to 99.3)`."""
    low, high = sorted(shown_score(result, each) for each in (point.low, point.high))
    doubt = within(point.low, point.high) if result.is_accuracy else interval(low, high, 1, 4)
    return f"{score_text(result, point.score)} ({doubt})"


def score_text(result: Pruning, score: float) -> str:
    """`98.9 %`, `0.5782` or `1.234 nats`."""
    if result.is_accuracy:
        return percent(score)
    return f"{shown_score(result, score):.4g} {result.unit if result.unit == 'nats' else ''}".rstrip()


def shown_score(result: Pruning, score: float) -> float:
    """Per cent, a loss, or as it is."""
    return 100 * score if result.is_accuracy else -score if result.unit == "nats" else score


def _lost(result: Pruning, drop: PairedDifference) -> str:
    """`1.30 points (95 % interval 0.90 to 1.80)`."""
    scale, digits = (100, 2) if result.unit == "points" else (1, 4)
    return f"{scale * drop.mean:.{digits}f} {result.unit} ({interval(drop.low, drop.high, scale, digits)})"
