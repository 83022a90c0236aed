"""Models whose carries travel on known ways: every share is what arithmetic predicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import known_carries as known
import numpy as np
import pytest
import torch
from known_carries import CROSS, DECODER, ENCODER, KnownModel, task_of
from numpy.typing import NDArray
from scipy import stats

from headcount import Adapter, load_external
from headcount.analysis.routes import (
    N_DONORS,
    EventPatches,
    PatchShare,
    Routes,
    Share,
    donor_test,
    require_event,
    routes,
)
from headcount.errors import InputError, ResultError
from headcount.experiments.models import RunModel
from headcount.heads import HeadId
from headcount.hooks.intervention_proof import prove
from headcount.runs.run import load
from headcount.seeds import stream
from headcount.tasks.addition import Addition, digits_of
from headcount.tasks.base import Examples, Quartets

pytestmark = pytest.mark.slow  # every head of many models is patched

EXACT = 1e-3
"""Largest difference between a measured share and the share that arithmetic predicts."""
N = 20
FOREIGN = Path(__file__).parents[1] / "foreign_adder"
ONE, TWO, BOTH = "one carrier", "either of two", "both of two"
TASKS = [
    pytest.param((task_of(1), None), id="1 digit"),
    pytest.param((task_of(2), None), id="2 digits"),
    pytest.param((task_of(2, least_first=True), (ONE, TWO)), id="least first"),
    pytest.param((task_of(2, low=25, high=88), (ONE, BOTH)), id="a range"),
    pytest.param((task_of(3), (ONE, TWO)), id="3 digits"),
]
"""Tasks, and the models that are measured on each; None stands for all models, as `--long` has them everywhere."""
Build = Callable[[Addition], KnownModel]
carrier, aligner, twin, mover = (HeadId.parse(name) for name in ("X0H1", "X0H0", "X0H2", "E0H0"))


@pytest.fixture(scope="module", params=TASKS)
def case(request: pytest.FixtureRequest) -> tuple[Addition, tuple[str, ...] | None]:
    return request.param


@pytest.fixture(scope="module")
def task(case: tuple[Addition, Any]) -> Addition:
    return case[0]


@pytest.fixture(scope="module")
def measured(case: tuple[Addition, tuple[str, ...] | None], pytestconfig: pytest.Config) -> dict[str, Routes]:
    """The routes of each model of this task, measured once."""
    task, names = case
    if names is None or pytestconfig.getoption("--long"):
        names = tuple(MODELS)
    return {name: routes(MODELS[name](task), N) for name in names}


MODELS: dict[str, Build] = {
    ONE: known.one_carrier,
    "thrown away": lambda task: known.one_carrier(task, echo="nothing"),
    "unread": lambda task: known.one_carrier(task, echo="unread"),
    "digit movers": known.digit_movers,
    TWO: known.two_carriers,
    BOTH: lambda task: known.two_carriers(task, needs_both=True),
}


def require_shares(shares: tuple[PatchShare, ...], expected: Callable[[PatchShare], tuple[float, float]]) -> None:
    """Compare each share with those that are expected when the event is patched in and out; a placebo moves nothing."""
    assert shares
    for each in shares:
        on, off = expected(each)
        moved, name = each.moved, f"{each.what} {each.position}, {each.way}"
        assert (moved.on, moved.off) == pytest.approx((on, off), abs=EXACT), name
        assert moved.share == pytest.approx((on + off) / 2, abs=EXACT), name
        assert each.placebo.share == pytest.approx(0, abs=EXACT), name


def looked_up(expected: dict[str, tuple[float, float]]) -> Callable[[PatchShare], tuple[float, float]]:
    """Return a function that looks up the shares of what was patched; what is not named moves nothing."""
    return lambda each: expected.get(each.what, (0.0, 0.0))


def quartets_of(task: Addition, n: int = N) -> dict[str, Quartets]:
    """Return the quartets that `routes` draws, by the name of their way."""
    return {f"{each.source} to {each.read}": each for each in task.quartets(stream(0, "quartets"), n)}


def rising_share(quartets: Quartets) -> float:
    """Return the share of quartets in which the digit of the first operand rises."""
    return float((quartets.examples[1][:, 0] != quartets.examples[2][:, 0]).mean())


# --- the models are what they should be -------------------------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_the_models_are_right_on_every_sum(build: Build) -> None:
    for task in (task_of(1), task_of(1, least_first=True)):
        assert known.is_right(build(task), known.all_sums(task))


def test_the_smooth_model_is_right_on_every_sum() -> None:
    task = task_of(1)
    assert known.is_right(known.smooth(task), known.all_sums(task))


@pytest.mark.parametrize("settings", [{"digits": 2}, {"digits": 2, "least_first": True}, {"digits": 3}], ids=str)
def test_longer_sums_are_right_too(settings: dict[str, Any]) -> None:
    task, rng = task_of(**settings, low=0), np.random.default_rng(0)
    sums = np.concatenate([task.sample(rng, 500), task.hard_examples(rng, 500)])
    for build in MODELS.values():
        assert known.is_right(build(task), sums)


# --- one head carries -------------------------------------------------------------------------------------------------


def test_one_head_carries_and_no_other_does(measured: dict[str, Routes]) -> None:
    for name in {ONE, "thrown away", "unread"} & measured.keys():
        found = measured[name]
        require_shares(found.heads, lambda each: (1, 1) if each.what == "X0H1" else (0, 0))
        assert {each.what for each in found.heads if each.moved.role == "carrier"} == {"X0H1"}
        assert {each.moved.role for each in found.heads if each.what != "X0H1"} == {"none"}
        require_shares(found.blocks, lambda each: (1, 1) if each.what == "X0" else (0, 0))
        assert all([head.what for head in found.movers(way.name)] == ["X0H1"] for way in found.ways)


def test_every_way_is_measured_with_the_gap_of_the_logits(task: Addition, measured: dict[str, Routes]) -> None:
    for found in measured.values():
        quartets = quartets_of(task)
        assert [way.name for way in found.ways] == list(quartets)
        for way in found.ways:
            assert way.n == way.n_drawn == len(quartets[way.name])
            assert way.gap == pytest.approx(2 * known.SURE, abs=EXACT)


def test_a_random_donor_gives_its_carry_and_nothing_else(measured: dict[str, Routes]) -> None:
    tests = measured["one carrier"].donors
    assert {test.head for test in tests} == {"X0H1"}
    assert {test.read for test in tests} == {way.read for way in measured["one carrier"].ways}
    for test in tests:
        assert (test.followed.rate, test.unchanged.rate) == (1.0, 1.0)
        assert test.followed.n + test.unchanged.n == N_DONORS
        assert min(test.followed.n, test.unchanged.n) > N_DONORS / 10


def test_the_head_carries_at_the_position_that_is_read(measured: dict[str, Routes]) -> None:
    found = measured["one carrier"]
    reads = {way.name: way.read for way in found.ways}
    assert {each.what for each in found.queries} == {"X0H1"}
    require_shares(found.queries, lambda each: (1, 1) if each.position == reads[each.way] else (0, 0))


def test_the_streams_hold_the_event_where_it_is(measured: dict[str, Routes]) -> None:
    """The digits of the source column hold it in the encoder; in the decoder it is at the position that is read."""
    found = measured["one carrier"]
    ways = {way.name: way for way in found.ways}

    def expected(each: PatchShare) -> tuple[float, float]:
        way, place = ways[each.way], each.what.partition(".")[2]
        if each.what.startswith("E"):
            share = float(each.position == way.source)
        else:
            share = float(place == "mlp" or (place == "stream" and each.position == way.read))
        return share, share

    require_shares(found.streams, expected)


# --- one head moves digits --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_head_that_moves_the_digits_of_one_operand(task: Addition) -> None:
    """Its patch moves the carry in those quartets alone in which the digit that it moves rises."""
    model = known.digit_movers(task)
    for quartets in quartets_of(task).values():
        expected = {"X0H1": 1.0, "E0H0": rising_share(quartets)}
        shares = EventPatches(model, quartets).head_shares([(head,) for head in model.sites.heads], 1)
        for head, (_, _, moved, placebo) in zip(model.sites.heads, shares, strict=True):
            share = expected.get(head.short, 0.0)
            assert (moved.on, moved.off, placebo.share) == pytest.approx((share, share, 0), abs=EXACT), head


def donors_of(task: Addition, seed: int = 0) -> tuple[Examples, Examples]:
    """Return the random examples of `donor_test`, and the donor of each; all are answered right."""
    own = task.sample(stream(seed, "random donors"), 2 * N_DONORS)[:N_DONORS]
    return own, np.roll(own, 1, axis=0)


def digit_at(task: Addition, numbers: NDArray[np.int64], place: int) -> NDArray[np.int64]:
    return digits_of(numbers, task.n_columns + 1)[:, task.answer_positions[place].column]


def rates(task: Addition, predicted: NDArray[np.int64], place: int) -> tuple[float, float]:
    """Return how often these digits follow the donor's carry, and how often they are right if it has no other carry."""
    own, donors = donors_of(task)
    has_carry, donor_has = task.has_event(own, place), task.has_event(donors, place)
    hits = predicted == np.where(donor_has, *task.event_tokens(own, place).T[::-1])
    return float(hits[has_carry != donor_has].mean()), float(hits[has_carry == donor_has].mean())


