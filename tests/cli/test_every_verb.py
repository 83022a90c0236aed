"""Every verb on models that others wrote, through the command line: figures equal a count in the models' own code."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headcount.cli import main
from headcount.seeds import stream
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.tasks.sortedness import Sortedness, SortednessConfig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp", "little_work")]  # models of others

TESTS = Path(__file__).parents[1]
ADDER = f"{TESTS / 'foreign_adder' / 'adder_adapter.py'}:Adder"
SORTER = f"{TESTS / 'foreign_sorter' / 'sorter_adapter.py'}:Sorted"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What strangers wrote can be imported, and is forgotten again."""
    for folder in ("foreign_adder", "foreign_sorter"):
        monkeypatch.syspath_prepend(TESTS / folder)
    yield
    for name in [name for name in sys.modules if name.startswith(("adder_", "sorter_"))]:
        del sys.modules[name]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def sums_of(task: Addition, examples: Any) -> list[tuple[str, str]]:
    return [(f"{a}+{b}", str(a + b)) for a, b in examples.tolist()]


# --- a stranger's adder -----------------------------------------------------------------------------------------------


@pytest.fixture
def digits() -> Addition:
    return Addition(AdditionConfig(digits=2, n_validation=500, n_test=500))


def test_an_adder_is_evaluated_as_its_author_counts(
    capsys: pytest.CaptureFixture[str], beside: None, digits: Addition
) -> None:
    from adder_ablation import solve
    from adder_model import EOS, PAD, load_adder, to_ids

    found = run_json(capsys, "evaluate", ADDER, "--split", "validation")
    model, sums = load_adder(), sums_of(digits, digits.split("validation"))
    predicted = solve(model, [question for question, _ in sums])
    right = [mine == answer for mine, (_, answer) in zip(predicted, sums, strict=True)]
    assert found["exact"]["free_running"]["correct"] == sum(right)
    assert found["exact"]["free_running"]["n"] == len(sums)
    with torch.no_grad():
        answers = [answer for _, answer in sums]
        logits = model(to_ids([question for question, _ in sums]), to_ids(answers, sos=True))
    labels = to_ids(answers, eos=True)
    hits = (logits.argmax(dim=-1) == labels) | (labels == PAD)
    assert found["exact"]["teacher_forced"]["correct"] == int(hits.all(dim=1).sum())
    # Digit by digit, counted from the right: answers have two or three of them, then EOS.
    ends = (labels == EOS).int().argmax(dim=1)
    for i, digit in enumerate(reversed(found["digits"]), start=1):
        rows = torch.arange(len(sums))[ends >= i]
        assert digit["teacher_forced"]["n"] == len(rows)
        assert digit["teacher_forced"]["correct"] == int(hits[rows, ends[rows] - i].sum())
        pairs = list(zip(predicted, answers, strict=True))
        counted = [(mine, answer) for mine, answer in pairs if max(len(mine), len(answer)) >= i]  # written, or missing
        assert digit["free_running"]["n"] == len(counted)
        same = [mine[-i:][:1] == answer.zfill(i)[-i] for mine, answer in counted if len(mine) >= i]
        assert digit["free_running"]["correct"] == sum(same)
    assert [each["example"] for each in found["wrong"]] == [
        q for (q, _), hit in zip(sums, right, strict=True) if not hit
    ]


def test_an_adder_gets_its_certificate(capsys: pytest.CaptureFixture[str], beside: None, digits: Addition) -> None:
    """A test set of 500 says 100 %, and one of all 8,100 sums is wrong."""
    from adder_ablation import solve
    from adder_model import load_adder

    found = run_json(capsys, "verify", ADDER, "--quiet", code=1)
    everything = np.concatenate(list(digits.iter_domain()))
    sums = sums_of(digits, everything)
    predicted = solve(load_adder(), [question for question, _ in sums])
    wrong = [q for (q, answer), mine in zip(sums, predicted, strict=True) if mine != answer]
    assert (found["total"], found["errors"]) == (8100, len(wrong))
    assert [each["example"] for each in found["wrong"]] == wrong
    assert 0 < found["errors"] < 100
    assert found["float_error"] < 1e-3
    assert found["decoded"] >= 2000


FEW = f"""
from adder_adapter import Adder

class Few(Adder):
    checkpoint = {str(TESTS / "foreign_adder" / "adder.pth")!r}
    settings = {{"digits": 2, "n_validation": 60, "n_test": 100}}
"""


