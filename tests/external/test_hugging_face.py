"""What is written is what is read, in another process too; a folder that is no model's says so."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import hub_models as hub
import pytest
import torch
from cuts import FAMILIES, GENERATING, apart, generated, masked, planned, says, size
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedTokenizerFast

from headcount.errors import CheckFailed, InputError, RunError
from headcount.external import hugging_face
from headcount.external.hugging_face import load_model, save_model
from headcount.hooks.wrapping import CUT, wrap
from headcount.surgery.cut_proof import prove_cut
from headcount.surgery.cutting import cut_heads

pytestmark = pytest.mark.slow  # models of others, or many processes


def buffers(model: nn.Module) -> dict[str, Any]:
    return dict(model.named_buffers())


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    model, inputs = hub.build(name, torch.float32), hub.inputs_of(name, torch.float32)
    heads = planned("several", model)
    cut = cut_heads(model, heads)
    read = load_model(save_model(cut, tmp_path / "cut"))
    assert type(read) is type(model)
    assert not any(module.training for module in read.modules())
    assert size(read) == size(cut)
    assert torch.equal(says(read, inputs), says(cut, inputs))
    assert buffers(read).keys() == buffers(cut).keys()
    assert all(torch.equal(buffers(read)[path], each) for path, each in buffers(cut).items())
    assert [path for path, _ in read.named_parameters()] == [path for path, _ in cut.named_parameters()]
    assert prove_cut(model, read, heads, inputs) <= 1e-5
    again = cut_heads(read, wrap(read).heads[:1])  # what was read can be cut further
    assert apart(says(again, inputs), masked(model, [*heads, wrap(read).heads[0]], inputs)) < 1e-5


@pytest.mark.parametrize("name", ["llama", "t5", "gpt_neo", "albert"])
def test_models_in_other_precisions(name: str, tmp_path: Path) -> None:
    for dtype in (torch.float64, torch.float16):
        model, inputs = hub.build(name, dtype), hub.inputs_of(name, dtype)
        cut = cut_heads(model, planned("a layer", model))
        read = load_model(save_model(cut, tmp_path / str(dtype)))
        assert {each.dtype for each in read.parameters()} == {dtype}
        # Not to the bit: elsewhere in memory, numbers may be summed in another order.
        torch.testing.assert_close(says(read, inputs), says(cut, inputs))


@pytest.mark.parametrize("name", FAMILIES)
def test_whole_models_are_folders_of_hugging_faces(name: str, tmp_path: Path) -> None:
    model: Any = hub.build(name, torch.float32)
    if name == "marian":
        for stack in (model.model.encoder, model.model.decoder):  # their library does not save these, but makes them
            stack.embed_positions.weight.data = stack.embed_positions.create_weight()
    expected = says(model, inputs := hub.inputs_of(name, torch.float32))
    save_model(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    for read in (
        load_model(tmp_path / "ours"),
        load_model(tmp_path / "theirs"),
        type(model).from_pretrained(tmp_path / "ours").eval(),
    ):
        assert size(read) == size(model)
        torch.testing.assert_close(says(read, inputs), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_their_library_does_not_read_a_cut_model(name: str, tmp_path: Path) -> None:
    """It would make up what it misses, and say so in a warning at most."""
    model: Any = hub.build(name, torch.float32)
    folder = save_model(cut_heads(model, planned("one head", model)), tmp_path / "cut")
    assert not (folder / "model.safetensors").exists()
    with pytest.raises(OSError, match=r"no file named .*model\.safetensors"):
        type(model).from_pretrained(folder, local_files_only=True)


IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from headcount.external.hugging_face import load_model
from headcount.hooks.wrapping import wrap

torch.set_num_threads(1)
for folder in sorted(Path(sys.argv[1]).glob("*/*/")):
    inputs = load_file(folder.parent / "inputs.safetensors")
    with torch.no_grad():
        output = wrap(load_model(folder))(*(inputs[name] for name in sorted(inputs)))
    save_file({"output": output.contiguous()}, folder.with_suffix(".output"))
"""


@pytest.mark.slow
def test_in_another_process_the_output_is_that_of_the_whole_model_with_heads_ablated(tmp_path: Path) -> None:
    expected = {}
    for name, plan in zip(FAMILIES, cycle(["several", "a layer"])):
        model, inputs = hub.build(name, torch.float32), hub.inputs_of(name, torch.float32)
        (tmp_path / name).mkdir()
        save_file({str(i): each for i, each in enumerate(inputs)}, tmp_path / name / "inputs.safetensors")
        heads = planned(plan, model)
        save_model(cut_heads(model, heads), tmp_path / name / plan)
        expected[name, plan] = masked(model, heads, inputs)
    subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path)], check=True, timeout=300)
    for (name, plan), output in expected.items():
        assert apart(load_file(tmp_path / name / f"{plan}.output")["output"], output) < 1e-5, (name, plan)


