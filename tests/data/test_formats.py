"""Scores of datasets against Hugging Face's own losses and against texts that are asked alone, without padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hub_models as hub
import numpy as np
import pytest
import torch
import transformers
from dataset_models import (
    ALL,
    ANSWERS,
    CLASSES,
    PAIRS,
    SCORES,
    TEXTS,
    classifier,
    dataset,
    decoding_classifier,
    table,
    tokenized,
)
from scipy.stats import spearmanr
from torch.nn import functional as F

from headcount.data.dataset import EvalDataset
from headcount.data.from_file import TokenizedModel
from headcount.errors import InputError

pytestmark = pytest.mark.slow  # models of others, or many processes


def asked(taken: EvalDataset, rows: list[int], model: Any, metric: str | None = None) -> np.ndarray[Any, Any]:
    """Scores of these examples, in one batch."""
    found = taken.encode(np.array(rows))
    with torch.no_grad():
        scores = found.scores[metric or taken.metrics[0].name](model(*found.inputs))
        if found.loss is not None:
            assert found.loss(model(*found.inputs)).shape == (len(rows),)
    return scores.double().numpy()


def alone_and_together(taken: EvalDataset, sitting: TokenizedModel, metric: str | None = None) -> np.ndarray[Any, Any]:
    """Padded beside the others a text scores what it scores alone."""
    everyone = list(range(len(taken)))
    together = asked(taken, everyone, sitting.model, metric)
    alone = np.concatenate([asked(taken, [row], sitting.model, metric) for row in everyone])
    np.testing.assert_allclose(together, alone, atol=1e-9)
    np.testing.assert_allclose(asked(taken, everyone[::-1], sitting.model, metric), together[::-1], atol=1e-12)
    return together


# --- plain text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_next_tokens_are_scored_as_by_hugging_face(name: str, tmp_path: Path) -> None:
    sitting = tokenized(hub.build(name), length=10, frame="$A")
    taken = dataset(tmp_path, ALL, sitting)
    ids = taken.encode(np.arange(len(taken))).inputs[0]
    words = torch.tensor([sitting.tokenizer.convert_tokens_to_ids(word) for word in ALL.split()])
    assert torch.equal(ids, words[: ids.numel()].reshape(-1, 10))
    assert len(words) - ids.numel() < 10
    for row in range(len(taken)):
        with torch.no_grad():
            theirs = sitting.model.model(ids[row : row + 1], labels=ids[row : row + 1]).loss
        # They compute this one loss in single precision.
        assert -asked(taken, [row], sitting.model)[0] == pytest.approx(float(theirs), abs=2e-6)
    with torch.no_grad():
        theirs = sitting.model.model(ids, labels=ids).loss
    assert -asked(taken, list(range(len(taken))), sitting.model).mean() == pytest.approx(float(theirs), abs=2e-6)
    assert taken.data == "windows of 10 tokens of data.tsv, loss of the next token"


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_masked_tokens_are_scored_as_by_hugging_face(name: str, tmp_path: Path) -> None:
    sitting = tokenized(hub.build(name), length=16)
    taken = dataset(tmp_path, ALL, sitting)
    everyone = np.arange(len(taken))
    ids = taken.encode(everyone).inputs[0]
    known = sitting.tokenizer
    assert ids.shape[1] == 16
    assert set(ids[:, 0].tolist()) == {known.cls_token_id}
    assert set(ids[:, -1].tolist()) == {known.sep_token_id}
    words = torch.tensor([known.convert_tokens_to_ids(word) for word in ALL.split()])
    whole = words[: 14 * len(taken)].reshape(-1, 14)
    hidden = ids[:, 1:-1] == known.mask_token_id
    assert torch.equal(torch.where(hidden, whole, ids[:, 1:-1]), whole), "only masked tokens differ from the text"
    assert hidden.sum(dim=1).tolist() == [2] * len(taken)
    assert len({tuple(row) for row in hidden.tolist()}) > 1, "not always in the same places"
    labels = torch.full_like(ids, -100)
    labels[:, 1:-1][hidden] = whole[hidden]
    with torch.no_grad():
        theirs = sitting.model.model(ids, labels=labels).loss
    assert -asked(taken, everyone.tolist(), sitting.model).mean() == pytest.approx(float(theirs), abs=1e-9)
    assert torch.equal(dataset(tmp_path, ALL, sitting).encode(everyone).inputs[0], ids), "always the same ones"


def test_a_short_text_is_still_two_windows(tmp_path: Path) -> None:
    taken = dataset(tmp_path, TEXTS[2], tokenized(hub.build("gpt2"), frame="$A"))
    assert len(taken) == 2
    assert taken.encode(np.array([1])).inputs[0].shape == (1, len(TEXTS[2].split()) // 2)


# --- classes ----------------------------------------------------------------------------------------------------------


def test_classes_one_text_at_a_time(tmp_path: Path) -> None:
    sitting = tokenized(classifier())
    taken = dataset(tmp_path, CLASSES, sitting)
    hits, losses = [], []
    for text, right in zip(TEXTS, (0, 1, 2, 2, 1, 0), strict=True):
        ids = torch.tensor([sitting.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = sitting.model.model(ids).logits[0]
        hits.append(int(logits.argmax()) == right)
        losses.append(float(F.cross_entropy(logits, torch.tensor(right))))
    assert 0 < sum(hits) < len(hits)
    np.testing.assert_array_equal(alone_and_together(taken, sitting), hits)
    np.testing.assert_allclose(-alone_and_together(taken, sitting, "loss"), losses, atol=1e-9)
    assert taken.majority_baseline(np.arange(6)) == 2 / 6
    assert taken.majority_baseline(np.array([1, 4, 5])) == 2 / 3
    token_mask = taken.encode(np.arange(6)).token_mask["layer"]
    assert token_mask.sum(dim=1).tolist() == [len(text.split()) + 2 for text in TEXTS]


def test_a_decoder_finds_where_a_text_ends(tmp_path: Path) -> None:
    """By its own padding token, which need not be the tokenizer's."""
    labels = table(("text", "label"), *((text, str(i % 2)) for i, text in enumerate(TEXTS)))
    unlike = decoding_classifier(pad_token_id=40)
    sitting = tokenized(unlike, frame="$A")
    assert len(set(alone_and_together(dataset(tmp_path, labels, sitting), sitting, "loss").tolist())) == len(TEXTS)
    with pytest.raises(InputError, match="names no padding token"):
        dataset(tmp_path, labels, tokenized(decoding_classifier(pad_token_id=None), frame="$A"))


