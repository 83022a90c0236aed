"""Draw the figures of a result by name, for `result.plot()`; one table lists the figures of each type of result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from headcount.errors import InputError
from headcount.figures.ablation import draw_lengths, draw_map, draw_ranking
from headcount.figures.answer_lengths import draw_answer_lengths
from headcount.figures.attention import draw_kind, heads_by_kind
from headcount.figures.comparison import draw_comparison
from headcount.figures.emergence import draw_emergence, draw_sites
from headcount.figures.head_findings import draw_places, draw_site_routes
from headcount.figures.length_generalisation import draw_dispersion, draw_poolings, draw_stretch
from headcount.figures.matching import draw_matching
from headcount.figures.pair_patching import draw_pair_patch
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.pruning import draw_pruning
from headcount.figures.roles import draw_role_maps, roles_of
from headcount.figures.routes import draw_routes
from headcount.figures.specialisation import draw_condition, draw_stats
from headcount.figures.training import draw_accuracy
from headcount.figures.weights import draw_heads_weights, pages_of
from headcount.figures.worst_margins import draw_worst_margins
from headcount.suggestions import suggestion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.attention import Attention
    from headcount.analysis.pooling_comparison import PoolingComparison
    from headcount.analysis.roles import HeadRoles
    from headcount.analysis.routes import Routes
    from headcount.analysis.specialisation import Specialisation
    from headcount.analysis.weights import HeadWeights
    from headcount.results import Result
    from headcount.studies.emergence import Emergence
    from headcount.studies.head_findings import HeadFindings
    from headcount.studies.summary import SeedSummary
    from headcount.training.evaluation import Classification, Evaluation

Drawings = Mapping[str, Callable[[], Figure]]
"""Maps the name of each figure of a result to the function that draws it; the first figure is the default."""


def _ablation(result: Ablation) -> Drawings:
    condition = result.conditions[0]
    by_length = {"lengths": partial(draw_lengths, result)} if len(result.conditions) > 1 else {}
    return by_length | {
        "ranking": partial(draw_ranking, result, condition),
        "map": partial(draw_map, result, condition),
    }


def _accuracy(result: Evaluation | Classification) -> Drawings:
    return {"accuracy": partial(draw_accuracy, result, f"On the {result.split} set")}


def _attention(result: Attention) -> Drawings:
    kinds = dict.fromkeys((site.stack, site.kind) for site in result.sites)
    return {"-".join(kind): partial(draw_kind, result, *kind) for kind in kinds}


def _emergence(result: Emergence) -> Drawings:
    drawings: dict[str, Callable[[], Figure]] = {}
    for i, variant in enumerate(result.variants):
        end = f"-{i}" if i else ""
        drawings |= {
            f"emergence{end}": partial(draw_emergence, result, variant),
            f"sites{end}": partial(draw_sites, result, variant),
        }
    return drawings


def _findings(result: HeadFindings) -> Drawings:
    drawings: dict[str, Callable[[], Figure]] = {}
    for i, each in enumerate(result.variants):
        end = f"-{i}" if i else ""
        drawings |= {f"places{end}": partial(draw_places, each)} if each.places else {}
        drawings |= {f"routes{end}": partial(draw_site_routes, each)} if each.routes else {}
    return drawings


def _poolings(result: PoolingComparison) -> Drawings:
    kinds = dict.fromkeys(cell.negative for model in result.models for cell in model.cells)
    return {kind: partial(draw_poolings, result.models, kind) for kind in kinds}


def _roles(result: HeadRoles) -> Drawings:
    kinds = heads_by_kind(result.heads)
    return {"-".join(kind): partial(draw_role_maps, result, heads) for kind, heads in kinds.items() if roles_of(heads)}


def _routes(result: Routes) -> Drawings:
    ways = {way.name: partial(draw_routes, [result], (), [way.name]) for way in result.ways if way.n}
    return {"map": partial(draw_routes, [result]), **ways}


def _seeds(result: SeedSummary) -> Drawings:
    measures = dict.fromkeys(each.measure for each in result.variants)
    return {measure: partial(draw_comparison, result, measure) for measure in measures}


def _specialisation(result: Specialisation) -> Drawings:
    conditions = {"-".join(kind): partial(draw_condition, result, *kind) for kind in heads_by_kind(result.heads)}
    return {"stats": partial(draw_stats, result), **conditions}


def _weights(result: HeadWeights) -> Drawings:
    return {name: partial(draw_heads_weights, result, heads) for name, heads in pages_of(result).items()}


PLOTS: dict[str, Callable[[Any], Drawings]] = {
    "Ablation": _ablation,
    "AnswerStretch": lambda result: {"stretch": partial(draw_answer_lengths, [result])},
    "Attention": _attention,
    "Classification": _accuracy,
    "EncodingsShown": lambda result: {"encodings": partial(draw_encodings, result)},
    "Emergence": _emergence,
    "Evaluation": _accuracy,
    "HeadFindings": _findings,
    "HeadRoles": _roles,
    "HeadWeights": _weights,
    "Matching": lambda result: {"matching": partial(draw_matching, result)},
    "PairPatch": lambda result: {"heads": partial(draw_pair_patch, result)},
    "PoolingComparison": _poolings,
    "PositionsShown": lambda result: {"positions": partial(draw_positions, result)},
    "Pruning": lambda result: {"pruning": partial(draw_pruning, result)},
    "Routes": _routes,
    "SeedSummary": _seeds,
    "Specialisation": _specialisation,
    "Stretch": lambda result: {
        "stretch": partial(draw_stretch, [result]),
        "dispersion": partial(draw_dispersion, result),
    },
    "WorstMargins": lambda result: {"margins": partial(draw_worst_margins, result)},
}
"""Maps the class name of a result (or of its base class) to a function that returns its figures by name."""


def plot(result: Result, which: str | None = None) -> Figure:
    """Draw one figure of a result: the one with the name `which`, or the first one."""
    kind = type(result).__name__
    drawings_of = next((PLOTS[each.__name__] for each in type(result).__mro__ if each.__name__ in PLOTS), None)
    if drawings_of is None:
        raise InputError(
            f"a result of the type {kind} has no figure", "print the result, or use its to_rows() for its numbers"
        )
    drawings = drawings_of(result)
    if which is not None and which not in drawings:
        raise InputError(f"this {kind} has no figure with the name {which!r}", suggestion(which, drawings))
    return drawings[which or next(iter(drawings))]()
