"""A task that another package adds: every verb on a run and on an adapter of it, planted faults, and no wrong word.

Answers of `reversal` are written with spaces between tokens of two digits.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import planted_reversal
import pytest
from little_work import work_little
from planted import observed
from planted_reversal import Reverser
from reversal import registered  # noqa: F401

from headcount.auditing.audit import Audit, checks_named, run_checks
from headcount.cli import main

pytestmark = pytest.mark.usefixtures("registered")

STYLES: dict[str, dict[str, int]] = {"two digits": {}, "one digit": {"low": 0, "high": 9}}
"""Numbers of a list; in both styles a space stands between them."""
FAULTS = {
    "ReturnsTheStart": ("HC103", "one place late"),
    "DropsTheFirst": ("HC103", "without the first token"),
    "Backwards": ("HC103", "backwards"),
    "FirstIsConstant": ("HC101", "is {} in 200 of 200 decoded answers"),
    "LastIsConstant": ("HC101", "is {} in 200 of 200 decoded answers"),
    "StartsFromANumber": ("HC104", "('{}')"),
    "StopsEarly": ("HC105", "stop early"),
    "GoesOn": ("HC105", "go on after the right answer"),
}


@cache
def audited(name: str, style: str) -> Audit:
    fault: type[Reverser] = getattr(planted_reversal, name)
    checks = {each: check for each, check in checks_named().items() if check.id[:3] in ("HC1", "HC2", "HC3")}
    return run_checks(observed(type(name, (fault,), {"settings": fault.settings | STYLES[style]})), checks)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_decoding_is_named(fault: str, style: str) -> None:
    check, words = FAULTS[fault]
    audit = audited(fault, style)
    first = next(each for each in audit.of("fail") if audit.summary.startswith(each.finding))
    assert first.id == check, audit.summary
    number = {"FirstIsConstant": 11, "LastIsConstant": 77, "StartsFromANumber": 18}.get(fault, 0)
    assert words.format(number % (100 if style == "two digits" else 10)) in audit.summary


@pytest.mark.parametrize("style", STYLES)
def test_a_sound_model_has_no_fault(style: str) -> None:
    audit = audited("Reverser", style)
    assert (audit.measured, audit.of("fail"), audit.of("warn")) == (1.0, [], []), audit.summary


# --- every verb -------------------------------------------------------------------------------------------------------

TINY = (
    *("--n-numbers", "3", "--low", "10", "--high", "15", "--n-validation", "20", "--n-test", "20", "--steps", "8"),
    *("--d-model", "16", "--n-heads", "2", "--n-encoder-layers", "1", "--n-decoder-layers", "1", "--d-ff", "16"),
    *("--batch-size", "8", "--threads", "1", "--device", "cpu", "--encoding", "learned"),
)
ADAPTER = '''"""A model that reverses lists of three numbers."""

from planted_reversal import Reverser as Planted


class Reverser(Planted):
    settings = {"n_numbers": 3, "low": 10, "high": 15, "n_validation": 20, "n_test": 20}
'''
MODELS = {"run": "runs/small", "adapter": "my_adapter.py:Reverser"}
VERBS: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "MODEL", "12 15 10"),
    "evaluate": ("evaluate", "MODEL"),
    "verify": ("verify", "MODEL"),
    "heads": ("heads", "MODEL"),
    "heads --on": ("heads", "MODEL", "--on", "12 15 10"),
    "heads --all-test": ("heads", "MODEL", "--all-test"),
    "heads --stats": ("heads", "MODEL", "--stats"),
    "heads --match": ("heads", "MODEL", "--stats", "--match", "MODEL"),
    "ablate": ("ablate", "MODEL"),
    "prune": ("prune", "MODEL", "--heads", "E0H1", "-o", "small-FOLDER"),
    "positions": ("positions", "MODEL"),
    "audit": ("audit", "MODEL"),
    "claim": ("claim", "MODEL", "D0", "prunable-together", "--n", "30", "--anyway"),
    "report": ("report", "MODEL", "-o", "FOLDER.html", "--markdown"),
}
WRONG_WORDS = re.compile(r"\b(sums?|digits?|carry|carries|carried|sorted|addition|sortedness)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, registered: None) -> Iterator[Path]:  # noqa: F811
    """A folder with a run and an adapter, from which commands are run."""
    path = tmp_path_factory.mktemp("third")
    (path / "my_adapter.py").write_text(ADAPTER)
    with chdir(path), pytest.MonkeyPatch.context() as patch:
        work_little(patch)
        command("train", "reversal", "-o", "runs/small", *TINY)
        yield path


def command(*arguments: str, code: tuple[int, ...] = (0,)) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        ended = main(list(arguments))
    assert ended in code, output.getvalue()
    return output.getvalue()


@cache
def output_of(verb: str, model: str) -> str:
    """Return what a verb prints about a model, and the text of the report."""
    arguments = [each.replace("MODEL", MODELS[model]).replace("FOLDER", model) for each in VERBS[verb]]
    output = command(*arguments, code=(0, 1) if verb in ("audit", "verify") else (0,))
    return output + (Path(f"{model}.md").read_text("utf-8") if verb == "report" else "")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb(verb: str, model: str, folder: Path) -> None:
    assert output_of(verb, model).strip()


def test_no_fault_is_named_by_a_word_of_another_task() -> None:
    summaries = [audited(fault, "two digits").summary for fault in FAULTS]
    assert not [summary for summary in summaries if WRONG_WORDS.search(summary)]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_has_a_word_of_another_task(verb: str, model: str, folder: Path) -> None:
    lines = [line for line in output_of(verb, model).splitlines() if WRONG_WORDS.search(line)]
    assert not lines
