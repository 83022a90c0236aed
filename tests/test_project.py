"""The files around the source, read by other programs and by newcomers, say what is so."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import headcount
from headcount.cli import VERBS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
GITHUB = ROOT / ".github"


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


# --- what programs read -----------------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version_and_license() -> None:
    citation, project = read_yaml("CITATION.cff"), PROJECT["project"]
    assert citation["title"] == project["name"]
    assert citation["abstract"] == project["description"]
    assert citation["version"] == headcount.__version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    assert citation["authors"] == project["authors"]
    unreleased = f"## {headcount.__version__} (unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert ("date-released" in citation) != unreleased


def test_the_workflow_runs_what_there_is() -> None:
    workflow = read_yaml(".github/workflows/test.yml")
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads `on` as a truth
    job = workflow["jobs"]["test"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, flags=re.MULTILINE))
    assert commands == ["make test"]
    assert {command.split()[1] for command in commands} <= targets
    caches = [step["with"]["cache-dependency-path"] for step in job["steps"] if "with" in step]
    assert all((ROOT / file).exists() for file in caches)


def test_the_workflow_tries_the_versions_that_are_promised() -> None:
    tried = read_yaml(".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert tried == promised
    assert PROJECT["project"]["requires-python"] == f">={tried[0]}"


def test_commit_hooks_are_tools_of_our_own_environment() -> None:
    """So that no version is written twice."""
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    (venv,) = re.findall(r"^VENV := (\S+)$", MAKEFILE, flags=re.MULTILINE)
    assert repo["repo"] == "local"
    assert [hook["name"] for hook in repo["hooks"]] == ["ruff check", "ruff format", "mypy"]
    for hook in repo["hooks"]:
        folder, _, tool = hook["entry"].split()[0].rpartition("/")
        assert folder == f"{venv}/bin"
        assert tool in PROJECT["project"]["optional-dependencies"]["dev"]
        assert f"$(BIN)/{hook['name']}" in MAKEFILE
        assert hook["language"] == "system"


def test_editors_and_ruff_agree() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[first]\n" + (ROOT / ".editorconfig").read_text())
    every = settings["*"]
    assert int(every["max_line_length"]) == PROJECT["tool"]["ruff"]["line-length"]
    assert (every["indent_size"], every["end_of_line"]) == ("4", "lf")
    assert settings["Makefile"]["indent_style"] == "tab"


# --- what people read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bug_report", "model_that_does_not_work"])
def test_issue_templates_name_what_there_is(name: str) -> None:
    _, head, text = (GITHUB / "ISSUE_TEMPLATE" / f"{name}.md").read_text().split("---\n", 2)
    assert {"name", "about", "labels"} == set(yaml.safe_load(head))
    verbs = re.findall(r"^    headcount (\S+)", text, flags=re.MULTILINE)
    assert verbs
    assert set(verbs) <= {"...", "--version", *VERBS.names()}
    assert all((ROOT / file).exists() for file in re.findall(r"docs/[\w-]+\.md", text))


def test_blank_issues_are_welcome() -> None:
    assert read_yaml(".github/ISSUE_TEMPLATE/config.yml") == {"blank_issues_enabled": True}


DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
STATUS = re.compile(r"Date: (\d{4}-\d\d-\d\d)\. Status: (accepted|amended by .+|superseded by .+)\.")


@pytest.mark.parametrize("file", DECISIONS, ids=lambda file: file.stem)
def test_every_decision_has_a_date_and_a_status(file: Path) -> None:
    title, blank, status, *rest = file.read_text().splitlines()
    assert title.startswith(f"# {int(file.name[:4])}. ")
    assert blank == rest[0] == ""
    told = STATUS.fullmatch(status)
    assert told
    others = re.findall(r"\[(\d{4})\]\((\S+?)\)", told[2])
    assert bool(others) == (told[2] != "accepted")
    assert all((file.parent / name).exists() and name.startswith(number) for number, name in others)
    assert ("0010" in dict(others)) == ("**Amended 2026-11-17.**" in "\n".join(rest))


def test_decisions_are_counted_and_dated_in_order() -> None:
    assert [int(file.name[:4]) for file in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    found = [STATUS.search(file.read_text()) for file in DECISIONS]
    dates = [each[1] for each in found if each]
    assert dates == sorted(dates)
    assert len(dates) == len(DECISIONS) > 9
