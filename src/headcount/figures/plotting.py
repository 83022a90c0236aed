"""Which figures a result has: what `result.plot()` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from headcount.errors import InputError
from headcount.figures.ablation import draw_lengths, draw_map, draw_ranking
from headcount.figures.attention import draw_kind
from headcount.figures.head_stats import draw_conditions, draw_matching, draw_stats
from headcount.figures.length_generalisation import draw_dispersion, draw_poolings, draw_stretch
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.pruning import draw_pruning
from headcount.figures.roles import draw_roles
from headcount.figures.training import draw_accuracy
from headcount.registry import suggestion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.specialisation import Specialisation
    from headcount.results import Result

Drawings = Mapping[str, Callable[[], Figure]]
"""By name, in order; the first is shown unless another is named."""


def _of_ablation(result: Ablation) -> Drawings:
    by_length = {"lengths": partial(draw_lengths, result)} if len(result.conditions) > 1 else {}
    return {
        **by_length,
        "ranking": partial(draw_ranking, result, result.conditions[0]),
        "map": partial(draw_map, result, result.conditions[0]),
    }


def _of_attention(result: Attention) -> Drawings:
    kinds = dict.fromkeys((site.stack, site.kind) for site in result.sites)
    return {"-".join(kind): partial(draw_kind, result, *kind) for kind in kinds}


def _of_specialisation(result: Specialisation) -> Drawings:
    conditions = draw_conditions(result)  # which there are is known once they are drawn
    return {"stats": partial(draw_stats, result), **{name: partial(_same, page) for name, page in conditions.items()}}


def _same(figure: Figure) -> Figure:
    return figure


PLOTS: dict[str, Callable[[Any], Drawings]] = {
    "Ablation": _of_ablation,
    "Attention": _of_attention,
    "Classification": lambda found: {"accuracy": lambda: draw_accuracy(found, f"On the {found.split} set")},
    "EncodingsShown": lambda found: {"encodings": lambda: draw_encodings(found)},
    "Evaluation": lambda found: {"accuracy": lambda: draw_accuracy(found, f"On the {found.split} set")},
    "HeadRoles": lambda found: {name: partial(_same, page) for name, page in draw_roles(found).items()},
    "Matching": lambda found: {"matching": lambda: draw_matching(found)},
    "PoolingComparison": lambda found: {
        kind: partial(draw_poolings, found.models, kind)
        for kind in dict.fromkeys(cell.negative for model in found.models for cell in model.cells)
    },
    "PositionsShown": lambda found: {"positions": lambda: draw_positions(found)},
    "Pruning": lambda found: {"pruning": lambda: draw_pruning(found)},
    "Specialisation": _of_specialisation,
    "Stretch": lambda found: {
        "stretch": lambda: draw_stretch([found]),
        "dispersion": lambda: draw_dispersion(found),
    },
}
"""By the name of the result's class, or of one that it inherits."""


def plot(result: Result, which: str | None = None) -> Figure:
    """One figure of a result."""
    own = next((PLOTS[each.__name__] for each in type(result).__mro__ if each.__name__ in PLOTS), None)
    if own is None:
        raise InputError(f"{type(result).__name__} has no figure", "print it, or use to_rows()")
    drawings = own(result)
    if which is not None and which not in drawings:
        raise InputError(f"no figure {which!r} of this {type(result).__name__}", suggestion(which, drawings))
    return drawings[next(iter(drawings)) if which is None else which]()