@torch.no_grad()
def test_a_minimal_pair_cannot_tell_a_digit_from_a_carry_and_random_donors_can(task: Addition) -> None:
    """In sums whose first operand rises, the head that moves its digits looks like a carrier, placebo included."""
    model = known.digit_movers(task)
    own, donors = donors_of(task)
    for quartets in quartets_of(task, 2 * N).values():
        rising = quartets.examples[1][:, 0] != quartets.examples[2][:, 0]
        some = replace(quartets, examples=tuple(part[rising] for part in quartets.examples))
        ((_, _, moved, placebo),) = EventPatches(model, some).head_shares([(mover,)], 1)
        assert (moved.on, moved.off, placebo.share) == pytest.approx((1, 1, 0), abs=EXACT)
        assert moved.role == "carrier"
        assert placebo.is_absent
        test = donor_test(model, mover, some)
        mixed = np.stack([donors[:, 0], own[:, 1]], axis=1).sum(axis=1)
        expected = rates(task, digit_at(task, mixed, some.place), some.place)
        assert (test.followed.rate, test.unchanged.rate) == pytest.approx(expected)
        assert min(test.followed.rate, test.unchanged.rate) < 0.9


@torch.no_grad()
def test_a_head_that_aligns_columns_moves_digits_and_no_carry(task: Addition) -> None:
    """Every patch between the examples of a quartet leaves it as it is; random donors show what it moves."""
    model = known.one_carrier(task)
    own, donors = donors_of(task)
    for quartets in quartets_of(task).values():
        ((_, _, moved, placebo),) = EventPatches(model, quartets).head_shares([(aligner,)], 1)
        assert (moved.share, placebo.share) == pytest.approx((0, 0), abs=EXACT)
        test, place = donor_test(model, aligner, quartets), quartets.place
        predicted = (task.event_tokens(donors, place)[:, 0] + task.has_event(own, place)) % 10
        assert (test.followed.rate, test.unchanged.rate) == pytest.approx(rates(task, predicted, place))
        assert test.followed.rate < 0.5


