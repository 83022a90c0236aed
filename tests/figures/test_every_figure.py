"""Whatever is drawn can be read: no word of any figure is cut off, or runs into another one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import stretched as stretches
from answer_lengths import answer_stretch
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from routes_by_hand import routes as ways
from rows_by_hand import COSTLY, HARMLESS, judged_rows, over_training, route_rows, row
from tests.figures import test_ablation_figures as ablations
from tests.figures import test_attention_summary_figures as summaries
from tests.figures import test_pruning_figures as prunings
from weights_by_hand import reading
from weights_by_hand import weights as weights_by_hand

from headcount import figures
from headcount.analysis.attention import AttentionPatterns, HeadAttention, SiteAttention
from headcount.analysis.attention_contrasts import MOVED, ContrastShift
from headcount.analysis.head_labels import THRESHOLDS, Calibration, MeasureMean
from headcount.analysis.matching import Effort, Matching
from headcount.analysis.matching_transplants import Restored, Transplant
from headcount.analysis.matching_verdicts import SAME_JOB, KindMatch, Likeness, Overall, Pair
from headcount.analysis.pair_patching import HeadShift, PairPatch, PlaceShift
from headcount.analysis.pooling_comparison import compare_poolings
from headcount.analysis.positions import EncodingsShown, PositionsShown, TableRow, all_encodings
from headcount.analysis.roles import NAMING, HeadRole, HeadRoles, RoleInputs, RoleScore
from headcount.analysis.specialisation import HeadStats, Named, Specialisation
from headcount.analysis.weights import HeadWeights
from headcount.analysis.worst_margins import ConstantStretches, LengthMargins, WorstCase, WorstMargins
from headcount.attention_roles import ROLES
from headcount.figures import (
    ablation,
    answer_lengths,
    attention,
    cards,
    comparison,
    emergence,
    head_findings,
    pair_patching,
    positions,
    pruning,
    roles,
    routes,
    weights,
    worst_margins,
)
from headcount.figures import length_generalisation as stretch
from headcount.figures import matching as matching_figures
from headcount.figures import specialisation as stats
from headcount.figures import training as accuracy
from headcount.figures import training as curves
from headcount.figures.style import Page, plain, png
from headcount.heads import HeadId, HeadSite
from headcount.models.reading import WEIGHTINGS
from headcount.runs.folder import TrainingRecord
from headcount.stats import Proportion
from headcount.studies.emergence import Emergence
from headcount.studies.head_findings import HeadFindings, find_over_seeds
from headcount.studies.rows import COLUMNS
from headcount.studies.summary import Concordance, SeedSummary, summarise
from headcount.training.evaluation import Evaluation, Scores, WrongAnswer

pytestmark = pytest.mark.slow  # every figure is drawn, in many sizes

ODD = "a$b_$ it costs $5 or $6\n\t\x00\ud800 中文 שלום مرحبا \\frac{"
"""No mathematics, control characters, half a letter, and letters that the font lacks or that go to the left."""
FIRST = "layer.0.self.0"
KINDS = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))


@dataclass(frozen=True)
class Shape:
    """How much there is of what, and how long it is."""

    run: str = "runs/a"
    data: str = "the test set"
    panels: int = 1
    layers: int = 1
    heads: int = 1
    """Of a layer."""
    token: str = "7"
    tokens: int = 1
    lengths: tuple[int, ...] = (16,)

    @property
    def names(self) -> list[str]:
        """Of heads."""
        sites = [HeadSite(*(("layer", i, "self"))) for i in range(self.layers)]
        return [str(site.head(i)) for site in sites for i in range(self.heads)]


SHAPES = {
    "one": Shape(),
    "two": Shape("runs/" + "a name in several words " * 4, "400 fresh examples " * 8, 2, 1, 2, "12", 3, (16, 64)),
    "long": Shape("runs/" + "r" * 200, "d" * 200, 3, 2, 4, "averyverylongtoken", 9, (16, 18, 20, 1024)),
    "odd": Shape(ODD, ODD, 2, 2, 2, ODD, 4, (8, 16, 32)),
    "many": Shape("runs/sort", "the test set", 4, 1, 24, "123", 64, tuple(range(10, 110, 10))),
    "most": Shape("runs/sort", "the test set", 1, 12, 12, "123", 128, (8, 64)),
}


# --- a result of each kind ------------------------------------------------------------------------------------------


def ablated(shape: Shape, lengths: Sequence[int | None] = (None,)) -> Any:
    kinds = ("zero", "mean", "resample", "another kind of ablation")[: shape.panels]
    made = ablations.made(kinds, shape.names, lengths)
    conditions = tuple(replace(each, data=shape.data, clean_interval=(0.88, 0.92)) for each in made.conditions)
    void = tuple(replace(each, band=None) if each.length == 64 else each for each in made.heads)
    return replace(made, name=shape.run, conditions=conditions, heads=void)


def bars(shape: Shape) -> list[cards.Bar]:
    values = [0.0, 16.0, 1024.0, 7.5][: shape.heads]
    return [cards.Bar(shape.run, value, f"{value:,.1f}", value / 2, 1.5 * value, value == 0) for value in values]


def evaluated(shape: Shape) -> Evaluation:
    share = Proportion.of(990, 1000)
    rows = [Scores(f"facet {shape.token}", f"group {i}", share, share) for i in range(shape.heads)]
    return Evaluation("test", "digest", rows[0], tuple(rows[1:]), (), ())


def looked(shape: Shape) -> AttentionPatterns:
    tokens = tuple(shape.token for _ in range(shape.tokens))
    weights = tuple(map(tuple, np.full((shape.tokens, shape.tokens), 1 / shape.tokens).tolist()))
    sites = []
    for layer in range(shape.layers):
        site = HeadSite("layer", layer, "self")
        names = [site.head(i) for i in range(shape.heads)]
        heads = tuple(HeadAttention(head=str(name), short=name.short, weights=weights) for name in names)
        sites.append(SiteAttention(str(site), "layer", layer, "self", tokens, tokens, heads))
    return AttentionPatterns(name=shape.run, weights_sha256="digest", title=shape.data, n=10, sites=tuple(sites))


def log(shape: Shape) -> list[dict[str, Any]]:
    steps = [{"step": i, "loss": 2.0 / (i + 1)} for i in range(shape.tokens)]
    tested = [{"step": i, "n": 100, "free_running": 0.5, "teacher_forced": 0.6} for i in range(shape.tokens)]
    return [*steps, *(tested if shape.panels > 1 else [])]


def over_seeds(shape: Shape) -> SeedSummary:
    """Accuracies of several variants with odd names, at several lengths, over three seeds."""
    about = {"task": "sortedness", "file": "stretch", "measure": "accuracy by length", "unit": "share"}
    return summarise(
        [
            {**dict.fromkeys(COLUMNS), "run": f"{v}-{seed}", **about, "seed": seed, "length": length, **values}
            for v in range(shape.panels + 1)
            for seed in range(3)
            for length in shape.lengths
            for values in [{"value": 0.3 * seed + 0.05 * v, "encoding": f"{shape.run} {v}"}]
        ]
    )


def found_over_seeds(shape: Shape) -> HeadFindings:
    """Findings about several blocks and ways, over as many runs as the shape has lengths."""
    n, n_ways = len(shape.lengths), min(shape.panels, 3)
    drops = {f"{letter}{layer}H0": [COSTLY, HARMLESS][layer % 2 :][:1] * n for letter in "EDX" for layer in range(2)}
    shares = {site: [(0.1 * i, 0.0, 1.0) for i in range(n)] for site in ("E0", "X0")}
    ways = [each for i in range(n_ways) for each in route_rows(shares, f"{shape.token} to {i}")]
    found = find_over_seeds([*judged_rows(drops), *ways])
    assert found is not None
    return found


def many_variants(shape: Shape) -> SeedSummary:
    """Accuracies of 24 variants, at several lengths or at one."""
    names = [(f"{i} {shape.token}"[:20], pooling) for i in range(6) for pooling in ("max", "mean", "score-max", "b")]
    rows = [
        row(seed, (0.01 * i + 0.3 * seed) % 1, "accuracy by length", encoding=one, pooling=other, length=length)
        for i, (one, other) in enumerate(names)
        for seed in range(3)
        for length in shape.lengths[:6]
    ]
    return summarise([{**each, "run": f"{each['encoding']}-{each['pooling']}-{each['seed']}"} for each in rows])


def snapshots(shape: Shape) -> Emergence:
    return over_training(seeds=len(shape.lengths), n_snapshots=max(2, shape.tokens % 12))


def agreeing() -> tuple[Concordance, ...]:
    drops = {"E0H0": [HARMLESS] * 4, "E1H0": [COSTLY] * 4}
    return tuple(each for each in summarise(judged_rows(drops)).rankings[0].concordances if each.level != "head")


def pair_patch(shape: Shape) -> PairPatch:
    """Return a patch in which the first head moves nearly everything, and the last one moves it back."""
    shares = np.linspace(0.97, -0.4, len(shape.names)).tolist()
    ranking = tuple(HeadShift(head, share) for head, share in zip(shape.names, shares, strict=True))
    places = (PlaceShift(shape.token, "6", "7", -16.8, 16.2, 9.5),)
    examples = (shape.token, shape.token + "0", "0467", "0473", "0477")
    return PairPatch(shape.run, "digest", *examples, (shape.names[0],), ("10s",), places, ranking)


def weighed(shape: Shape) -> HeadWeights:
    """Return heads of a classifier, and one of the decoder with a direct path."""
    tokens = tuple(f"{i}{shape.token}" for i in range(shape.tokens))
    heads = [reading(name, tokens) for name in ("X0H0", *of_few_heads(shape).names)]
    return weights_by_hand(shape.run, heads=tuple(heads))


def worst(shape: Shape) -> WorstMargins:
    """Return the worst margins at each length of the shape; unsorted sequences are wrong beyond 16."""
    rows, wrong = [], []
    for length in shape.lengths:
        is_right = length <= 16
        last = WorstCase(2.0 / length, "7", shape.token, 2.0 / length, is_right=True)
        first = WorstCase(5.0 if is_right else -0.5, f"8 {length}", "sorted", 5.0 if is_right else -0.5, is_right)
        rows.append(LengthMargins(length, last, first))
        wrong += [] if is_right else [WrongAnswer(first.example, "unsorted", "sorted", "")]
    return WorstMargins(
        name=shape.run,
        weights_sha256="digest",
        verdict="refuted" if wrong else "right at these lengths",
        example="sequence",
        classes=("unsorted", shape.token),
        trained=(8, 16),
        rows=tuple(rows),
        constants=ConstantStretches({"7": 0.0}, "", "", None, None, None),
        rounding=0.0,
        wrong=tuple(wrong),
    )


def matched(shape: Shape) -> Matching:
    kinds = []
    for stack, kind in KINDS[: shape.panels]:
        sites = [HeadSite(stack, layer, kind) for layer in range(min(shape.layers, 2))]
        heads = tuple(str(site.head(i)) for site in sites for i in range(shape.heads))
        overlaps = tuple(map(tuple, np.full((len(heads), len(heads)), 0.5).tolist()))
        alike, moved = Likeness(0.5, 0.01, 0.2, 0.3, 0.4, 0.01, 0.02, 0.02), Restored(0.9, 0.8, 1.0, 0.05, 0.3, 0.4)
        pairs = tuple(
            Pair(head, head, 0.5, alike, alike, Transplant(0.2, 800, 8192, 0.01, moved), SAME_JOB) for head in heads
        )
        kinds.append(KindMatch(stack, kind, heads, heads, overlaps, overlaps, pairs))
    overall = Overall(2, 1, 4, 0.5, (0.2, 0.3), (0.1, 0.4), 0.01, (0, 1), 0.04)
    return Matching(shape.run, "digest", shape.run, "digest", 10, shape.data, 0.05, Effort(), overall, tuple(kinds))


@cache
def encodings(heads: int) -> EncodingsShown:
    """A few that differ in what they touch, and one that gives something away."""
    shown = all_encodings(d_model=24, n_heads=heads, n_positions=6)
    names = ("learned", "rotary", "t5", "alibi", "length-normalised", "none")
    return replace(shown, encodings=tuple(each for each in shown.encodings if each.name in names))


def placed(shape: Shape, name: str) -> PositionsShown:
    encoding = next(each for each in encodings(min(shape.heads, 24)).encodings if each.name == name)
    states: Any = ("trained", "trained", "never trained", "never trained", "past the table", "past the table")
    rows = tuple(TableRow(i, state, 1.0, 0.5, 0.9) for i, state in enumerate(states)) if encoding.table else ()
    return PositionsShown(shape.run, "digest", 6, 2, None, encoding, rows)


def specialised(shape: Shape) -> Specialisation:
    targets = ("left neighbour", "itself", "right neighbour", "equal numbers", "aligned column", "carry column")
    columns = ("all", *(f"{10**i}s" for i in range(4)))
    measures = [
        MeasureMean(target, column, condition, 0.12, 0.0123, 10, 0.33)
        for target in targets[: shape.panels + 2]
        for column in columns
        for condition in ("all", "with a carry", "without")
    ]
    measures += [
        MeasureMean(name, column, "all", 0.5, 0.01, 10) for name in ("entropy", *stats.SPREAD) for column in columns
    ]
    label = "mostly aligned column (0.81), less when a carry comes in (10s, 100s); mostly carry column in 1000s (0.76)"
    shifts = (ContrastShift(MOVED, "all", 0.1, 0.3, 0.2, 0.01, 10),) if shape.panels > 1 else ()
    contrast = Named("carry sensitivity", "attention moved by one step, less that by another") if shifts else None
    heads = [
        HeadStats(str(head), head.short, stack, 0, kind, label, tuple(measures), shifts)
        for stack, kind in KINDS[: shape.panels]
        for head in (HeadSite(stack, 0, kind).head(i) for i in range(min(shape.heads, 8)))
    ]
    calibration = Calibration(("untrained", "shuffled"), 59, 64, 0.05, ())
    weighting = WEIGHTINGS[shape.panels > 2]
    made = shape.run, "digest", 1000, shape.data, weighting, THRESHOLDS, calibration, tuple(heads), contrast
    return Specialisation(*made)


def with_roles(shape: Shape) -> HeadRoles:
    on = ("texts", "repeated tokens")[: shape.panels]
    standings = [
        RoleScore(role, each, 0.3, 0.2, 0.4, 0.1, 40, 30, 1, 1, 2, 9.0, is_named=role == "induction")
        for each in on
        for role in ROLES
    ]
    heads = [
        HeadRole(str(head), head.short, "layer", layer, "self", tuple(standings))
        for layer in range(shape.layers)
        for head in (HeadSite("layer", layer, "self").head(i) for i in range(shape.heads))
    ]
    inputs = tuple(RoleInputs(each, 8, 1000, "") for each in on)
    return HeadRoles(shape.run, "digest", inputs, (), NAMING, ("untrained", "shuffled"), 19, (), tuple(heads))


def sample_of_length(shape: Shape, label: str = "rotary, max") -> Any:
    kinds = ("shuffle", "adjacent", "small steps", "moved one")[: shape.panels]
    cells = tuple(stretches.cell(length, kind, 18) for length in shape.lengths for kind in kinds)
    attention_shares = tuple(
        stretches.attention_share(length, head) for head in shape.names for length in shape.lengths
    )
    hard_codes = () if shape.panels == 1 else ("a window of ±1", "neighbours")
    ids = stretches.result().ids if "adjacent" in kinds else ()
    return stretches.result(
        name=shape.run,
        label=label,
        cells=cells,
        attention_shares=attention_shares,
        hard_codes=hard_codes,
        recipe=label,
        ids=ids,
    )


def compared(shape: Shape) -> list[Any]:
    """Runs of one label have their names beside it."""
    labels = ["rotary, max", *(f"encoding {i}, max" for i in range(1, 2 * shape.panels - 1))]
    found = [sample_of_length(shape, label) for label in labels]
    return found if shape.panels == 1 else [*found, replace(found[0], recipe="other", name=shape.run[::-1])]


def pooled(shape: Shape) -> Any:
    """As many encodings as there are panels, two poolings each; one of them gives something away."""
    found = [
        replace(sample_of_length(shape), encoding=f"encoding {i}", pooling=pooling, hard_codes=given)
        for i in range(shape.panels)
        for pooling, given in (("mean", ()), (shape.token, ("order of neighbours",)))
    ]
    return compare_poolings(found[0], [(each, TrainingRecord(9, 0.1, 0.2, 3.0, "cpu")) for each in found[1:]])


def summarised(shape: Shape) -> Any:
    found = summaries.made(layers=shape.layers, heads=shape.heads, run=shape.run, layer=shape.tokens)
    tokens = tuple(shape.token for _ in range(shape.tokens))
    return replace(found, title=shape.data, axes=(replace(found.axes[0], tokens=tokens),))


def pruned(shape: Shape) -> Any:
    n = len(shape.names)
    return prunings.made(n, name=shape.run, chosen_on=shape.data, measured_on=shape.data, metric=shape.token * 3)


def of_few_heads(shape: Shape) -> Shape:
    """Every head has axes of its own, and axes take time."""
    return replace(shape, layers=min(shape.layers, 2), heads=min(shape.heads, 6))


DRAWN: dict[str, Callable[[Shape], Figure | dict[str, Figure]]] = {
    "draw_answer_lengths": lambda shape: answer_lengths.draw_answer_lengths(
        [answer_stretch(shape.run, shape.lengths, ("uniform", "all carry", "no carry", "chain")[: shape.panels])]
    ),
    "draw_bars": lambda shape: {
        "plain": cards.draw_bars(bars(shape), f"drop ({shape.token})"),
        "log": cards.draw_bars(bars(shape), "accurate up to length", is_log=True),
    },
    "draw_verdicts": lambda shape: cards.draw_verdicts(bars(shape)),
    "draw_ranking": lambda shape: ablation.draw_ranking(made := ablated(shape), made.conditions[0]),
    "draw_map": lambda shape: ablation.draw_map(made := ablated(shape), made.conditions[0]),
    "draw_lengths": lambda shape: ablation.draw_lengths(ablated(shape, shape.lengths)),
    "draw_accuracy": lambda shape: accuracy.draw_accuracy(evaluated(shape), f"{shape.run} on its test set"),
    "draw_page": lambda shape: attention.draw_page(looked(of_few_heads(shape)), "layer", "self"),
    "draw_kind": lambda shape: attention.draw_kind(summarised(shape), "layer", "self"),
    "draw_pages": lambda shape: {
        **attention.draw_pages(looked(replace(shape, layers=1, heads=1))),
        "mosaic": attention.draw_pages(summarised(shape))["layer-self"],
    },
    "draw_head": lambda shape: attention.draw_head(made := looked(shape), made.sites[0], made.sites[0].heads[0]),
    "draw_heads": lambda shape: attention.draw_heads(looked(replace(shape, layers=1, heads=1))),
    "draw_over_examples": lambda shape: attention.draw_over_examples(
        [looked(shape)] * (2 * shape.panels), "layer.0.self.0"
    ),
    "draw_panels": lambda shape: attention.draw_over_examples([looked(shape)] * 5, FIRST),
    "draw_over_texts": lambda shape: attention.draw_over_texts(
        [summarised(shape)] * 2, ["", shape.data], HeadId.parse(FIRST), [np.eye(shape.tokens)] * 2
    ),
    "draw_curves": lambda shape: curves.draw_curves(log(shape), f"Training of {shape.run}"),
    "draw_learning": lambda shape: curves.draw_learning(
        [(f"{i} {shape.run}", log(shape)) for i in range(10)], shape.run
    ),
    "draw_mosaic": lambda shape: attention.draw_mosaic(summarised(shape), "layer", "self"),
    "draw_head_on_text": lambda shape: attention.draw_head_on_text(summarised(shape), "L0H0", np.eye(shape.tokens)),
    "draw_matching": lambda shape: matching_figures.draw_matching(matched(of_few_heads(shape))),
    "draw_positions": lambda shape: {
        name: positions.draw_positions(placed(shape, name)) for name in ("learned", "rotary", "t5")
    },
    "draw_side_by_side": lambda shape: positions.draw_side_by_side(
        [placed(shape, name) for name in ("length-normalised", "learned", "none")]
    ),
    "draw_encodings": lambda shape: positions.draw_encodings(
        replace(encodings(shape.heads), name=ODD * 3, trained="learned", n_trained=3)
    ),
    "draw_pruning": lambda shape: pruning.draw_pruning(pruned(shape)),
    "draw_role_maps": lambda shape: roles.draw_role_maps(made := with_roles(shape), made.heads),
    "draw_roles": lambda shape: roles.draw_roles(with_roles(shape)),
    "draw_comparison": lambda shape: {
        "few": comparison.draw_comparison(over_seeds(shape), "accuracy by length"),
        **({"many": comparison.draw_comparison(many_variants(shape), "accuracy by length")} if shape.heads < 3 else {}),
    },
    "draw_agreement": lambda shape: head_findings.draw_agreement(agreeing(), ["layers", "attention blocks"]),
    "draw_places": lambda shape: head_findings.draw_places(found_over_seeds(shape).variants[0]),
    "draw_site_routes": lambda shape: head_findings.draw_site_routes(found_over_seeds(shape).variants[0]),
    "draw_emergence": lambda shape: emergence.draw_emergence(snapshots(shape), "all runs"),
    "draw_sites": lambda shape: emergence.draw_sites(snapshots(shape), "all runs"),
    "draw_pair_patch": lambda shape: pair_patching.draw_pair_patch(pair_patch(shape)),
    "draw_routes": lambda shape: routes.draw_routes([ways(shape.run)] * shape.panels),
    "draw_stats": lambda shape: stats.draw_stats(specialised(shape)),
    "draw_sensitivity": lambda shape: stats.draw_sensitivity(specialised(shape)),
    "draw_condition": lambda shape: stats.draw_condition(specialised(shape), "encoder", "self"),
    "draw_conditions": lambda shape: stats.draw_conditions(specialised(replace(shape, heads=min(shape.heads, 4)))),
    "draw_stretch": lambda shape: stretch.draw_stretch(compared(shape)),
    "draw_dispersion": lambda shape: stretch.draw_dispersion(sample_of_length(shape)),
    "draw_poolings": lambda shape: stretch.draw_poolings(pooled(shape).models, "shuffle"),
    "draw_heads_weights": lambda shape: weights.draw_heads_weights(made := weighed(shape), made.heads[:4]),
    "draw_weights": lambda shape: weights.draw_weights(weighed(shape)),
    "draw_worst_margins": lambda shape: worst_margins.draw_worst_margins(worst(shape)),
}
"""Every function that draws a figure, on a result of some shape."""
ONLY = {
    "draw_condition": ["two"],
    "draw_agreement": ["one"],
    "draw_sites": ["one", "many"],
    "draw_site_routes": ["one", "long", "odd"],
    "draw_places": ["one", "many"],
    "draw_emergence": ["one", "many"],
    "draw_weights": ["two"],
    "draw_heads_weights": ["odd", "many"],
    "draw_kind": ["two"],
    "draw_role_maps": ["two"],
    "draw_roles": ["odd", "many", "most"],
    "draw_over_examples": ["one", "long", "odd", "most"],
    "draw_pages": ["two"],
    "draw_heads": ["two"],
    "draw_panels": ["many"],
    "draw_over_texts": ["one", "long", "odd", "many"],
    "draw_lengths": ["one", "two", "long", "odd", "many"],
    "draw_page": ["one", "two", "long", "many"],
    "draw_conditions": ["one", "odd"],
    "draw_sensitivity": ["two", "long", "odd", "many"],
    "draw_positions": ["long"],
    "draw_encodings": ["many"],
    "draw_side_by_side": ["long"],
}
"""Shapes that say all there is to say: many axes take time."""
COMMON = ("one", "long", "odd", "many")
"""Shapes that most figures are drawn in; the others are for `--long`, ..."""
ALL_HEADS = ("draw_ranking", "draw_map", "draw_mosaic", "draw_pruning")
"""... but these figures have a place for every head of every layer."""


def is_common(name: str, shape: str) -> bool:
    """Return whether a figure is drawn in this shape in every test run."""
    return shape in COMMON or (shape == "most" and name in ALL_HEADS) or ONLY.get(name) == [shape]


def pages(name: str, shape: Shape) -> list[Figure]:
    drawn = DRAWN[name](shape)
    return list(drawn.values()) if isinstance(drawn, dict) else [drawn]


# --- what is asked of a figure --------------------------------------------------------------------------------------


def require_readable(figure: Figure) -> None:
    figure.draw_without_rendering()
    words = list(_words(figure))
    for text, box in words:
        page = figure.bbox.padded(1)
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, f"cut off at a side: {text!r}"
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, f"cut off above or below: {text!r}"
    for (one, box), (other, beside) in combinations(words, 2):
        assert not _overlap(box, beside), f"{one!r} runs into {other!r}"
    for ticks in _ticks(figure):
        for (one, box), (other, beside) in combinations(ticks, 2):
            assert not _overlap(box, beside), f"tick {one!r} runs into {other!r}"


def _words(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Titles, labels of axes and legends; what stands at ticks has its own check."""
    texts = [*figure.texts, *(text for axes in figure.axes for text in _titles(axes))]
    texts += [text for text in (figure._suptitle, figure._supxlabel) if text not in (None, *figure.texts)]  # type: ignore[attr-defined]
    for text in texts:
        if text.get_text().strip() and text.get_visible():
            yield text.get_text(), text.get_window_extent()
    for legend in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        yield f"legend of {legend.get_texts()[0].get_text()}", legend.get_window_extent()
    for ticks in _ticks(figure):
        boxes = [box for _, box in ticks]
        if boxes:
            yield f"ticks {ticks[0][0]}, ...", Bbox.union(boxes)


