"""What a student hands in: the ranking goes by removal, and answers.md answers every question of the exercise."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from heads_by_hand import (
    ablation,
    classification,
    effect,
    evaluation,
    failures,
    head_stats,
    model_results,
    point,
    pruning,
    report_results,
    stats,
)
from told_results import stretch

from headcount.analysis.pruning import PrunableShare
from headcount.describing.report import ReportResults
from headcount.exercise.files import write_exercise
from headcount.runs.folder import TrainingRecord

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
    removed = [effect(head, drop, 0.0005) for head, (drop, _) in DROPS.items()]
    ranks = {
        each.head: (1 + sum(o.low > each.high for o in removed), sum(o.high >= each.low for o in removed))
        for each in removed
    }
    ranked = [replace(each, rank_low=ranks[each.head][0], rank_high=ranks[each.head][1]) for each in removed]
    return ablation(*swapped, *ranked)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    write_exercise(report_results(model_results(ablation=both_ways())), folder)
    return folder / "problem1/results/head_analysis"


def test_the_ranking_goes_by_removal_and_ties_share_a_rank(handed_in) -> None:
    text = (handed_in / "head_importance_ranking.txt").read_text()
    rows = re.findall(r"^([\d-]+) +(\S+) +(\w+) +(\S+) \[.*?\] n = [\d,]+ +(\S+) \[", text, re.M)
    assert rows == [
        ("1", "encoder.1.self.2", "critical", "33.00", "10.00"),
        ("2", "decoder.0.self.1", "important", "2.87", "0.00"),
        ("3-4", "encoder.0.self.1", "important", "2.00", "90.00"),
        ("3-4", "encoder.0.self.0", "important", "2.00", "0.00"),
        ("5", "encoder.1.self.3", "redundant", "0.01", "32.68"),
    ]
    head = text.partition("\n\n")[0]
    assert "ranked by the drop after removing a head (zero ablation)" in head
    assert "A rank is a range where 95 % CIs overlap." in head
    assert "resample: replacing a head's output with its output on another example." in head
    assert "95 % CIs for each head alone, on the test set." in head


def test_the_numbers_go_by_removal_too(handed_in) -> None:
    found = json.loads((handed_in / "ablation_results.json").read_text())
    assert found["ranked_by"] == "zero"
    assert [each["short"] for each in found["heads"][:5]] == list(DROPS)
    assert {each["replacement"] for each in found["heads"][:5]} == {"zero"}


# --- answers.md -------------------------------------------------------------------------------------------------------

QUESTIONS = (
    "Training.",
    "Heat maps of every head.",
    "Head statistics.",
    "Ablation and ranking.",
    "Critical and redundant heads.",
    "Carry propagation.",
    "Share of heads that can be pruned.",
    "Training, sinusoidal.",
    "Training, learned.",
    "Training, none.",
    "Accuracy at every length.",
    "Learned position embeddings.",
    "Encodings side by side.",
    "Why sinusoidal can extrapolate and learned cannot.",
)
"""Of the two experiments, in the exercise's order."""
LOG = ({"step": 1, "loss": 2.0}, {"step": 2, "loss": 0.5}, {"step": 2, "n": 10, "accuracy": 0.9, "free_running": 0.9})
RECORD = TrainingRecord(steps=2000, training_loss=0.0125, validation_loss=0.034, seconds=83.2, device="cpu")
HEADS = [f"{stack}{layer}H{i}" for stack in "EDX" for layer in (0, 1) for i in range(4)]


def both_experiments() -> ReportResults:
    """24 heads, as the exercise has them, and the longest names and most sentences that there may be."""
    swapped = [effect(head, 0.5 - i / 50, replacement="resample") for i, head in enumerate(HEADS)]
    removed = [replace(effect(head, 0.33 / (1 + i), 0.001), rank_low=1 + i) for i, head in enumerate(HEADS)]
    broken = [failures(head, (80, 1000), (10, 1000), faults=90 - 3 * i) for i, head in enumerate(HEADS)]
    shares = (PrunableShare(0.01, 5, 3, point(3, 0.988, 0.002)), PrunableShare(0.05, 6, 4, point(4, 0.96, 0.03)))
    heads = [head_stats(head, "mostly aligned column (0.99)", moved=0.4, carry=(0.9, 0.5)) for head in HEADS]
    adder = model_results(
        training=RECORD,
        evaluation=evaluation(),
        ablation=ablation(*swapped, *removed, failures=broken),
        pruning=pruning(prunable=shares),
        stats=stats(*heads),
        log=LOG,
    )
    known = {"evaluation": classification(), "training": RECORD, "log": LOG}
    sorters = [
        model_results(name, "sortedness", {"encoding": name, "d_model": 64}, stretch=stretch(name), **known)
        for name in ("sinusoidal", "learned", "none")
    ]
    return report_results(adder, *sorters)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("both")
    files = write_exercise(both_experiments(), folder)
    assert files[0] == folder / "answers.md"
    return files[0].read_text(), folder


