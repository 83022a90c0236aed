"""Which heads can be removed together? Describe the score that is left, and what cutting heads out of a model costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT, limit_text
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Notice, Picture, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.sections.reproduce import prune_command
from headcount.describing.words import (
    amount,
    amount_cell,
    amount_interval,
    briefly,
    counted,
    fraction,
    interval,
    interval_cell,
    percent,
    short,
    some,
)
from headcount.figures.ablation import score_text, shown_score
from headcount.figures.pruning import draw_pruning, metric_label

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.pruning import Point, PrunableShare, Pruning
    from headcount.analysis.pruning_cost import Cost
    from headcount.stats import PairedDifference

ORDERS = {
    "together": "in the order of their own drops under zero ablation",
    "every way": "in the order of their largest drop under any ablation",
    "gradient": "in the order of their gradients",
}
"""Maps each order in which heads are removed, except greedy removal, to a phrase that describes this order."""
HEADINGS = {
    "together": "by own drop",
    "every way": "by largest drop",
    "greedy": "greedy removal",
    "gradient": "by gradient",
}
"""Maps each order in which heads are removed to the heading of its table column."""
RANDOM = "random orders: median [10 %, 90 %]"


def describe(result: Pruning) -> list[Block]:
    """Return report blocks on a pruning: a table of the score after each removal of a head, and the conclusions."""
    return [curve_table(result, "pruning-curves"), Conclusions(tuple(conclusions(result)))]


def conclusions(
    result: Pruning, title: str = "", rests_on: str = "", ablation: Ablation | None = None
) -> list[Sentence]:
    """Return sentences on the score without greedily chosen heads, without random heads, and without harmless heads.

    Harmless heads cost almost nothing when each is ablated alone. With an `ablation` of the same model, a sentence
    explains why it may find other heads harmless.
    """
    sentences = [
        greedy_sentence(title, result),
        *(_share_sentence(result, each, is_first=each.loss == result.loss) for each in result.prunable),
        *_too_many(result),
        *_other_orders(result),
        *harmless_sentences(result),
        *_other_examples(result, ablation),
        *_random_sets(result),
        *_without_heads(result),
    ]
    if result.not_measured:
        text = f"Not measured, because the time budget of {result.budget:g} s ended: "
        sentences.append(Sentence(f"{text}{'; '.join(result.not_measured)}.", is_decided=False))
    return [Sentence(each.text, rests_on, each.is_decided) for each in sentences]


# --- greedy removal ---------------------------------------------------------------------------------------------------


def greedy_sentence(title: str, result: Pruning) -> Sentence:
    """Return a sentence on the score, on held-out examples, without the heads that greedy removal takes.

    Greedy removal takes the head whose removal costs least, measures all others again, and repeats that.
    """
    limit, n, of = limit_text(result.loss, result.unit), len(result.chosen), f" of {title}" if title else ""
    if not n and _was_cut_short(result):
        text = f"It is undecided how many heads{of} can be removed for a drop of at most {limit}: greedy removal did "
        return Sentence(f"{text}not fit into the time budget of {result.budget:g} s.", is_decided=False)
    if not n:
        text = f"No head{of} can be removed for a drop of at most {limit} (greedy removal, on {result.chosen_on})."
        return Sentence(text)
    what = f"{n} of {counted(result.n_heads, 'head')}{of}{' together' if n > 1 else ''}"
    left = point_text(result, result.kept, f", n = {result.n:,} held-out examples; {_clean(result)} with all heads")
    verb = "keeps" if result.is_accuracy and result.share is None else "leaves"
    text = f"Removing {what} {verb} {left}."
    if result.share is not None:
        text = f"To remove {percent(result.share, 0)} of the heads, greedy removal takes {what}. This {verb} {left}."
    if result.kept.drop is None:
        return Sentence(text)
    if result.share is not None:
        return Sentence(f"{text} {_drop(result, result.kept.drop)}.")
    return _with_verdict(text, result, result.kept.drop, result.loss)


def _was_cut_short(result: Pruning) -> bool:
    """Return whether the time budget ended before greedy removal had removed a single head."""
    return any(text.startswith("greedy removal beyond 0 of ") for text in result.not_measured)


def _with_verdict(text: str, result: Pruning, drop: PairedDifference, loss: float) -> Sentence:
    """Return a sentence: the text, the drop on held-out examples, and whether the drop is at most the limit `loss`."""
    limit, text = limit_text(loss, result.unit), f"{text} {_drop(result, drop)}"
    if drop.high <= loss:
        return Sentence(f"{text}, at most the limit of {limit}.")
    if drop.low > loss:
        return Sentence(
            f"{text}, more than the limit of {limit}. The limit held on the examples on which the heads were chosen."
        )
    return Sentence(f"{text}; it is undecided whether that is at most {limit}.", is_decided=False)


def share_sentences(result: Pruning) -> list[Sentence]:
    """Return a sentence per limit of the drop on how many heads can be removed, together and one at a time."""
    return [_share_sentence(result, each) for each in result.prunable]


def _share_sentence(result: Pruning, share: PrunableShare, *, is_first: bool = False) -> Sentence:
    """Return a sentence on how many heads can be removed for one limit of the drop, together and one at a time.

    With `is_first`, leave out the heads removed together, which `greedy_sentence` describes.
    """
    limit, n = limit_text(share.loss, result.unit), share.n_together
    alone = f"Removed one at a time, {fraction(share.n_alone, result.n_heads)} cost less than {limit}"
    is_stricter = share.n_alone < n
    alone += (
        ". This count is stricter: the whole 95 % CI must lie below the limit." if is_stricter else " (whole 95 % CI)."
    )
    if is_first and result.share is None:
        return Sentence(alone)
    text = f"For a drop of at most {limit}, greedy removal takes "
    if not n or share.left.drop is None:
        together = Sentence(f"{text}{fraction(n, result.n_heads)} together.")
    else:
        text += f"{fraction(n, result.n_heads)} together and leaves {point_text(result, share.left)}."
        together = _with_verdict(text, result, share.left.drop, share.loss)
    return Sentence(f"{together.text} {alone}", is_decided=together.is_decided)


def _too_many(result: Pruning) -> list[Sentence]:
    """Return a sentence on how many removed heads always cost more than the allowed drop, if that was measured."""
    if result.share is not None:
        return []
    over = takewhile(lambda each: each.drop and each.drop.low > result.loss, reversed(_points(result, "greedy")))
    *_, first = (None, *over)
    if first is None or first.n_removed <= len(result.chosen):
        return []
    text = f"Removing {counted(first.n_removed, 'head')} or more by greedy removal costs more than "
    text += f"{limit_text(result.loss, result.unit)}: without {first.n_removed}, {point_text(result, first)} is left."
    return [Sentence(text)]


def _other_orders(result: Pruning) -> list[Sentence]:
    """Return a sentence on the best simpler order of removal, if it leaves a higher score than greedy removal."""
    n, kept = len(result.chosen), result.kept
    others = {name: each for name in ORDERS for each in _points(result, name) if each.n_removed == n and n}
    if not others:
        return []
    name, best = max(others.items(), key=lambda item: item[1].score)
    if best.score <= kept.score:
        return []
    text = f"Removing the first {counted(n, 'head')} {ORDERS[name]} leaves {point_text(result, best)}, more than "
    if best.low > kept.high:
        return [Sentence(f"{text}greedy removal, which is therefore of no use here.")]
    return [Sentence(f"{text}greedy removal. It is undecided which order is better.", is_decided=False)]


def _points(result: Pruning, name: str) -> tuple[Point, ...]:
    """Return the scores after each removal for one order of removal; none if this order was not measured."""
    return next((curve.points for curve in result.curves if curve.name == name), ())


# --- heads that are harmless alone ------------------------------------------------------------------------------------


def harmless_sentences(result: Pruning) -> list[Sentence]:
    """Return sentences on the score without all heads that are harmless alone, because they may be needed together."""
    by_zero = _together(result, result.by_zero, result.by_zero_left, "when removed alone")
    n, estimate = result.n_under_1_point, ""
    if n != len(result.by_zero):
        estimate = f" By the point estimate alone, without its interval, {counted(n, 'head')} would count as harmless."
    sentences = [Sentence(f"{by_zero.text}{estimate}", is_decided=by_zero.is_decided)]
    if len(result.replacements) > 1:
        how = f"under every ablation ({some(result.replacements)})"
        under_all = _together(result, result.harmless, result.harmless_left, how)
        more = ""
        if result.harmless:
            means = point_text(result, result.harmless_means)
            more = f" If their outputs are replaced by their means instead, {means} is left."
        n, points = len(result.harmless), _points(result, "together")
        if 0 < n < len(points):
            more += f" The first {counted(n, 'head')} {ORDERS['together']} leave {point_text(result, points[n])}."
        sentences.append(Sentence(f"{under_all.text}{more}", is_decided=under_all.is_decided))
    return sentences


def _together(result: Pruning, heads: tuple[str, ...], left: Point, how: str) -> Sentence:
    """Return a sentence on the score without all of these heads, each of which costs almost nothing alone.

    `left` is the score without them, and `how` says how each was ablated alone.
    """
    limit, n = limit_text(IMPORTANT, result.unit), len(heads)
    where = f"{how}, on {result.alone_on or result.chosen_on}"
    if n < 2 or left.drop is None:
        few = "no head costs" if not n else f"only {short(heads[0])} costs" if n == 1 else f"{n} heads cost"
        text = "It is undecided whether heads that are harmless alone are harmless together: "
        return Sentence(f"{text}{few} under {limit} {where}.", is_decided=False)
    text = f"Removing all {n} heads that cost under {limit} {where}, leaves {point_text(result, left)}"
    text += f": {some([short(head) for head in heads], 24)}. {_drop(result, left.drop)}"
    if left.drop.low > result.loss:
        return Sentence(f"{text}: heads that are harmless alone are not harmless together.")
    if left.drop.high <= result.loss:
        return Sentence(f"{text}: these heads are harmless together, too.")
    limit = limit_text(result.loss, result.unit)
    return Sentence(f"{text}; it is undecided whether that is at most {limit}.", is_decided=False)


def _other_examples(result: Pruning, ablation: Ablation | None) -> list[Sentence]:
    """Return a sentence on why ablation and pruning find different numbers of harmless heads; none if they agree."""
    if ablation is None or set(ablation.replacements) != set(result.replacements) or ablation.metric != result.metric:
        return []
    condition, n = ablation.conditions[0], len(result.harmless)
    heads = ablation.harmless(condition.length)
    if condition.length is not None or not ablation.heads[0].band or set(heads) == set(result.harmless):
        return []
    text = f"The section on ablation finds {counted(len(heads), 'head')} harmless when ablated alone, on "
    text += f"{condition.decided_on or condition.data}; the pruning finds {n}, on "
    text += f"{result.alone_on or result.chosen_on}. Drops close to the limit depend on the examples."
    return [Sentence(text)]


# --- random sets and no heads -----------------------------------------------------------------------------------------


def _random_sets(result: Pruning) -> list[Sentence]:
    """Return a sentence that compares greedy removal with the best of many random sets of as many heads."""
    best, kept = result.best_random, result.kept
    if not (result.n_tried and best.n_removed):
        return []
    text = f"The best of {result.n_random:,} random sets of {counted(best.n_removed, 'head')} leaves "
    text += point_text(result, best)
    n_tried = f"greedy removal tried {result.n_tried:,} sets"
    if kept.low > best.high:
        return [Sentence(f"{text}, less than greedy removal, so random search is worse ({n_tried}).")]
    if best.low > kept.high:
        return [Sentence(f"{text}, more than greedy removal, which is therefore of no use here ({n_tried}).")]
    text += ". It is undecided whether greedy removal is better than random search: it leaves "
    return [Sentence(f"{text}{point_text(result, kept)} ({n_tried}).", is_decided=False)]


def _without_heads(result: Pruning) -> list[Sentence]:
    """Return a sentence on the score that is left when all heads are removed; none if it was not measured."""
    ends = [curve.points[-1] for curve in result.curves if curve.name != "alone"]
    last = next((point for point in ends if point.n_removed == result.n_heads), None)
    return [Sentence(f"Without any head, {point_text(result, last)} is left.")] if last else []


# --- numbers ----------------------------------------------------------------------------------------------------------


def point_text(result: Pruning, point: Point, more: str = "") -> str:
    """Return a score as text: `98.9 % accuracy (95 % CI 98.4-99.3)`; `more` is added inside of the brackets."""
    low, high = sorted(shown_score(result, each) for each in (point.low, point.high))
    doubt = interval(low, high, scale=1, digits=1 if result.is_accuracy else 4)
    if result.is_accuracy:
        return f"{percent(point.score)} accuracy ({doubt}{more})"
    name = "a loss of" if result.unit == "nats" else f"{result.metric} of"
    return f"{name} {_number(result, point.score)} ({doubt}{more})"


def _clean(result: Pruning) -> str:
    return percent(result.clean) if result.is_accuracy else _number(result, result.clean)


def _number(result: Pruning, score: float) -> str:
    return f"{shown_score(result, score):.4g} {result.unit if result.unit == 'nats' else ''}".rstrip()


def _drop(result: Pruning, drop: PairedDifference) -> str:
    """Return a clause on the drop in score: `The drop is 1.3 points (95 % CI 0.9-1.8)`."""
    name = "rise of the loss" if result.unit == "nats" else "drop"
    return f"The {name} is {amount(drop.mean, result.unit)} ({amount_interval(drop.low, drop.high, result.unit)})"


# --- tables -----------------------------------------------------------------------------------------------------------


def curve_table(result: Pruning, name: str, command: str = "", title: str = "") -> DataTable:
    """Return a table of the score that is left after each removal of a head, with a column per order of removal."""
    measured = [curve for curve in result.curves if curve.name != "alone"]
    points = [{point.n_removed: point for point in curve.points} for curve in measured]
    random = {each.n_removed: each for each in result.chance}
    rows = []
    for k in range(result.n_heads + 1):
        at_k = random.get(k)
        baseline = _score_cell(result, at_k.median, at_k.low, at_k.high) if at_k else Cell("")
        if at_k or any(k in each for each in points):  # a budget may have ended before
            rows.append((Cell(str(k), k), *(_point_cell(result, each.get(k)) for each in points), baseline))
    columns = ("heads removed", *(HEADINGS.get(curve.name, curve.name) for curve in measured), RANDOM)
    measured_on = f"{result.measured_on}, n = {result.n:,}"
    caption = f"{title or result.name}: {metric_label(result)} after each removal, on {measured_on}"
    names = [curve.name for curve in measured if curve.name in ORDERS]
    orders = [f"{HEADINGS[name].capitalize()}: heads are removed {ORDERS[name]}." for name in names]
    first = "Each cell has the score that is left, its 95 % CI and, after a minus sign, the head that was removed last."
    chosen = f"Greedy removal chose these heads on {result.chosen_on}, in order: "
    note = " ".join([first, *orders, f"{chosen}{some([short(head) for head in result.chosen], 40)}."])
    return DataTable(name, caption, columns, tuple(rows), note, command)


def _point_cell(result: Pruning, point: Point | None) -> Cell:
    """Return a table cell with a score and the head removed last: `95.0 [93.9, 96.1], -E0H1`; empty if not measured."""
    if point is None:
        return Cell("")
    cell = _score_cell(result, point.score, point.low, point.high)
    return Cell(f"{cell.text}, -{short(point.head)}", cell.value) if point.head else cell


def _score_cell(result: Pruning, *scores: float) -> Cell:
    """Return a table cell with a score and the two bounds of its interval."""
    middle, *ends = (shown_score(result, each) for each in scores)
    return interval_cell(middle, min(ends), max(ends), scale=1, digits=1 if result.is_accuracy else 3)


def share_table(result: Pruning, title: str, name: str, command: str) -> list[DataTable]:
    """Return a table of how many heads can be removed for each limit of the drop, one at a time and together."""
    rows = [
        (
            Cell(f"{100 * each.loss:g}", each.loss),
            Cell(fraction(each.n_alone, result.n_heads), each.n_alone),
            Cell(fraction(each.n_together, result.n_heads), each.n_together),
            _score_cell(result, each.left.score, each.left.low, each.left.high),
        )
        for each in result.prunable
    ]
    left = f"{metric_label(result)} without the heads removed together"
    columns = ("drop of at most (points)", "one at a time", "together", left)
    note = (
        "One at a time: heads that cost less than the limit when removed alone, by the whole 95 % CI of the drop (on "
    )
    note += f"{result.alone_on or result.chosen_on}). Together: the largest number of heads that greedy removal takes "
    note += f"while the drop on {result.chosen_on} stays within the limit (point estimate). The last column was "
    note += f"measured on {result.measured_on}, n = {result.n:,}, with its 95 % CI."
    caption = f"How many heads of {title} can be removed"
    return [DataTable(name, caption, columns, tuple(rows), note, command)] if rows else []


def describe_cost(cost: Cost) -> list[Block]:
    """Return a table of the size, speed and score of a model before and after heads were cut out of it."""
    heads = ", ".join(map(short, cost.heads))
    blocks = ", ".join(cost.lost_blocks) or "none"
    drop = amount_cell(cost.drop.mean, cost.drop.low, cost.drop.high, cost.unit).text
    scores = [score_text(cost, each, *ends) for each, ends in zip(cost.score, cost.score_intervals, strict=True)]
    sizes = [
        (name, *(f"{number:,}" for number in pair), f"{percent(1 - pair[1] / pair[0])} less")
        for name, pair in (("parameters", cost.parameters), ("bytes", cost.n_bytes))
    ]
    rows = (
        ("heads", *map(str, cost.n_heads), f"blocks that lost all heads: {blocks}"),
        *sizes,
        ("µs per example", *(f"{time:.1f}" for time in cost.microseconds), f"{cost.faster:.2f} times as fast"),
        (
            "accuracy" if cost.is_accuracy else cost.metric,
            *scores,
            f"{'rise' if cost.unit == 'nats' else 'drop'} {drop} {cost.unit}, {cost.data}",
        ),
        (
            "difference from mean ablation" if cost.folded_over else "difference from ablation",
            "",
            f"{cost.difference:.1e}",
            "relative to the largest logit"
            + (
                f"; means over {cost.folded_over:,} unlabelled examples were added to the biases"
                if cost.folded_over
                else ""
            )
            + (f"; then fine-tuned for {cost.fine_tuned:,} steps" if cost.fine_tuned else ""),
        ),
    )
    caption = f"{cost.name}: {cost.parent} without {heads}"
    return [DataTable("cut", caption, ("", "before", "after", "change"), rows)]


# --- the section of a report ------------------------------------------------------------------------------------------

EXPLANATION = (
    "Removing a head sets its output to zero. Heads are chosen on some examples and measured on others. At each step, "
    "greedy removal takes the head whose removal costs least, and measures all heads again. It is compared with "
    "simpler orders, with random orders, and with the best of as many random sets of heads as greedy removal tried."
)


def section(results: ReportResults) -> Section | None:
    """Return the section on all models whose heads were removed together; None without any."""
    models = results.with_result("pruning")
    title = "Which heads can be removed together?"
    described = section_by_model(results, "pruning", title, EXPLANATION, models, _described)
    return described and replace(described, answer=_answer(results, models[0]))


def _answer(results: ReportResults, model: ModelResults) -> Sentence:
    """Return a sentence on how many heads can be removed, and on the score without all heads harmless alone."""
    result = model.pruning
    assert result is not None, "only models with a pruning are described"
    greedy, n = greedy_sentence(model.title, result), len(result.by_zero)
    text = greedy.text
    if n > 1 and result.by_zero_left.drop is not None:
        left = point_text(result, result.by_zero_left)
        text += f" Removing all {n} heads that are individually harmless leaves {left}."
    return Sentence(briefly(text, model.settings), results.block_id("pruning", model), is_decided=greedy.is_decided)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return two lists about one model: sentences on its pruning, and blocks (warnings, figure and tables)."""
    result, command = model.pruning, prune_command(model)
    assert result is not None, "only models with a pruning are described"
    notices = [Notice("fail", f"{model.title}: {result.audit}.")] if result.audit else []
    about = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    alt = " ".join(each.text for each in (greedy_sentence(model.title, result), *harmless_sentences(result)))
    caption = f"Score of {model.title} as heads are removed: {about}"
    return conclusions(result, model.title, name, model.ablation), [
        *notices,
        *share_table(result, model.title, f"{name}-shares", command),
        Picture(name, caption, alt, lambda: draw_pruning(result), command),
        curve_table(result, f"{name}-curves", command, model.title),
    ]


PART = section