@torch.no_grad()
def test_a_smooth_response_to_digits_shows_in_the_placebo() -> None:
    """The share is 1, but the digit that causes no carry moves the logits as much, in the other direction."""
    task = task_of(1)
    (quartets,) = task.quartets(stream(0, "quartets"), N)
    shares = EventPatches(known.smooth(task), quartets).head_shares([(carrier,), (aligner,)], 1)
    (_, _, moved, placebo), (_, _, other, _) = shares

    def difference(examples: Examples) -> NDArray[np.float64]:
        """Return the logit of a carry minus the logit of none."""
        x = known.lower_sums(task, examples, 1) + known.SMOOTH_SHIFT
        steps = [known.ramp(x - m, width=1.0) for m in range(3)]
        return known.SURE * (2 * steps[1] - steps[0] - steps[2])

    smaller, without, with_event, larger = map(difference, quartets.examples)
    gap = with_event - without
    assert moved == approximately(Share.of(gap, gap, gap))
    assert placebo == approximately(Share.of(smaller - without, with_event - larger, gap))
    assert moved.role == "carrier"
    assert placebo.share < -0.5
    assert not placebo.is_absent
    assert other.share == pytest.approx(0, abs=EXACT)


def approximately(share: Share) -> Any:
    """Return an object that equals shares which differ by rounding alone."""

    class Close:
        def __eq__(self, other: object) -> bool:
            assert isinstance(other, Share)
            return list(vars(other).values()) == pytest.approx(list(vars(share).values()), abs=EXACT)

    return Close()


