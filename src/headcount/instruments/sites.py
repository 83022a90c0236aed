"""Where heads meet the residual stream.

The input of an attention block's output projection is its heads' outputs side by side, z [..., head * d_head]. That is
the one place where a head can be silenced, scaled, replaced and measured, in everybody's models alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite


@runtime_checkable
class KnowsItsHeads(Protocol):
    """A model that can say where its heads are."""

    @property
    def projections(self) -> Mapping[HeadSite, nn.Module]:
        """The output projection of every site that has heads."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """The heads of a site, in the order in which they stand in z."""


@dataclass(frozen=True)
class Site:
    """One output projection, and the heads side by side in its input."""

    projection: nn.Module
    heads: tuple[HeadId, ...]


class Sites(Mapping[HeadSite, Site]):
    """Every output projection of a model."""

    def __init__(self, sites: Mapping[HeadSite, Site]) -> None:
        self._sites = dict(sites)
        self._places: dict[tuple[HeadId, ...], dict[HeadSite, tuple[int, ...]]] = {}  # asked for again and again
        if not self._sites:
            raise InputError("this model has no heads", "there is nothing to silence, read or cut")
        owners: dict[int, HeadSite] = {}
        for name, site in self._sites.items():
            first = owners.setdefault(id(site.projection), name)
            if first != name:
                raise InputError(
                    f"{first} and {name} share one output projection", "a gate could not tell their heads apart"
                )

    @classmethod
    def of(cls, model: nn.Module) -> Sites:
        """The sites that a model names itself."""
        if not isinstance(model, KnowsItsHeads):
            raise InputError(
                f"{type(model).__name__} does not say where its heads are",
                "give its output projections: Sites({HeadSite('layer', 0): Site(projection, heads), ...})",
            )
        return cls({site: Site(projection, model.heads_at(site)) for site, projection in model.projections.items()})

    def __getitem__(self, site: HeadSite) -> Site:
        return self._sites[site]

    def __iter__(self) -> Iterator[HeadSite]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Every head."""
        return tuple(head for site in self._sites.values() for head in site.heads)

    def by_site(self, heads: Iterable[HeadId]) -> dict[HeadSite, tuple[int, ...]]:
        """The places in z of these heads, site by site."""
        heads = tuple(heads)
        if heads not in self._places:
            self._places[heads] = self._find(heads)
        return self._places[heads]

    def _find(self, heads: Iterable[HeadId]) -> dict[HeadSite, tuple[int, ...]]:
        places: dict[HeadSite, list[int]] = {}
        for head in heads:
            if head.site not in self._sites or head not in self._sites[head.site].heads:
                raise InputError(f"no head {str(head)!r} in this model", f"it has: {_listed(self.heads)}")
            places.setdefault(head.site, []).append(self._sites[head.site].heads.index(head))
        return {site: tuple(sorted(set(found))) for site, found in places.items()}


def _listed(heads: tuple[HeadId, ...], most: int = 40) -> str:
    names = [head.short for head in heads[:most]]
    return ", ".join(names) + (f" and {len(heads) - most} more" if len(heads) > most else "")