def answer_to(text: str, question: str) -> str:
    return text.partition(f"**{question}** ")[2].partition("\n\n**")[0].partition("\n<!--")[0].rstrip()


def test_every_question_is_answered_in_the_exercises_order(answers) -> None:
    text, _ = answers
    assert tuple(re.findall(r"^\*\*(.+?)\*\*", text, re.M)) == QUESTIONS
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Answers",
        "## Problem 1: addition (adder)",
        "## Problem 2: sortedness (sinusoidal, learned and none)",
    ]


def test_answers_are_two_pages_at_most(answers) -> None:
    words = [word for word in answers[0].split() if any(char.isalnum() for char in word)]
    assert len(words) <= 900


def test_answers_point_to_files_that_are_there(answers) -> None:
    text, folder = answers
    paths = re.findall(r"`(problem\S+?)`", text)
    assert len(paths) >= 8
    for path in paths:
        assert (folder / path).exists(), path


def test_answers_have_their_figures(answers) -> None:
    text, _ = answers
    trained = answer_to(text, "Training, learned.")
    assert trained.startswith("On the test set, 990 of 1,000 right (99.0 %, CI 98.2-99.5). Training took")
    assert "2,000 steps in 83 s; loss: 0.013 (training) and 0.034 (validation)" in answer_to(text, "Training.")
    ranked = answer_to(text, "Ablation and ranking.")
    assert ranked.startswith(
        "E0H0 is the most important head: removing it costs 33.0 points (CI 32.9-33.1, n = 2,000). "
    )
    assert "E0H0 is the most important head under resample ablation" in ranked
    assert "E0H1 16.50 [16.40, 16.60]" in ranked
    bands = answer_to(text, "Critical and redundant heads.")
    assert "3 critical (above 10 points: E0H0, E0H1 and E0H2)" in bands
    share = answer_to(text, "Share of heads that can be pruned.")
    assert "For a drop of at most 5 points, greedy removal takes 4 of 8 heads (50.0 %) together" in share
    assert "Removed one at a time, 6 of 8 heads (75.0 %) cost less than 5 points" in share
    assert "heads that are harmless alone are not harmless together" in share
    carries = answer_to(text, "Carry propagation.")
    assert (
        "24 of 24 heads respond to a carry, E0H0 most (a token that makes a carry moves 40.0 % more of its "
        "attention; CI 36.9-43.1" in carries
    )
    assert "arry errors are the majority of broken answers without E0H0 (90 of 90)" in carries
    lengths = answer_to(text, "Accuracy at every length.")
    assert "| full shuffles | 32 | 64 | 128 | 256 |" in lengths
    assert "| sinusoidal | 100.0 [98.1, 100.0] | 100.0 [98.1, 100.0] | not measured |" in lengths
    assert "| single adjacent swaps | 32 |" in lengths
    assert "n = 200 per cell" in lengths
    why = answer_to(text, "Why sinusoidal can extrapolate and learned cannot.")
    assert "Sinusoidal encodings satisfy PE(p + k) = R(k) PE(p) for all p" in why
    assert "depends on t - s alone" in why
    assert "table lookup" in why


def test_the_prunable_share_is_in_the_json_as_percentages(answers) -> None:
    found = json.loads((answers[1] / "problem1/results/head_analysis/pruning_results.json").read_text())
    assert found["prunable_percent"] == [
        {"loss_points": 1.0, "one_by_one_percent": 62.5, "together_percent": 37.5},
        {"loss_points": 5.0, "one_by_one_percent": 75.0, "together_percent": 50.0},
    ]


def test_what_was_not_measured_is_said_to_be_so(tmp_path: Path) -> None:
    write_exercise(report_results(model_results(ablation=both_ways())), tmp_path)
    text = (tmp_path / "answers.md").read_text()
    assert answer_to(text, "Share of heads that can be pruned.") == "Not measured."
    assert "Problem 2" not in text