# --- a head whose output is thrown away -------------------------------------------------------------------------------


@pytest.mark.parametrize("echo", ["nothing", "unread"])
@torch.no_grad()
def test_a_head_that_attends_as_a_carrier_does_carries_nothing(echo: str) -> None:
    task = task_of(2)
    model = known.one_carrier(task, echo)
    (quartets, *_) = task.quartets(stream(0, "quartets"), N)
    weights = known.attention_weights(model, quartets.examples[0])[CROSS]
    assert torch.equal(weights[:, carrier.index], weights[:, twin.index]), "the pattern says nothing of this"
    patches = EventPatches(model, quartets)
    values = patches.donor_outputs["event"][CROSS]
    assert torch.equal(values[:, :, carrier.index], values[:, :, twin.index]), "nor does what it reads"
    ((_, _, moved, placebo),) = patches.head_shares([(twin,)], 1)
    assert moved == approximately(Share(0, 0, 0, 0, 0))
    assert placebo == approximately(Share(0, 0, 0, 0, 0))
    test = donor_test(model, twin, quartets)
    assert (test.followed.rate, test.unchanged.rate) == (0.0, 1.0)


@pytest.mark.parametrize("echo", ["nothing", "unread"])
def test_blocks_that_nothing_reads_are_proven_and_named(echo: str) -> None:
    model = known.one_carrier(task_of(2), echo)
    proof = prove(model.module, model.sites, model.answers.teacher_forced(model.answers.task.split("test"))[0])
    assert {each.site: each.is_used for each in proof} == {str(ENCODER): False, str(DECODER): False, str(CROSS): True}


# --- two heads --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_two_heads_that_do_the_same(task: Addition, measured: dict[str, Routes]) -> None:
    """If either is enough, each alone can switch the carry on; if both are needed, each alone can switch it off."""
    alone = {TWO: (1.0, 0.0), BOTH: (0.0, 1.0)}
    assert alone.keys() & measured.keys()
    for name in alone.keys() & measured.keys():
        expected = {"X0H1": alone[name], "X0H2": alone[name], "E0H0": (1.0, 1.0)}
        require_shares(measured[name].heads, looked_up(expected))
        model = MODELS[name](task)
        for quartets in quartets_of(task).values():
            ((_, _, both, placebo),) = EventPatches(model, quartets).head_shares([(carrier, twin)], 1)
            assert (both.share, both.on, both.off, placebo.share) == pytest.approx((1, 1, 1, 0), abs=EXACT)
            test = donor_test(model, carrier, quartets)
            # A donor with a carry is followed if either is enough. As many donors have a carry for a sum without one as
            # have none for a sum with one, because the donors are the sums themselves, moved by one place.
            assert (test.followed.rate, test.unchanged.rate) == (0.5, 1.0)


