"""Many texts, each an example of its own: losses against a plain loop over the lines, in Hugging Face's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dataset_models as texts
import hub_models as hub
import numpy as np
import pytest
import torch
from dataset_models import MANY, TEXTS, classifier, dataset_of, tokenized
from torch.nn import functional as F

from headcount import ablate_heads
from headcount.cli import main
from headcount.data.dataset import EvalDataset, split_in_half
from headcount.data.from_file import TokenizedModel, read_dataset
from headcount.data.tables import TextLines
from headcount.errors import InputError
from headcount.experiments.external_models import ExternalModel

pytestmark = pytest.mark.slow  # models of others

LINES = "\n".join(TEXTS) + "\n\n"


def clean(taken: EvalDataset, sitting: TokenizedModel) -> list[float]:
    """The loss of each example, padded beside all others."""
    batch = taken.encode(np.arange(len(taken)))
    with torch.no_grad():
        return (-batch.scores["loss"](sitting.model(*batch.inputs))).tolist()


def files(folder: Path) -> list[Any]:
    """The same texts, in every way that they may be written."""
    (folder / "lines.txt").write_text(LINES)
    (folder / "strings.jsonl").write_text("\n".join(map(json.dumps, TEXTS)))
    (folder / "objects.jsonl").write_text("\n".join(json.dumps({"sentence": text, "label": 1}) for text in TEXTS))
    (folder / "cells.csv").write_text("id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)))
    (folder / "cells.tsv").write_text("text\tlabel\n" + "".join(f"{text}\tx\n" for text in TEXTS))
    names = ("strings.jsonl", "objects.jsonl", "cells.csv", "cells.tsv")
    return [TextLines(folder / "lines.txt"), *(folder / name for name in names), Columns()]


class Columns:
    column_names = ("text",)

    def __getitem__(self, name: str) -> list[str]:
        return list(TEXTS)

    def __len__(self) -> int:
        return len(TEXTS)


@pytest.mark.parametrize(("name", "frame"), [("gpt2", "$A"), ("llama", "<s> $A"), ("gpt_neo", "<s> $A </s>")])
def test_next_tokens_line_by_line(name: str, frame: str, tmp_path: Path) -> None:
    """No token is predicted from another line's."""
    sitting = tokenized(hub.build(name), frame=frame)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([sitting.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = sitting.model.model(ids).logits[0]
        expected.append(float(F.cross_entropy(logits[:-1], ids[0, 1:])))
        with torch.no_grad():  # they compute this one loss in single precision
            assert float(sitting.model.model(ids, labels=ids).loss) == pytest.approx(expected[-1], abs=2e-6)
    for data in files(tmp_path):
        taken = read_dataset(data, sitting)
        np.testing.assert_allclose(clean(taken, sitting), expected, atol=1e-9)
        assert taken.clusters is None
        assert taken.data.startswith("6 texts of ")
        assert taken.data.endswith("loss of the next token")
        assert ("columns taken: sentence as text" in taken.data) == ("objects" in taken.data)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_masked_tokens_line_by_line(name: str, tmp_path: Path) -> None:
    sitting = tokenized(hub.build(name))
    known, losses = sitting.tokenizer, []
    first, *others = [read_dataset(data, sitting) for data in files(tmp_path)]
    for row, text in enumerate(TEXTS):
        whole = torch.tensor([known(text)["input_ids"]])
        ids = first.encode(np.array([row])).inputs[0]
        hidden = ids == known.mask_token_id
        assert torch.equal(torch.where(hidden, whole, ids), whole), "the line between [CLS] and [SEP], and no other"
        assert int(hidden.sum()) == max(1, round(0.15 * len(text.split())))
        with torch.no_grad():
            logits = sitting.model.model(ids).logits
        losses.append(float(F.cross_entropy(logits[hidden], whole[hidden])))
    assert len(losses) == len(TEXTS)
    for taken in (first, *others):
        np.testing.assert_allclose(clean(taken, sitting), losses, atol=1e-9)
        assert taken.clusters is None
    mask = first.encode(np.arange(6)).token_mask["layer"]
    assert mask.sum(dim=1).tolist() == [len(text.split()) + 2 for text in TEXTS]


def test_what_a_language_model_scores_on_average(in_tmp: Path) -> None:
    """Through the whole of `ablate`, in single precision: the mean over lines, and what each head does to it."""
    model = hub.build("gpt2", torch.float32)
    made = texts.model(model, "$A")
    lines = [text for text in MANY if len(text.split()) <= 24]  # what it has positions for
    Path("lines.txt").write_text("\n".join(lines))

    def loop() -> float:
        losses = []
        for text in lines:
            ids = torch.tensor([made.tokenizer(text)["input_ids"]])
            with torch.no_grad():
                losses.append(float(model(ids, labels=ids).loss))
        return float(np.mean(losses))

    found = ablate_heads(made, "lines.txt", lines=True, replacements=["zero"], save=True, quiet=True)
    assert -found.result.conditions[0].clean == pytest.approx(loop(), abs=1e-6)
    assert found.data[0].name.startswith("ablation-lines-")
    assert found.data[0].stem.endswith("-lines-zero")
    effect = max(found.result.heads, key=lambda each: abs(each.drop))
    layer, place = int(effect.head.split(".")[1]), int(effect.head.split(".")[-1])
    weight = model.transformer.h[layer].attn.c_proj.weight
    with torch.no_grad():
        before = weight.clone()
        weight[place * 8 : (place + 1) * 8] = 0
        ablated = loop()
        weight.copy_(before)
    assert abs(effect.drop) > 1e-3
    assert ablated - loop() == pytest.approx(effect.drop, abs=2e-6)
    running = ablate_heads(made, "lines.txt", replacements=["zero"], save=True, quiet=True)
    assert running.data[0].name != found.data[0].name


# --- long and short ones ----------------------------------------------------------------------------------------------


def test_a_long_line_is_several_windows_of_one_cluster(tmp_path: Path) -> None:
    lines = (TEXTS[1], TEXTS[2], "cat", TEXTS[0])  # of 3, 15, 1 and 7 tokens
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    sitting = tokenized(hub.build("gpt2"), length=7, frame="$A")
    taken = read_dataset(TextLines(tmp_path / "lines.txt"), sitting)
    words = [sitting.tokenizer(line)["input_ids"] for line in lines]
    assert [taken.encode(np.array([row])).inputs[0][0].tolist() for row in range(len(taken))] == [
        words[0],
        words[1][:7],
        words[1][7:14],  # of the last piece, one token, nothing is predicted
        words[3],
    ]
    assert taken.clusters is not None
    assert taken.clusters.tolist() == [0, 1, 1, 3]
    assert taken.data.startswith(
        "3 texts of lines.txt (1 left out: nothing to predict in them) (1 longer than 7 tokens"
    )
    masked = read_dataset(TextLines(tmp_path / "lines.txt"), tokenized(hub.build("bert"), length=9))
    assert masked.lengths.tolist() == [5, 9, 9, 9]
    assert masked.clusters is not None
    assert masked.clusters.tolist() == [0, 1, 1, 3]


def test_a_line_is_in_one_half_only(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join([TEXTS[1], TEXTS[2], TEXTS[2], TEXTS[1]]))
    taken = read_dataset(TextLines(tmp_path / "lines.txt"), tokenized(hub.build("gpt2"), length=4, frame="$A"))
    assert taken.clusters is not None
    one, other = split_in_half(taken)
    assert sorted([*one, *other]) == list(range(len(taken)))
    assert not set(taken.clusters[one]) & set(taken.clusters[other])
    assert len(one) > 1


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_nothing_but_single_tokens(name: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("cat\ndog\nthe old cat\n\n")
    with pytest.raises(InputError, match=r"only 1 of 3 texts of .* have a token to predict[\s\S]*at least 2"):
        read_dataset(TextLines(tmp_path / "lines.txt"), tokenized(hub.build(name), frame="$A"))


def test_texts_for_models_that_score_none(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\na cat\na dog\n")
    with pytest.raises(InputError, match="outputs no tokens"):
        read_dataset(tmp_path / "x.csv", tokenized(classifier()))
    with pytest.raises(InputError, match="source and target"):
        read_dataset(tmp_path / "x.csv", tokenized(hub.build("bart")))
    (tmp_path / "x.txt").write_text("text,label\na cat,cat\na dog,dog\n")
    with pytest.raises(InputError, match=r"not separated by tabs\s+.*name it \.csv"):
        read_dataset(tmp_path / "x.txt", tokenized(hub.build("gpt2")))


# --- tables in other files, and classes by the names that data have for them ------------------------------------------


class Labelled:
    """Classes in another order than the model's."""

    column_names = ("text", "label")
    own = ("Bird", "cat", "dog")

    def __init__(self, own: tuple[str, ...]) -> None:
        self.features = {"label": type("ClassLabel", (), {"names": own})()}

    def __getitem__(self, name: str) -> list[Any]:
        return list(TEXTS) if name == "text" else [0, 1, 2, 0, 1, 2]

    def __len__(self) -> int:
        return len(TEXTS)


def test_classes_by_the_names_that_the_data_have() -> None:
    model = texts.model(classifier())

    def right(own: tuple[str, ...]) -> tuple[list[int], str]:
        """What scores as a hit, found by trying every class."""
        taken = dataset_of(model, Labelled(own))
        batch = taken.encode(np.arange(6))
        hits = [batch.scores["accuracy"](F.one_hot(torch.full((6,), i), 3)).tolist() for i in range(3)]
        return [row.index(True) for row in zip(*hits, strict=True)], taken.data

    assert right(("Bird", "cat", "dog")) == ([2, 0, 1, 2, 0, 1], "6 texts of the dataset")
    numbers, data = right(("n", "m", "o"))
    assert numbers == [0, 1, 2, 0, 1, 2]
    assert "classes by their order: 0 is n, 1 is m, 2 is o" in data
    with pytest.raises(InputError, match=r"the classes n, m, which are not the model's\s+it has: cat, dog, bird"):
        right(("n", "m"))


def test_a_classifier_is_one_whatever_its_weights_come_from(tmp_path: Path) -> None:
    """A configuration names the class that was saved, not the one that it was loaded as."""
    made = classifier(architectures=["BertForMaskedLM"])
    (tmp_path / "x.csv").write_text("text,label\na cat,cat\na dog,dog\n")
    assert [each.name for each in read_dataset(tmp_path / "x.csv", tokenized(made)).metrics] == ["accuracy", "loss"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_tables_of_every_kind_give_the_same_scores(suffix: str, tmp_path: Path) -> None:
    bert, bart = tokenized(hub.build("bert alone")), tokenized(hub.build("bart"), frame="$A </s>")
    for table, sitting, names in (
        (texts.CLASSES, tokenized(classifier()), {"label": "labels"}),
        (texts.PAIRS, bert, {"first": "sentence1", "second": "sentence2", "score": "similarity_score"}),
        (texts.ANSWERS, bart, {"source": "input", "target": "output"}),
    ):
        header, *rows = [line.split("\t") for line in table.splitlines()]
        header = [names.get(column, column) for column in header]
        if suffix == ".csv":
            text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in (header, *rows))
        else:
            text = "\n".join(json.dumps(dict(zip(header, row, strict=True))) for row in rows)
        (tmp_path / f"x{suffix}").write_text(text)
        expected, taken = texts.dataset(tmp_path, table, sitting), read_dataset(tmp_path / f"x{suffix}", sitting)
        one, other = (each.encode(np.arange(6)) for each in (expected, taken))
        with torch.no_grad():
            output = sitting.model(*one.inputs)
        assert all(torch.equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True))
        assert torch.equal(one.scores[taken.metrics[0].name](output), other.scores[taken.metrics[0].name](output))
        assert "columns taken" in taken.data
        assert "columns taken" not in expected.data


def test_an_adapter_and_a_run_have_examples_of_their_own(in_tmp: Path) -> None:
    Path("lines.txt").write_text(LINES)
    with pytest.raises(InputError, match="leave --data and --lines out"):
        ablate_heads("sample:addition", "lines.txt", lines=True, quiet=True)
    with pytest.raises(InputError, match="name the file"):
        ablate_heads("sample:addition", lines=True, quiet=True)
    adder = Path(__file__).parents[1] / "foreign_adder" / "adder_adapter.py"
    with pytest.raises(InputError, match="on the examples of its own task or of data"):
        ablate_heads(f"{adder}:Adder", "lines.txt", lines=True, quiet=True)


def test_a_dataset_of_the_library_is_measured(in_tmp: Path) -> None:
    made: ExternalModel = texts.model(classifier())
    saved = ablate_heads(made, Labelled(("bird", "cat", "dog")), replacements=["zero"], save=True, quiet=True)
    other = ablate_heads(made, Labelled(("cat", "dog", "bird")), replacements=["zero"], quiet=True)
    assert saved.result.conditions[0].n == 6
    assert saved.result.conditions[0].clean != other.result.conditions[0].clean
    assert saved.data[0].name.startswith("ablation-dataset-")


def test_on_the_command_line(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.build("gpt2", torch.float32).save_pretrained("decoder")
    texts.tokenizer("$A").save_pretrained("decoder")
    Path("lines.txt").write_text("\n".join(MANY))
    Path("lines.csv").write_text("sentence\n" + "".join(f'"{text}"\n' for text in MANY))
    told = []
    for data in (["lines.txt", "--lines"], ["lines.csv"], ["lines.txt"]):
        assert main(["ablate", "decoder", "--data", *data, "--replacements", "zero", "--quiet", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["conditions"][0])
    assert told[0]["clean"] == told[1]["clean"] != told[2]["clean"]
    n_long = sum(len(text.split()) > 24 for text in MANY)
    notes = f"(columns taken: sentence as text) ({n_long} longer than 24 tokens"
    assert f"36 texts of lines.csv {notes}" in told[1]["data"]
    assert main(["prune", "decoder", "--data", "lines.txt", "--lines", "--heads", "L0H1", "-o", "x", "--quiet"]) == 0
    capsys.readouterr()
    for wrong, explanation in (
        (["--data", "lines.csv", "--lines"], "leave --lines out"),
        (["--lines"], "name the file: --data texts.txt --lines"),
    ):
        assert main(["ablate", "decoder", *wrong]) == 2
        assert explanation in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_folder_of_the_library_on_the_command_line(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets", reason="an optional library: what it would give is imitated above")
    made = texts.model(classifier())
    classifier().float().save_pretrained("model")
    texts.tokenizer().save_pretrained("model")
    names = datasets.ClassLabel(names=["bird", "cat", "dog"])
    columns = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": list(TEXTS), "label": [0, 1, 2, 0, 1, 2]}, features=columns)
    datasets.DatasetDict({"test": data}).save_to_disk("folder")
    assert main(["ablate", "model", "--data", "folder", "--quiet"]) == 2
    assert "folder/test" in capsys.readouterr().err
    assert main(["ablate", "model", "--data", "folder/test", "--metric", "loss", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_object = ablate_heads(made, data, "loss", quiet=True).result.conditions[0].clean
    imitated = ablate_heads(made, Labelled(("bird", "cat", "dog")), "loss", quiet=True).result.conditions[0].clean
    assert found["conditions"][0]["clean"] == pytest.approx(by_object, abs=1e-6)
    assert by_object == imitated
