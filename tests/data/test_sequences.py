"""Sequences to look at heads on: random tokens that are repeated, and texts of files."""

from __future__ import annotations

from pathlib import Path

import dataset_models as texts
import hub_models as hub
import pytest
import torch

from headcount.data.sequences import COPIES, MOST_TEXTS, N_DIFFERENT, N_REPEATED, file_texts
from headcount.errors import InputError
from headcount.experiments.external_models import ExternalModel

pytestmark = pytest.mark.slow  # models of others


def test_repeated_tokens_are_all_different_and_come_again() -> None:
    model = ExternalModel.of(texts.classifier(max_position_embeddings=64).float(), texts.tokenizer())
    found = model.repeated_tokens()
    assert len(found) == N_REPEATED
    special = set(model.tokenizer.all_special_ids)
    for each in found:
        (ids,) = each.inputs[0].tolist()
        row = [token for token in ids if token not in special]
        half = len(row) // COPIES
        assert row == row[:half] * COPIES
        assert len(set(row)) == half > 1
        assert len(ids) <= 64
        frame = model.tokenizer("a")["input_ids"]
        assert (ids[0], ids[-1]) == (frame[0], frame[-1])
        assert each.special["layer"] == [token in special for token in ids]
        model.model(*each.inputs)
    assert len({tuple(each.inputs[0][0].tolist()) for each in found}) == N_REPEATED
    again = model.repeated_tokens()
    assert all(torch.equal(a.inputs[0], b.inputs[0]) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_models_without_a_tokenizer_have_a_vocabulary(name: str) -> None:
    """A decoder is fed the same tokens, after its own first one."""
    model = ExternalModel.of(hub.build(name, torch.float32))
    found = model.repeated_tokens()
    assert len(found) == N_REPEATED
    stacks = {"gpt2": ["layer"], "t5": ["encoder", "decoder"]}[name]
    for each in found:
        assert list(each.tokens) == stacks
        (row,) = each.inputs[0].tolist()
        half = len(row) // 2
        assert row[:half] == row[half:]
        assert half == min(N_DIFFERENT, {"gpt2": 12, "t5": hub.WORDS}[name])
        if name == "t5":
            assert each.inputs[1][0].tolist() == [1, *row]
        model.model(*each.inputs)


def test_images_have_no_tokens() -> None:
    assert ExternalModel.of(hub.build("vit", torch.float32)).repeated_tokens() == []


def test_texts_of_files(tmp_path: Path) -> None:
    model = ExternalModel.of(texts.classifier(max_position_embeddings=64).float(), texts.tokenizer())
    file = tmp_path / "a.txt"
    file.write_text(" ".join(texts.TEXTS * 40))
    found = file_texts(file, model.tokenized)
    assert 1 < len(found) <= MOST_TEXTS
    assert {each.inputs[0].shape[1] for each in found} == {64}
    file.write_text("text\tlabel\n" + "".join(f"{text}\t1\n" for text in texts.TEXTS))
    assert len(file_texts(file, model.tokenized)) == min(len(texts.TEXTS), MOST_TEXTS)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid UTF-8 text"):
        file_texts(file, model.tokenized)
