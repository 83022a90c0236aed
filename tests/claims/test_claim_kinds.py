"""Every kind of claim is supported by planted measurements, and refuted by others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from told_results import cell

from headcount import api
from headcount.analysis import routes
from headcount.analysis.head_labels import Bar, Calibration, MeasureMean, Thresholds
from headcount.analysis.length_generalisation import Stretch
from headcount.analysis.roles import NAMING, HeadRole, HeadRoles, RoleBar, RoleScore
from headcount.analysis.specialisation import HeadStats, Specialisation
from headcount.claims import CLAIMS, _attention, _drops, extrapolates_to
from headcount.claims.base import ClaimCase, ClaimResult, heads_of, judge, parse
from headcount.experiments.interventions import Outcome
from headcount.experiments.models import OpenModel
from headcount.stats import Proportion

N = 200


@pytest.fixture(scope="module")
def adder() -> OpenModel:
    return api.open_model("sample:addition")


@pytest.fixture(scope="module")
def sorter() -> OpenModel:
    return api.open_model("sample:sortedness")


def judged(model: OpenModel, text: str, n: int | None = N) -> ClaimResult:
    claim = parse(text)
    result = judge(ClaimCase(model, claim, heads_of(model, claim.subject), n))
    assert ClaimResult.from_json(result.to_json()) == result
    return result


# --- the event --------------------------------------------------------------------------------------------------------


def plant_shares(
    patch: pytest.MonkeyPatch, moved: tuple[float, float], placebo: tuple[float, float], kept: float, n: int = 400
) -> None:
    def share(low: float, high: float) -> routes.Share:
        return routes.Share((low + high) / 2, low, high, low, high)

    class Planted:
        def __init__(self, model: Any, quartets: Any) -> None:
            self.n = n

        def head_shares(self, groups: Any, n_comparisons: int) -> list[Any]:
            return [(0, None, share(*moved), share(*placebo))]

    def donors(model: Any, heads: Any, quartets: Any, seed: int, n_donors: int) -> routes.DonorTest:
        half = n_donors // 2
        return routes.DonorTest("", "", Proportion.of(half, half), Proportion.of(round(kept * half), half))

    patch.setattr(routes, "EventPatches", Planted)
    patch.setattr(routes, "donor_test", donors)


@pytest.mark.parametrize(
    ("moved", "placebo", "kept", "verdict"),
    [
        ((0.5, 0.6), (-0.01, 0.01), 1.0, "supported"),
        ((0.45, 0.6), (-0.01, 0.01), 1.0, "undecided"),
        ((0.2, 0.49), (-0.01, 0.01), 1.0, "refuted"),
        ((0.0, 0.05), (-0.01, 0.01), 1.0, "refuted"),
        ((0.9, 0.95), (0.05, 0.15), 1.0, "undecided"),
        ((0.9, 0.95), (0.3, 0.4), 1.0, "undecided"),
        ((0.9, 0.95), (-0.01, 0.01), 0.95, "undecided"),
        ((0.9, 0.95), (-0.01, 0.01), 0.5, "undecided"),
    ],
)
def test_the_event_is_carried_if_the_patch_moves_half_and_the_controls_hold(
    adder: OpenModel,
    monkeypatch: pytest.MonkeyPatch,
    moved: tuple[float, float],
    placebo: tuple[float, float],
    kept: float,
    verdict: str,
) -> None:
    plant_shares(monkeypatch, moved, placebo, kept)
    assert judged(adder, "E0H2 carries-the-carry 10s").verdict == verdict


@pytest.mark.slow
def test_what_the_architecture_decides_is_labelled(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_shares(monkeypatch, (1.0, 1.0), (0.3, 0.4), 0.1)
    for subject in ("cross", "cross+E0", "model"):
        whole = judged(adder, f"{subject} carries-the-carry 10s")
        assert (whole.verdict, "they move all of it" in whole.by_construction) == ("supported", True)
    part = judged(adder, "X0 carries-the-carry 10s")
    assert (part.verdict, part.by_construction) == ("undecided", "")
    plant_shares(monkeypatch, (0.0, 0.0), (0.0, 0.0), 1.0)
    first, second = (judged(adder, f"{subject} carries-the-carry 10s") for subject in ("D0", "D1"))
    assert first.by_construction.startswith("the 10s are written before the 1s")
    assert second.by_construction == ""
    assert "the 10s are written before the 1s" in second.note
    assert judged(adder, "E0 carries-the-carry 10s").note == ""


def test_few_right_quartets_are_not_judged_or_noted(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_shares(monkeypatch, (0.9, 0.95), (0, 0), 1.0, n=19)
    assert "the model is right on all four examples in" in judged(adder, "E0H2 carries-the-carry 10s").reason
    plant_shares(monkeypatch, (0.9, 0.95), (0, 0), 1.0, n=50)
    assert "fewer than 100 sets of four" in judged(adder, "E0H2 carries-the-carry 10s").note
    plant_shares(monkeypatch, (0.9, 0.95), (0, 0), 1.0, n=100)
    assert judged(adder, "E0H2 carries-the-carry 10s").note == ""


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("11s", "did you mean '10s'"),
        ("10s>1s", "that receives a carry"),
        ("1s", "that receives a carry"),
    ],
)
def test_a_place_without_the_event_is_not_judged(adder: OpenModel, place: str, why: str) -> None:
    result = judged(adder, f"E0H2 carries-the-carry {place}")
    assert result.verdict == "not judged"
    assert why in result.reason


def test_a_task_without_an_event_is_not_judged(sorter: OpenModel) -> None:
    assert judged(sorter, "L0H0 carries-the-carry 10s").verdict == "not judged"


@pytest.mark.slow
def test_the_packaged_adder_has_one_carrier_into_the_10s(adder: OpenModel) -> None:
    """Nothing is planted."""
    carrier, mover, chain = (
        judged(adder, text)
        for text in (
            "E0H2 carries-the-carry 10s",
            "E0H3 carries-the-carry 1s>10s",
            "E0H2+E1H0+E1H2 carries-the-carry 100s",
        )
    )
    assert (carrier.verdict, mover.verdict, chain.verdict) == ("supported", "refuted", "supported")
    assert carrier.effect is not None
    assert carrier.effect.value == pytest.approx(0.91, abs=0.02)


# --- drops ------------------------------------------------------------------------------------------------------------


def plant_drops(patch: pytest.MonkeyPatch, model: OpenModel, costs: dict[str, float], n: int = 2000) -> None:
    """Let each group of heads cost this share of the examples; other groups cost nothing."""
    groups = {frozenset(heads_of(model, subject)): cost for subject, cost in costs.items()}

    def run(experiment: Any, interventions: Any, *, proven: bool) -> Outcome:
        scores = np.ones((len(interventions), experiment.n))
        for row, each in zip(scores, interventions, strict=True):
            row[: round(groups.get(frozenset(each.heads), 0.0) * experiment.n)] = 0.0
        return Outcome(np.ones(experiment.n), scores, 0.0)

    patch.setattr(_drops, "run_interventions", run)


@pytest.mark.parametrize(
    ("text", "costs", "verdict"),
    [
        ("E0H0+D1 prunable-together", {"E0H0+D1": 0.0}, "supported"),
        ("E0H0+D1 prunable-together", {"E0H0+D1": 0.01}, "undecided"),
        ("E0H0+D1 prunable-together", {"E0H0+D1": 0.05}, "refuted"),
        ("E0H0 redundant-with E1H1", {"E0H0+E1H1": 0.3, "E0H0": 0.05, "E1H1": 0.05}, "supported"),
        ("E0H0 redundant-with E1H1", {"E0H0+E1H1": 0.06, "E0H0": 0.05, "E1H1": 0.01}, "refuted"),
        ("E0H0 redundant-with E1H1", {"E0H0+E1H1": 0.5, "E0H0": 0.5, "E1H1": 0.5}, "refuted"),
        ("E0H0 redundant-with E1H1", {}, "refuted"),
        ("E0H0 redundant-with E1H1", {"E0H0+E1H1": 0.012}, "undecided"),
        ("E0 more-important-than D0", {"E0": 0.5, "D0": 0.1, "E0H0": 0.2}, "supported"),
        ("E0 more-important-than D0", {"E0": 0.5, "D0": 0.1, "D0H0": 0.2}, "undecided"),
        ("E0 more-important-than D0", {"E0": 0.9, "D0": 0.9, "E0H0": 0.2}, "undecided"),
        ("E0 more-important-than D0", {"E0": 0.1, "D0": 0.5, "E0H0": 0.2}, "refuted"),
    ],
)
def test_claims_about_drops(
    adder: OpenModel, monkeypatch: pytest.MonkeyPatch, text: str, costs: dict[str, float], verdict: str
) -> None:
    plant_drops(monkeypatch, adder, costs)
    assert judged(adder, text, 2000).verdict == verdict


@pytest.mark.parametrize(
    "text", ["E0H0 redundant-with E0H0", "E0 more-important-than E0H1+D0", "E0H0 redundant-with E9H0"]
)
def test_a_comparison_with_itself_is_not_judged(adder: OpenModel, text: str) -> None:
    assert judged(adder, text).verdict == "not judged"


def test_a_model_that_guesses_is_judged_only_if_asked(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all heads of an untrained model could be removed together."""

    def run(experiment: Any, interventions: Any, *, proven: bool) -> Outcome:
        right = np.arange(experiment.n) % 2.0
        return Outcome(right, np.stack([right] * len(interventions)), 0.45)

    monkeypatch.setattr(_drops, "run_interventions", run)
    claim = parse("E0 prunable-together")
    refused, asked = (
        judge(ClaimCase(adder, claim, heads_of(adder, "E0"), 2000, anyway=anyway)) for anyway in (False, True)
    )
    assert "the model scores 50.0 %, less than 10 points above the best constant answer" in refused.reason
    assert asked.verdict == "supported"


