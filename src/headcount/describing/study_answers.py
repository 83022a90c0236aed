"""The data types of a study's answers, and functions that write ranges, bars and names of variants for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Sentence
from headcount.describing.words import number
from headcount.figures.cards import Bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headcount.stats import Proportion
    from headcount.studies.emergence import Emergence
    from headcount.studies.head_findings import HeadFindings
    from headcount.studies.summary import SeedSummary, VariantSummary

HEAD_MEASURES = ("critical heads", "redundant heads", "heads that are harmless alone", "removable heads")
LEFT = "score without all harmless heads"
TOGETHER = "score without the removable heads"
DROP = "drop"


@dataclass(frozen=True)
class PartResults:
    """Results over all finished runs of one part of a study (a part has a task and variants of its own)."""

    name: str
    """Name of the part; empty if the study has only one part."""
    summary: SeedSummary
    findings: HeadFindings | None = None
    emergence: Emergence | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one question of a study, with the picture of its card and its details."""

    id: str
    question: str
    sentences: tuple[Sentence, ...]
    """The first one is the answer; the others are details."""
    blocks: tuple[Block, ...] = ()
    draw: Callable[[], Figure] | None = None
    alt: str = ""
    rank: int = 0
    """Importance of the question: answers with a lower rank get a card on the first screen before others."""


def measured(summary: SeedSummary, measure: str, variant: str | None = None) -> list[VariantSummary]:
    """Return the summaries of a measure of finished models; summaries of snapshots during training are left out."""
    rows = [each for each in summary.variants if each.measure == measure and "step " not in each.subject]
    return [each for each in rows if variant is None or each.variant == variant]


def variant_prefix(part: PartResults, variant: str) -> str:
    """Return the first words of a sentence about a variant, such as `rotary: `; empty if there is only one variant."""
    return f"{variant}: " if len(part.summary.names) > 1 else ""


def runs_bar(name: str, runs: Proportion, *, is_marked: bool = False) -> Bar:
    """Return a bar for a number of runs out of all runs, in percent, with its 95 % CI."""
    text = f"{runs.correct} of {runs.n}"
    return Bar(name, 100 * runs.rate, text, 100 * runs.low, 100 * runs.high, is_marked)


def in_words(bars: Sequence[Bar]) -> str:
    """Return the names and values of bars as text, for readers who cannot see the figure."""
    return "; ".join(f"{bar.name}: {bar.text}" for bar in bars)


def spread(each: VariantSummary) -> str:
    """Return the range of a measure over seeds, and its mean with the 95 % CI, as text."""
    scale = 100 if each.unit in ("share", "points") else 1
    digits = 1 if scale == 100 or any(not float(value).is_integer() for value in each.values) else 0
    ends = [number(scale * end, digits) for end in (min(each.values), max(each.values))]
    text = f"{ends[0]} in every seed" if ends[0] == ends[1] else f"range {ends[0]}-{ends[1]}"
    if each.low is not None and each.high is not None:
        text += f", mean {number(scale * each.mean)}, 95 % CI {number(scale * each.low)}-{number(scale * each.high)}"
    return text
