"""Heads of one place together, each ablated alone: what they cost on average, and how many are in each band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from headcount.figures.attention import KINDS
from headcount.heads import HeadId, HeadSite

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, Effect


@dataclass(frozen=True)
class Part:
    """Some heads together, each ablated alone with one replacement."""

    name: str
    effects: tuple[Effect, ...]

    @property
    def drop(self) -> float:
        """The mean over its heads; ..."""
        return fmean(each.drop for each in self.effects)

    @property
    def low(self) -> float:
        """... and bounds of it that hold however heads go together, for they are the means of their own bounds."""
        return fmean(each.low for each in self.effects)

    @property
    def high(self) -> float:
        """The upper one."""
        return fmean(each.high for each in self.effects)

    def count(self, band: str) -> int:
        """Heads in a band."""
        return sum(each.band == band for each in self.effects)


def by_site(result: Ablation, replacement: str) -> list[Part]:
    """In the order of the model."""
    return [Part(f"{site} ({site.short})", _at(result, replacement, [site])) for site in sites_of(result)]


def by_kind(result: Ablation, replacement: str) -> list[Part]:
    """All layers of one kind of attention together."""
    kinds = dict.fromkeys((site.stack, site.kind) for site in sites_of(result))
    together = {kind: [site for site in sites_of(result) if (site.stack, site.kind) == kind] for kind in kinds}
    return [Part(KINDS[kind], _at(result, replacement, sites)) for kind, sites in together.items()]


def sites_of(result: Ablation) -> list[HeadSite]:
    """In the order of the model."""
    return list(dict.fromkeys(HeadId.parse(each.head).site for each in result.heads))


def _at(result: Ablation, replacement: str, sites: Sequence[HeadSite]) -> tuple[Effect, ...]:
    length = result.conditions[0].length
    mine = (each for each in result.heads if (each.length, each.replacement) == (length, replacement))
    return tuple(each for each in mine if HeadId.parse(each.head).site in sites)