# --- shares and roles -------------------------------------------------------------------------------------------------


def noisy_moves(n: int, share: float, seed: int = 0) -> tuple[NDArray[np.float64], ...]:
    """Return moves of the event patched in and out, and gaps that differ between quartets."""
    rng = np.random.default_rng(seed)
    gap = rng.gamma(9.0, 1.0, size=n)
    return (*(share * gap + rng.normal(size=(2, n)) * gap / 4), gap)


def hall(x: float, bend: float) -> float:
    """Return Hall's cubic function of a t statistic; `bend` is the skewness divided by the square root of n."""
    return x + bend * x**2 / 3 + bend**2 * x**3 / 27 + bend / 6


@pytest.mark.parametrize("n_comparisons", [1, 144])
def test_a_share_is_a_ratio_of_sums_with_its_standard_error(n_comparisons: int) -> None:
    on, off, gap = noisy_moves(50, 0.3)
    share = Share.of(on, off, gap, n_comparisons)
    assert share.share == pytest.approx((on.sum() + off.sum()) / 2 / gap.sum())
    assert (share.on, share.off) == pytest.approx((on.sum() / gap.sum(), off.sum() / gap.sum()))
    residuals = (on + off) / 2 - share.share * gap
    error = np.sqrt((residuals**2).sum() / 49 / 50) / gap.mean()
    # Hall's function turns the t statistic of a skewed sample into Student's t.
    t, bend = stats.t(49).ppf(1 - 0.025 / n_comparisons), stats.skew(residuals) * (49 / 50) ** 1.5 / 50**0.5
    ends = [hall((share.share - end) / error, bend) for end in (share.low, share.high)]
    assert ends == pytest.approx([t, -t])
    # The jackknife leaves out one quartet at a time and knows no formula of a ratio's error.
    kept = ~np.eye(50, dtype=bool)
    without_one = np.array([((on + off) / 2)[rows].sum() / gap[rows].sum() for rows in kept])
    jackknife = np.sqrt(49 / 50 * ((without_one - without_one.mean()) ** 2).sum())
    assert error == pytest.approx(jackknife, rel=0.05)


def test_intervals_of_symmetric_moves_are_those_of_student() -> None:
    moves = np.array([-3.0, -1.0, 0.0, 1.0, 3.0] * 4)
    share = Share.of(moves, moves, np.ones(20))
    half = stats.t(19).ppf(0.975) * moves.std(ddof=1) / 20**0.5
    assert (share.low, share.high) == pytest.approx((-half, half))


def test_moves_that_are_all_the_same_part_of_the_gap_have_no_noise() -> None:
    gap = np.array([1.0, 2.0, 4.0])
    share = Share.of(gap / 4, gap / 4, gap)
    assert (share.share, share.low, share.high) == (0.25, 0.25, 0.25)


def test_the_sign_of_the_gap_does_not_matter() -> None:
    moves, gap = np.array([0.0, 0.0, 0.0, 0.0, 5.0]), np.full(5, 2.0)
    share = Share.of(moves, moves, gap)
    assert Share.of(-moves, -moves, -gap) == share
    assert share.high - share.share > 2 * (share.share - share.low), "the tail is above"


def test_a_head_that_acts_on_one_quartet_in_ten_is_rarely_called_none() -> None:
    """With Student's t alone, 9 of these 3,000 heads are called none, where 144 comparisons allow one."""
    rng, gap = np.random.default_rng(0), np.full(200, 20.0)
    draws = (rng.random((3000, 200)) < 0.1) * gap
    assert sum(Share.of(moves, moves, gap, 144).role == "none" for moves in draws) <= 1


def test_intervals_cover_the_true_share() -> None:
    shares = [Share.of(*noisy_moves(40, 0.3, seed)) for seed in range(400)]
    n_missed = sum(not each.low <= 0.3 <= each.high for each in shares)
    assert 6 <= n_missed <= 38, "5 % of 400, within four standard errors"


