"""Specialisation of heads, compared with planted attention, plain loops and numpy's standard errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount.analysis.attention_measures import eval_inputs
from headcount.analysis.head_labels import Thresholds
from headcount.analysis.specialisation import Specialisation, specialise
from headcount.errors import InputError
from headcount.models.attention import AttentionCache
from headcount.models.transformer import EncoderDecoder
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # many comparisons with chance

FEW = (9, 1)
"""Number of controls, and the rank of the threshold."""
close = {"abs": 1e-5, "rel": 1e-4}


@pytest.fixture(scope="module")
def adder(tiny_run, untrained):
    """Return an adder of two-digit sums, which has columns with and without a carry."""
    return untrained(tiny_run, digits=2, n_test=60)


@pytest.fixture(scope="module")
def stats(adder):
    return specialise(adder, controls=(3, 1))


@pytest.fixture
def _untrained_alone(monkeypatch):
    """Use untrained controls only: shuffled weights would keep planted attention."""
    monkeypatch.setattr(Run, "controls", ("untrained",))


class Planted(EncoderDecoder):
    """A model in which every query attends to one key alone, or uniformly to all visible keys."""

    key = 1

    def forward(self, source, decoder_input, *, weights=None, padding=None):
        n = {"encoder": source.shape[1], "decoder": decoder_input.shape[1]}
        for site in self.sites:
            n_queries = n[site.stack]
            n_keys = n["encoder"] if site.kind == "cross" else n_queries
            sees = torch.ones(n_queries, n_keys).tril() if (site.stack, site.kind) == ("decoder", "self") else 1.0
            even = torch.ones(len(source), 2, n_queries, n_keys) * sees
            even = even / even.sum(dim=-1, keepdim=True)
            if self.key is not None and site.kind == "cross":
                even = torch.zeros_like(even)
                even[..., self.key] = 1
            weights.read(site, even, slice(0, n_keys), n_keys)
        return torch.zeros(*decoder_input.shape, 10)


def planted(run, key):
    model = Planted(run.config.model, len(run.task.tokens), run.task.pad_id)
    model.key = key
    return replace(run, model=model)


def numbers(head, *names):
    return [(measure.mean, measure.se) for measure in map(head.find, names)]


# --- planted ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_untrained_alone")
def test_attention_planted_on_the_operator_is_found_and_named(adder):
    operator = adder.task.source_positions.index(next(p for p in adder.task.source_positions if p.role == "operator"))
    stats = specialise(planted(adder, operator), controls=FEW)
    cross = [head for head in stats.heads if head.kind == "cross"]
    assert len(cross) == 4
    for head in cross:
        assert numbers(head, "operator", "entropy", "entropy share", "sparsity") == [(1, 0), (0, 0), (0, 0), (1, 0)]
        assert head.find("aligned column").mean == head.find("carry column").mean == 0
        assert head.find("operator").even == pytest.approx(0.2)
        assert head.label == "mostly operator (1.00)"


@pytest.mark.usefixtures("_untrained_alone")
def test_attention_planted_evenly_spreads(adder):
    stats = specialise(planted(adder, None), controls=FEW)
    for head in stats.heads:
        (share, share_se), (sparsity, _) = numbers(head, "entropy share", "sparsity")
        assert share == pytest.approx(1, **close)
        assert (share_se, sparsity) == pytest.approx((0, 0), abs=1e-5)
        bars = stats.calibration.at(head.stack, head.kind)
        assert head.label == ("spreads evenly" if bars["entropy share", "all"] < share else "")
        for m in head.measures:
            if m.even is not None and m.condition != "difference":
                assert m.mean == pytest.approx(m.even, **close)
    assert any(head.label for head in stats.heads)
    cross = next(head for head in stats.heads if head.kind == "cross")
    assert cross.find("entropy").mean == pytest.approx(math.log(5), **close)


# --- two routes -------------------------------------------------------------------------------------------------


def carries(example, unit):
    return example[0] % unit + example[1] % unit >= unit


def looped(run, short, target, column=None, carry=None):
    """Return the cross-attention to a target in plain Python: one mean per example over its queries."""
    batch, examples = run.task.encode(run.task.split("test")), run.task.split("test").tolist()
    kept, head = AttentionCache(), run.find_head(short)
    with torch.no_grad():
        run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input), weights=kept)
    values = []
    for example, rows in zip(examples, kept[head.site][:, head.index].double().tolist(), strict=True):
        mine = []
        for row, unit in zip(rows, (100, 10, 1), strict=True):  # what each query says
            keys = [p for p, name in enumerate(("a10", "a1", "+", "b10", "b1")) if name in target(unit)]
            if keys and column in (None, unit) and carry in (None, carries(example, unit)):
                mine.append(sum(row[key] for key in keys))
        if mine:
            values.append(np.mean(mine))
    return np.array(values)


def aligned(unit):
    return (f"a{unit}", f"b{unit}")


def lower(unit):
    return (f"a{unit // 10}", f"b{unit // 10}")


def operator(unit):
    return ("+",)


TARGETS = {"aligned column": aligned, "carry column": lower, "operator": operator}


@pytest.mark.parametrize("short", ["X0H0", "X1H1"])
@pytest.mark.parametrize("target", TARGETS)
def test_means_and_errors_are_those_of_plain_loops_and_numpy(adder, stats, short, target):
    head = next(head for head in stats.heads if head.short == short)
    cases = [(None, None)] + [(unit, carry) for unit in (100, 10, 1) for carry in (None, True, False)]
    n_checked = 0
    for unit, carry in cases:
        values = looped(adder, short, TARGETS[target], unit, carry)
        condition = {None: "all", True: "carry in", False: "no carry in"}[carry]
        measure_mean = head.find(target, "all" if unit is None else f"{unit}s", condition)
        if len(values) < 2:
            assert measure_mean is None
            continue
        n_checked += 1
        assert measure_mean.n == len(values)
        assert measure_mean.mean == pytest.approx(values.mean(), **close)
        assert measure_mean.se == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)), **close)
    assert n_checked >= 6


def test_entropy_and_sparsity_are_those_of_plain_loops(adder, stats):
    kept = AttentionCache()
    with torch.no_grad():
        adder.model(*map(torch.from_numpy, adder.inputs(eval_inputs(adder).examples)), weights=kept)
    for head in stats.heads:
        name = adder.find_head(head.head)
        by_example: dict[str, list[float]] = {"entropy": [], "entropy share": [], "sparsity": []}
        for rows in kept[name.site][:, name.index].double().tolist():
            triples = []
            for query, row in enumerate(rows):
                seen = row[: query + 1] if (head.stack, head.kind) == ("decoder", "self") else row
                h = -sum(w * math.log(w) for w in seen if w > 0)
                root = math.sqrt(len(seen))
                hoyer = (root - sum(seen) / math.hypot(*seen)) / (root - 1) if len(seen) > 1 else None
                triples.append((h, h / math.log(len(seen)) if len(seen) > 1 else None, hoyer))
            for into, of_queries in zip(by_example.values(), zip(*triples, strict=True), strict=True):
                into.append(float(np.mean([value for value in of_queries if value is not None])))
        for measure, values in by_example.items():
            measure_mean = head.find(measure)
            assert measure_mean.mean == pytest.approx(np.mean(values), **close)
            assert measure_mean.se == pytest.approx(np.std(values, ddof=1) / np.sqrt(len(values)), **close)


def test_the_difference_is_over_columns_that_meet_both(adder, stats):
    head = next(head for head in stats.heads if head.short == "X0H1")
    with_it, without, differs = (
        [looped(adder, "X0H1", operator, unit, carry).mean() for unit in (100, 10)] for carry in (True, False, None)
    )
    means = {c: head.find("operator", "all", c) for c in ("carry in", "no carry in", "difference")}
    assert means["carry in"].mean == pytest.approx(np.mean(with_it), **close)
    assert means["no carry in"].mean == pytest.approx(np.mean(without), **close)
    assert means["difference"].mean == pytest.approx(np.mean(with_it) - np.mean(without), **close)
    assert len(differs) == 2
    apart = [head.find("operator", "10s", c) for c in ("carry in", "no carry in", "difference")]
    # Each example is on one side of a column, so that its errors add up, but for n / (n - 1).
    assert apart[2].se == pytest.approx(math.hypot(apart[0].se, apart[1].se), rel=0.05)
    assert head.find("operator", "1s", "carry in") is None, "no carry ever comes into the 1s"
    assert head.find("operator", "1s", "no carry in") == replace(head.find("operator", "1s"), condition="no carry in")


# --- results --------------------------------------------------------------------------------------------------------


def test_a_result_survives_json_and_names_every_head(adder, stats):
    assert Specialisation.from_json(stats.to_json()) == stats
    assert [head.head for head in stats.heads] == [str(head) for head in adder.model.heads]
    assert (stats.name, stats.weights_sha256) == (adder.name, adder.weights_sha256)
    assert (stats.n, stats.data) == (60, "the test set")
    assert stats.thresholds == Thresholds()
    assert (stats.calibration.n_models, stats.calibration.error_rate) == (3, 0.25)
    assert "3 untrained and shuffled models each" in stats.words


def test_heads_that_were_cut_out_are_not_there(tiny_run, untrained):
    run = untrained(tiny_run, pruned="E0H0,E0H1,X0H0")
    stats = specialise(run, controls=(3, 1))
    assert [head.short for head in stats.heads] == ["D0H0", "D0H1", "D1H0", "D1H1", "X0H1", "X1H0", "X1H1"]
    whole = untrained(tiny_run, pruned=",".join(head.short for head in tiny_run.model.heads))
    with pytest.raises(InputError, match="no heads"):
        specialise(whole)