def _titles(axes: Any) -> Iterator[Text]:
    yield from (axes.title, axes._left_title, axes._right_title)
    yield from (axis.label for axis in (axes.xaxis, axes.yaxis))


def _ticks(figure: Figure) -> Iterator[list[tuple[str, Bbox]]]:
    """Labels at the ticks of every axis that are visible."""
    for axes in (each for parent in figure.axes for each in (parent, *parent.child_axes) if each.axison):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            seen = [tick for tick in ticks if low - 1e-9 <= tick.get_loc() <= high + 1e-9]
            labels = [label for tick in seen for label in (tick.label1, tick.label2)]
            shown = [label for label in labels if label.get_visible() and label.get_text().strip()]
            yield [(label.get_text(), _upright(label)) for label in shown]


def _upright(label: Text) -> Bbox:
    """Slanted labels may share a corner of their boxes: of those, a column as wide as a line is high."""
    box = label.get_window_extent()
    if label.get_rotation() % 90 == 0:
        return box
    half = label.get_fontsize() * label.get_figure().dpi / 72 / 2
    middle = (box.x0 + box.x1) / 2
    return Bbox.from_extents(middle - half, box.y0, middle + half, box.y1)


def _overlap(one: Bbox, other: Bbox) -> bool:
    both = Bbox.intersection(one, other)
    return both is not None and both.width > 1 and both.height > 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[] if is_common(name, shape) else [pytest.mark.long])
        for name in DRAWN
        for shape in ONLY.get(name, SHAPES)
    ],
)
def test_nothing_is_cut_off_or_covered(name: str, shape: str) -> None:
    for figure in pages(name, SHAPES[shape]):
        require_readable(figure)


