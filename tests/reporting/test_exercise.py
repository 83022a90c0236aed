"""What a student hands in: the ranking goes by removal, and answers.md answers every question of the exercise."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from heads_by_hand import ablation, effect, material, subject

from headcount.reporting.exercise import write_exercise

DROPS = {
    "E1H2": (0.33, 0.10),
    "D0H1": (0.0287, 0.0),
    "E0H1": (0.02004, 0.90),
    "E0H0": (0.01996, 0.0),
    "E1H3": (0.0001, 0.3268),
}
"""What removing a head costs, and what swapping its output does."""


def both_ways():
    """By resample first, as results of earlier versions have it."""
    swapped = [effect(head, drop, replacement="resample") for head, (_, drop) in DROPS.items()]
    removed = [replace(effect(head, drop, 0.0005), rank_low=1 + i) for i, (head, (drop, _)) in enumerate(DROPS.items())]
    return ablation(*swapped, *removed)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    write_exercise(material(subject(ablation=both_ways())), folder)
    return folder / "problem1/results/head_analysis"


def test_the_ranking_goes_by_removal_and_ties_share_a_rank(handed_in) -> None:
    text = (handed_in / "head_importance_ranking.txt").read_text()
    rows = re.findall(r"^(\d+) +(\S+) +(\w+) +(\S+) \[.*?\] n = [\d,]+ +(\S+) \[", text, re.M)
    assert rows == [
        ("1", "encoder.1.self.2", "critical", "33.00", "10.00"),
        ("2", "decoder.0.self.1", "important", "2.87", "0.00"),
        ("3", "encoder.0.self.1", "important", "2.00", "90.00"),
        ("3", "encoder.0.self.0", "important", "2.00", "0.00"),
        ("5", "encoder.1.self.3", "redundant", "0.01", "32.68"),
    ]
    head = text.partition("\n\n")[0]
    assert "ranked by what removing a head costs (zero ablation)" in head
    assert "Heads whose drops are equal to 2 decimals share a rank (1, 2, 2, 4)." in head
    assert "resample: swapping a head's output with another example's." in head
    assert "95 % intervals for one head by itself; on the test set." in head


def test_the_numbers_go_by_removal_too(handed_in) -> None:
    found = json.loads((handed_in / "ablation_results.json").read_text())
    assert found["ranked_by"] == "zero"
    assert [each["short"] for each in found["heads"][:5]] == list(DROPS)
    assert {each["replacement"] for each in found["heads"][:5]} == {"zero"}
