"""When in training do heads begin to matter? Describe snapshots of models during training, over several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Row, Sentence
from headcount.describing.comparison import holds_in_most, k_of_n
from headcount.describing.words import amount, counted, percent, short, some
from headcount.figures.emergence import draw_emergence, draw_sites
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.studies.emergence import Emergence, SnapshotHeads, TrainingHistory

EXPLANATION = (
    "A snapshot is the model at one training step. A head matters at a snapshot if ablating it costs more than 1 "
    "point of accuracy, by the whole 95 % CI. The intervals of single heads are not corrected for the number of heads "
    "and snapshots, so the first such snapshot may be a little too early. A snapshot that is at most 10 points better "
    "than a constant answer has nothing to lose, so no head can matter there."
)


def describe(result: Emergence, prefix: str = "") -> list[Block]:
    """Return report blocks for each variant of a study: sentences, figures by training step, a table of snapshots."""
    blocks: list[Block] = []
    for i, variant in enumerate(result.variants):
        end = f"-{i}" if i else ""
        sentences = tuple(conclusions(result, variant, f"{prefix}snapshots{end}"))
        caption = "Accuracy, largest drop of one head and number of heads that matter, by training step"
        blocks += [
            Conclusions(sentences),
            Picture(
                f"{prefix}emergence-figure{end}", caption, sentences[0].text, partial(draw_emergence, result, variant)
            ),
            Picture(
                f"{prefix}emergence-sites{end}",
                "Number of heads that matter in each attention block, by training step",
                sentences[-1].text,
                partial(draw_sites, result, variant),
            ),
            _table(result, variant, f"{prefix}snapshots{end}"),
        ]
    return [*blocks, Paragraph(EXPLANATION)]


def conclusions(result: Emergence, variant: str, rests_on: str = "") -> Iterator[Sentence]:
    """Yield sentences on when ablating a head first costs over 1 point, for which head, and in which blocks."""
    runs, begun = result.of(variant), result.begun(variant)
    about = f"{variant}: " if len(result.variants) > 1 else ""
    yield _beginning(runs, begun, about, rests_on)
    firsts = [(run, first) for run in runs if (first := run.first) is not None]
    if firsts:
        yield Sentence(f"{about}{_brackets(firsts)}", rests_on)
        costs = [f"{short(first.largest)} ({amount(first.drop, 'points')}, seed {run.seed})" for run, first in firsts]
        text = f"{about}At the first such snapshot, the head that costs most is {some(costs, 12)}."
        yield Sentence(text, rests_on)
    yield _blocks(result, variant, about, rests_on)


def _beginning(runs: Sequence[TrainingHistory], begun: Proportion, about: str, rests_on: str) -> Sentence:
    firsts = [first for run in runs if (first := run.first) is not None]
    if not firsts:
        n = counted(max(len(run.snapshots) for run in runs), "snapshot")
        text = f"{about}In {k_of_n(begun)} seeds, ablating one head costs more than 1 point at any of {n}."
        return Sentence(text, rests_on, is_decided=False)
    steps, shares = [first.step for first in firsts], [first.accuracy for first in firsts]
    middle = f"{median(steps):,.0f}"
    text = f"{about}In {k_of_n(begun)} seeds, ablating one head costs more than 1 point at some snapshot: "
    text += f"first at step {_range([f'{step:,}' for step in _ends(steps)])} (median {middle}), "
    text += f"when the accuracy is {_range([percent(share) for share in _ends(shares)])}."
    return Sentence(text, rests_on, is_decided=holds_in_most(begun) is not None)


def short_answer(result: Emergence, variant: str) -> Sentence:
    """Return one sentence for the first screen: from which training step on ablating one head costs over 1 point."""
    begun, runs = result.begun(variant), result.of(variant)
    return _beginning(runs, begun, "", "")


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if max(values) > min(values) else [values[0]]


def _range(texts: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(texts))


def _brackets(firsts: Sequence[tuple[TrainingHistory, SnapshotHeads]]) -> str:
    """Return a sentence that says, for each run, between which two snapshots the first head begins to matter."""
    spans = []
    for run, first in firsts:
        before = run.before
        start = f"steps {before.step:,} and {first.step:,}" if before is not None else ""
        spans.append(f"seed {run.seed} between {start}" if start else f"seed {run.seed} by step {first.step:,}")
    return f"Ablating a head begins to cost more than 1 point for {some(spans, 12)}."


def _blocks(result: Emergence, variant: str, about: str, rests_on: str) -> Sentence:
    """Return a sentence that names the attention blocks in the order in which their heads begin to matter."""
    runs = result.of(variant)
    begun, idle = [], []
    for site in result.sites:
        steps = [first.step for run in runs if (first := run.first_of(site)) is not None]
        if steps:
            begun.append(
                (median(steps), f"{site} (median step {median(steps):,.0f}, {len(steps)} of {len(runs)} seeds)")
            )
        else:
            idle.append(site)
    if not begun:
        text = f"{about}No head of any attention block costs more than 1 point at any snapshot."
        return Sentence(text, rests_on, is_decided=False)
    names = [name for _, name in sorted(begun)]
    text = f"{about}Ablating a head begins to cost more than 1 point in {some(names, 12)}."
    text += f" No head of {some(idle, 12)} costs that much in any seed." if idle else ""
    return Sentence(text, rests_on)


def _table(result: Emergence, variant: str, name: str) -> DataTable:
    rows: list[Row] = [
        (
            f"{run.seed}",
            Cell(f"{each.step:,}", each.step),
            Cell(percent(each.accuracy), each.accuracy),
            f"{short(each.largest)}",
            Cell(amount(each.drop, "points"), each.drop),
            Cell(str(each.n_counting) if each.can_lose else "nothing to lose", each.n_counting),
            Cell(str(each.n_critical), each.n_critical),
            Cell(f"{each.n:,}", each.n),
        )
        for run in result.of(variant)
        for each in run.snapshots
    ]
    columns = ("seed", "step", "accuracy", "costliest head", "its drop", "heads that matter", "critical heads", "n")
    caption = f"Heads at every snapshot{f', {variant}' if len(result.variants) > 1 else ''}"
    note = "Heads that matter cost over 1 point when ablated alone, critical heads over 10, by the whole 95 % CI."
    return DataTable(name, caption, columns, tuple(rows), note, is_folded=True, n_keys=2)
