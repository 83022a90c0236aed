"""Positions: the profiles of encodings must agree with their formulas."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount.analysis.positions import (
    EncodingsShown,
    PositionsShown,
    all_encodings,
    curve_of,
    fit_shift,
    positions_of,
    rotation,
    rotation_error,
    variance_beyond_distance,
)
from headcount.encodings import ENCODINGS
from headcount.errors import InputError
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build, load

GENERIC = ("none", "sinusoidal", "rotary", "alibi", "alibi-symmetric", "relative", "t5")
SMALL = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1, "longest": 10, "n_validation": 4, "n_test": 4}


def positions_of_run(run, n_positions=None):
    return positions_of(run.name, run.weights_sha256, run.encoding_in_use(), n_positions)


def fresh_run(tmp_path, task="sortedness", **settings):
    """Return an untrained run."""
    config = RunConfig.build(task, **(SMALL | settings if task == "sortedness" else settings))
    task, model = build(config)
    return Run("a run", RunFolder(tmp_path), config, task, model.eval(), "digest")


@pytest.fixture(scope="module")
def everything():
    shown = all_encodings(d_model=32, n_heads=4, n_positions=40)
    return {encoding.name: encoding for encoding in shown.encodings}


@pytest.fixture(scope="module")
def sample():
    return load("sample:addition")


def array(matrix):
    return np.array(matrix, dtype=float)


# --- the mathematics --------------------------------------------------------------------------------------------


def test_only_these_encodings_depend_on_the_distance_alone(everything):
    assert set(everything) == set(ENCODINGS.names())
    for name in GENERIC:
        assert everything[name].shift.variance_beyond_distance < 1e-9, name
        assert everything[name].shift.deviation < 1e-4, name
    assert everything["length-normalised"].shift.variance_beyond_distance < 1e-9
    assert everything["learned"].shift.variance_beyond_distance > 0.8
    assert everything["learned"].shift.deviation > 1
    assert 1e-3 < everything["fire"].shift.variance_beyond_distance < 0.5


def test_fire_depends_on_the_distance_alone_up_to_its_threshold():
    fire = {e.name: e for e in all_encodings(d_model=8, n_heads=2, n_positions=16).encodings}["fire"]
    assert fire.shift.variance_beyond_distance < 1e-9


def test_the_kernels_are_those_of_the_formulas(everything):
    distance = np.arange(40) - np.arange(40)[:, None]
    wide, narrow = (10000.0 ** (-np.arange(0, d, 2) / d) for d in (32, 32 // 4))
    expected = {
        "sinusoidal": np.cos(distance[..., None] * wide).sum(-1),
        "rotary": 2 * np.cos(distance[..., None] * narrow).sum(-1),
        "alibi-symmetric": -np.abs(distance) * (2.0 ** -np.array([2, 4, 6, 8])).mean(),
        "none": 0 * distance,
    }
    expected["alibi"] = np.where(distance > 0, np.nan, expected["alibi-symmetric"])
    for name, kernel in expected.items():
        np.testing.assert_allclose(array(everything[name].kernel), kernel, atol=1e-4, err_msg=name)


def test_the_rotation_carries_sinusoids_and_nothing_else(everything):
    assert everything["sinusoidal"].shift.rotation_error < 1e-5
    assert everything["length-normalised"].shift.rotation_error < 1e-3
    assert everything["length-normalised"].at_length == 40
    assert everything["learned"].shift.rotation_error > 1
    table = array(everything["sinusoidal"].table)
    assert rotation_error(table, step=1.01) > 0.1, "another step must be noticed"
    assert rotation_error(array(everything["length-normalised"].table), step=1.0) > 0.1
    broken = table.copy()
    broken[7, 3] += 0.01
    assert rotation_error(broken) == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize("d_model", [4, 7])
def test_rotations_add_up(d_model):
    three, four, seven = (rotation(1.0, k, d_model)[: d_model - d_model % 2] for k in (3, 4, 7))
    paired = slice(d_model - d_model % 2)
    np.testing.assert_allclose(three[:, paired] @ four[:, paired], seven[:, paired], atol=1e-12)
    np.testing.assert_allclose(three[:, paired] @ three[:, paired].T, np.eye(len(three)), atol=1e-12)


def test_a_learned_table_has_no_step_that_can_be_learned(everything):
    learned, waves = everything["learned"].shift.linear, everything["sinusoidal"].shift.linear
    assert learned.held_out > 0.9
    assert learned.rotation > 0.3
    assert waves.held_out < 1e-3
    assert waves.rotation < 1e-5


def test_few_rows_can_always_be_fitted_and_that_says_nothing():
    noise = np.random.default_rng(0).normal(size=(7, 32))
    few, many = fit_shift(noise), fit_shift(np.random.default_rng(0).normal(size=(200, 4)))
    assert few.fitted < 1e-9
    assert few.held_out > 0.9
    assert many.fitted > 0.9


def test_a_planted_rotation_is_found_in_any_basis():
    rng = np.random.default_rng(1)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    turned = [rng.normal(size=6)]
    for _ in range(20):
        turned.append(turn @ turned[-1])
    rows = np.array(turned)
    assert fit_shift(rows).rotation < 1e-9
    assert variance_beyond_distance(rows @ rows.T) < 1e-9, "rows of one rotation have a kernel of t - s alone"
    assert rotation_error(rows) > 0.1, "but it is not the sinusoids' rotation"


def test_the_share_is_between_nothing_and_all():
    noise = np.random.default_rng(2).normal(size=(60, 60))
    distance = np.arange(60) - np.arange(60)[:, None]
    assert variance_beyond_distance(noise) > 0.9
    assert variance_beyond_distance(distance + 0.0) == 0
    assert 0.1 < variance_beyond_distance(distance / distance.std() + noise) < 0.9
    hidden = np.where(distance > 0, np.nan, distance + 0.0)
    assert variance_beyond_distance(hidden) == 0


def test_a_curve_holds_every_diagonal():
    curve = curve_of(np.array([[1.0, np.nan, np.nan], [2.0, 3.0, np.nan], [4.0, 6.0, 5.0]]), "K")
    assert (curve.low, curve.mean, curve.high) == (
        (4.0, 2.0, 1.0, None, None),
        (4.0, 4.0, 3.0, None, None),
        (4.0, 6.0, 5.0, None, None),
    )


def test_the_curves_are_the_biases_of_each_head(everything):
    slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    for slope, curve in zip(slopes, everything["alibi"].curves, strict=True):
        assert curve.mean[:40] == pytest.approx([-slope * d for d in range(39, -1, -1)], rel=1e-5)
        assert set(curve.mean[40:]) == {None}
    assert [curve.label for curve in everything["rotary"].curves] == ["K"]


# --- runs -------------------------------------------------------------------------------------------------------


def test_rows_never_trained_kept_their_direction(sample):
    shown = positions_of_run(sample)
    assert (shown.n_trained, shown.n_positions, shown.encoding.name) == (7, 32, "learned")
    trained, rest = shown.rows[:7], shown.rows[7:]
    assert {row.state for row in trained} == {"trained"}
    assert {row.state for row in rest} == {"never trained"}
    assert min(float(row.moved) for row in trained) > max(float(row.moved) for row in rest) > 0
    assert all(row.cosine > 1 - 1e-6 for row in rest)
    assert all(row.cosine < 1 - 1e-4 for row in trained)
    weights = sample.model.source_positions.rows.weight.detach().numpy()
    np.testing.assert_allclose(array(shown.encoding.table), weights[:32], rtol=1e-5)
    np.testing.assert_allclose([row.norm for row in shown.rows], np.linalg.norm(weights[:32], axis=1), rtol=1e-5)


def test_a_fresh_model_has_not_moved_and_a_moved_row_is_found(tmp_path):
    run = fresh_run(tmp_path, encoding="learned", n_positions=16)
    assert {row.moved for row in positions_of_run(run).rows} == {0.0}
    moved = replace(run, model=copy.deepcopy(run.model))
    with torch.no_grad():
        moved.model.positions.rows.weight[5] += 3 / 16**0.5
    assert [row.position for row in positions_of_run(moved).rows if row.moved > 1e-5] == [5]
    assert positions_of_run(moved).rows[5].moved == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize("past_table", ["clamp", "untrained"])
def test_positions_past_the_table_are_marked(tmp_path, past_table):
    shown = positions_of_run(fresh_run(tmp_path, encoding="learned", n_positions=12, past_table=past_table), 20)
    states = [row.state for row in shown.rows]
    assert states == ["trained"] * 10 + ["never trained"] * 2 + ["past the table"] * 8
    table = shown.encoding.table
    assert (table[12] == table[19] == table[11]) == (past_table == "clamp")


def test_a_table_that_ends_is_not_shown_past_its_end(tmp_path):
    run = fresh_run(tmp_path, encoding="learned", n_positions=12, past_table="error")
    assert positions_of_run(run).n_positions == 12
    with pytest.raises(InputError, match=r"number of positions must be from 3 to 12, got 13(.|\n)*learned table"):
        positions_of_run(run, 13)
    for n in (2, 513):
        with pytest.raises(InputError, match="3 to 512"):
            positions_of_run(fresh_run(tmp_path, encoding="none"), n)


def test_random_positions_are_all_trained(tmp_path):
    run = fresh_run(tmp_path, encoding="learned", n_positions=24, random_positions=20)
    shown = positions_of_run(run, 30)
    assert (shown.n_trained, shown.random_positions) == (20, 20)
    assert [row.state for row in shown.rows].count("trained") == 20
    np.testing.assert_allclose(
        array(shown.encoding.table)[:24], run.model.positions.inner.rows.weight.detach(), rtol=1e-5
    )


@pytest.mark.parametrize("name", ENCODINGS.names())
def test_any_run_can_be_shown_and_read_back(tmp_path, name):
    shown = positions_of_run(fresh_run(tmp_path, encoding=name), 12)
    assert PositionsShown.from_json(shown.to_json()) == shown
    assert shown.encoding.name == name
    assert bool(shown.rows) == (name == "learned")
    assert (shown.encoding.table is not None) == (shown.encoding.acts_on == "embeddings")


def test_an_encoder_decoder_shows_its_encoder(tiny, tmp_path):
    run = fresh_run(tmp_path, task="addition", **tiny)
    shown = positions_of_run(run, 9)
    np.testing.assert_allclose(array(shown.encoding.table), run.model.source_positions.rows.weight.detach()[:9], 1e-5)
    assert shown.n_trained == 3


def test_the_runs_own_encoding_takes_its_place(sample):
    shown = all_encodings(positions_of_run(sample, 10), d_model=8, n_heads=2)
    assert EncodingsShown.from_json(shown.to_json()) == shown
    assert (shown.trained, shown.n_trained) == ("learned", 7)
    (learned,) = (encoding for encoding in shown.encodings if encoding.name == "learned")
    assert learned == positions_of_run(sample, 10).encoding
    assert learned.shift.linear.n_rows == 7
    others = all_encodings(d_model=8, n_heads=2, n_positions=10)
    differ = [a.name for a, b in zip(shown.encodings, others.encodings, strict=True) if a != b]
    assert differ == ["learned"], "all others are drawn from a fixed seed"
