"""Hugging Face folders of families that headcount does not know, and of older files, at the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp", "little_work")]  # models of others

import dataset_models as texts  # noqa: E402
import hub_models as hub  # noqa: E402
import torch  # noqa: E402
import transformers as T  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from headcount import load_external  # noqa: E402
from headcount.cli import main  # noqa: E402


@pytest.fixture
def opt() -> str:
    """A language model of a family that is not in the table, with a tokenizer."""
    torch.manual_seed(0)
    n_tokens = len(texts.tokenizer())
    config = T.OPTConfig(
        vocab_size=n_tokens, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=40,
        word_embed_proj_dim=32, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    T.OPTForCausalLM(config).save_pretrained("opt")
    texts.tokenizer().save_pretrained("opt")
    Path("text.txt").write_text(" ".join(texts.TEXTS) * 20)
    return "opt"


def test_an_unknown_family_is_told_its_paths_and_the_command(opt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", opt]) == 2
    told = capsys.readouterr().err
    assert "OPTForCausalLM is of no family that headcount knows (model_type 'opt')" in told
    assert 'Sites.of(model, layer="model.decoder.layers.*.self_attn.out_proj", n_heads=4)' in told
    assert "headcount adapt opt" in told


def test_its_adapter_is_ready(opt: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Written, listed, looked at, ablated and pruned; ablation says what the model's own loss says."""
    assert main(["adapt", opt]) == 0
    assert "headcount ablate my_adapter.py:Model --data FILE" in capsys.readouterr().out
    assert main(["heads", "my_adapter.py:Model"]) == 0
    assert "OPTForCausalLM, 8 heads" in capsys.readouterr().out
    found = json_of(capsys, "heads", "my_adapter.py:Model", "--on", "the cat sat")
    assert [token for token in found["axes"][0]["tokens"] if not token.startswith("[")] == ["the", "cat", "sat"]
    found = json_of(capsys, "ablate", "my_adapter.py:Model", "--data", "text.txt", "--replacements", "zero")
    assert len(found["heads"]) == 8
    first = found["heads"][0]
    assert first["ablated"] != first["clean"]
    assert json_of(capsys, "prune", "my_adapter.py:Model", "--data", "text.txt", "--heads", "L0H1", "-o", "small")
    assert main(["heads", "small", "--run-adapter"]) == 0
    assert "7 heads" in capsys.readouterr().out
    inner: Any = load_external("my_adapter.py:Model").inner
    theirs = T.OPTForCausalLM.from_pretrained("opt")
    ids = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(inner(ids).logits, theirs(ids).logits)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_known_family_needs_no_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    hub.build("gpt2").save_pretrained("gpt")
    assert main(["adapt", "gpt"]) == 2
    assert "gpt needs no adapter file: headcount knows" in capsys.readouterr().err
    assert main(["adapt", "gpt", "--checkpoint", "gpt/model.safetensors"]) == 2
    assert "leave --checkpoint out" in capsys.readouterr().err
    assert not Path("my_adapter.py").exists()


@pytest.mark.parametrize("verb", ["heads", "adapt"])
def test_a_model_without_attention_is_told_so(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    config = T.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, state_size=4, time_step_rank=4)
    T.MambaForCausalLM(config).save_pretrained("mamba")
    assert main([verb, "mamba"]) == 2
    assert "MambaForCausalLM has no attention heads" in capsys.readouterr().err


# --- pytorch_model.bin ------------------------------------------------------------------------------------------------


def as_bin(folder: str, n_files: int = 1) -> dict[str, torch.Tensor]:
    """The folder's weights as older versions of the library saved them."""
    tensors = load_file(f"{folder}/model.safetensors")
    Path(folder, "model.safetensors").unlink()
    names = sorted(tensors)
    for i in range(n_files):
        file = "pytorch_model.bin" if n_files == 1 else f"pytorch_model-{i + 1:05}-of-{n_files:05}.bin"
        torch.save({name: tensors[name] for name in names[i::n_files]}, f"{folder}/{file}")
    return tensors


@pytest.mark.parametrize("n_files", [1, 3])
def test_pytorch_model_bin_is_read(capsys: pytest.CaptureFixture[str], n_files: int) -> None:
    hub.build("bert").save_pretrained("bert")
    expected = load_external("bert").inner.state_dict()
    as_bin("bert", n_files)
    assert main(["heads", "bert"]) == 0
    found = load_external("bert").inner.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], each) for name, each in expected.items())


def test_a_planted_pickle_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return os.mkdir, ("planted",)

    hub.build("bert").save_pretrained("bert")
    tensors: dict[str, Any] = dict(as_bin("bert"))
    torch.save(tensors | {"more": Planted()}, "bert/pytorch_model.bin")
    assert main(["heads", "bert"]) == 2
    told = capsys.readouterr().err
    assert "pytorch_model.bin holds more than weights" in told
    assert "mkdir" in told
    assert not Path("planted").exists()
    torch.load("bert/pytorch_model.bin", weights_only=False)
    assert Path("planted").exists(), "it would have run"


def test_a_missing_part_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    hub.build("bert").save_pretrained("bert")
    as_bin("bert", 3)
    Path("bert/pytorch_model-00002-of-00003.bin").unlink()
    assert main(["heads", "bert"]) == 2
    assert "missing" in capsys.readouterr().err