def test_unequal_groups_are_noted(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_drops(monkeypatch, adder, {"E0": 0.5})
    assert judged(adder, "E0 more-important-than D0").note == ""
    assert judged(adder, "E0 more-important-than D0H1").note == "E0 has 4 heads, and D0H1 has 1."


@pytest.mark.slow
def test_drops_agree_with_the_ablation_of_the_api(adder: OpenModel) -> None:
    """Two routes to one number; nothing is planted."""
    effects = api.ablate_heads(adder, n=N, replacements=["zero"], quiet=True).result.heads
    by_head = {effect.short: effect for effect in effects}
    result = judged(adder, "E1H3 prunable-together")
    assert result.effect is not None
    expected = by_head["E1H3"]
    assert result.effect.value == pytest.approx(expected.drop)
    assert result.effect.low == pytest.approx(expected.low)
    assert expected.drop > 0.05
    pair = judged(adder, "E1H3 redundant-with E0H2")
    alone, other, both = (each.value for each in pair.controls)
    assert pair.effect is not None
    assert pair.effect.value == pytest.approx(both - alone - other)
    assert other == pytest.approx(by_head["E0H2"].drop)


# --- lengths ----------------------------------------------------------------------------------------------------------


def plant_accuracy(patch: pytest.MonkeyPatch, rate: float, n: int = 1000, refused: bool = False, **more: Any) -> None:
    def planted(model: OpenModel, lengths: Any, kinds: Any, n_asked: Any, **_: Any) -> Stretch:
        cells = tuple(cell(length, kinds[0], rate if length > 16 else 1.0, n, **more) for length in lengths)
        return Stretch(
            **{"name": "", "weights_sha256": "", "encoding": "", "pooling": "", "hard_codes": (), "label": ""},
            **{"seed": 0, "trained": (8, 16), "classes": ("unsorted", "sorted"), "cropped_results": (), "ids": ()},
            cells=cells[:1] if refused else cells,
            attention_shares=(),
            refused_lengths=(lengths[-1],) if refused else (),
        )

    patch.setattr(extrapolates_to, "stretch", planted)


@pytest.mark.parametrize(
    ("rate", "n", "verdict"),
    [(1.0, 1000, "supported"), (0.9, 1000, "undecided"), (0.92, 100, "undecided"), (0.6, 1000, "refuted")],
)
def test_a_length_is_reached_if_the_whole_interval_is_above_90_percent(
    sorter: OpenModel, monkeypatch: pytest.MonkeyPatch, rate: float, n: int, verdict: str
) -> None:
    plant_accuracy(monkeypatch, rate, n)
    assert judged(sorter, "model extrapolates-to 64").verdict == verdict


def test_a_constant_answer_and_a_refused_length_are_said(sorter: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_accuracy(monkeypatch, 0.5, constant="sorted")
    constant = judged(sorter, "model extrapolates-to 64")
    assert (constant.verdict, constant.note) == ("refuted", "The model answers sorted to nearly all examples.")
    plant_accuracy(monkeypatch, 1.0, refused=True)
    refused = judged(sorter, "model extrapolates-to 64")
    assert (refused.verdict, "table of positions" in refused.by_construction) == ("refuted", True)


def test_lengths_of_training_and_other_models_are_not_judged(adder: OpenModel, sorter: OpenModel) -> None:
    assert "16 is not beyond them" in judged(sorter, "model extrapolates-to 16").reason
    assert "does not classify" in judged(adder, "model extrapolates-to 64").reason


def test_the_packaged_sorter_extrapolates(sorter: OpenModel) -> None:
    """Nothing is planted."""
    assert judged(sorter, "model extrapolates-to 64").verdict == "supported"


# --- attention --------------------------------------------------------------------------------------------------------

TARGETS = {
    "aligns-columns": "aligned column",
    "reads-operator": "operator",
    "attends-neighbour": "right neighbour",
    "previous-token": "left neighbour",
    "duplicate-token": "equal numbers",
}
"""A target by which each kind can be met on a task."""
ROLES = {"previous-token": "previous", "duplicate-token": "duplicate", "induction": "induction"}


def plant_weight(patch: pytest.MonkeyPatch, model: OpenModel, target: str, mean: float, bar: float) -> None:
    heads = tuple(
        HeadStats(
            str(head),
            head.short,
            head.site.stack,
            head.site.layer,
            head.site.kind,
            "",
            (MeasureMean(target, "all", "all", mean, 0.005, 100, 0.0),),
        )
        for head in model.sites.heads
    )
    cells = {(head.stack, head.kind) for head in heads}
    bars = tuple(Bar(*key, target, "all", bar) for key in cells)
    calibration = Calibration(("untrained",), 19, 10, 0.05, bars)
    stats = Specialisation("", "", 100, "", "", Thresholds(), calibration, heads)
    patch.setattr(_attention, "specialise", lambda *_: stats)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(
    ("mean", "bar", "cost", "verdict"),
    [
        (0.6, 0.1, 0.1, "supported"),
        (0.6, 0.595, 0.1, "undecided"),
        (0.6, 0.8, 0.1, "refuted"),
        (0.2, 0.1, 0.1, "refuted"),
        (0.6, 0.1, 0.01, "undecided"),
        (0.6, 0.1, 0.0, "refuted"),
    ],
)
def test_a_pattern_needs_an_effect(
    adder: OpenModel,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    mean: float,
    bar: float,
    cost: float,
    verdict: str,
) -> None:
    plant_weight(monkeypatch, adder, TARGETS[kind], mean, bar)
    plant_drops(monkeypatch, adder, {"E0H1": cost})
    result = judged(adder, f"E0H1 {kind}", 2000)
    assert result.verdict == verdict
    assert (result.note == _attention.UNUSED) == (cost == 0)


def test_every_head_of_a_group_must_have_the_pattern(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_weight(monkeypatch, adder, "operator", 0.6, 0.1)
    plant_drops(monkeypatch, adder, {"E0H1+E0H2": 0.1})
    assert len(judged(adder, "E0H1+E0H2 reads-operator").evidence) == 3


def test_a_target_that_the_task_does_not_have_is_not_judged(adder: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_weight(monkeypatch, adder, "operator", 0.6, 0.1)
    assert "the head can attend to: operator" in judged(adder, "E0H1 aligns-columns").reason
    assert (
        "induction is measured on texts, but sample:addition is measured on examples of its task"
        in judged(adder, "E0H1 induction").reason
    )
    untasked = judged(replace(adder, task=None), "E0H1 aligns-columns").reason
    assert untasked.endswith(
        "has no task of headcount; without a task, these kinds of claims can be judged: "
        "duplicate-token, induction, previous-token"
    )


def plant_roles(patch: pytest.MonkeyPatch, model: OpenModel, role: str, low: float, high: float, bar: float) -> None:
    score = RoleScore(role, "texts", (low + high) / 2, low, high, 0.0, 100, 50, 1, 1, 24, 5.0)
    heads = tuple(
        HeadRole(str(head), head.short, head.site.stack, head.site.layer, head.site.kind, (score,))
        for head in model.sites.heads
    )
    bars = tuple(RoleBar(head.stack, head.kind, role, "texts", bar) for head in heads[:1])
    roles = HeadRoles("", "", (), (), NAMING, ("untrained",), 19, bars, heads)
    patch.setattr(_attention, "_roles", lambda case, on: roles)


@pytest.mark.parametrize("kind", ROLES)
@pytest.mark.parametrize(
    ("low", "high", "bar", "cost", "verdict"),
    [
        (0.5, 0.6, 0.1, 0.1, "supported"),
        (0.5, 0.6, 0.55, 0.1, "undecided"),
        (0.1, 0.2, 0.0, 0.1, "refuted"),
        (0.5, 0.6, 0.1, 0.0, "refuted"),
    ],
)
def test_a_role_on_texts_needs_an_effect(
    adder: OpenModel,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    low: float,
    high: float,
    bar: float,
    cost: float,
    verdict: str,
) -> None:
    plant_roles(monkeypatch, adder, ROLES[kind], low, high, bar)
    plant_drops(monkeypatch, adder, {"E0H1": cost})
    assert judged(replace(adder, task=None), f"E0H1 {kind}", 2000).verdict == verdict


def test_every_kind_was_tested() -> None:
    others = {"carries-the-event", "prunable-together", "redundant-with", "more-important-than", "extrapolates-to"}
    assert others | {*TARGETS} | {*ROLES} == set(CLAIMS.names())
