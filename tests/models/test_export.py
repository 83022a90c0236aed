"""Models as graphs: exported and compiled whole, they give the same logits, so nothing hangs on a tensor's values."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from own_models import FED, NUMBERS, PAD, SOURCE, adder, classifier
from torch import Tensor, nn

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.encodings.base import Positions, build_encoding
from headcount.models.config import POOLINGS
from headcount.models.masking import AttentionMask, Padding, padding_of
from headcount.models.transformer import EncoderDecoder, Model

pytestmark = pytest.mark.slow  # exporting and compiling take a second each

Inputs = tuple[Tensor, ...]
CPU = torch.device("cpu")
close = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}  # the maximum of a row of padding is -inf
same = {"rtol": 0, "atol": 0, "equal_nan": True}
RANDOM = {"random_positions": 32, "n_positions": 32}
ADDERS: list[dict[str, Any]] = [
    {"encoding": "alibi"},
    {"encoding": "rotary", "norm": "post"},
    {"encoding": "t5", "window": 2, "softmax": "log-length"},
    {"encoding": "learned", "pruned": "E0H0,E0H1,X0H1"},
]
CLASSIFIERS: list[dict[str, Any]] = [
    {"encoding": encoding, "pooling": pooling} for encoding, pooling in zip(ENCODINGS.names(), cycle(POOLINGS.names()))
]
CLASSIFIERS += [
    {"encoding": "none", "causal": True, "softmax": "log-length"},
    {"encoding": "relative", "window": 1, "clip_distance": 1},
    {"encoding": "learned", **RANDOM, "numbers": "table"},
    {"encoding": "alibi", **RANDOM},
    {"encoding": "learned", "n_positions": 4, "past_table": "untrained"},
]


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values())


def built(settings: dict[str, Any]) -> Model:
    """Build a small model with one layer of each kind."""
    if settings in ADDERS:
        return adder(**{"n_decoder_layers": 1} | settings)
    return classifier(**{"n_layers": 1, "past_table": "clamp"} | settings)


def batches(model: Model, padding: Padding) -> tuple[Inputs, Inputs]:
    """Two batches of one shape, alike in nothing else but where padding may stand."""
    pad = 0 if model.pad_id is None else model.pad_id
    source = SOURCE if isinstance(model, EncoderDecoder) else NUMBERS
    other = (source.flip(0) + 1) % (PAD - 1)  # no padding
    if padding == "none":
        source = source.masked_fill(source == pad, 1)
    else:
        other[0, 2:], other[2, -1:] = pad, pad
    if padding == "anywhere":
        source, other = source.clone(), other.clone()
        source[2], other[1], other[3, 0] = pad, pad, pad
    fed = (FED, FED.flip(0)) if isinstance(model, EncoderDecoder) else ()
    return (source, *fed[:1]), (other, *fed[1:])


def graph_fits(graph: Any, model: Model, padding: Padding | None, *inputs: Inputs) -> None:
    for each in inputs:
        torch.testing.assert_close(graph(*each, padding=padding), model(*each), **close)


# --- exported ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("settings", [*ADDERS, *CLASSIFIERS], ids=name_of)
def test_an_exported_model_gives_the_same_logits(settings: dict[str, Any], pytestconfig: pytest.Config) -> None:
    """This includes a batch that the model was not exported with; `--long` exports each model for every padding."""
    model = built(settings)
    paddings: list[Padding] = ["none", "anywhere"]
    i = [*ADDERS, *CLASSIFIERS].index(settings) % 2
    for padding in paddings if pytestconfig.getoption("--long") else paddings[i : i + 1]:
        inputs, others = batches(model, padding)
        graph = torch.export.export(model, inputs, {"padding": padding}).module()
        graph_fits(graph, model, padding, inputs, others)


@torch.no_grad()
@pytest.mark.parametrize("settings", [ADDERS[0], CLASSIFIERS[0]], ids=name_of)
def test_an_export_that_is_not_told_of_padding_is_right_for_any(settings: dict[str, Any]) -> None:
    model = built(settings)
    graph = torch.export.export(model, batches(model, "none")[0]).module()
    for padding in ("none", "behind", "anywhere"):
        for each in batches(model, padding):
            torch.testing.assert_close(graph(*each), model(*each), **close)


def test_a_look_at_values_cannot_be_exported() -> None:
    """As models did: this test can fail."""

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.all() else x + 1

    with pytest.raises(Exception, match=r"[Dd]ata-dependent"):
        torch.export.export(Looks(), (torch.ones(3),))


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_model_is_one_graph_and_gives_the_same_logits(pytestconfig: pytest.Config) -> None:
    """In a process of its own: a compiler cannot look through what checks shapes in tests."""
    here = Path(__file__).resolve()
    paths = [str(here.parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    count = "all" if pytestconfig.getoption("--long") else "few"
    done = subprocess.run(
        [sys.executable, str(here), count], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["compiled", str(len(list(to_compile(count))))]


def to_compile(count: str) -> Iterator[tuple[dict[str, Any], Padding | None, str]]:
    """What is compiled, where padding is said to stand, and by which backend; the same models are exported, too."""
    paddings: tuple[Padding, ...] = ("none", "behind")
    cases = list(zip((*ADDERS, *CLASSIFIERS[-5:]), cycle(paddings)))
    for settings, padding in cases if count == "all" else cases[1::3]:
        yield settings, padding, "eager"
    yield ADDERS[2], "anywhere", "aot_eager"
    yield CLASSIFIERS[-2], None, "aot_eager"


@torch.no_grad()
def compile_all(count: str) -> None:
    n = 0
    for settings, padding, backend in to_compile(count):
        torch._dynamo.reset()
        model = built(settings)
        graph = torch.compile(model, fullgraph=True, backend=backend)
        graph_fits(graph, model, padding, *batches(model, padding or "behind"))
        n += 1
    sys.stdout.write(f"compiled {n}\n")


# --- what is known beforehand -----------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("settings", [*ADDERS, *CLASSIFIERS], ids=name_of)
def test_what_is_said_of_padding_changes_no_bit(settings: dict[str, Any]) -> None:
    model = built(settings)
    for padding in ("none", "behind", "anywhere"):
        for inputs in batches(model, padding):
            assert padding_of(inputs[0], model.pad_id) == padding
            torch.testing.assert_close(model(*inputs, padding=padding), model(*inputs), **same)
            torch.testing.assert_close(model(*inputs, padding="anywhere"), model(*inputs), **close)


def test_where_padding_stands_is_seen_in_arrays_as_in_tensors() -> None:
    for padding in ("none", "behind", "anywhere"):
        for (tokens,) in batches(built(CLASSIFIERS[0]), padding):
            assert padding_of(tokens, 20) == padding_of(tokens.numpy(), 20) == padding
            assert padding_of(tokens, None) == "none"


@pytest.mark.parametrize("random_positions", [None, 32])
@pytest.mark.parametrize("name", ENCODINGS.names())
def test_an_encoding_hides_no_key_that_it_does_not_say(name: str, random_positions: int | None) -> None:
    encoding = build_encoding(EncodingSettings(encoding=name), 8, 2, random_positions=random_positions).eval()
    where = encoding.assign_ids(Positions.in_order(9, CPU)._replace(n_tokens=torch.tensor([9, 4, 1])))
    masking = AttentionMask(causal=encoding.forces_causal, encoding=encoding, queries=where, keys=where)
    whole = slice(0, 9)
    mask, bias = masking.mask_for(whole, whole, 9, 9, CPU), masking.bias(whole, whole)
    hides = bias is not None and bool((bias.isneginf() & (mask is None or mask)).any())
    assert hides <= masking.bias_hides
    assert hides or not masking.bias_hides, "it says so in vain, which takes time"


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_queries", [2, 6, 9])
def test_that_every_query_sees_a_key_is_said_where_it_is_so(causal: bool, window: int | None, n_queries: int) -> None:
    """More queries than keys do not occur under a window; what is said of them need only be safe."""
    paddings: tuple[Padding, ...] = ("none", "behind", "anywhere")
    for padding in paddings:
        (tokens,), _ = batches(built(CLASSIFIERS[0]), padding)
        mask = None if padding == "none" else (tokens != 20)[:, None, None]
        masking = AttentionMask(mask, causal, window, padding=padding)
        visible = masking.mask_for(slice(0, n_queries), slice(0, 6), n_queries, 6, CPU)
        sees = visible is None or bool(visible.any(dim=-1).all())
        assert masking.all_see(n_queries, 6) <= sees
        assert masking.all_see(n_queries, 6) == sees or n_queries > 6


if __name__ == "__main__":
    compile_all(sys.argv[1])