def test_what_breaks_without_a_head_of_an_adder(capsys: pytest.CaptureFixture[str], beside: None, in_tmp: Path) -> None:
    """Its own code silences the same head; teacher-forced and free-running exact match are one number."""
    from adder_ablation import ablate
    from adder_model import load_adder

    Path("few.py").write_text(FEW)
    few = Addition(AdditionConfig(digits=2, n_validation=60, n_test=100))
    sums = sums_of(few, few.split("test"))
    own = ablate(load_adder(), sums)
    asked = ("ablate", "few.py:Few", "--replacements", "zero", "--examples", "--quiet")
    for metric in ("free-running", "teacher-forced"):
        found = run_json(capsys, *asked, "--metric", metric)
        for effect in found["heads"]:
            stack, layer, kind, head = effect["head"].split(".")
            right = own[stack, int(layer), kind, int(head)]
            assert round(effect["ablated"] * len(sums)) == right, effect["head"]
        broken = found["conditions"][0]["failures"]
        assert broken
        for profile in broken:
            by_carry = [each for each in profile["groups"] if each["facet"] == "carries"]
            assert sum(each["broken"] for each in by_carry) == profile["n_broken"]
            assert bool(profile["places"]) == (metric == "free-running" and profile["n_broken"] > 0)
    loss = run_json(capsys, "ablate", ADDER, "--replacements", "zero", "--metric", "loss", "--n", "50", "--quiet")
    assert loss["unit"] == "nats"


HANDED = """
from adder_adapter import Adder
from adder_model import PAD, SOS, to_ids
from adder_ablation import solve

class Handed(Adder):
    given, claimed = "0", 0.9

    def encode(self, questions, answers):
        inputs, labels = super().encode(questions, [a.zfill(3) for a in answers])
        return inputs, labels.index_fill(1, labels.new_tensor([0]), -100)

    def generate(self, model, questions):
        return ["0" + a.zfill(3)[1:] for a in solve(model, list(questions))]

    def metric(self, question, answer, predicted):
        "Only the last digit."
        return answer[-1] == predicted[-1]
"""


def test_what_a_decoder_is_handed_is_a_finding(
    capsys: pytest.CaptureFixture[str], in_tmp: Path, digits: Addition
) -> None:
    """An author who writes the first digit, always 0: sums from 100 on are wrong, whatever the logits say."""
    home = in_tmp / "handed"
    shutil.copytree(TESTS / "foreign_adder", home)
    (home / "handed.py").write_text(HANDED)
    found = run_json(capsys, "evaluate", f"{home / 'handed.py'}:Handed")
    below = int((digits.split("test").sum(axis=1) < 100).sum())
    assert found["given"] == "0"
    assert found["exact"]["free_running"]["correct"] <= below
    first = found["digits"][0]
    assert first["teacher_forced"] is None
    assert first["free_running"]["correct"] == below
    assert (found["claim"]["claimed"], found["claim"]["scoring"]) == (0.9, "metric() of Handed")
    assert found["claim"]["measured"] == 1.0
    assert main(["evaluate", f"{home / 'handed.py'}:Handed"]) == 0
    printed = capsys.readouterr().out
    assert "Its decoder is given “0” and never predicts it" in printed
    assert "Measured by metric() of Handed: 100 %" in printed
    assert "The author's figure of 90.00 % does not agree with this." in printed


# --- a stranger's sorter ----------------------------------------------------------------------------------------------


@pytest.fixture
def numbers() -> Sortedness:
    return Sortedness(SortednessConfig(shortest=8, longest=16, n_validation=400, n_test=400))


def counted(rows: list[list[int]]) -> list[bool]:
    """Whether the stranger's own code says "sorted"."""
    from sorter_model import CLASSES, load_sorter, to_ids

    with torch.no_grad():
        return [CLASSES[int(load_sorter()(to_ids([row])).argmax())] == "sorted" for row in rows]


