"""What can go together? Heads removed one after the other, and the trap of those that are harmless alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import (
    Block,
    Cell,
    Conclusions,
    DataTable,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.commands import prune_command
from headcount.describing.pruning_words import conclusions, greedy_sentence, harmless_sentences, point_text, shown_score
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, briefly, short, some
from headcount.figures.pruning import draw_pruning, head_share

if TYPE_CHECKING:
    from headcount.analysis.pruning import Point, Pruning, RandomBaseline


def section(material: Material) -> Section | None:
    """Every model whose heads were removed together."""
    subjects = material.with_("pruning")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A head that is removed is set to zero. Heads are chosen on some examples and measured on others. Greedy "
            "removal takes at each step the head whose loss costs least, measured again after every removal. Beside "
            "it stand the order of the heads' own drops, which is what “harmless alone” promises, random orders, and "
            "the best of as many random sets as greedy removal tried."
        )
    ]
    for subject in subjects:
        assert subject.pruning is not None, "asked of a model whose heads were removed"
        blocks += [Notice("fail", f"{subject.title}: {subject.pruning.audit}.")] if subject.pruning.audit else []
        name = material.block_id("pruning", subject)
        blocks += [Conclusions(tuple(conclusions(subject, name))), *_shown(subject, name)]
    return Section("pruning", "What can go together?", tuple(blocks), _answer(material, subjects[0]))


def _answer(material: Material, subject: Subject) -> Sentence:
    """What can go, and the trap, in one."""
    result, rests_on = subject.pruning, material.block_id("pruning", subject)
    assert result is not None, "asked of a model whose heads were removed"
    greedy, n = greedy_sentence(subject.title, result), len(result.by_zero)
    text = greedy.text.removesuffix(ONE_SEED).rstrip(". ")
    if n > 1 and result.by_zero_left.drop is not None:
        left = point_text(result, result.by_zero_left)
        text += f"; the {n} that are harmless one at a time, set to zero, leave {left} when all go"
    return Sentence(briefly(text, subject.settings), rests_on, greedy.is_decided)


def _shown(subject: Subject, name: str) -> list[Block]:
    """The curves, and the same as a table; heads by name in the order in which greedy removal takes them."""
    result = subject.pruning
    assert result is not None, "asked of a model whose heads were removed"
    command = prune_command(subject)
    measured = [curve for curve in result.curves if curve.name != "alone"]
    points = [{point.n_removed: point for point in curve.points} for curve in measured]
    chance = {each.n_removed: each for each in result.chance}
    rows: list[tuple[Cell | str, ...]] = []
    for k in range(result.n_heads + 1):
        cells = [_point(result, each.get(k)) for each in points]
        rows.append((Cell(str(k), k), *cells, _random(result, chance.get(k))))
    columns = ("removed", *(curve.name for curve in measured), "random orders: median [10 %, 90 %]")
    about = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    taken = some([short(each) for each in result.chosen], 40)
    note = f"What is left, with its 95 % interval and the head that went last. Greedy removal takes, in order: {taken}."
    alt = f"{greedy_sentence(subject.title, result).text} {' '.join(each.text for each in harmless_sentences(result))}"
    return [
        *_shares(subject, result, name, command),
        Picture(
            name, f"What is left of {subject.title} as heads go: {about}", alt, lambda: draw_pruning(result), command
        ),
        DataTable(
            f"{name}-curves",
            f"What is left of {subject.title}, head by head: {result.metric}",
            columns,
            tuple(rows),
            note,
            command,
        ),
    ]


def _shares(subject: Subject, result: Pruning, name: str, command: str) -> list[Block]:
    """Tabulate the share of heads that can be removed for each loss, each alone and together."""
    rows: list[tuple[Cell | str, ...]] = [
        (
            Cell(f"{100 * each.loss:g}", each.loss),
            Cell(head_share(each.n_alone, result.n_heads), each.n_alone),
            Cell(head_share(each.n_together, result.n_heads), each.n_together),
            Cell(_brief(result, each.left.score, each.left.low, each.left.high), shown_score(result, each.left.score)),
        )
        for each in result.prunable
    ]
    columns = (
        "loss of at most (points)",
        "each alone",
        "together",
        f"left without those together ({result.metric}, %)",
    )
    note = "Each alone: the whole 95 % interval of a head's drop, when it is removed alone, lies below the loss (on "
    note += (
        f"{result.alone_on or result.chosen_on}). Together: greedy removal, chosen on {result.chosen_on}; what is left "
    )
    note += f"is measured on {result.measured_on}, n = {result.n:,}, with its 95 % interval."
    caption = f"Share of the heads of {subject.title} that can be removed"
    return [DataTable(f"{name}-shares", caption, columns, tuple(rows), note, command)] if rows else []


def _point(result: Pruning, point: Point | None) -> Cell:
    if point is None:  # time was up
        return Cell("")
    went = f", -{short(point.head)}" if point.head else ""
    return Cell(_brief(result, point.score, point.low, point.high) + went, shown_score(result, point.score))


def _random(result: Pruning, each: RandomBaseline | None) -> Cell:
    if each is None:
        return Cell("")
    return Cell(_brief(result, each.median, each.low, each.high), shown_score(result, each.median))


def _brief(result: Pruning, *scores: float) -> str:
    middle, *ends = (shown_score(result, each) for each in scores)
    digits = 1 if result.is_accuracy else 3
    return f"{middle:.{digits}f} [{', '.join(f'{end:.{digits}f}' for end in sorted(ends))}]"


PART = section
