"""Verbs that write where the user points, sent to somebody's files: each file stays as it was."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from told_results import model_results

from headcount import api, cli
from headcount.describing.blocks import DataTable, Picture, Section
from headcount.describing.report import Report, ReportResults
from headcount.errors import HeadcountError
from headcount.files import MARK
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # as all attacks

PAGE = "report sorter --stored --examples 1 --quiet"
FILES: dict[str, str] = {
    "somebody's page": "thesis.html",
    "somebody's page, capital letters": "THESIS.HTML",
    "weights": "sorter/model.safetensors",
    "settings": "sorter/config.json",
    "log": "sorter/log.jsonl",
    "a result": "sorter/results/evaluation-test.json",
    "code": "my_code.py",
    "a text": "notes.md",
    "a file without a suffix": "notes",
}
"""What stands at the path that a verb is given."""
LINKS: dict[str, Callable[[Path], object]] = {
    "a link to a page": lambda path: path.symlink_to("thesis.html"),
    "a link to nothing": lambda path: path.symlink_to("not-there"),
    "a folder": lambda path: path.mkdir(),
    "a path below a file": lambda path: path.parent.joinpath("below").write_text("a file"),
}


@pytest.fixture
def scratch(tiny_sorter: Run, in_tmp: Path) -> Path:
    """A run, and files of somebody's own."""
    shutil.copytree(tiny_sorter.folder.path, "sorter", ignore=shutil.ignore_patterns("tensorboard", ".lock"))
    Path("sorter/results").mkdir(exist_ok=True)
    Path("other").symlink_to("sorter")
    for name in FILES.values():
        if not Path(name).exists():
            Path(name).write_text(f"mine: {name}")
    return in_tmp


@pytest.fixture
def short_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of one table and one picture, which takes no time to write."""
    sorter = model_results("sorter", settings={"encoding": "learned"}, log=[{"step": 1, "loss": 0.7}])
    blocks = DataTable("t", "a table", ("head",), (("L0H0",),)), Picture("p", "a picture", "seen", Figure)
    monkeypatch.setattr("headcount.api.reporting.gather", lambda *_, **__: ReportResults("title", (sorter,), "made"))
    monkeypatch.setattr(
        "headcount.api.reporting.build_report", lambda _: Report("t", "s", (Section("s", "t", blocks),), "made")
    )


def state(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and what is in it."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that is refused before it changes any file."""
    before = state(Path())
    code = cli.main(shlex.split(command))
    error = capsys.readouterr().err
    assert code == 2, f"{command}: exit {code} {error}"
    assert state(Path()) == before, command
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) > 1, "it does not say what to do"
    return error


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    "command",
    [
        f"{PAGE} -o {{}}",
        f"{PAGE} --markdown -o {{}}",
        "train sortedness -o {} --quiet",
        "lab -o {} --quiet",
        "prune sorter --heads L0H1 -o {} --quiet",
        "stretch sorter other --lengths 4 --n 4 --negatives shuffle --quiet -o {}",
        "adapt sorter -o {}",
        "audit sorter --n 20 --quiet -o {}",
        f"{PAGE} -o new.html --exercise {{}}",
    ],
    ids=["report", "report --markdown", "train", "lab", "prune", "stretch", "adapt", "audit", "report --exercise"],
)
def test_no_verb_replaces_somebody_elses_file(
    scratch: Path, capsys: pytest.CaptureFixture[str], command: str, path: str
) -> None:
    assert path in refused(command.format(path), capsys) or "adapt" in command


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("command", [f"{PAGE} -o {{}}", f"{PAGE} --force -o {{}}"])
def test_links_and_folders_are_refused_even_with_force(
    scratch: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    LINKS[kind](Path("page.html"))
    path = "below/page.html" if kind == "a path below a file" else "page.html"
    assert path in refused(command.format(path), capsys) or "below" in path


def test_markdown_beside_the_page_is_protected_too(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "notes.md exists, and headcount replaces only files that it wrote" in refused(
        f"{PAGE} --markdown -o notes.html", capsys
    )
    message = refused(f"{PAGE} --markdown -o sorter/page.html", capsys)
    assert "that is the folder of a model" in message


def test_pictures_and_tables_beside_the_page_are_protected_too(
    scratch: Path, short_report: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(shlex.split(f"{PAGE} --markdown --latex -o page.html")) == 0
    for name in ("figures/*.png", "figures/*.svg", "tables/*.tex"):
        (*_, file) = sorted(Path().glob(name))
        written = file.read_bytes()
        assert MARK.encode() in written, file
        file.write_text("mine")
        assert str(file) in refused(f"{PAGE} --markdown --latex -o page.html", capsys)
        file.write_bytes(written)


def test_the_files_of_an_exercise_are_protected(
    scratch: Path, short_report: None, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Path("hand-in/problem2/results/learned/training_log.json")
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    Path("hand-in/problem2/results/notes.odt").write_text("mine too")
    command = f"{PAGE} -o page.html --exercise hand-in"
    message = refused(command, capsys)
    assert f"{mine} exists, and headcount replaces only files that it wrote" in message
    assert "choose another name with --exercise" in message
    assert not Path("page.html").exists()
    assert cli.main(shlex.split(f"{command} --force")) == 0
    assert cli.main(shlex.split(command)) == 0, "headcount wrote these files"
    assert Path("hand-in/problem2/results/notes.odt").read_text() == "mine too"


def test_a_page_of_headcount_is_replaced_and_another_only_by_force(
    scratch: Path, short_report: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{PAGE} --markdown -o page.html"
    assert cli.main(shlex.split(command)) == 0
    assert cli.main(shlex.split(command)) == 0, "headcount wrote these files"
    assert "--force" in refused(f"{PAGE} -o thesis.html", capsys)
    assert cli.main(shlex.split(f"{PAGE} -o thesis.html --force")) == 0
    assert MARK in Path("thesis.html").read_text()


def test_a_read_only_place_is_found_out_before_anything_is_measured(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("headcount.files._create", no_file)
    monkeypatch.setattr("headcount.api.reporting.gather", lambda *_, **__: pytest.fail("measured"))
    for command in (f"{PAGE} -o new.html", f"{PAGE} -o new.html --exercise mine", "lab -o labs --quiet"):
        assert "permission denied: work in another folder" in refused(command, capsys)


def test_results_do_not_go_into_the_folder_of_another_model(scratch: Path, tiny_run: Run) -> None:
    with pytest.raises(HeadcountError, match="sorter holds another model"):
        api.evaluate(tiny_run, save="sorter")
    assert api.evaluate("sorter", save="sorter")
