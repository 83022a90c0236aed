"""Random streams are reproducible, and different names give different streams."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headcount.seeds import integer, stream

unhurried = settings(deadline=None)
keys = st.tuples(st.integers(0, 2**32), st.text(max_size=8), st.integers(0, 2**32))


@pytest.mark.parametrize(
    ("key", "seed", "draws"),
    [
        ((0, "batch", 0), 684584896067941722, (151275020, 72628443, 513704987)),
        ((0, "batch", 1200), 7844525110332963441, (682090570, 890212955, 727529312)),
        ((7, "weights", 3), 33323178155252231, (123353665, 94192368, 137503968)),
        ((2**32, "ä/b", 5), 8919114578660853078, (252557973, 904432088, 430104081)),
    ],
    ids=str,
)
def test_the_same_key_gives_the_recorded_stream(key: tuple[int, str, int], seed: int, draws: tuple[int, ...]) -> None:
    """If these numbers changed, runs could not be reproduced or resumed."""
    assert integer(*key) == seed
    assert tuple(stream(*key).integers(10**9, size=3)) == draws


@unhurried
@given(keys, keys)
def test_different_keys_give_different_streams(one: tuple[int, str, int], other: tuple[int, str, int]) -> None:
    assume(one != other and "/" not in one[1] + other[1])
    assert integer(*one) != integer(*other)
    assert stream(*one).bytes(32) != stream(*other).bytes(32)


@unhurried
@given(keys)
def test_a_seed_fits_a_signed_64_bit_integer(key: tuple[int, str, int]) -> None:
    assert 0 <= integer(*key) < 2**63


def test_the_index_defaults_to_zero() -> None:
    assert integer(3, "batch") == integer(3, "batch", 0)
    assert stream(3, "batch").bytes(8) == stream(3, "batch", 0).bytes(8)


def test_a_stream_does_not_touch_the_global_one() -> None:
    before = np.random.get_state()[1].tolist()
    stream(0, "batch").standard_normal(100)
    assert np.random.get_state()[1].tolist() == before


def test_another_process_gets_the_same_stream() -> None:
    """Python's own `hash` of a string would differ from process to process."""
    code = "from headcount.seeds import stream; print(stream(7, 'batch', 1200).integers(10**9))"
    predicted = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    here = int(stream(7, "batch", 1200).integers(10**9))
    assert [int(number) for number in predicted] == [here, here]


def test_streams_of_neighbouring_steps_are_not_correlated() -> None:
    draws = np.array([stream(0, "batch", step).random(1000) for step in range(10)])
    off_diagonal = np.corrcoef(draws)[~np.eye(10, dtype=bool)]
    assert np.abs(off_diagonal).max() < 0.15  # 4.7 standard deviations of 1/sqrt(1000)