@pytest.mark.parametrize("name", GENERATING)
def test_generating_after_loading(name: str, tmp_path: Path) -> None:
    model = hub.build(name, torch.float32)
    model.generation_config.max_new_tokens = 5
    cut: Any = cut_heads(model, planned("a layer", model))
    read: Any = load_model(save_model(cut, tmp_path / "cut"))
    assert read.generation_config.max_new_tokens == 5
    (tokens, *others), (expected, *logits) = generated(name, read), generated(name, cut)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(others, logits)


def test_shared_weights_are_written_once(tmp_path: Path) -> None:
    model = hub.build("albert", torch.float32)
    folder = save_model(cut_heads(model, ["L1H0"]), tmp_path / "cut")
    assert sum(each.numel() for each in load_file(folder / hugging_face.CUT_WEIGHTS).values()) == size(model)
    tied: Any = load_model(save_model(cut_heads(hub.build("gpt2"), ["L1H0"]), tmp_path / "tied"))
    assert tied.lm_head.weight is tied.transformer.wte.weight


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    folder = save_model(cut_heads(hub.build("gpt2"), ["L1H0"]), tmp_path / "cut", tokenizer)
    assert PreTrainedTokenizerFast.from_pretrained(folder)("b")["input_ids"] == [1]
    settings = json.loads((folder / "config.json").read_text())
    assert (settings[CUT], settings["architectures"]) == (["layer.1.self.0"], ["GPT2LMHeadModel"])


# --- what cannot be written or read -----------------------------------------------------------------------------------


def test_a_folder_that_is_taken_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(RunError, match="not empty"):
        save_model(hub.build("gpt2"), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes"]


def test_nothing_is_left_of_a_folder_that_reads_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = hub.build("gpt2")
    wrong.lm_head.weight.data += 1
    monkeypatch.setattr(hugging_face, "load_model", lambda path: wrong)
    with pytest.raises(CheckFailed, match="so the folder was not kept"):
        save_model(hub.build("gpt2"), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(cut_heads(hub.build("llama"), ["L1H0"]), tmp_path / "cut")


def change(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def rewrite(folder: Path, **tensors: torch.Tensor) -> None:
    """As save_model would, with other tensors."""
    file = folder / hugging_face.CUT_WEIGHTS
    notes = json.dumps({"shared": {}, "buffers": {}})
    save_file(load_file(file) | tensors, file, {"format": "pt", hugging_face.HEADER: notes})


NORM = "model.norm.weight"
DAMAGE = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda folder: (folder / hugging_face.CUT_WEIGHTS).unlink(), "has no model.safetensors"),
    "half a config": (lambda folder: shorten(folder / "config.json"), "config.json is damaged"),
    "half the weights": (lambda folder: shorten(folder / hugging_face.CUT_WEIGHTS), "damaged or cut short"),
    "no family": (lambda folder: change(folder, model_type=7), "no family that headcount knows"),
    "no class": (lambda folder: change(folder, architectures=["MyOwn"]), "names no class"),
    "another class": (lambda folder: change(folder, architectures=["GPT2Model"]), "cannot be of model_type"),
    "other heads": (lambda folder: change(folder, **{CUT: ["layer.1.self.0", "layer.2.self.0"]}), "another shape"),
    "no such heads": (lambda folder: change(folder, **{CUT: ["layer.9.self.0"]}), "no head"),
    "no names": (lambda folder: change(folder, **{CUT: [3]}), "does not fit the weights"),
    "another size": (lambda folder: change(folder, num_hidden_layers=2), "has no place in the model"),
    "more layers": (lambda folder: change(folder, num_hidden_layers=4), "is missing"),
    "another shape": (lambda folder: rewrite(folder, **{NORM: torch.ones(3)}), f"{NORM} has another shape"),
    "not ours": (
        lambda folder: save_file({"x": torch.ones(2)}, folder / hugging_face.CUT_WEIGHTS, {"format": "pt"}),
        "were not written by headcount.save_model",
    ),
}


@pytest.mark.parametrize(("damage", "explanation"), DAMAGE.values(), ids=DAMAGE)
def test_a_folder_that_is_not_whole(folder: Path, damage: Any, explanation: str) -> None:
    damage(folder)
    with pytest.raises(InputError, match=explanation):
        load_model(folder)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        load_model(tmp_path / "nowhere")
    hub.build("gpt2").save_pretrained(tmp_path / "theirs")
    shorten(tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(InputError, match="damaged or cut short"):
        load_model(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").rename(tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin holds more than weights, or is damaged"):
        load_model(tmp_path / "theirs")


def test_models_of_no_family_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="family"):
        save_model(nn.Linear(2, 2), tmp_path / "model")


def test_a_whole_model_that_lacks_a_weight(tmp_path: Path) -> None:
    hub.build("gpt2").save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(file)
    del tensors["transformer.ln_f.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(InputError, match=r"ln_f\.weight is missing"):
        load_model(tmp_path / "theirs")
