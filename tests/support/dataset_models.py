"""A tokenizer of a few words, models that know as many, and texts of unequal length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hub_models as hub
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headcount.data.dataset import EvalDataset
from headcount.data.from_file import TokenizedModel, read_dataset
from headcount.experiments.external_models import ExternalModel
from headcount.hooks.wrapping import wrap

SPECIAL = ("<pad>", "<s>", "</s>", "<mask>", "<unk>", "[CLS]", "[SEP]")
TEXTS = (
    "the old cat sat on the mat",
    "a dog ran",
    "the young bird flew over the river and then it sat under a red tree",
    "it was slow",
    "the dog and the cat ran under the old tree",
    "a bird",
)
MANY = [f"{a} and {b}" for a in TEXTS for b in TEXTS]
WORDS = sorted({word for text in TEXTS for word in text.split()})


def tokenizer(frame: str = "[CLS] $A [SEP]") -> Any:
    """One token a word; `frame` says what stands around a text."""
    ids = {word: i for i, word in enumerate((*SPECIAL, *WORDS))}
    assert len(ids) <= hub.WORDS
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    used = [(name, ids[name]) for name in SPECIAL if name in frame]
    made.post_processor = processors.TemplateProcessing(single=frame, special_tokens=used)
    names = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "mask": "<mask>", "unk": "<unk>", "cls": "[CLS]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, sep_token="[SEP]", **{f"{key}_token": token for key, token in names.items()}
    )


def classifier(**changes: Any) -> Any:
    """BERT with three classes, and an opinion."""
    torch.manual_seed(0)
    settings = hub.FAMILIES["bert"][2] | {"id2label": {0: "cat", 1: "Dog", 2: "bird"}, "label2id": None} | changes
    settings["label2id"] = {name: i for i, name in settings["id2label"].items()}
    model = _stirred(transformers.BertForSequenceClassification(transformers.BertConfig(**settings)))
    with torch.no_grad():
        model.classifier.weight *= 5
        model.classifier.bias -= torch.cat([model(_ids(text)).logits for text in TEXTS]).mean(dim=0)
    return model


def decoding_classifier(**changes: Any) -> Any:
    """GPT-2 with two classes: it looks for padding in order to find where a text ends."""
    torch.manual_seed(0)
    settings = hub.FAMILIES["gpt2"][2] | {"num_labels": 2} | changes
    return _stirred(transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**settings)))


def _stirred(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.double().eval()


def _ids(text: str) -> torch.Tensor:
    return torch.tensor([tokenizer()(text)["input_ids"]])


def tokenized(model: Any, length: int = 24, frame: str = "[CLS] $A [SEP]") -> TokenizedModel:
    return TokenizedModel("model", wrap(model), tokenizer(frame), length)


def model(model: Any, frame: str = "[CLS] $A [SEP]", **more: Any) -> ExternalModel:
    return ExternalModel.of(model, tokenizer(frame), **more)


def dataset(folder: Path, text: str, sitting: TokenizedModel) -> EvalDataset:
    """From a file of that text."""
    file = folder / "data.tsv"
    file.write_text(text)
    return read_dataset(file, sitting)


def dataset_of(model: ExternalModel, data: str | Path | EvalDataset | None = None) -> EvalDataset:
    """As verbs take it: a file, or a split of the adapter's task."""
    return model.dataset(data)


def table(*rows: tuple[str, ...]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def own_labels(model: Any, asked: Sequence[str]) -> str:
    """A table of texts and what the model predicts for them, so that its heads have something to lose."""
    with torch.no_grad():
        predicted = [str(int(model(_ids(text)).logits.argmax())) for text in asked]
    return table(("text", "label"), *zip(asked, predicted, strict=True))


ALL = " ".join(TEXTS * 3)
LABELS = ("cat", "dog", "bird", "2", "DOG", "0")
CLASSES = table(("text", "label"), *zip(TEXTS, LABELS, strict=True))
SCORES = ("5", "1.5", "0", "4", "1.5", "3e0")
PAIRS = table(("second", "score", "first"), *zip(TEXTS[1:] + TEXTS[:1], SCORES, TEXTS, strict=True))
"""Columns may stand in any order."""
ANSWERS = table(("source", "target"), *zip(TEXTS, TEXTS[3:] + TEXTS[:3], strict=True))
