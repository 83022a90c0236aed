"""`headcount patch`: two examples, the answers with and without the patch, and a ranking that equals plain hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import pytest
import torch

import headcount
from headcount import api
from headcount.cli import main
from headcount.errors import InputError
from headcount.heads import HeadId

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # the packaged models answer


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["patch", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_carry_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    """348+125 makes a carry into the 10s, and E0H2 brings it: 0467 becomes 0477."""
    result = run_json(capsys, "sample:addition", "342+125", "348+125", "--heads", "E0H2", "--at", "10s")
    assert (result["own_answer"], result["donor_answer"], result["patched_answer"]) == ("0467", "0473", "0477")
    assert [each["place"] for each in result["places"]] == ["10s", "1s"]
    assert result["ranking"][0]["head"] == "encoder.0.self.2"
    assert Path("runs/sample-addition/figures").exists()
    assert main(["patch", "sample:addition", "342+125", "348+125"]) == 0
    assert "With the output of E0H2 patched in from 348+125" in capsys.readouterr().out, (
        "the head that moves most is the default"
    )


def test_positions_are_named_one_by_one_or_by_place(capsys: pytest.CaptureFixture[str]) -> None:
    together = api.patch_pair("sample:addition", "342+125", "348+125", ["E0H2"], at=["10s"]).result
    apart = api.patch_pair("sample:addition", "342+125", "348+125", ["E0H2"], at=["a 10s", "b 10s"]).result
    numbers = api.patch_pair("sample:addition", "342+125", "348+125", ["E0H2"], at=["1", "5"]).result
    assert together.places == apart.places == numbers.places
    elsewhere = api.patch_pair("sample:addition", "342+125", "348+125", ["E0H2"], at=["100s"]).result
    assert abs(elsewhere.places[0].share) < 0.05
    assert elsewhere.patched_answer == "0467"


def test_the_shares_equal_those_of_the_context(tiny_run: Any) -> None:
    run = headcount.load("sample:addition")
    result = api.patch_pair(run, "342+125", "348+125", ["E0H2", "X0H1"]).result
    (first, *_) = result.places
    inputs, _ = api.open_model(run).answers.teacher_forced(run.task.parse("342+125"))
    z = headcount.head_outputs(run, "348+125")
    with headcount.patched(run, {head: z[head] for head in ("E0H2", "X0H1")}), torch.no_grad():
        logits = run.model(*inputs)[0, 2]
    assert first.patched_difference == pytest.approx(float(logits[7] - logits[6]), abs=1e-4)


def test_a_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "sample:sortedness", "1 2 3 4", "1 2 4 3")
    assert (result["own_answer"], result["donor_answer"]) == ("sorted", "unsorted")
    assert [each["place"] for each in result["places"]] == ["class"]


def test_two_texts_of_a_language_model_equal_plain_hooks() -> None:
    model = texts.model(hub.build("gpt2", torch.float32), "$A")
    words = texts.TEXTS[0].split()
    one, other = " ".join(words[:5]), " ".join([*words[:4], words[5]])
    answers = (words[0], words[1])
    result = api.patch_pair(model, one, other, ["L1H2"], answers=answers).result
    opened = api.open_model(model)
    ids, donor = (opened.text_input(text).inputs for text in (one, other))
    own, given = (int(model.tokenizer(each, add_special_tokens=False)["input_ids"][0]) for each in answers)
    block = opened.inner.transformer.h[1].attn.c_proj
    kept: list[torch.Tensor] = []

    def difference(inputs: Any) -> float:
        with torch.no_grad():
            logits = opened.inner(input_ids=inputs[0]).logits[0, -1]
        return float(logits[given] - logits[own])

    clean = difference(ids)
    handle = block.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone()))
    full = difference(donor)
    handle.remove()

    def patch(module: Any, args: Any) -> Any:
        z = args[0].clone()
        z[..., 16:24] = kept[0][..., 16:24]  # head 2 of 4, eight dimensions each
        return (z,)

    handle = block.register_forward_pre_hook(patch)
    patched = difference(ids)
    handle.remove()
    share = next(each.share for each in result.ranking if each.head == str(HeadId.parse("L1H2")))
    assert share == pytest.approx((patched - clean) / (full - clean), abs=1e-5)
    assert len(result.ranking) == len(opened.sites.heads)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample:addition", "342+125", "342+125"], "have the same answer"),
        (["sample:addition", "342+125", "348+125", "--at", "9s"], "the head E0H2 has no query position '9s'"),
        (["sample:addition", "342+125", "348+125", "--heads", "E0H2,X0H1", "--at", "10s"], "needs heads of one stack"),
        (["sample:addition", "342+125", "348+125", "--heads", "E9H2"], "no head 'encoder.9.self.2'"),
        (["sample:addition", "342+125", "348+125", "--answers", "a", "b"], "for models without a task"),
        (["sample:sortedness", "1 2 3", "4 5 6"], "in the same class"),
        (["sample:sortedness", "1 2 3", "2 1"], "equally many tokens"),
    ],
)
def test_what_cannot_be_patched_is_told(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["patch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_texts_need_answers_of_one_token() -> None:
    model = texts.model(hub.build("gpt2", torch.float32), "$A")
    text = texts.TEXTS[0]
    with pytest.raises(InputError, match="the answers to compare must be given"):
        api.patch_pair(model, text, text)
    with pytest.raises(InputError, match="give answers of one token each"):
        api.patch_pair(model, text, text, answers=(text, text))
