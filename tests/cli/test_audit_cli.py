"""`headcount audit`: one model, a course of eight, feedback as Markdown, and the line that other verbs print."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from headcount.auditing.audit import Audit
from headcount.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # models of others are audited in full

HEAD = """
import torch
from planted import OrderModel, PlantedAdder, PlantedSorter, SumModel
from torch.nn import functional as F

"""
COURSE: dict[str, tuple[str, str, str]] = {
    "alice": ("", "PlantedAdder", "pass"),
    "bob": (
        """
        def generate(self, model, questions):  # the first digit is never predicted
            return ["0" + answer[1:] for answer in super().generate(model, questions)]
        """,
        "PlantedAdder",
        "HC101",
    ),
    "carol": (
        """
        def generate(self, model, questions):  # returns its start token, and drops the last digit
            return ["1" + answer[:-1] for answer in super().generate(model, questions)]
        """,
        "PlantedAdder",
        "HC103",
    ),
    "dave": (
        """
        def generate(self, model, questions):  # stops one digit early
            return [answer[:-1] for answer in super().generate(model, questions)]
        """,
        "PlantedAdder",
        "HC105",
    ),
    "erin": (
        """
        class model_class(SumModel):  # no causal mask: what it is to predict is there to be copied
            def right(self, source, written):
                return 10.0 * F.one_hot(F.pad(written[:, 1:], (0, 1)), 13).float()
        """,
        "PlantedAdder",
        "HC201",
    ),
    "frank": (
        """
        class model_class(OrderModel):  # one answer to everything
            def is_sorted(self, ids, visible):
                return torch.ones(len(ids), dtype=torch.bool)
        """,
        "PlantedSorter",
        "HC301",
    ),
    "grace": (
        """
        class model_class(OrderModel):  # a place in 512 by the length of the sequence
            def embed(self, ids):
                place = torch.arange(ids.shape[1]) * 511 // max(ids.shape[1] - 1, 1)
                return self.tokens(ids) + self.places(place)
        """,
        "PlantedSorter",
        "HC504",
    ),
    "heidi": ("", "PlantedSorter", "pass"),
}
"""By student, what stands in the adapter, what it inherits, and the check that names its fault."""


@pytest.fixture
def course(in_tmp: Path) -> str:
    for name, (body, base, _) in COURSE.items():
        folder = in_tmp / "submissions" / name
        folder.mkdir(parents=True)
        (folder / "adapter.py").write_text(f"{HEAD}class Model({base}):\n{indent(dedent(body) or 'pass', '    ')}\n")
    return "submissions/*/adapter.py:Model"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_course_is_one_table(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path("submissions") / "ivan").mkdir()
    Path("submissions/ivan/adapter.py").write_text("import nothing_of_that_name\n")
    code, found = run_json(capsys, "audit", course)
    assert code == 1
    by_name = {Path(each["name"].rpartition(":")[0]).parent.name: each for each in found["models"]}
    assert by_name["ivan"]["audit"] is None
    assert "nothing_of_that_name" in by_name["ivan"]["error"]
    assert found["summary"][0] == "9 submissions: 2 sound, 6 with faults, 1 that cannot be run"
    assert found["summary"][2] == "most common reasons why submissions cannot be run: ModuleNotFoundError: 1"
    for name, (_, _, expected) in COURSE.items():
        audit = by_name[name]["audit"]
        assert by_name[name]["submission"] == name
        assert Path(f"runs/{name}/results/audit.md").exists(), name
        failing = [each for each in audit["verdicts"] if each["verdict"] == "fail"]
        assert [each["id"] for each in failing][:1] == ([] if expected == "pass" else [expected]), name
        if failing:
            assert audit["summary"].startswith(failing[0]["finding"]), name
    assert main(["audit", course, "--quiet", "--only", "HC101"]) == 1
    table = capsys.readouterr().out
    assert all(name in table for name in COURSE)
    assert "broken: submissions/ivan/adapter.py" in table


def test_feedback_can_be_handed_back(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "submissions/bob/adapter.py:Model", "--markdown", "--quiet"]) == 1
    feedback = capsys.readouterr().out
    assert feedback.startswith(
        "# Audit of submissions/bob/adapter.py:Model\n\nThe 100s digit is 0 in 400 of 400 decoded answers"
    )
    assert "## To fix: HC101, constant place\n\n" in feedback
    assert r"What to change: Feed \[start, \*answer\[:-1\]\]" in feedback
    assert r"What this check means: docs/traps.md\#hc101" in feedback
    assert "| HC106 | two answers | explained | explained by HC101" in feedback
    (written,) = Path("runs").glob("*/results/audit.md")
    assert written.read_text().strip() == feedback.strip()
    assert Audit.from_json(written.with_suffix(".json").read_text()).of("fail")[0].id == "HC101"


def test_every_student_gets_a_file_with_only_what_to_fix(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Broken submissions included; a file of somebody else's is left alone."""
    for name in ("carol", "dave", "erin", "frank", "grace", "heidi"):
        (Path("submissions") / name / "adapter.py").unlink()
    (Path("submissions") / "ivan").mkdir()
    Path("submissions/ivan/adapter.py").write_text("print('loading')\nimport nothing_of_that_name\n")
    asked = ["audit", course, "--only", "HC101,HC102", "--markdown", "--quiet", "-o", "feedback"]
    assert main(asked) == 1
    printed, told = capsys.readouterr()
    assert "no adapter.py in submissions/carol, submissions/dave" in told, "who handed in nothing is said"
    assert printed.startswith(
        "3 submissions: 1 sound, 1 with faults, 1 that cannot be run\nmost common faults: HC101 (constant place): 1"
    )
    names = ["_summary.md", "alice.md", "bob.md", "ivan.md"]
    files = {file.name: file.read_text() for file in sorted(Path("feedback").iterdir())}
    assert list(files) == names
    assert files["alice.md"].startswith("# Feedback for alice\n\nNothing needs to be fixed.")
    assert "## To fix: HC101, constant place" in files["bob.md"]
    assert (
        "Most common error: 263 of 263 errors: a 1 would have been right, and the 100s place was wrong."
        in files["bob.md"]
    )
    assert "HC102" not in files["bob.md"], "what passed is no feedback"
    assert r"ModuleNotFoundError: No module named 'nothing\_of\_that\_name'" in files["ivan.md"]
    assert r"at line 2 of adapter.py: import nothing\_of\_that\_name" in files["ivan.md"]
    assert "headcount audit submissions/ivan/adapter.py:Model" in files["ivan.md"]
    assert "    loading" in files["ivan.md"], "what it printed"
    assert "| ivan |" in files["_summary.md"]
    assert main(asked) == 1, "headcount's own files are written anew"
    Path("feedback/bob.md").write_text("what I told Bob\n")
    capsys.readouterr()
    assert main(asked) == 2
    assert "headcount replaces only files that it wrote" in capsys.readouterr().err
    assert Path("feedback/bob.md").read_text() == "what I told Bob\n"


