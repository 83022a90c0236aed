"""Each verb: a table for people, one JSON object for programs, and the exit code."""

import json
import re
import shlex
from pathlib import Path

import pytest

from headcount import __version__
from headcount.__main__ import run
from headcount.cli import main
from headcount.registry import Registry


def flags(settings):
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", Registry("headcount.cli").names())
def test_every_verb_has_help_and_json(verb, capsys):
    arguments = [verb, "addition", "--help"] if verb == "train" else [verb, "--help"]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("verb", Registry("headcount.cli").names())
def test_every_help_ends_with_examples_of_that_verb(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    examples = re.findall("^  headcount (.+)$", capsys.readouterr().out, re.M)
    assert len(examples) >= 2
    for example in examples:  # tests/test_docs.py parses them
        assert example.split()[0] == verb


def test_predict(capsys):
    assert main(["predict", "sample:addition", "374+814"]) == 0
    assert "374+814 = 1188  (right; probability" in capsys.readouterr().out
    code, predicted = run_json(capsys, "predict", "sample:addition", "300+600")
    assert code == 0
    assert (predicted["predicted"], predicted["right"], predicted["correct"]) == ("0900", "0900", True)


def test_predict_without_heads(capsys):
    asked = ["predict", "sample:addition", "999+100", "--without", "E0H2,E1H3, X1H1,X1H2,E0H2"]
    assert main(asked) == 0
    clean, ablated, changed, note = capsys.readouterr().out.splitlines()
    assert clean.startswith("999+100 = 1099  (right; probability ")
    assert ablated.startswith("without E0H2, E1H3, X1H1, X1H2: 1199  (wrong: 100s: 1, should be 0")
    assert changed == "changed: 100s 0 → 1"
    assert note.startswith("zero ablation")
    code, predicted = run_json(capsys, *asked)
    assert (code, predicted["predicted"], predicted["correct"]) == (0, "1099", True)
    without = predicted["without"]
    assert (without["predicted"], without["correct"], without["ablation"]) == ("1199", False, "zero")
    assert without["heads"] == ["encoder.0.self.2", "encoder.1.self.3", "decoder.1.cross.1", "decoder.1.cross.2"]
    assert without["changed"] == [{"position": "100s", "clean": "0", "without": "1"}]
    assert 0 < without["probability"] < predicted["probability"]


def test_predict_without_a_head_that_is_not_missed(capsys):
    assert main(["predict", "sample:sortedness", "3 5 5 9", "--without", "L0H0"]) == 0
    assert "changed: nothing in the answer" in capsys.readouterr().out
    assert main(["predict", "sample:sortedness", "3 5 5 9", "--without", "L9H0"]) == 2
    assert "no head 'layer.9.self.0'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["37x", "1234+5", "", "-1+200", "374+814+1"])
def test_predict_says_what_is_allowed(text, capsys):
    assert main(["predict", "sample:addition", "--", text]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "from 100 to 999" in printed.err


@pytest.mark.slow
def test_train_resume_evaluate_verify_and_heads(tiny, in_tmp, capsys):
    arguments = ["train", "addition", "--seed", "4", *flags(tiny), "--quiet"]
    code, trained = run_json(capsys, *arguments)
    assert (code, trained["run"], trained["steps"]) == (0, "runs/addition-4", 12)
    assert (
        trained["seconds"] == json.loads(Path("runs/addition-4/timings.jsonl").read_text().splitlines()[-1])["seconds"]
    )
    assert {"type", "exact", "digits", "groups", "wrong"} <= trained["evaluation"].keys()
    assert Path("runs/addition-4/figures/curves.png").exists()

    assert main(arguments) == 2
    assert "already holds a finished run" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    printed = capsys.readouterr().out
    assert "teacher-forced" in printed
    assert f"trained: 12 steps in {trained['seconds']:.0f} s" in printed
    (hint,) = re.findall("next:    headcount (.*)", printed)
    assert main([*shlex.split(hint), "--quiet"]) == 1
    assert "of all 100 examples of its task" in capsys.readouterr().out

    code, evaluation = run_json(capsys, "evaluate", "runs/addition-4", "--split", "validation")
    assert (code, evaluation["split"]) == (0, "validation")

    code, certificate = run_json(capsys, "verify", "runs/addition-4", "--quiet")
    assert code == 1, "a check that does not hold is exit code 1"
    assert certificate["total"] == 100
    assert certificate["errors"] == len(certificate["wrong"]) > 0
    assert {"example", "predicted", "right", "explanation"} == certificate["wrong"][0].keys()
    assert main(["verify", "runs/addition-4", "--quiet"]) == 1
    assert "of all 100 examples of its task" in capsys.readouterr().out

    code, comma_list = run_json(capsys, "heads", "runs/addition-4")
    projection = "encoder.0.self_attention.attention.output"
    first = {"head": "encoder.0.self.0", "short": "E0H0", "projection": projection}
    assert (code, comma_list["heads"][0]) == (0, first)
    code, shown = run_json(capsys, "heads", "runs/addition-4", "--on", "3+4")
    assert code == 0
    assert shown["example"] == "3+4"
    assert all(Path(path).exists() for path in [*shown["files"]["data"], *shown["files"]["pictures"]])
    assert main(["heads", "runs/addition-4", "--all-test"]) == 0
    assert "decoder-cross.png" in capsys.readouterr().out


@pytest.mark.slow
def test_another_runs_settings_can_be_repeated(tiny, in_tmp, capsys):
    assert main(["train", "addition", *flags(tiny), "--quiet", "-o", "a"]) == 0
    assert main(["train", "addition", "--config", "a/config.json", "--seed", "1", "--quiet", "-o", "b"]) == 0
    capsys.readouterr()
    first, second = (json.loads(Path(name, "config.json").read_text()) for name in "ab")
    assert (first.pop("seed"), second.pop("seed")) == (0, 1)
    assert first == second


def test_a_config_file_is_read_itself(in_tmp, capsys):
    Path("config.json").write_text("{}")
    Path("junk.txt").write_text("junk")
    assert main(["train", "addition", "--config", "junk.txt"]) == 2
    assert "junk.txt is damaged" in capsys.readouterr().err
    assert main(["train", "addition", "--config", "sample:addition", "--steps", "0"]) == 2
    assert "1 fault" in capsys.readouterr().err


def test_wrong_usage_is_exit_code_2_and_says_what_to_do(in_tmp, capsys):
    assert main(["train", "addition", "--n-heads", "7", "--steps", "-1"]) == 2
    error = capsys.readouterr().err
    assert "2 faults" in error
    assert "must divide d_model" in error
    assert main(["train", "addition", "--head", "7"]) == 2
    assert "headcount train addition has no option '--head'" in capsys.readouterr().err
    assert main(["verify", "runs/none"]) == 2
    assert "there is no model in runs/none" in capsys.readouterr().err
    assert main(["predict", "sample:subtraction", "1+1"]) == 2
    assert "addition" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["dance"])
    assert stopped.value.code == 2
    assert not list(in_tmp.iterdir()), "nothing is written when nothing can be done"


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"headcount {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a [bold]b[/bold]", ":smile: $x_$"])
def test_names_are_printed_as_they_are_and_open_again(name, tiny, in_tmp, capsys):
    assert main(["train", "addition", *flags(tiny), "-o", name]) == 0
    printed = capsys.readouterr().out
    assert f"run:     {name}" in printed
    following = next(line for line in printed.splitlines() if line.startswith("next:"))
    assert shlex.split(following)[1:] == ["headcount", "verify", name]
    assert main(["predict", name, "3+4"]) == 0


