"""`headcount claim` and `headcount claims`: the first line is the verdict, and the exit code repeats it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import headcount
from headcount.cli import main
from headcount.describing.claims import describe_all
from headcount.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # the packaged adder is judged


@pytest.fixture(autouse=True)
def _no_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples pass their audit, which takes a second."""
    monkeypatch.setattr("headcount.api.claiming.quick_audit", lambda model: "")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "E0H2 carries-the-carry 10s",
            0,
            "Supported: E0H2 of sample:addition carries the carry into the 10s: patching E0H2 moves 9",
        ),
        ("D0 carries-the-carry 10s", 1, "Refuted (by construction): D0 of sample:addition carries the carry"),
        (
            "E0H3 carries-the-carry 10s",
            1,
            "Refuted: E0H3 of sample:addition carries the carry into the 10s: patching E0H3",
        ),
        ("encoder carries-the-carry 10s", 0, "Undecided (a control fails): encoder of sample:addition"),
        ("D1 prunable-together", 0, "Undecided: D1 of sample:addition can be removed together"),
        (
            "model extrapolates-to 64",
            2,
            "Not judged: sample:addition extrapolates to length 64: this claim is about",
        ),
    ],
)
def test_the_verdict_is_the_first_line_and_the_exit_code(
    text: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "claim", "sample:addition", text, "--n", "60", code=code).startswith(words)


def test_an_undecided_claim_says_what_would_decide_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "claim", "sample:addition", "D1", "prunable-together", "--n", "150", code=0)
    n = re.findall(r"About (\d+) examples would decide this claim: repeat it with --n (\d+)\.", shown)[0]
    assert n == (n[0], n[0])
    again = printed(capsys, "claim", "sample:addition", "D1", "prunable-together", "--n", n[0], code=0)
    assert again.startswith("Supported: ")
    assert "A control fails: with outputs of these heads from random examples" in printed(
        capsys, "claim", "sample:addition", "encoder carries-the-carry 10s", "--n", "150", code=0
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("claim", "sample:addition", "E0H2 caries-the-carry 10s"), "did you mean 'carries-the-carry'?"),
        (("claim", "sample:addition", "E7H2 prunable-together"), "no head 'encoder.7.self.2'"),
        (("claim", "sample:addition", "E7 prunable-together"), "its blocks are: E0, "),
        (("claim", "sample:addition", "E0 prunable-together", "--n", "3"), "--n must be at least 20"),
        (("claims", "sample:addition"), "--file"),
        (("claims", "sample:addition", "--file", "none.toml"), "adder, reports"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(list(arguments))
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 2
    assert why in capsys.readouterr().err


def test_json_of_one_claim(capsys: pytest.CaptureFixture[str]) -> None:
    text = "E0H2 carries-the-carry 10s"
    one, same, other = (
        json.loads(printed(capsys, "claim", "sample:addition", text, "--n", "60", "--seed", seed, "--json", code=0))
        for seed in ("0", "0", "1")
    )
    assert one == same
    assert (one["type"], one["verdict"], one["text"]) == ("ClaimResult", "supported", text)
    assert one["evidence"][0]["n"] == 60
    assert one["evidence"][0]["value"] != other["evidence"][0]["value"]


def file_of(*texts: str) -> str:
    Path("some.toml").write_text("".join(f'[[claim]]\ntext = "{text}"\nsays = "me"\n' for text in texts))
    return "some.toml"


def test_a_table_of_claims_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    file = file_of("E0H2 carries-the-carry 10s", "D0 carries-the-carry 10s", "model extrapolates-to 64")
    models = ("sample:addition", "sample:sortedness")
    shown = printed(capsys, "claims", *models, "--file", file, "--n", "100", "--quiet", code=1)
    assert "E0H2 carries-the-carry 10s: supported in 1 of 1 model, refuted in 0." in shown
    assert "model extrapolates-to 64: supported in 1 of 1 model" in shown
    assert "refuted (by construction): 0.000 [0.000, 0.000]" in shown
    assert "Not judged: E0H2 carries-the-carry 10s on sample:sortedness" in shown
    line = ("claims", *models, "--file", file, "--n", "100", "--quiet", "--json")
    result = json.loads(printed(capsys, *line, code=1))
    verdicts = [each["verdict"] for each in result["results"]]
    assert verdicts == ["supported", "not judged", "refuted", "not judged", "not judged", "supported"]


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (("E0H2 carries-the-carry 10s",), 0),
        (("E0H2 carries-the-carry 10s", "model extrapolates-to 64"), 0),
        (("E0H2 carries-the-carry 10s", "D0 carries-the-carry 10s"), 1),
        (("model extrapolates-to 64", "E9 prunable-together"), 2),
    ],
)
def test_the_exit_code_of_several_claims(texts: tuple[str, ...], code: int) -> None:
    assert main(["claims", "sample:addition", "--file", file_of(*texts), "--n", "60", "--quiet"]) == code


def test_the_mean_over_models_has_an_interval() -> None:
    result = headcount.claim_all(["sample:addition"] * 2, ["E0H2 carries-the-carry 10s"], n=60, quiet=True)
    shown = str(describe_all(result)[0])
    assert "supported in 2 of 2 models, refuted in 0; mean effect 9" in shown
    assert "over models, n = 2 models" in shown


def test_a_model_that_fails_its_audit_is_not_judged(
    tiny_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headcount.api.claiming.quick_audit", lambda model: "one answer to everything")
    name, text = str(tiny_run.folder.path), "D0 prunable-together"
    shown = printed(capsys, "claim", name, text, "--n", "30", code=2)
    assert "the model fails its audit" in shown
    assert "AUDIT:" in shown
    assert "one answer to everything" in shown
    anyway = printed(capsys, "claim", name, text, "--n", "30", "--anyway", code=0)
    assert anyway.startswith("Undecided")
    assert "AUDIT:" in anyway
    for more, code in (((), 2), (("--anyway",), 0)):
        assert main(["claims", name, "--file", file_of(text), "--n", "30", "--quiet", *more]) == code


@pytest.mark.parametrize("verb", ["claim", "claims"])
def test_help_ends_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "headcount claim" in capsys.readouterr().out.rsplit("examples", 1)[-1]
