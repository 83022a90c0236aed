"""The faults that are planted to test the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import mutants
from tools.mutants import MUTANTS, Mutant


def test_the_table_fits_the_source() -> None:
    """Each old text occurs once: whoever changes a faulted line changes the table too."""
    assert list(mutants.misfits(mutants.ROOT / "src" / "headcount")) == []


def test_faults_have_names_of_their_own_and_tests_that_exist() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 36
    assert [test for each in MUTANTS for test in each.tests if not (mutants.ROOT / test).exists()] == []
    assert all(each.tests and each.old != each.new and each.fault.endswith(".") for each in MUTANTS)


def test_an_entry_names_tests_of_its_own_room() -> None:
    entry = "gate | hooks/gates.py | test_gates api/test_lab | It is open.\n    a - b ==> a + b"
    tests = ("tests/hooks/test_gates.py", "tests/api/test_lab.py")
    assert Mutant.parse(entry) == Mutant("gate", "hooks/gates.py", tests, "It is open.", "a - b", "a + b")


@pytest.mark.parametrize("text", ["x = 1\n", "x = 2\ny = 2\n"])
def test_a_text_that_does_not_occur_once_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"'2' occurs [02] times in number.py, not once"):
        Mutant("number", "number.py", (), "", "2", "3").planted(text)


def test_a_table_that_does_not_fit_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--project", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == len(MUTANTS)


SOURCE = "def double(x):\n    return 2 * x\n\n\ndef unused():\n    return 0\n"
TESTS = """import pytest
from headcount.number import double


def test_fails_without_a_fault_too():
    assert double(1) == 7


@pytest.mark.parametrize("x", [2], ids=["two words"])
def test_double(x):
    assert double(x) == 4
"""


@pytest.mark.slow
def test_a_fault_is_caught_by_a_test_that_passes_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take most of the time of a small run
    (tmp_path / "src" / "headcount").mkdir(parents=True)
    (tmp_path / "src" / "headcount" / "__init__.py").touch()
    (tmp_path / "src" / "headcount" / "number.py").write_text(SOURCE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_number.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    caught = Mutant("double", "number.py", ("tests/test_number.py", "tests/test_gone.py"), "Wrong.", "2 * x", "3 * x")
    missed = Mutant("unused", "number.py", (), "Nobody calls it.", "return 0", "return 1")
    verdicts = list(mutants.hunt([caught, missed], tmp_path))
    assert [(each.caught_by, each.stage) for each in verdicts] == [
        ("tests/test_number.py::test_double[two words]", "named, quick"),
        (None, "all"),
    ]
    assert (tmp_path / "src" / "headcount" / "number.py").read_text() == SOURCE