def test_a_sorter_is_evaluated_as_its_author_counts(
    capsys: pytest.CaptureFixture[str], beside: None, numbers: Sortedness
) -> None:
    found = run_json(capsys, "evaluate", SORTER)
    rows = [list(map(int, numbers.show(example).split())) for example in numbers.split("test")]
    says, is_sorted = np.array(counted(rows)), np.array([row == sorted(row) for row in rows])
    assert found["accuracy"]["right"]["correct"] == int((says == is_sorted).sum())
    shares = {each["group"]: each["right"]["correct"] for each in found["answer_shares"]}
    assert shares == {"sorted": int(says.sum()), "unsorted": int((~says).sum())}
    assert 0.7 < found["accuracy"]["right"]["rate"] < 1, "its classes stand in the other order: 0 is sorted"


def test_a_sorter_is_stretched_beside_a_run(
    capsys: pytest.CaptureFixture[str], beside: None, numbers: Sortedness, in_tmp: Path
) -> None:
    asked = ("--lengths", "8,32,100", "--negatives", "adjacent,shuffle", "--n", "20", "--quiet")
    found = run_json(capsys, "stretch", "sample:sortedness", SORTER, *asked)
    _, theirs = found["runs"]
    assert theirs["refused_lengths"] == [100], "its table has 64 rows"
    assert (theirs["trained"], theirs["encoding"]) == ([8, 16], "")
    for length in (8, 32):
        rng = stream(0, "stretch", length)
        in_order = numbers.sample_of_length(rng, length, None, 10)
        for kind in ("adjacent", "shuffle"):
            broken = numbers.sample_of_length(rng, length, kind, 10)
            says = np.array(counted(np.concatenate([broken, in_order]).tolist()))
            (cell,) = [c for c in theirs["cells"] if (c["length"], c["negative"]) == (length, kind)]
            assert cell["recall"][0]["correct"] == int((~says[:10]).sum())
            assert cell["recall"][1]["correct"] == int(says[10:].sum())
    assert len(theirs["cropped_results"]) == 1
    assert found["files"]["pictures"][-1].startswith("runs/stretch/figures/")
    assert Path(found["files"]["pictures"][-1]).is_file()


def test_heads_of_a_sorter_at_any_length(
    capsys: pytest.CaptureFixture[str], beside: None, numbers: Sortedness, in_tmp: Path
) -> None:
    from sorter_model import CLASSES, load_sorter, to_ids

    found = run_json(
        capsys, *("ablate", SORTER, "--lengths", "8,12", "--n", "40", "--replacements", "zero", "--examples", "--quiet")
    )
    assert [each["length"] for each in found["conditions"]] == [8, 12]
    from headcount.data.from_task import of_length

    for length in (8, 12):
        rows = of_length(numbers, length, 40)[0].tolist()
        model = load_sorter()
        for effect in (each for each in found["heads"] if each["length"] == length):
            layer, head = int(effect["short"][1]), int(effect["short"][3])
            attention = model.blocks[layer].attn
            attention.silent_head = head
            with torch.no_grad():
                says = [CLASSES[i] == "sorted" for i in model(to_ids(rows)).argmax(dim=1).tolist()]
            attention.silent_head = None
            right = sum(mine == (row == sorted(row)) for mine, row in zip(says, rows, strict=True))
            assert round(40 * effect["ablated"]) == right
    assert main(["prune", SORTER, "--length", "8", "--n", "40", "--orders", "2", "--quiet"]) == 0


def test_a_sorter_predicts(capsys: pytest.CaptureFixture[str], beside: None) -> None:
    found = run_json(capsys, "predict", SORTER, "3 5 5 9 12 40 41 77", "--without", "L0H0,L0H1,L0H2,L0H3")
    assert found["predicted"] == ("sorted" if counted([[3, 5, 5, 9, 12, 40, 41, 77]])[0] else "unsorted")
    assert found["right"] == "sorted"
    assert 0 < found["probability"] < 1
    assert found["without"]["proven_sites"] == 2
    assert main(["verify", SORTER, "--seconds", "1", "--quiet"]) == 1
    assert capsys.readouterr().out.startswith(f"Refuted: {SORTER} calls ")


# --- a course ---------------------------------------------------------------------------------------------------------


