"""A folder of Hugging Face's: loaded, tried, cut, and tried again by another process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import pytest
import torch
from dataset_models import MANY, TEXTS, classifier, dataset_of

from headcount import ExternalModel, load_external, prune_heads, summarise_attention
from headcount.data.dataset import split_in_half
from headcount.errors import InputError
from headcount.experiments.experiment import experiment_on
from headcount.experiments.interventions import run_interventions
from headcount.external.adapter import digest_of
from headcount.external.models import is_external, longest_of
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # models of others, or many processes


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.stats.N_RESAMPLES", 199)


@pytest.fixture
def folder(in_tmp: Path) -> str:
    """A classifier as Hugging Face's library saves it, and something to ask it."""
    model = classifier(max_position_embeddings=64).float()
    model.save_pretrained("model")
    texts.tokenizer().save_pretrained("model")
    Path("data.tsv").write_text(texts.own_labels(model, MANY))
    return "model"


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("config", "is_external_model"),
    [('{"model_type": "bert"}', True), ('{"task": {}}', False), ("[1]", False), ("7", False), ("{", False)],
)
def test_a_folder_is_external_by_its_configuration(config: str, is_external_model: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    assert is_external(tmp_path) is is_external_model
    assert is_external(str(tmp_path)) is is_external_model


def test_names_of_external_models(tmp_path: Path, tiny_run: Run) -> None:
    assert is_external("my_adapter.py:Model")
    assert is_external(tmp_path / "a.b" / "x.py:M")
    for name in (tiny_run.folder.path, "sample:addition", "x.py", "x.py:", "x:Model", tmp_path, tmp_path / "none", ""):
        assert not is_external(name), name


def test_a_folder_is_loaded_with_all_that_goes_with_it(folder: str) -> None:
    model = load_external(folder)
    assert (model.name, str(model.output.path)) == ("model", "runs/model")
    assert type(model.inner).__name__ == "BertForSequenceClassification"
    assert not model.inner.training
    assert len(model.sites.heads) == 12
    assert model.tokenizer("a dog")["input_ids"] == texts.tokenizer()("a dog")["input_ids"]
    assert model.tokenized.length == 64
    assert load_external(folder, length=5).tokenized.length == 5
    assert model.find_head("L1H3") == HeadId.parse("layer.1.self.3")
    for head in ("L9H0", "E0H0"):
        with pytest.raises(InputError, match="no head"):
            model.find_head(head)


def test_a_digest_is_of_the_weights(folder: str) -> None:
    one, other = load_external(folder), load_external(folder)
    assert one.weights_sha256 == other.weights_sha256 == digest_of(ExternalModel.of(one.inner).inner)
    with torch.no_grad():
        next(other.inner.parameters())[0, 0] += 1e-3
    assert digest_of(other.inner) != one.weights_sha256
    assert ExternalModel.of(one.inner).name == "BertForSequenceClassification"
    assert ExternalModel.of(one.inner, name="a/b: mine").output.path == Path("runs/b-mine")


@pytest.mark.parametrize(("name", "longest"), [("bert", 24), ("roberta", 23), ("gpt2", 24), ("bart", 24)])
def test_the_longest_that_a_model_has_positions_for(name: str, longest: int) -> None:
    model = hub.build(name)
    assert longest_of(model) == longest
    shown = [torch.full((1, length), 7) for length in (longest, longest + 1)]
    fine, too_long = ((ids, *[ids] * (name == "bart"), torch.ones_like(ids)) for ids in shown)
    hub.called(name, model, fine)
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        hub.called(name, model, too_long)


def test_there_may_be_no_end(in_tmp: Path) -> None:
    assert longest_of(hub.build("t5")) == 10**9
    assert longest_of(torch.nn.Linear(2, 2)) == 10**9


IN_ANOTHER_PROCESS = """
import json, sys, torch
from headcount import ablate_heads
torch.set_num_threads(1)
found = ablate_heads("cut", "data.tsv", "loss", replacements=["zero"], quiet=True).result
print(json.dumps({"clean": found.conditions[0].clean, "heads": {each.head: each.ablated for each in found.heads}}))
"""


@pytest.mark.slow
def test_what_is_left_after_a_cut_is_what_ablation_left(folder: str) -> None:
    """Pruned here, ablated in another process, and compared with the whole model's heads ablated together."""
    before = files(folder)
    gone = ["L0H1", "L2H0", "L2H3"]
    pruned = prune_heads(folder, "cut", data="data.tsv", heads=gone, quiet=True)
    assert pruned.cost is not None
    assert pruned.model is not None
    assert pruned.model.name == "cut"
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    predicted = json.loads(subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout)
    model = load_external(folder)
    experiment = experiment_on(model.model, model.sites, dataset_of(model, "data.tsv"), metric="loss")
    heads = tuple(map(model.find_head, gone))
    left = [head for head in model.sites.heads if head not in heads]
    found = run_interventions(experiment, [Intervention(heads), *(Intervention((*heads, head)) for head in left)])
    scores = found.scores.mean(axis=1)
    assert abs(found.clean.mean() - scores[0]) > 1e-3
    assert predicted["clean"] == pytest.approx(scores[0], abs=1e-5)
    assert predicted["heads"] == pytest.approx(dict(zip(map(str, left), scores[1:], strict=True)), abs=1e-5)
    assert files(folder) == before, "nothing is written into the model's own folder"


def test_a_search_and_a_cut(folder: str) -> None:
    before = files(folder)
    found = prune_heads(folder, "cut", data="data.tsv", metric="loss", loss=0.3, n_orders=2, quiet=True)
    assert found.result is not None
    assert 0 < len(found.result.chosen) < 12
    assert found.cost is not None
    assert isinstance(found.model, ExternalModel)
    whole, left = ({str(head) for head in each.sites.heads} for each in (load_external(folder), found.model))
    assert left == whole - set(found.result.chosen)
    assert found.result.unit == "nats"
    assert found.result.clean < 0, "minus the loss"
    assert found.model.tokenizer("a dog")["input_ids"] == texts.tokenizer()("a dog")["input_ids"]
    measured = found.model.dataset("data.tsv")
    again = experiment_on(found.model.module, found.model.sites, measured, split_in_half(measured)[1], "loss")
    assert float(run_interventions(again, []).clean.mean()) == pytest.approx(found.result.kept.score, abs=1e-5)
    assert files(folder) == before


def test_what_cannot_be_cut_is_told_first(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.api.pruning.prune_curves", lambda *arguments: pytest.fail("told too late"))
    for more, explanation in (
        ({"fine_tune": 5, "out": "cut"}, "with its own code"),
        ({"heads": ["L7H0"], "out": "cut"}, "no head"),
        ({"heads": ["L0H0"]}, "add -o DIR"),
        ({"heads": [], "out": "cut"}, "no heads to cut"),
        ({}, "model has no task, so examples"),
    ):
        with pytest.raises(InputError, match=explanation):
            prune_heads(folder, **more, quiet=True)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_text_is_read_as_the_tokenizer_has_it(folder: str) -> None:
    model = load_external(folder)
    reading = model.text_input(TEXTS[1])
    assert reading.tokens == {"layer": ["[CLS]", "a", "dog", "ran", "[SEP]"]}
    assert reading.special == {"layer": [True, False, False, False, True]}
    assert reading.inputs[0].tolist() == [model.tokenizer(TEXTS[1])["input_ids"]]
    long = model.text_input("dog " * 100)
    assert long.note == "the first 64 of 102 tokens"
    with pytest.raises(InputError, match="empty text"):
        model.text_input(" \n")


@pytest.mark.usefixtures("in_tmp")
def test_an_encoder_decoder_reads_its_own_answer() -> None:
    model = texts.model(hub.build("bart"), "$A </s>")
    reading = model.text_input(TEXTS[0])
    assert reading.tokens["encoder"] == [*TEXTS[0].split(), "</s>"]
    answer = model.inner.generate(reading.inputs[0], max_new_tokens=23, do_sample=False)
    assert torch.equal(reading.inputs[1], answer[:, :-1])
    found = summarise_attention(model, TEXTS[0], "X0H1", save=True)
    assert {Path(path).name for path in found.figures} >= {"decoder.0.cross.1.png"}
    headless: Any = replace(model, module=type(model.model)(model.inner.model, model.sites, model.model.inputs))
    with pytest.raises(InputError, match=r"BartModel cannot generate an answer, which its decoder needs as input"):
        headless.text_input(TEXTS[0])


@pytest.mark.parametrize("text", ["a dog/cat ../ran", "../../a dog", "/a/dog", "a\ndog", "what? a: dog*"])
def test_any_text_makes_a_file_name(folder: str, text: str) -> None:
    found = summarise_attention(folder, text, save=True)
    for path in (*found.data, *found.figures):
        assert path.resolve().is_relative_to(Path("runs/model").resolve())
        assert len(path.relative_to("runs/model").parts) <= 3
    assert not set(Path().iterdir()) - {Path("model"), Path("data.tsv"), Path("runs")}


def test_texts_with_alike_names_are_kept_apart(folder: str) -> None:
    one, other = (summarise_attention(folder, text, save=True) for text in ("a/dog", "a:dog"))
    assert one.data != other.data
    assert len(list(Path("runs/model/results").glob("*.json"))) == 2
