"""Where heads meet the residual stream.

The input of an attention block's output projection is its heads' outputs side by side, z [..., head * d_head]. That is
the one place where a head can be silenced, scaled, replaced and measured, in everybody's models alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.finding import NamedPatterns, SiteMatch, find_sites, require_unquantised, unwrap


@runtime_checkable
class SupportsHeads(Protocol):
    """A model that can say where its heads are."""

    @property
    def projections(self) -> Mapping[HeadSite, nn.Module]:
        """The output projection of every site that has heads."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """The heads of a site, in the order in which they stand in z."""


@runtime_checkable
class SupportsSites(Protocol):
    """A model that was given its sites."""

    @property
    def head_sites(self) -> Sites:
        """They."""


@dataclass(frozen=True)
class Site:
    """One output projection, and the heads side by side in its input."""

    projection: nn.Module
    heads: tuple[HeadId, ...]
    call: int = 0
    """Which call of the projection in a pass, where several sites share one (ALBERT's layers)."""
    mha: nn.MultiheadAttention | None = None
    """PyTorch's own attention, if that is whose projection it is: it must be opened to call it."""


class Sites(Mapping[HeadSite, Site]):
    """Every output projection of a model."""

    def __init__(self, sites: Mapping[HeadSite, Site]) -> None:
        self._sites = dict(sites)
        self._places: dict[tuple[HeadId, ...], dict[HeadSite, tuple[int, ...]]] = {}  # asked for again and again
        if not self._sites:
            raise InputError("this model has no heads", "there is nothing to silence, read or cut")
        self._turns: dict[nn.Module, tuple[HeadSite, ...]] = {}
        for name, site in sorted(self._sites.items(), key=lambda each: each[1].call):
            require_unquantised(str(name), site.projection)
            sharing = self._turns[site.projection] = (*self._turns.get(site.projection, ()), name)
            if site.call != len(sharing) - 1:
                share = f"{sharing[0]} and {name} share" if len(sharing) > 1 else f"{name} is call {site.call} of"
                raise InputError(
                    f"{share} one output projection",
                    "a gate could not tell their heads apart; if they take turns in every pass, say which call is "
                    "whose: Site(projection, heads, call=1)",
                )

    @classmethod
    def empty(cls) -> Sites:
        """Of a model that has lost all of its heads."""
        made = cls.__new__(cls)
        made._sites, made._places, made._turns = {}, {}, {}
        return made

    @classmethod
    def of(
        cls, model: nn.Module, *patterns: str, n_heads: int | Mapping[str, int] | None = None, **named: NamedPatterns
    ) -> Sites:
        """The sites that a model names itself, or those whose output projections are at these paths.

        `*` stands for a layer's number: Sites.of(model, "encoder_layers.*.self_attn.W_o", n_heads=4). Which stack and
        kind is meant is read off the path; say it if that fails: Sites.of(model, cross="dec.*.attn2.o", n_heads=4),
        with the names `layer` (a single stack), `encoder`, `decoder` and `cross`.
        """
        model = unwrap(model)
        if patterns or named:
            return cls.of_found(find_sites(model, patterns, named, n_heads))
        if isinstance(model, SupportsSites):
            return model.head_sites
        if not isinstance(model, SupportsHeads):
            raise InputError(
                f"{type(model).__name__} does not say where its heads are",
                "try headcount.wrap(model), or give its output projections: "
                'Sites.of(model, "layers.*.attn.out", n_heads=4)',
            )
        return cls({site: Site(projection, model.heads_at(site)) for site, projection in model.projections.items()})

    @classmethod
    def of_found(cls, found: Iterable[SiteMatch]) -> Sites:
        """Output projections as they were found."""
        return cls({each.name: Site(each.projection, each.heads, mha=each.mha) for each in found})

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

    @property
    def projections(self) -> Mapping[nn.Module, tuple[HeadSite, ...]]:
        """Every output projection, and the sites that take turns with it: one, as a rule."""
        return self._turns

    @contextmanager
    def unfused(self) -> Iterator[None]:
        """Inside, PyTorch's own attention modules among the sites call their output projections."""
        with ExitStack() as stack:
            attentions = [site.mha for site in self._sites.values() if site.mha is not None]
            if attentions:
                stack.enter_context(unfused(attentions))
            yield

    def head_slots(self, heads: Iterable[HeadId]) -> dict[HeadSite, tuple[int, ...]]:
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


class SharedSiteCounter:
    """Whose turn it is when a projection is called."""

    def __init__(self, sites: Sites, skipped: Mapping[nn.Module, int] | None = None) -> None:
        """`skipped`: calls that others make up for, as they go."""
        self._sites, self._skipped = sites, {} if skipped is None else skipped  # empty as yet, perhaps, and filling
        self._n: Counter[nn.Module] = Counter()

    def next(self, projection: nn.Module) -> HeadSite:
        """The site that this call belongs to."""
        sharing = self._sites.projections[projection]
        n = self._n[projection] + self._skipped.get(projection, 0)
        self._n[projection] += 1
        return sharing[n % len(sharing)]

    def unfinished(self) -> list[str]:
        """Sites whose projection was called, but not a whole number of rounds."""
        return [
            str(self._sites.projections[projection][0])
            for projection, n in self._n.items()
            if (n + self._skipped.get(projection, 0)) % len(self._sites.projections[projection])
        ]


def _listed(heads: tuple[HeadId, ...], most: int = 40) -> str:
    names = [head.short for head in heads[:most]]
    return ", ".join(names) + (f" and {len(heads) - most} more" if len(heads) > most else "")


# --- PyTorch's own attention ------------------------------------------------------------------------------------------
# PyTorch's own attention computes its output projection without calling it, so hooks there never fire.
#
# While it is open, an `nn.MultiheadAttention` computes z just as it always does - its own code runs, with an identity
# in the place of the output projection - and then calls the projection, rows first. The fused paths of
# `nn.TransformerEncoderLayer` and of the module itself are off meanwhile.


@contextmanager
def unfused(attentions: Iterable[nn.MultiheadAttention]) -> Iterator[None]:
    """Inside, these modules call their output projections; contexts may nest."""
    closed = [mha for mha in dict.fromkeys(attentions) if "forward" not in mha.__dict__]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for mha in closed:
            mha.__dict__["forward"] = _open_forward(mha)
        yield
    finally:
        for mha in closed:
            mha.__dict__.pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(fused)


def _open_forward(mha: nn.MultiheadAttention) -> Callable[..., Any]:
    def forward(query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        projection, through = mha.out_proj, _identity(query)
        mha._modules["out_proj"] = through
        try:
            z, weights = type(mha).forward(mha, query, *args, **kwargs)
        finally:
            mha._modules["out_proj"] = projection
        if mha.batch_first or z.dim() == 2:
            return projection(z), weights
        return projection(z.transpose(0, 1)).transpose(0, 1), weights

    return forward


def _identity(query: Tensor) -> nn.Module:
    """A projection that hands on what it is given, bit for bit: each sum has one term that is not 0."""
    through = nn.Module()
    through.weight = nn.Parameter(torch.eye(query.shape[-1], device=query.device, dtype=query.dtype), False)
    through.bias = None  # type: ignore[assignment]
    return through
