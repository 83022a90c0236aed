"""Folders of Hugging Face models that are damaged, or whose parts do not belong together: told, and never measured."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headcount import ExternalModel, ablate_heads, load_external, prune_heads, summarise_attention
from headcount.cli import main
from headcount.describing.sections.ablation import warnings
from headcount.errors import HeadcountError, InputError
from headcount.external.hugging_face import load_model, save_model
from headcount.surgery.cutting import cut_heads

pytestmark = pytest.mark.slow  # models of others, or many processes


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.stats.N_RESAMPLES", 199)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    hub.build("bert", torch.float32).save_pretrained(folder)
    texts.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved: Path, in_tmp: Path) -> Path:
    shutil.copytree(saved, "model")
    return Path("model")


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Put other weights into the file; None takes one out."""
    file = folder / "model.safetensors"
    found = load_file(file) | tensors
    save_file({name: each for name, each in found.items() if each is not None}, file, {"format": "pt"})


# --- weights ----------------------------------------------------------------------------------------------------------

BIAS = "bert.encoder.layer.0.attention.self.key.bias"


@pytest.mark.parametrize(("value", "told"), [(torch.nan, "NaN"), (-torch.inf, "infinite")])
def test_weights_that_are_no_numbers(model: Path, value: float, told: str) -> None:
    bias = torch.zeros(32)
    bias[:3] = value
    rewrite(model, **{BIAS: bias})
    with pytest.raises(InputError, match=rf"{BIAS} holds numbers that are not finite \(3 of 32 {told}\)"):
        load_external(model)


