"""Both experiments, small."""

import re

import pytest

from headcount import lab as laboratory
from headcount.lab import EXAMPLE, LENGTHS, SORTEDNESS, run_lab
from headcount.tasks.addition import Addition


@pytest.mark.slow
def test_a_lab_trains_verifies_stretches_draws_and_reports(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(laboratory, "EXAMPLE", "3+4")
    small = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_validation": 20, "n_test": 20, "device": "cpu"}
    settings = {
        "addition": tiny,
        "sortedness": small | {"steps": 6, "batch_size": 8, "eval_every": 6, "threads": 1},
    }
    lab = run_lab(tmp_path, quiet=True, settings=settings, n=4)
    adder, sorter = lab.addition, lab.sortedness
    assert adder.certificate.total == 100
    assert adder.evaluation.exact.free_running.n == 10
    text = lab.report.read_text()
    assert f"100 sums checked, {adder.certificate.errors:,} wrong" in text
    assert "Every head on 3+4 = " in text
    assert adder.pruning is None, "hardly trained, it has nothing to lose"
    assert "It is hardly ever right." in text

    assert list(sorter.runs) == list(sorter.stretches) == list(SORTEDNESS)
    for name, found in sorter.stretches.items():
        assert tuple(dict.fromkeys(cell.length for cell in found.cells)) == LENGTHS
        assert {cell.n for cell in found.cells} == {4}
        assert found.model == sorter.runs[name].digest
        assert text.count(f"| {name} (") == 2, "one row among the easiest and one among the hardest negatives"
    assert sorter.stretches["far"].gives
    assert not sorter.stretches["far-generic"].gives

    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) == (2 + 3 + 3 + 1 + 2) + (1 + 1 + 1 + 2)
    assert all((tmp_path / picture).exists() for picture in pictures)

    again = run_lab(tmp_path, quiet=True, settings=settings, n=4)
    assert again.addition.run.digest == adder.run.digest
    assert again.sortedness.stretches == sorter.stretches
    assert again.report.read_text() == text


def test_the_example_is_a_sum_of_the_default_task():
    assert Addition().show(Addition().parse(EXAMPLE)[0]) == EXAMPLE