@pytest.mark.parametrize(
    ("low", "high", "role"),
    [
        (0.5, 0.9, "carrier"),
        (0.5, 0.5, "carrier"),
        (0.4999, 0.9, "undecided"),
        (0.1, 0.5, "part"),
        (0.1, 0.1, "part"),
        (0.1, 0.5001, "undecided"),
        (0.0999, 0.5, "undecided"),
        (-0.2, 0.1, "undecided"),
        (-0.2, 0.0999, "none"),
        (-0.9, -0.5, "none"),
    ],
)
def test_the_whole_interval_decides_the_role(low: float, high: float, role: str) -> None:
    assert Share((low + high) / 2, low, high, 0.0, 0.0).role == role


@pytest.mark.parametrize(
    ("low", "high", "is_absent"),
    [(-0.0999, 0.0999, True), (-0.1, 0.05, False), (-0.05, 0.1, False), (-0.9, -0.5, False), (0.2, 0.3, False)],
)
def test_only_an_interval_around_zero_shows_that_nothing_is_moved(low: float, high: float, is_absent: bool) -> None:
    assert Share((low + high) / 2, low, high, 0.0, 0.0).is_absent == is_absent


# --- the result -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Routes:
    return routes(known.two_carriers(task_of(2)), 30)


def test_routes_pass_through_json(small: Routes) -> None:
    again = Routes.from_json(small.to_json())
    assert again == small
    assert again.movers("1s to 10s") == small.movers("1s to 10s") != []
    assert len(small.to_rows()) == len(small.heads) == 3 * 12


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        ("heads", {"way": "1s to 1000s"}, "only ways that are listed in ways, not '1s to 1000s'"),
        (
            "heads",
            {"moved": {"share": 0.4, "low": 0.5, "high": 0.6, "on": 0.4, "off": 0.4}},
            "inside of their confidence interval",
        ),
        ("ways", {"n": 31}, "ways with n .quartets answered right. of at most n_drawn"),
        ("ways", {"n": -1}, "greater than or equal to 0"),
    ],
)
def test_contradictions_are_refused(small: Routes, field: str, change: dict[str, Any], words: str) -> None:
    data = json.loads(small.to_json())
    del data["digests"]
    data[field][0] |= change
    with pytest.raises(ResultError, match=words):
        Routes.from_json(json.dumps(data))


def test_the_same_seed_draws_the_same_quartets(small: Routes) -> None:
    steps: list[tuple[int, int]] = []
    again = routes(known.two_carriers(task_of(2)), 30, progress=lambda *done: steps.append(done))
    assert again == small
    assert steps == [(1, 3), (2, 3), (3, 3)]


# --- answers in other forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [known.KnownAdder, known.BackwardsAdder])
def test_an_adapter_gives_the_result_of_a_run(adapter: type[Adapter]) -> None:
    """The second one writes its digits in the opposite order, which only its labels show."""
    found, run = routes(known.opened_by(adapter), N), routes(known.one_carrier(task_of(2)), N)
    assert [(way.name, way.n, way.n_drawn) for way in found.ways] == [(way.name, N, N) for way in run.ways]
    assert [way.gap for way in found.ways] == pytest.approx([way.gap for way in run.ways], abs=EXACT)
    require_shares(found.heads, lambda each: (1, 1) if each.what == "X0H1" else (0, 0))
    assert found.donors == run.donors


def test_answers_without_leading_zeros_have_their_places_at_several_positions() -> None:
    """The 10s of 95 are written first, those of 195 second. A carry into the 100s makes the answer longer.

    There, the carry decides between 9 and 1, and X0H0 moves the 9: it would seem to move 29 % of the carry.
    """
    model = known.opened_by(known.NaturalAdder)
    found = routes(model, N)
    assert [(way.name, way.n) for way in found.ways] == [("1s to 10s", N)]
    assert found.ways[0].gap == pytest.approx(2 * known.SURE, abs=EXACT)
    require_shares(found.heads, lambda each: (1, 1) if each.what == "X0H1" else (0, 0))
    (test,) = found.donors
    assert (test.read, test.unchanged.rate) == ("10s", 1.0)
    assert test.followed.rate > 0.95, "a carry into 9 makes a 0, which the model leaves out in front"
    assert test.followed.n + test.unchanged.n == N_DONORS


