"""The whole experiment in one go: train, check every sum, look at every head, write a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.analysis.exhaustive import Certificate
from headcount.api import show_heads, train, verify
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run
from headcount.runs.storage import write_atomically
from headcount.training.evaluation import Evaluation
from headcount.views.progress import announcer
from headcount.views.report import write_report

EXAMPLE = "374+814"
"""The sum that report 003's model answers with 0188."""


@dataclass(frozen=True)
class Lab:
    """What a lab made, and where."""

    report: Path
    run: Run
    evaluation: Evaluation
    certificate: Certificate


def run_lab(out: Path, *, seed: int = 0, quiet: bool = False, **settings: Any) -> Lab:
    """Everything on the defaults, or with other training settings; one that was interrupted goes on where it was."""
    say = announcer(quiet)
    say("1/3  training an adder (3-digit sums, every sum of the test set held out)")
    folder = RunFolder(out / "addition")
    run = train("addition", out=folder.path, seed=seed, resume=folder.holds_a_run, quiet=quiet, **settings)
    evaluation = run.output.read_result("evaluation-test", Evaluation)
    say(f"2/3  checking all {run.task.domain_size:,} sums")
    certificate = verify(run, quiet=quiet)
    say("3/3  drawing every head")
    example, average = show_heads(run, EXAMPLE), show_heads(run)
    pictures = {
        "How it learned": [run.output.figure_file("curves.png")],
        "Where it is right": [run.output.figure_file("accuracy-test.png")],
        f"Every head on {example.patterns.title}": example.pages,
        f"Every head, {average.patterns.title}": average.pages,
    }
    report = out / "report.md"
    write_atomically(report, write_report(run.name, evaluation, certificate, pictures, out).encode())
    return Lab(report, run, evaluation, certificate)
