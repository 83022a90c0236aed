"""Files that no dataset can be made of, or not for this model: the error says so, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import pytest
import torch
import transformers
from dataset_models import ALL, ANSWERS, CLASSES, PAIRS, TEXTS, classifier, dataset, dataset_of, table, tokenized

from headcount import ablate_heads, load_external, load_model
from headcount.data.from_file import FORMATS, read_dataset
from headcount.errors import InputError, RunError
from headcount.experiments.external_models import ExternalModel
from headcount.registry import Registry

pytestmark = pytest.mark.slow  # models of others, or many processes


def bart(kind: Any) -> Any:
    return kind(transformers.BartConfig(**hub.FAMILIES["bart"][2])).eval()


NUMBERED = table(("text", "label"), ("a", "0"), ("b", "1"))
WRONG: dict[str, tuple[Any, str, str]] = {
    "other columns": (
        "bert",
        "phrase\tclass\nA cat\t1\n",
        r"the columns of .* \(phrase, class\) fit none of the known formats[\s\S]*text and label",
    ),
    "a column short": ("bert alone", "first\tscore\nA cat\t1\n", r"the columns of .* \(first, score\)"),
    "no labels": (classifier, "text\tkind\nA cat\t1\n", "BertForSequenceClassification outputs no tokens"),
    "ragged": (classifier, "text\tlabel\na cat\tcat\na dog\n", r"line 3 of .* has 1 cells, but the header has 2"),
    "ragged after a gap": (classifier, "text\tlabel\na\tcat\n\nb\tdog\textra\n", r"line 4 of .* has 3 cells"),
    "an empty cell": (classifier, "text\tlabel\na\tcat\n \tdog\n", r"line 3 of .* has an empty cell"),
    "one example": (classifier, "text\tlabel\na cat\tcat\n", "has too few examples: 1"),
    "a header alone": (classifier, "text\tlabel\n", "has too few examples: 0"),
    "no such class": (
        classifier,
        "text\tlabel\na\tcat\nb\tfish\n",
        r"line 3 .* no class 'fish'\s+it has: cat, dog, b",
    ),
    "no such number": (classifier, "text\tlabel\na\t0\nb\t3\n", "no class '3'"),
    "all alike": ("bert alone", "first\tsecond\tscore\na\tb\t3\na\tdog\t3.0\n", "have the score 3"),
    "no number": (
        "bert alone",
        "first\tsecond\tscore\na\tb\t3\na\tdog\tvery\n",
        r"line 3 of .*: 'very' is not a number",
    ),
    "not a number": (
        "bert alone",
        "first\tsecond\tscore\na\tb\tnan\na\tdog\t3\n",
        r"line 2 of .*: 'nan' is not a number",
    ),
    "nothing": ("gpt2", "", "only 0 tokens long"),
    "a word": ("gpt2", "cat", "only 1 tokens long"),
    "text for a headless model": ("bert alone", ALL, "BertModel outputs no tokens"),
    "text for a classifier": (classifier, ALL, "BertForSequenceClassification outputs no tokens"),
    "text for an encoder-decoder": ("bart", ALL, r"encoder-decoder[\s\S]*source and target"),
    "classes for an encoder-decoder": (
        lambda: bart(transformers.BartForSequenceClassification),
        CLASSES,
        "encoder-dec",
    ),
    "pairs for an encoder-decoder": (lambda: bart(transformers.BartModel), PAIRS, "encoder-decoder"),
    "answers of an encoder": ("bert", ANSWERS, "need an encoder-decoder, and BertForMaskedLM is none"),
    "answers of a headless model": (
        lambda: bart(transformers.BartModel),
        ANSWERS,
        "BartModel has no head that predicts tokens",
    ),
}


@pytest.mark.parametrize(("model", "text", "explanation"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_asked_is_told(model: Any, text: str, explanation: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=explanation):
        dataset(tmp_path, text, tokenized(hub.build(model) if isinstance(model, str) else model()))


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    ("model", "text", "metric", "explanation"),
    [
        ("bert", PAIRS, None, None),  # what a language model outputs for each token is as good as hidden states
        (classifier, PAIRS, None, "not hidden states"),
        ("bert alone", NUMBERED, None, "as a classifier"),
        ("bert alone", NUMBERED, "loss", "as a classifier"),
        (classifier, CLASSES, "spearman", "no metric 'spearman'"),
    ],
)
def test_what_a_model_outputs_must_fit(model: Any, text: str, metric: str | None, explanation: str | None) -> None:
    made = texts.model(hub.build(model) if isinstance(model, str) else model())
    Path("data.tsv").write_text(text)
    if explanation is None:
        assert ablate_heads(made, "data.tsv", metric, replacements=["zero"], quiet=True).result.metric == "spearman"
        return
    with pytest.raises(InputError, match=explanation):
        ablate_heads(made, "data.tsv", metric, replacements=["zero"], quiet=True)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    sitting = tokenized(classifier())
    with pytest.raises(RunError, match="could not read"):
        read_dataset(tmp_path / "nothing.tsv", sitting)
    with pytest.raises(InputError, match="holds no data"):
        read_dataset(tmp_path, sitting)
    (tmp_path / "latin.tsv").write_bytes(b"text\tlabel\ncaf\xe9\tcat\n")
    with pytest.raises(InputError, match="not valid UTF-8 text"):
        read_dataset(tmp_path / "latin.tsv", sitting)


def test_tables_as_spreadsheets_write_them(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_bytes(b"\xef\xbb\xbf" + CLASSES.replace("\n", "\r\n").encode())
    assert len(read_dataset(tmp_path / "table.tsv", tokenized(classifier()))) == len(TEXTS)


def test_cells_may_be_long_and_hold_quotes(tmp_path: Path) -> None:
    long = "the old cat " * 20_000
    text = table(("text", "label"), (long, "cat"), ('"a dog', "dog"), ("a 'bird", "bird"))
    taken = dataset(tmp_path, text, tokenized(classifier()))
    assert taken.lengths.tolist() == [24, 4, 4]
    assert "1 texts cut to 24 tokens" in taken.data


def test_without_a_mask_token_nothing_is_masked(tmp_path: Path) -> None:
    sitting = tokenized(hub.build("bert"))
    sitting.tokenizer.mask_token = None
    with pytest.raises(InputError, match="no mask token"):
        dataset(tmp_path, ALL, sitting)


@pytest.mark.usefixtures("in_tmp")
def test_a_model_without_a_tokenizer_or_a_question() -> None:
    hub.build("gpt2", torch.float32).save_pretrained("model")
    Path("data.txt").write_text(ALL)
    with pytest.raises(InputError, match=r"came without a tokenizer\s+save the tokenizer"):
        dataset_of(load_external("model"), "data.txt")
    with pytest.raises(
        InputError, match=r"model has no task, so examples to measure it on must be given\s+add --data FILE"
    ):
        ablate_heads("model", quiet=True)
    with pytest.raises(InputError, match="cannot be measured on data of the type ndarray"):
        ablate_heads("model", torch.zeros(2).numpy(), quiet=True)
    made = ExternalModel.of(load_model("model"), texts.tokenizer("$A"))
    assert dataset_of(made, "data.txt").data.endswith("loss of the next token")


def test_every_format_is_tested() -> None:
    assert isinstance(FORMATS, Registry)
    assert set(FORMATS.names()) == {"answers", "classes", "images", "masked-token", "next-token", "pairs"}