def test_a_course_gets_one_table(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    """The same file names in every folder, one broken, one with other weights; each is itself."""
    for name in ("alice", "bob", "carol"):
        shutil.copytree(TESTS / "foreign_adder", in_tmp / "submissions" / name)
    (in_tmp / "submissions/bob/adder_model.py").write_text("raise ValueError('unfinished')\n")
    weights = torch.load(in_tmp / "submissions/carol/adder.pth", weights_only=True)
    torch.save({key: 0 * each for key, each in weights.items()}, in_tmp / "submissions/carol/adder.pth")
    found = run_json(capsys, "evaluate", "submissions/*/adder_adapter.py:Adder", "--quiet", code=1)
    alice, bob, carol = found["models"]
    assert [each["name"] for each in found["models"]] == [
        f"submissions/{name}/adder_adapter.py:Adder" for name in ("alice", "bob", "carol")
    ]
    assert alice["evaluation"]["exact"]["free_running"]["correct"] == 500
    assert "unfinished" in bob["error"]
    assert carol["evaluation"]["exact"]["free_running"]["correct"] == 0
    folders = [path.parent.parent.name for path in Path("runs").glob("*/results/evaluation-test.json")]
    assert sorted(folders) == ["alice", "carol"], "named by the submission's folder"
    assert main(["evaluate", "submissions/*/adder_adapter.py:Adder", "--quiet"]) == 1
    printed = capsys.readouterr().out
    assert "broken" in printed
    assert "100.00 [99.24, 100.00]" in printed
    assert main(["evaluate", "nobody/*/adder_adapter.py:Adder"]) == 2
    assert "no file matches nobody/*/adder_adapter.py" in capsys.readouterr().err


def test_two_adapters_in_one_file_are_two(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    home = in_tmp / "both"
    shutil.copytree(TESTS / "foreign_adder", home)
    with (home / "adder_adapter.py").open("a") as file:
        file.write("\n\nclass Few(Adder):\n    settings = {'digits': 2, 'n_validation': 5, 'n_test': 7}\n")
    found = run_json(capsys, "evaluate", f"{home}/adder_adapter.py:Adder", f"{home}/adder_adapter.py:Few", "--quiet")
    assert [each["evaluation"]["exact"]["free_running"]["n"] for each in found["models"]] == [500, 7]
    assert len(list(Path("runs").glob("*/results/evaluation-test.json"))) == 2


# --- what a newcomer met ----------------------------------------------------------------------------------------------

FILLED = """
from adder_adapter import Adder

class Filled(Adder):
    "Fills questions up with zeros, as a model does that was trained on 07+81."
    settings = {"digits": 2, "low": 0, "n_validation": 60, "n_test": 80}

    def encode(self, questions, answers):
        return super().encode(["+".join(part.zfill(2) for part in each.split("+")) for each in questions], answers)

class Few(Adder):
    settings = {"digits": 2, "n_validation": 60, "n_test": 80}

class Gap(Adder):
    "Decodes otherwise than it is fed."
    def generate(self, model, questions):
        return [each if each < "5" else "7" for each in super().generate(model, questions)]
"""


@pytest.fixture
def filled(in_tmp: Path) -> str:
    shutil.copytree(TESTS / "foreign_adder", in_tmp / "filled")
    (in_tmp / "filled/mine.py").write_text(FILLED)
    return "filled/mine.py"


def test_sums_of_any_length_have_statistics(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where 7+81 is filled up, a key belongs to no column that is one in 17+81."""
    found = run_json(capsys, "heads", f"{filled}:Filled", "--stats", "--quiet")
    assert len(found["heads"]) == 24
    assert found["n"] == 80


def test_more_examples_than_the_split_has_are_fresh_ones(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "ablate", f"{filled}:Few", "--replacements", "zero", "--n", "130", "--quiet")
    assert {each["n"] for each in found["heads"]} == {130}
    assert "50 new examples" in found["conditions"][0]["data"]


def test_questions_are_the_tasks_or_are_said_not_to_be(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "predict", f"{filled}:Filled", " 12 + 34 ")
    assert (found["example"], found["right"]) == ("12+34", "46")
    assert main(["predict", f"{filled}:Filled", "abc"]) == 2
    assert "'abc' is not a sum" in capsys.readouterr().err
    assert main(["predict", f"{filled}:Filled", "101+1"]) == 0
    assert "(the right answer is not known)" in capsys.readouterr().out


def test_two_ways_that_differ_are_said_to(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", f"{filled}:Gap"]) == 0
    (fault,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("AUDIT:"))
    assert re.search(r"teacher forcing is right on \d+ of \d+ and decoding on \d+", fault)
    assert main(["evaluate", ADDER]) == 0
    assert "AUDIT" not in capsys.readouterr().out