# --- pairs ------------------------------------------------------------------------------------------------------------


def t5_encoder() -> Any:
    torch.manual_seed(0)
    return transformers.T5EncoderModel(transformers.T5Config(**hub.FAMILIES["t5"][2])).double().eval()


@pytest.mark.parametrize("model", [lambda: hub.build("bert alone"), t5_encoder], ids=["bert", "t5"])
def test_cosines_one_sentence_at_a_time(model: Any, tmp_path: Path) -> None:
    sitting = tokenized(model())
    taken = dataset(tmp_path, PAIRS, sitting)

    def embedding(text: str) -> torch.Tensor:
        with torch.no_grad():
            return (
                sitting.model.model(torch.tensor([sitting.tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0)
            )

    expected = [
        float(F.cosine_similarity(embedding(a), embedding(b), dim=0))
        for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
    ]
    found = alone_and_together(taken, sitting)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    given = np.array(list(map(float, SCORES)))
    for rows in (np.arange(6), np.array([4, 0, 3, 1])):
        total = taken.aggregator(taken.metrics[0])(found[rows], rows)
        assert float(total) == pytest.approx(spearmanr(found[rows], given[rows]).statistic)
    asked_ = taken.encode(np.arange(6))
    assert asked_.inputs[0].shape[0] == 12
    assert taken.n_rows == 2
    assert asked_.loss is not None
    with torch.no_grad():
        loss = asked_.loss(sitting.model(*asked_.inputs)).numpy()
    np.testing.assert_allclose(loss, (found - given / 5) ** 2, atol=1e-9)


# --- sources and targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", hub.SEQUENCE_TO_SEQUENCE)
def test_answers_are_scored_as_by_hugging_face(name: str, tmp_path: Path) -> None:
    sitting = tokenized(hub.build(name), frame="$A </s>")
    taken = dataset(tmp_path, ANSWERS, sitting)
    losses = []
    for source, target in zip(TEXTS, TEXTS[3:] + TEXTS[:3], strict=True):
        ids, labels = (torch.tensor([sitting.tokenizer(text)["input_ids"]]) for text in (source, target))
        with torch.no_grad():
            losses.append(float(sitting.model.model(input_ids=ids, labels=labels).loss))
    np.testing.assert_allclose(-alone_and_together(taken, sitting), losses, atol=1e-9)
    token_mask = taken.encode(np.arange(6)).token_mask
    assert token_mask["encoder"].sum(dim=1).tolist() == [len(text.split()) + 1 for text in TEXTS]
    assert token_mask["decoder"].sum(dim=1).tolist() == [len(text.split()) + 1 for text in TEXTS[3:] + TEXTS[:3]]


def test_texts_are_cut_to_what_the_model_is_shown(tmp_path: Path) -> None:
    sitting = tokenized(classifier(), length=6)
    taken = dataset(tmp_path, CLASSES, sitting)
    assert taken.lengths.max() == 6
    assert taken.encode(np.arange(6)).inputs[0][:, 0].tolist() == [sitting.tokenizer.cls_token_id] * 6