def test_every_drawing_function_is_tried() -> None:
    names = set()
    for module in pkgutil.iter_modules(figures.__path__, "headcount.figures."):
        if not module.name.rpartition(".")[2].startswith("_"):
            found = importlib.import_module(module.name)
            functions = inspect.getmembers(found, inspect.isfunction)
            names |= {name for name, each in functions if name.startswith("draw_") and each.__module__ == module.name}
    assert names == set(DRAWN)


# --- names are names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["draw_ranking", "draw_accuracy", "draw_head", "draw_curves", "draw_stretch"])
def test_a_dollar_is_a_dollar_and_no_letter_is_warned_about(name: str) -> None:
    """Read as mathematics, this one is a fault and `$5 or $6` is in italics; warnings are errors here."""
    (figure,) = pages(name, replace(SHAPES["odd"], run=ODD))
    assert png(figure).startswith(b"\x89PNG")
    named = [text for text in figure.findobj(Text) if isinstance(text, Text) and "$5 or $6" in text.get_text()]
    named += [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text().startswith("a$b_$")]
    assert named
    assert not any(text.get_parse_math() for text in named)


def test_powers_of_ten_stay_mathematics() -> None:
    log = [{"step": i, "loss": 10.0**-i} for i in range(4)]
    figure = curves.draw_curves(log, "a $run$")
    assert png(figure).startswith(b"\x89PNG")
    powers = [label for label in figure.axes[0].get_yticklabels() if "10^" in label.get_text()]
    assert powers
    assert all(label.get_parse_math() for label in powers)


