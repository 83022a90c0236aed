"""Images of a folder, for a vision transformer: pixels and accuracy against a count in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hub_models as hub
import numpy as np
import pytest
import torch
from dataset_models import classifier, dataset_of, model, tokenized
from PIL import Image
from torch.nn import functional as F

from headcount import ablate_heads, load_external, prune_heads, summarise_attention
from headcount.cli import main
from headcount.data.from_file import read_dataset
from headcount.errors import InputError

pytestmark = pytest.mark.slow  # models of others

CLASSES = {0: "cat", 1: "Dog", 2: "bird"}
SETTINGS = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 16, "width": 16},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.25, 0.3],
    "resample": 2,
}


@pytest.fixture
def vit(in_tmp: Path) -> Any:
    """A random model and its folder, and images of unequal size that it gets right in part."""
    made = hub.build("vit", torch.float32, id2label=CLASSES, label2id={name: i for i, name in CLASSES.items()})
    made.save_pretrained("vit")
    Path("vit/preprocessor_config.json").write_text(json.dumps(SETTINGS))
    draw = np.random.default_rng(0)
    for name in ("cat", "dog", "bird"):
        Path("images", name).mkdir(parents=True)
        for i, suffix in enumerate((".png", ".jpg", ".PNG", ".jpeg", ".png", ".png")):
            size = draw.integers(10, 40, 2)
            array = (draw.random((*size, 3)) ** draw.random(3) * 255).astype(np.uint8)
            Image.fromarray(array).save(Path("images", name, f"{i}{suffix}"))
    Image.fromarray(array[:, :, 0]).save("images/bird/grey.png")
    Path("images/bird/notes.txt").write_text("no image")
    Path("images/.hidden").mkdir()
    return made


def pixels(file: Path) -> torch.Tensor:
    """Resized, as shares of 255, less the mean, by the deviation: without the processor."""
    image = Image.open(file).convert("RGB").resize((16, 16), resample=Image.Resampling.BILINEAR)
    array = np.asarray(image).astype(np.float64) / 255
    array = (array - np.array(SETTINGS["image_mean"])) / np.array(SETTINGS["image_std"])
    return torch.from_numpy(array).permute(2, 0, 1)[None].float()


def by_hand(made: Any, folder: str = "images") -> tuple[list[bool], list[float]]:
    """Hits and losses, one image at a time."""
    hits, losses = [], []
    for name in sorted(each.name for each in Path(folder).iterdir() if each.name[0] != "."):
        right = [each.lower() for each in CLASSES.values()].index(name)
        for file in sorted(Path(folder, name).iterdir()):
            if file.suffix != ".txt":
                with torch.no_grad():
                    logits = made(pixel_values=pixels(file)).logits[0]
                hits.append(int(logits.argmax()) == right)
                losses.append(float(F.cross_entropy(logits, torch.tensor(right))))
    return hits, losses


def test_accuracy_by_hand(vit: Any) -> None:
    external = load_external("vit")
    taken = dataset_of(external, "images")
    hits, losses = by_hand(vit)
    assert 0 < sum(hits) < len(hits) == 19
    everyone = taken.encode(np.arange(19))
    with torch.no_grad():
        output = external.model(*everyone.inputs)
    assert everyone.scores["accuracy"](output).tolist() == hits
    np.testing.assert_allclose(-everyone.scores["loss"](output).numpy(), losses, atol=1e-5)
    found = ablate_heads("vit", "images", replacements=["zero"], quiet=True).result
    assert found.conditions[0].clean == pytest.approx(np.mean(hits), abs=1e-12)
    assert (found.metric, found.conditions[0].n, len(found.heads)) == ("accuracy", 19, 12)
    loss = ablate_heads("vit", "images", "loss", replacements=["zero"], quiet=True).result
    assert -loss.conditions[0].clean == pytest.approx(np.mean(losses), abs=1e-6)
    effect = max(loss.heads, key=lambda each: abs(each.drop))
    layer, place = int(effect.head.split(".")[1]), int(effect.head.split(".")[-1])
    with torch.no_grad():
        vit.vit.layers[layer].attention.o_proj.weight[:, place * 8 : (place + 1) * 8] = 0
    assert abs(effect.drop) > 1e-3
    assert np.mean(by_hand(vit)[1]) - np.mean(losses) == pytest.approx(effect.drop, abs=2e-6)


def test_classes_by_order_and_by_name(vit: Any) -> None:
    external = load_external("vit")
    by_name = dataset_of(external, "images")
    for old, new in (("cat", "a"), ("dog", "b"), ("bird", "c")):
        Path("images", old).rename(Path("images", new))
        if new == "b":
            with pytest.raises(InputError, match=r"the classes a, b, bird, which are not the model's"):
                dataset_of(external, "images")
    by_order = dataset_of(external, "images")
    assert by_name.data == "19 images of images"
    assert by_order.data == "19 images of images (classes by their order: 0 is a, 1 is b, 2 is c)"
    assert by_order.majority_baseline(np.arange(19)) == pytest.approx(7 / 19)
    batch = by_order.encode(np.arange(19))
    assert batch.scores["accuracy"](F.one_hot(torch.tensor([0] * 6 + [1] * 6 + [2] * 7), 3)).all()
    for old, new in (("a", "2"), ("b", "0"), ("c", "1")):
        Path("images", old).rename(Path("images", new))
    by_number = dataset_of(external, "images").encode(np.arange(19))
    assert by_number.scores["accuracy"](F.one_hot(torch.tensor([0] * 6 + [1] * 7 + [2] * 6), 3)).all()
    Path("images", "0").rename("elsewhere")
    Path("images", "1").rename(Path("images", "horse"))
    with pytest.raises(InputError, match=r"the classes 2, horse, which are not the model's\s+it has: cat, dog, bird"):
        dataset_of(external, "images")


def test_a_list_of_images(vit: Any) -> None:
    """Cells name files beside the table; a dataset of Hugging Face's library has them opened."""
    external = load_external("vit")
    files = sorted(Path("images/cat").iterdir())
    rows = "".join(f"cat/{file.name},cat\n" for file in files)
    Path("images/list.csv").write_text(f"file_name,label\n{rows}")

    class Opened:
        column_names = ("image", "label")

        def __getitem__(self, name: str) -> list[Any]:
            return [Image.open(file) for file in files] if name == "image" else ["cat"] * len(files)

        def __len__(self) -> int:
            return len(files)

    one, other = (dataset_of(external, data).encode(np.arange(6)).inputs[0] for data in ("images/list.csv", Opened()))
    assert torch.equal(one, other)
    torch.testing.assert_close(one, torch.cat([pixels(file) for file in files]), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("painted")
def test_attention_on_an_image(vit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", "vit", "--on", "images/cat/0.png", "--head", "L1H2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["axes"][0]["tokens"] == ["[CLS]", "0,0", "0,1", "1,0", "1,1"]
    assert shown["axes"][0]["special"] == [0]
    assert shown["note"] == "2 x 2 patches, by row and column, of the image as 16 x 16 pixels"
    assert all(Path(path).stat().st_size > 100 for path in shown["files"]["pictures"])
    vit.set_attn_implementation("eager")
    with torch.no_grad():
        weights = vit(pixel_values=pixels(Path("images/cat/0.png")), output_attentions=True).attentions[1][0, 2]
    pooled = np.array(shown["sites"][1]["heads"][2]["pooled"]) / 10_000
    np.testing.assert_allclose(pooled, weights.numpy(), atol=1e-4)
    (summary,) = summarise_attention("vit", "images/cat/0.png").result
    assert summary.title == "images/cat/0.png"


def test_what_is_left_keeps_its_image_processor(vit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    made = prune_heads("vit", "small", data="images", heads=["L0H1", "L2H3"], quiet=True)
    assert made.model is not None
    assert json.loads(Path("small/preprocessor_config.json").read_text())["image_mean"] == SETTINGS["image_mean"]
    assert main(["ablate", "small", "--data", "images", "--replacements", "zero", "--quiet"]) == 0
    assert "19 images of images" in capsys.readouterr().out


def test_what_cannot_be_shown_or_measured(vit: Any) -> None:
    external = load_external("vit")
    Path("text.txt").write_text("a cat sat on the mat")
    with pytest.raises(InputError, match=r"takes images, and text.txt holds none\s+give a folder with one subfolder"):
        dataset_of(external, "text.txt")
    with pytest.raises(InputError, match=r"there is no file 'a cat'\s+give an image: --on cat\.png"):
        summarise_attention("vit", "a cat")
    with pytest.raises(InputError, match=r"text\.txt is not an image[\s\S]*\.png"):
        summarise_attention("vit", "text.txt")
    Path("images/cat/0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    with pytest.raises(InputError, match=r"images/cat/0\.png is not an image"):
        ablate_heads("vit", "images", quiet=True)
    with pytest.raises(InputError, match="BertForSequenceClassification takes no images"):
        read_dataset("images", tokenized(classifier()))
    with pytest.raises(InputError, match="takes no images"):
        dataset_of(model(classifier()), "images")


def test_more_images_than_memory_has_room_for(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    external = load_external("vit")
    monkeypatch.setattr("headcount.limits.available_memory", lambda: 18 * 3 * 16 * 16 * 4)
    with pytest.raises(InputError, match=r"the pixels of 19 images would need[\s\S]*measure fewer of them: --n"):
        ablate_heads(external, "images", quiet=True)
    assert ablate_heads(external, "images", n=6, replacements=["zero"], quiet=True).result.conditions[0].n == 6


def test_a_processor_that_is_missing_or_of_another_model(vit: Any) -> None:
    Path("vit/preprocessor_config.json").write_text(json.dumps(SETTINGS | {"size": {"height": 8, "width": 8}}))
    with pytest.raises(InputError, match=r"makes pixels of 3 x 8 x 8, but the model takes 3 x 16 x 16"):
        ablate_heads("vit", "images", quiet=True)
    Path("vit/preprocessor_config.json").write_text("{]")
    with pytest.raises(InputError, match=r"could not read vit/preprocessor_config\.json"):
        load_external("vit")
    Path("vit/preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"came without an image processor\s+save the image processor"):
        ablate_heads("vit", "images", quiet=True)
