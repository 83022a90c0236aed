"""Controls get labels no more often than the stated error rate."""

import numpy as np
import pytest
import torch

from headcount.analysis.attention_measures import ENTROPY_SHARE, control_inputs, eval_inputs
from headcount.analysis.head_labels import CONTROLS, THRESHOLDS, bars_of, calibrate, shuffled, untrained, values_of
from headcount.analysis.specialisation import specialise
from headcount.runs.run import load


def made_up(rng, n_cells=12, n_heads=8):
    """Return values in cells of very different spread, some near 1, with similar heads in each model."""
    cells = [("encoder", "self", f"target {i}", "all") for i in range(n_cells)]
    widths = np.linspace(0.02, 0.4, n_cells)
    shared = rng.normal(size=(n_cells, 1))
    values = widths[:, None] * (shared + rng.standard_t(4, size=(n_cells, n_heads))) / 2
    return {cell: np.tanh(each) for cell, each in zip(cells, values, strict=True)}


def test_the_bar_is_passed_as_often_as_is_stated():
    rng, passed = np.random.default_rng(0), []
    for _ in range(150):
        bars = bars_of([made_up(rng) for _ in range(9)], rank=1)
        for _ in range(10):
            fresh = made_up(rng)
            passed.append(any((fresh[cell] >= bar).any() for cell, bar in bars.items()))
    assert np.mean(passed) == pytest.approx(0.1, abs=0.03), "1 of 9 + 1; the error of 150 calibrations is 0.01"


def test_no_bar_is_out_of_reach():
    bars = bars_of([made_up(np.random.default_rng(i)) for i in range(5)], rank=1)
    assert set(bars) == set(made_up(np.random.default_rng(0)))
    assert all(0 < bar < 1 for bar in bars.values())


def test_controls_have_the_shape_and_nothing_that_was_learned(tiny_run):
    kept = {name: each.clone() for name, each in tiny_run.model.named_parameters()}
    for make in CONTROLS.values():
        one, other, again = make(tiny_run, 0).model, make(tiny_run, 1).model, make(tiny_run, 0).model
        for name, mine in tiny_run.model.named_parameters():
            weights = [model.get_parameter(name) for model in (one, other, again)]
            assert torch.equal(mine, kept[name]), "the model itself stays as it is"
            assert torch.equal(weights[0], weights[2])
            if mine.ndim > 1:
                assert not torch.equal(weights[0], mine)
                assert not torch.equal(weights[0], weights[1])
    mixed = shuffled(tiny_run, 0).model.get_parameter("to_logits.weight")
    assert torch.equal(mixed.flatten().sort().values, kept["to_logits.weight"].flatten().sort().values)


def test_controls_are_measured_as_models_are(tiny_run, untrained):
    run = untrained(tiny_run, digits=2, n_test=60)
    values, stats = values_of(run, eval_inputs(run)), specialise(run, controls=(2, 1))
    assert {cell[:2] for cell in values} == {(site.stack, site.kind) for site in run.model.sites}
    for (stack, kind, measure, column), heads in values.items():
        told = [each.find(measure, column) for each in stats.heads if (each.stack, each.kind) == (stack, kind)]
        above = [m.mean if m.even is None else (m.mean - m.even) / (1 - m.even) for m in told]
        assert heads == pytest.approx(above, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny adder", "sample:sortedness"])
def test_untrained_models_hardly_ever_pass_a_bar(name, tiny_run):
    run = tiny_run if name == "tiny adder" else load(name)
    inputs = control_inputs(run)
    bars = {(bar.stack, bar.kind, bar.measure, bar.column): bar.least for bar in calibrate(run, inputs).bars}
    controls = [values_of(untrained(run, 1000 + i), inputs) for i in range(40)]
    targets = [cell for cell in bars if cell[2] != ENTROPY_SHARE]
    before = [any((each[cell] >= THRESHOLDS.partly).any() for cell in targets) for each in controls]
    after = [any((each[cell] >= bar).any() for cell, bar in bars.items()) for each in controls]
    assert sum(before) >= 20, "most have a quarter of the mass above even somewhere"
    assert sum(after) <= 6, "at a rate of 5 %, seven of 40 come once in 300 times"