def test_weights_of_a_cut_model_that_are_no_numbers(tmp_path: Path) -> None:
    cut = cut_heads(hub.build("gpt2", torch.float32), ["L0H1"])
    with torch.no_grad():
        next(cut.parameters())[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"transformer\.wte\.weight holds"):
        save_model(cut, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("name", ["gpt_neo", "gpt2", "t5"])
def test_masks_of_minus_infinity_are_fair(name: str, tmp_path: Path) -> None:
    made: Any = hub.build(name, torch.float32)
    made.save_pretrained(tmp_path / "model")
    read = load_model(tmp_path / "model")
    read.register_buffer("masked_bias", torch.tensor(-torch.inf))
    assert ExternalModel.of(read).weights_sha256


def test_more_layers_than_the_configuration_has(model: Path) -> None:
    change(model / "config.json", num_hidden_layers=2)
    with pytest.raises(InputError, match=r"encoder\.layer\.2\..* \(and 15 more\) has no place in the model"):
        load_external(model)


@pytest.mark.parametrize("name", hub.FAMILIES)
def test_no_family_takes_a_layer_too_many(name: str, tmp_path: Path) -> None:
    made: Any = hub.build(name, torch.float32)
    made.save_pretrained(tmp_path)
    load_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    last = max((key for key in weights if key.endswith(".weight") and re.search(r"\.\d+\.", key)), key=_layer)
    parts = last.split(".")
    at = next(i for i, part in enumerate(parts) if part.isdigit())
    parts[at] = str(int(parts[at]) + 1)
    rewrite(tmp_path, **{".".join(parts): torch.zeros(3)})
    with pytest.raises(InputError, match="has no place in the model that the configuration describes"):
        load_model(tmp_path)


def _layer(key: str) -> int:
    return next(int(part) for part in key.split(".") if part.isdigit())


HARMLESS = {
    "the head of another class": {"cls.seq_relationship.weight": (2, 32), "classifier.weight": (2, 32)},
    "a pooler": {"bert.pooler.dense.weight": (32, 32), "bert.pooler.dense.bias": (32,)},
    "positions of older versions": {"bert.embeddings.position_ids": (1, 24)},
    "a tied copy": {"cls.predictions.decoder.weight": (48, 32), "cls.predictions.decoder.bias": (48,)},
}


@pytest.mark.parametrize("extra", HARMLESS.values(), ids=HARMLESS)
def test_what_real_checkpoints_have_too_much_of_is_fine(model: Path, extra: dict[str, tuple[int, ...]]) -> None:
    before = load_external(model)
    rewrite(model, **{name: torch.zeros(shape) for name, shape in extra.items()})
    assert load_external(model).sites.heads == before.sites.heads


def test_masks_of_older_versions_are_fine(tmp_path: Path) -> None:
    made: Any = hub.build("gpt2", torch.float32)
    made.save_pretrained(tmp_path)
    masks = {f"transformer.h.{i}.attn.{name}": torch.zeros(1) for i in range(3) for name in ("bias", "masked_bias")}
    rewrite(tmp_path, **masks)
    load_model(tmp_path)


def test_a_model_of_another_class_without_its_head(model: Path) -> None:
    change(model / "config.json", architectures=["BertModel"])
    pooler = {"bert.pooler.dense.weight": torch.zeros(32, 32), "bert.pooler.dense.bias": torch.zeros(32)}
    rewrite(model, **pooler)
    assert type(load_external(model).inner) is transformers.BertModel


# --- configurations ---------------------------------------------------------------------------------------------------

SETTINGS: list[tuple[str, Any, str]] = [
    *(("architectures", value, "names no class") for value in (5, {"a": 1}, [["BertModel"]], [], "BertModel")),
    *(("model_type", value, "no family") for value in (["bert"], 5, None)),
    *(("num_attention_heads", value, "describes no model") for value in (0, "x", 10**9, None)),
    ("num_attention_heads", -1, "no heads"),
    ("num_labels", 10**9, "num_labels = 1,000,000,000"),
    ("num_hidden_layers", 10**7, "it must be between 0 and 58"),
    ("num_hidden_layers", 1e300, "it must be between 0 and 58"),
    ("num_hidden_layers", -1, "num_hidden_layers = -1"),
    *(("hidden_size", value, "describes no model") for value in (0, -32, 10**12)),
    ("hidden_size", 10**9, "would need about .*; this machine has"),
    ("vocab_size", 10**12, "would need about 264 TB of memory; this machine has"),
    ("vocab_size", 10**30, "describes no model"),
    ("max_position_embeddings", 10**12, "would need about .*; this machine has"),
    ("id2label", [1], "describes no model"),
    ("hidden_act", "nope", "describes no model"),
    ("dtype", "nope", "describes no model"),
]


@pytest.mark.parametrize(("name", "value", "explanation"), SETTINGS, ids=[f"{each[0]}={each[1]}" for each in SETTINGS])
def test_settings_that_cannot_be(model: Path, name: str, value: Any, explanation: str) -> None:
    change(model / "config.json", **{name: value})
    with pytest.raises(InputError, match=explanation):
        load_external(model)


def test_a_cut_model_whose_settings_cannot_be(tmp_path: Path) -> None:
    folder = save_model(cut_heads(hub.build("llama"), ["L1H0"]), tmp_path / "cut")
    change(folder / "config.json", num_attention_heads=0)
    with pytest.raises(InputError, match="describes no model"):
        load_model(folder)


def test_lists_that_configurations_repeat(tmp_path: Path) -> None:
    made: Any = hub.build("gpt_neo", torch.float32)
    made.save_pretrained(tmp_path)
    change(tmp_path / "config.json", attention_types=[[["global", "local"], 10**12]])
    with pytest.raises(InputError, match="attention_types = 1,000,000,000,000"):
        load_model(tmp_path)


RUBBISH = {
    "nothing": "",
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "a list": "[1]",
    "a number": "7",
}
RUBBISH |= {"a text": '"model_type"', "half": '{"model_type": "bert', "no text": "\0\1"}


@pytest.mark.parametrize("text", RUBBISH.values(), ids=RUBBISH)
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_hold_rubbish(model: Path, file: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (model / file).write_text(text)
    with pytest.raises(HeadcountError):
        load_external(model)
    assert main(["heads", str(model)]) == 2
    assert "error: " in capsys.readouterr().err


TOKENIZERS: dict[str, dict[str, Any]] = {
    "classes": {"tokenizer_class": 5},
    "tokens": {"unk_token": {"a": 1}},
    "added tokens": {"added_tokens_decoder": {"0": 5}},
    "sides": {"padding_side": "up"},
}


@pytest.mark.parametrize("settings", TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokenizers_with_settings_of_a_wrong_type(model: Path, settings: dict[str, Any]) -> None:
    change(model / "tokenizer_config.json", **settings)
    with pytest.raises(InputError, match="could not read the tokenizer in model"):
        load_external(model)


def test_a_tokenizers_own_code_is_not_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anybody asked whether it may be."""
    monkeypatch.setattr("builtins.input", lambda *given: pytest.fail("asked"))
    (model / "mine.py").write_text("from pathlib import Path\nPath('ran').touch()\nclass Mine: pass\n")
    change(model / "tokenizer_config.json", tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    with suppress(InputError):
        load_external(model)
    assert not Path("ran").exists()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_pipes_are_not_opened(model: Path, file: str) -> None:
    (model / file).unlink(missing_ok=True)
    os.mkfifo(model / file)
    with pytest.raises(HeadcountError, match=r"no regular file|pipe"):
        load_model(model)


# --- tokenizers of other models ---------------------------------------------------------------------------------------


def strange_tokenizer(words: list[str]) -> Any:
    """One that knows a few words, and special tokens."""
    ids = {word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words))}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    around = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    names = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, **{f"{key}_token": name for key, name in names.items()})


def test_a_tokenizer_that_has_too_many_tokens(model: Path) -> None:
    strange_tokenizer([f"w{i}" for i in range(44)]).save_pretrained(model)
    with pytest.raises(InputError, match="has token ids up to 48, but the model has 48 embeddings"):
        load_external(model)
    with pytest.raises(InputError, match="has token ids up to 48"):
        ExternalModel.of(load_model(model), strange_tokenizer([f"w{i}" for i in range(44)]))
    strange_tokenizer([f"w{i}" for i in range(43)]).save_pretrained(model)
    assert load_external(model).tokenizer is not None


def test_texts_that_the_tokenizer_does_not_know(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange_tokenizer([]).save_pretrained(model)
    Path("text.txt").write_text(" ".join(texts.TEXTS * 4))
    capsys.readouterr()
    assert main(["ablate", str(model), "--data", "text.txt", "--replacements", "zero", "--quiet", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert "UNKNOWN TO THE TOKENIZER: 154 of 154 tokens" in predicted["conditions"][0]["data"]
    assert main(["heads", str(model), "--on", "the old cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"].startswith("UNKNOWN TO THE TOKENIZER: 3 of 3 tokens")
    strange_tokenizer(["the", "old"]).save_pretrained(model)
    (known,) = summarise_attention(load_external(model), "the old cat").result
    assert known.note == "", "most are known"


# --- losses that are no better than guessing --------------------------------------------------------------------------


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_loss_like_that_of_guessing(name: str) -> None:
    model = texts.model(hub.build(name, torch.float32), "$A" if name == "gpt2" else "$A </s>")
    Path("data").write_text(" ".join(texts.TEXTS * 4))
    if name == "t5":
        Path("data").write_text(texts.table(("source", "target"), *((a, a) for a in texts.TEXTS)))
    result = ablate_heads(model, "data", replacements=["zero"], quiet=True).result
    (condition,) = result.conditions
    assert condition.majority_baseline == pytest.approx(-3.8712, abs=1e-4)
    assert condition.clean < condition.majority_baseline
    (notice,) = (each.text for each in warnings(result, condition) if "guessing" in each.text)
    assert notice.startswith("The model is no better than guessing: its loss is ")
    assert "equal probabilities for all 48 tokens or classes give 3.8712." in notice
    with pytest.raises(
        InputError, match=r"is no better than guessing, .* nats, and that of guessing is 3\.871[\s\S]*choose data"
    ):
        prune_heads(model, data="data", n_orders=2, quiet=True)


def test_a_loss_that_is_better_than_guessing(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = texts.classifier(max_position_embeddings=64).float()
    made.save_pretrained("model")
    texts.tokenizer().save_pretrained("model")
    Path("data.tsv").write_text(texts.own_labels(made, [f"{a} and {b}" for a in texts.TEXTS for b in texts.TEXTS]))
    ask = ["ablate", "model", "--data", "data.tsv", "--metric", "loss", "--replacements", "zero", "--quiet"]
    assert main(ask) == 0
    assert "GUESSING" not in capsys.readouterr().out
    assert main([*ask, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conditions"][0]["majority_baseline"] == pytest.approx(-1.0986, abs=1e-4)