@torch.no_grad()
def test_the_tokens_that_are_compared_are_those_of_the_place_that_is_read() -> None:
    model = known.opened_by(known.NaturalAdder)
    quartets = model.answers.task.quartets(stream(0, "quartets"), N)[0]
    patches = EventPatches(model, quartets)
    lengths = set()
    for i, pair in enumerate([*zip(*(part.sum(axis=1) for part in quartets.examples[1:3]), strict=True)] * 2):
        texts, at = [str(total) for total in pair], int(patches.positions[i])
        assert at == len(texts[0]) - 2 == len(texts[1]) - 2
        assert [text[at] for text in texts] == [str(int(token)) for token in patches.tokens[:, i]]
        lengths.add(len(texts[0]))
    assert lengths == {2, 3}


@pytest.mark.parametrize("least_first", [False, True])
@torch.no_grad()
def test_one_quartet_is_read_in_the_order_that_the_task_writes(least_first: bool) -> None:
    """The tokens of a single quartet cannot show a model's order of writing."""
    task = task_of(2, least_first=least_first)
    for quartets in quartets_of(task).values():
        one = replace(quartets, examples=tuple(part[:1] for part in quartets.examples))
        assert EventPatches(known.one_carrier(task), one).positions.tolist() == [quartets.place] * 2


def test_a_place_that_the_decoder_is_given_is_not_read() -> None:
    """Without a start token, the model never predicts the 100s; a share of the 10s must not take their place."""
    found = routes(known.one_carrier(task_of(2, start_token=False)), N)
    assert [way.name for way in found.ways] == ["1s to 10s"]
    require_shares(found.heads, lambda each: (1, 1) if each.what == "X0H1" else (0, 0))


@pytest.mark.slow
def test_the_adder_of_a_stranger_gives_the_same_kind_of_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers have no leading zeros; heads that move nothing are told from heads that move the carry."""
    monkeypatch.syspath_prepend(FOREIGN)
    model = load_external(f"{FOREIGN / 'adder_adapter.py'}:Adder")
    for name in [name for name in sys.modules if name.startswith("adder_")]:
        monkeypatch.delitem(sys.modules, name)
    found = routes(model, N)
    assert Routes.from_json(found.to_json()) == found
    assert [(way.name, way.n) for way in found.ways] == [("1s to 10s", N)], "others make its answers longer"
    assert found.ways[0].gap > 5
    assert {"carrier", "none"} <= {each.moved.role for each in found.heads}
    assert {test.read for test in found.donors} == {"10s"}
    assert max(abs(each.placebo.share) for each in found.heads) < 0.2


# --- what cannot be measured ------------------------------------------------------------------------------------------


def test_ways_that_no_sum_takes_are_left_out() -> None:
    """Two numbers from 100 to 199 never have a carry into the 1000s."""
    found = routes(known.one_carrier(task_of(3, low=100, high=199)), 20)
    assert [way.name for way in found.ways] == ["1s to 10s", "1s to 100s", "10s to 100s"]
    require_shares(found.heads, lambda each: (1, 1) if each.what == "X0H1" else (0, 0))
    assert Routes.from_json(found.to_json()) == found


def test_a_range_without_carries_is_refused() -> None:
    model = known.one_carrier(task_of(1, low=0, high=4, n_validation=1, n_test=1))
    with pytest.raises(
        InputError,
        match=r"the task addition has too few sets of examples that differ only in a carry\n(.|\n)*wider range",
    ):
        routes(model, N)


def test_a_task_without_an_event_is_refused() -> None:
    with pytest.raises(InputError, match="has no intermediate result, such as a carry, that heads could move"):
        require_event(RunModel.of(load("sample:sortedness")))