def test_what_the_font_lacks_is_no_warning() -> None:
    """Wherever it comes from: a panel of someone else's may name what it likes."""
    figure = Page(5, 3)
    figure.subplots().set_xlabel("中文")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        png(figure)
    assert not told


@pytest.mark.parametrize("width", [2.0, 5.0, 30.0])
def test_a_title_is_as_long_as_it_was(width: float) -> None:
    """Lines are broken, not lost; the page grows by them, so that panels keep their height."""
    text = "w" * 99 + " and some words more " * 9
    figure = Page(width, 3)
    figure.headline(text, "second line")
    lines = figure.get_suptitle().splitlines()
    assert "".join("".join(lines).split()) == "".join((text + "second line").split())
    assert figure.get_figheight() > 3 + 0.15 * len(lines)
    require_readable(figure)


def test_a_legend_has_as_many_columns_as_there_is_room_for() -> None:
    def shown(n: int, label: str, width: float) -> Page:
        figure = Page(width, 3)
        axes = figure.subplots()
        lines = [axes.plot([0, 1], [0, i])[0] for i in range(n)]
        figure.key(lines, [f"{label} {i}" for i in range(n)])
        require_readable(figure)
        return figure

    few, many, long = shown(3, "L0H", 9), shown(144, "L0H", 5), shown(4, "a name of many words " * 9, 5)
    assert few.get_figheight() < 3.6 < long.get_figheight() < many.get_figheight()
    assert len({round(text.get_window_extent().x0) for text in few.legends[0].get_texts()}) == 3
    assert len({round(text.get_window_extent().x0) for text in long.legends[0].get_texts()}) == 1


def test_plain_text_is_one_line() -> None:
    assert plain(ODD[:30]) == "a$b_$ it costs $5 or $6\\n\\t\\x00\\ud800 □□"
    assert plain("x" * 20, 16) == "x" * 15 + "…"
