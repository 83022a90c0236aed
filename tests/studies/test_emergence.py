"""When heads begin to matter in training, from made-up snapshots."""

from __future__ import annotations

import pytest
from rows_by_hand import COSTLY, HARMLESS, OPEN, over_training, snapshot_rows

from headcount.describing.emergence import conclusions
from headcount.errors import ResultError
from headcount.stats import Proportion
from headcount.studies.emergence import Emergence, emergence


def snapshots(*firsts: int | None) -> Emergence:
    """Snapshots at steps 100, 200 and 300 of several seeds, each with the step at which E0H0 begins to cost."""
    drops = {
        step: [
            (0.2 * step / 100, {"E0H0": COSTLY if first and step >= first else HARMLESS, "X0H1": OPEN})
            for first in firsts
        ]
        for step in (100, 200, 300)
    }
    found = emergence(snapshot_rows(drops, last=300))
    assert found is not None
    return found


def test_the_first_snapshot_at_which_a_head_counts() -> None:
    result = snapshots(200, 300, None)
    firsts = [run.first for run in result.runs]
    assert [first and (first.step, first.largest, first.n_critical) for first in firsts] == [
        (200, "encoder.0.self.0", 1),
        (300, "encoder.0.self.0", 1),
        None,
    ]
    assert [run.before and run.before.step for run in result.runs] == [100, 200, None]
    assert result.begun("all runs") == Proportion.of(2, 3)
    assert (result.sites, result.replacement) == (["E0", "X0"], "zero")
    assert [run.first_of("X0") for run in result.runs] == [None, None, None], "undecided heads do not count"


def test_no_head_counts_where_there_is_nothing_to_lose() -> None:
    rows = snapshot_rows({100: [(0.05, {"E0H0": COSTLY})], None: [(0.9, {"E0H0": COSTLY})]}, last=700)
    result = emergence(rows)
    assert result is not None
    first, last = result.runs[0].snapshots
    assert (first.can_lose, first.n_counting, first.step) == (False, 0, 100)
    assert (last.can_lose, last.n_counting, last.step) == (True, 1, 700), "the trained model is the last snapshot"


def test_the_trained_model_is_not_counted_twice() -> None:
    rows = snapshot_rows({100: [(0.9, {"E0H0": COSTLY})], None: [(0.9, {"E0H0": COSTLY})]}, last=100)
    result = emergence(rows)
    assert result is not None
    assert [each.step for each in result.runs[0].snapshots] == [100]


def test_without_snapshots_there_is_nothing_to_say() -> None:
    assert emergence(snapshot_rows({None: [(0.9, {"E0H0": COSTLY})]})) is None
    assert emergence([]) is None


def test_it_survives_json_and_reveals_edits() -> None:
    result = over_training(seeds=2)
    assert Emergence.from_json(result.to_json()) == result
    with pytest.raises(ResultError, match="damaged"):
        Emergence.from_json(result.to_json().replace('"step": 200', '"step": 50', 1))


def test_sentences_count_seeds_and_steps() -> None:
    texts = [each.text for each in conclusions(snapshots(200, 300, 200, 200, 300, 200), "all runs")]
    assert texts[0].startswith("In 6 of 6 (95 % CI 61.0-100) seeds, ablating one head costs more than 1 point")
    assert "first at step 200 to 300 (median 200), when the accuracy is 40.0 % to 60.0 %." in texts[0]
    assert "seed 0 between steps 100 and 200" in texts[1]
    assert texts[-1].endswith("No head of X0 costs that much in any seed.")


def test_a_head_that_never_counts_is_undecided() -> None:
    (first, *_, blocks) = conclusions(snapshots(None, None, None), "all runs")
    assert (
        first.text
        == "In 0 of 3 (95 % CI 0-56.1) seeds, ablating one head costs more than 1 point at any of 3 snapshots."
    )
    assert not first.is_decided
    assert blocks.text == "No head of any attention block costs more than 1 point at any snapshot."