def test_a_name_that_means_a_packaged_run_is_refused_before_the_training(tiny, in_tmp, capsys):
    for arguments in (["train", "addition", *flags(tiny)], ["lab"], ["prune", "sample:addition", "--heads", "E0H1"]):
        assert main([*arguments, "-o", "sample:mine", "--quiet"]) == 2
        assert "it means a trained model that comes with headcount" in capsys.readouterr().err
    assert not any(in_tmp.iterdir())


def test_without_a_verb_the_help_is_shown(capsys):
    assert main([]) == 0
    assert "headcount predict sample:addition 374+814" in capsys.readouterr().out


def test_a_bug_does_not_end_as_a_failed_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Exit code 1 says that a check failed; Python's own code for an exception is 1 too."""

    def fail(*_: object) -> int:
        raise TypeError("Invalid shape (0,) for image data")

    monkeypatch.setattr("headcount.__main__.main", fail)
    assert run() == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "error: headcount failed unexpectedly" in printed


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("predit sample:addition 1+1", "no verb 'predit'\n  did you mean 'predict'?"),
        ("train addtion", "no task 'addtion'\n  did you mean 'addition'?"),
        ("train sortedness --encoding rope", "did you mean 'rotary'?"),
        ("train sortedness --pooling average", "did you mean 'mean'?"),
        ("train addition --preset oldr", "did you mean 'older'?"),
        ("evaluate sample:addition --split tets", "no value 'tets' for --split\n  did you mean 'test'?"),
        ("ablate sample:addition --replacements zeros", "did you mean 'zero'?"),
        ("predict sample:addition 1+1 --without encoder.0.2", "did you mean encoder.0.self.2 (E0H2)?"),
        ("audit sample:addition --only never-outputs", "did you mean 'never-output'?"),
    ],
)
def test_what_is_mistyped_is_suggested(arguments, meant, capsys):
    try:
        assert main(shlex.split(arguments)) == 2
    except SystemExit as stopped:  # argparse's own way
        assert stopped.code == 2  # noqa: PT017
    assert meant in capsys.readouterr().err
