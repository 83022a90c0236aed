"""Claims about induction, copies and previous tokens, on small Hugging Face models that learned these heads."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import copying_models
import numpy as np
import pytest
import torch
from made_once import made_once
from torch import Tensor
from torch.nn import functional as F

import headcount
from headcount.analysis.roles import head_roles
from headcount.claims._attention import UNUSED
from headcount.claims.base import ClaimResult
from headcount.cli import main
from headcount.describing.claims import verdict
from headcount.experiments.external_models import ExternalModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # two models are trained, in four seconds each
HEADS, D_HEAD = 4, 16
KINDS = {"repeated": "induction", "mirrored": "duplicate-token"}
Results = dict[str, ClaimResult]


@pytest.fixture(scope="module", autouse=True)
def _few_draws() -> Iterator[None]:
    """The weights of these heads are far from those of controls, and the drops far from thresholds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headcount.stats.N_RESAMPLES", 199)
        patch.setattr("headcount.claims._attention.head_roles", partial(head_roles, n_controls=2))
        yield


def trained(kind: str, factory: pytest.TempPathFactory) -> Path:
    return made_once(factory, kind, partial(copying_models.train, kind))


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def kind(folder: Path) -> str:
    return KINDS[folder.name]


@pytest.fixture(scope="module")
def model(folder: Path) -> ExternalModel:
    return headcount.load_external(folder)


@pytest.fixture(scope="module")
def results(model: ExternalModel, folder: Path, kind: str) -> Results:
    heads = [f"L{layer}H{i}" for layer in range(2) for i in range(HEADS)]
    return judged(model, folder, *(f"{head} {each}" for head in heads for each in (kind, "previous-token")))


def judged(model: ExternalModel, folder: Path, *texts: str) -> Results:
    results = headcount.claim_all(model, texts, data=folder / copying_models.DATA, quiet=True).results
    return {each.text: each for each in results}


def strongest(results: Results, layer: str, kind: str) -> ClaimResult:
    """Return the claim of this kind whose head costs most."""
    claims = [each for text, each in results.items() if text.startswith(layer) and text.endswith(kind)]
    return max(claims, key=lambda each: each.evidence[1].value)


# --- by hand ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def weight_by_hand(model: ExternalModel, head: int, kind: str) -> float:
    """Return the mean weight of a head of layer 1 on the copy of a token, or behind it, above uniform attention."""
    values, even = [], []
    plain: Any = copy.deepcopy(model.inner)
    plain.set_attn_implementation("eager")
    for text in model.repeated_tokens():
        weights = plain(text.inputs[0], output_attentions=True).attentions[1][0, head]
        half = len(weights) // 2
        for i in range(half, 2 * half):
            target = i - half + (kind == "induction")
            values.append(float(weights[i, target]))
            even.append(1 / (i + 1))
    return float((np.mean(values) - np.mean(even)) / (1 - np.mean(even)))


@torch.no_grad()
def drop_by_hand(model: ExternalModel, folder: Path, head: int) -> float:
    """Return the rise of the loss if the columns of a head of layer 1 in the output projection are zeros."""
    rows = (folder / copying_models.DATA).read_text().splitlines()[1:]
    ids = torch.tensor([[copying_models.LETTERS.index(letter) for letter in row.split()] for row in rows])

    def loss(module: Any) -> Tensor:
        return F.cross_entropy(module(ids).logits[:, :-1].transpose(1, 2), ids[:, 1:])

    return float(loss(without(model.inner, head)) - loss(model.inner))


@torch.no_grad()
def without(module: Any, head: int) -> Any:
    """Return a copy whose head attends as before, and whose output nothing reads."""
    silenced = copy.deepcopy(module)
    silenced.gpt_neox.layers[1].attention.dense.weight[:, D_HEAD * head : D_HEAD * (head + 1)] = 0.0
    return silenced


# --- the tests --------------------------------------------------------------------------------------------------------


def test_trained_heads_have_their_pattern_and_their_effect(
    model: ExternalModel, folder: Path, kind: str, results: Results
) -> None:
    """Layer 1 attends to the copy, or behind it, and needs a head of layer 0 that attends to the previous token."""
    late = strongest(results, "L1", kind)
    assert late.verdict == "supported"
    assert late.evidence[0].low > 0.5
    assert late.evidence[1].low > 0.1, "nats"
    assert late.evidence[0].value == pytest.approx(weight_by_hand(model, int(late.text[3]), kind), abs=1e-3)
    assert late.evidence[1].value == pytest.approx(drop_by_hand(model, folder, int(late.text[3])), abs=1e-4)
    early = [each for text, each in results.items() if text.startswith("L0") and text.endswith("previous-token")]
    assert any(each.verdict == "supported" and each.evidence[1].low > 0.5 for each in early)
    assert {results[f"L1H{i} previous-token"].verdict for i in range(HEADS)} == {"refuted"}
    sentence = verdict(late).text
    assert sentence.index("attention") < sentence.index("removing it costs"), "the pattern, then the effect"


def test_an_effect_without_the_pattern(kind: str, results: Results) -> None:
    """The model needs heads of layer 0 most, and they are neither induction heads nor attend to copies."""
    most = strongest(results, "L0", kind)
    assert (most.verdict, [each.outcome for each in most.evidence]) == ("refuted", ["refutes", "supports"])
    assert most.evidence[1].value > strongest(results, "L1", kind).evidence[1].value
    assert most.note == ""


def test_a_pattern_without_an_effect(model: ExternalModel, folder: Path, kind: str, results: Results) -> None:
    """If nothing reads a head's output, the head attends as before, and the claim about it is refuted."""
    whole = strongest(results, "L1", kind)
    silenced = ExternalModel.of(without(model.inner, int(whole.text[3])), model.tokenizer)
    unread = judged(silenced, folder, whole.text)[whole.text]
    assert (unread.verdict, unread.note) == ("refuted", UNUSED)
    assert [each.outcome for each in unread.evidence] == ["supports", "refutes"]
    assert unread.evidence[0].value == pytest.approx(whole.evidence[0].value, abs=1e-4)
    assert unread.evidence[1].value == pytest.approx(0.0, abs=1e-6)


def test_the_command_line_on_a_model_without_a_task(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained("repeated", tmp_path_factory)
    data = ("--data", str(folder / copying_models.DATA))
    assert main(["claim", str(folder), "L1 induction", *data, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], len(result["evidence"])) == ("supported", HEADS + 1)
    for text, reason in (
        ("L1 induction", "examples to measure it on must be given"),
        ("L1 aligns-columns", "these kinds of claims can be judged: duplicate-token, induction, previous-token"),
        ("L1 carries-the-carry 10s", "has no task, so the right answers are not known"),
    ):
        assert main(["claim", str(folder), text]) == 2
        assert reason in " ".join(capsys.readouterr().out.split())
    assert main(["claim", str(folder), "L7H0 induction", *data]) == 2
    assert "it has: L0H0, L0H1" in capsys.readouterr().err