def test_one_submission_gets_a_file_too(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "submissions/bob/adapter.py:Model", "--only", "HC101", "--quiet", "--out", "feedback"]) == 1
    assert sorted(file.name for file in Path("feedback").iterdir()) == ["_summary.md", "bob.md"]


def test_the_most_common_error_is_named(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    bob = "submissions/bob/adapter.py:Model"
    assert main(["evaluate", bob]) == 0
    (wrong,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Most common error: "))
    _, found = run_json(capsys, "audit", bob, "--only", "HC101")
    n = round(400 * (1 - found["measured"]))
    assert found["common_error"] == f"{n} of {n} errors: a 1 would have been right, and the 100s place was wrong"
    assert wrong == f"Most common error: {found['common_error']}."


def test_a_check_can_be_ignored_with_a_reason(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    frank = "submissions/frank/adapter.py:Model"
    code, found = run_json(capsys, "audit", frank, "--only", "one-answer", "--ignore", "HC301=it is the baseline")
    (verdict,) = found["verdicts"]
    assert (code, verdict["verdict"], verdict["reason"]) == (0, "ignored", "it is the baseline")
    for wrong, words in ((["--ignore", "HC301"], "gives no reason"), (["--only", "HC999"], "no check 'HC999'")):
        assert main(["audit", frank, *wrong]) == 2
        assert words in capsys.readouterr().err
    assert main(["audit", frank, "--n", "0"]) == 2
    assert "--n must be at least 1" in capsys.readouterr().err


def test_a_sound_sample_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "sample:addition", "--n", "200", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No known mistake found: ")
    assert "HC101" in out
    assert "runs/sample-addition/results/audit-n200.md" in out


@pytest.mark.parametrize("verb", ["evaluate", "ablate"])
def test_other_verbs_print_one_line(course: str, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Of a model whose first digit is never predicted, whatever it was asked for."""
    for name, is_sound in (("bob", False), ("alice", True)):
        more = ["--n", "50", "--replacements", "zero", "--metric", "teacher-forced"] if verb == "ablate" else []
        main([verb, f"submissions/{name}/adapter.py:Model", *more, *([] if verb == "evaluate" else ["--quiet"])])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("AUDIT:")]
        assert len(lines) == (0 if is_sound else 1)
        assert is_sound or "the 100s digit is 0 in 400 of 400 decoded answers" in lines[0]


def test_no_story_of_carries_is_told_about_a_constant_digit(course: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = run_json(capsys, "evaluate", "submissions/bob/adapter.py:Model")
    assert found["audit"].startswith("the 100s digit is 0 in 400 of 400 decoded answers")
    assert {each["explanation"] for each in found["wrong"]} == {"explained by HC101 (constant place)"}
