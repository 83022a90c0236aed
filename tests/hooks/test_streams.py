"""Residual streams and MLP outputs are found in any family, read and patched; an unused patch is an error."""

from __future__ import annotations

import copy

import hub_models as hub
import pytest
import torch
from torch import Tensor, nn

import headcount
from headcount.api.intervening import input_batch
from headcount.api.opening import open_model
from headcount.errors import InputError, InstrumentError
from headcount.hooks.intervention_proof import first_tensor
from headcount.hooks.streams import StreamCapture, StreamId, StreamPatches, Streams, position_mask
from headcount.runs.run import Run


def found(name: str) -> tuple[nn.Module, Streams, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return a small model of a family, its streams, and two inputs of the same size."""
    opened, inputs = open_model(hub.build(name)), hub.inputs_of(name)
    donor = tuple(each.flip(0) if each.dtype != torch.bool else each for each in inputs)
    masks = inputs[-1] if name != "vit" else None
    if masks is not None:
        inputs, donor = (*inputs[:-1], torch.ones_like(masks)), (*donor[:-1], torch.ones_like(masks))
    module, batch = input_batch(opened, inputs)
    return module, Streams.of(module, opened.sites, batch.inputs), batch.inputs, donor


@pytest.mark.parametrize("name", hub.FAMILIES)
@torch.no_grad()
def test_the_last_stream_of_a_donor_gives_its_output(name: str) -> None:
    """Nothing but the streams leads from the inputs to the output."""
    model, streams, inputs, donor = found(name)
    with StreamCapture(streams) as seen:
        expected = first_tensor(model(*donor))
    stacks = {stream.stack for stream in streams}
    last = [max(s for s in streams if s.stack == stack and s.kind == "stream") for stack in stacks]
    first = [StreamId(stack, 0, "input") for stack in stacks]
    assert not torch.allclose(first_tensor(model(*inputs)), expected)
    for chosen in (last, first):
        with StreamPatches(streams, {stream: seen[stream] for stream in chosen}):
            output = first_tensor(model(*inputs))
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    own = StreamCapture(streams)
    with own:
        clean = first_tensor(model(*inputs))
    with StreamPatches(streams, {stream: own[stream] for stream in streams}):
        assert torch.equal(first_tensor(model(*inputs)), clean), "its own streams change nothing"


@torch.no_grad()
def test_a_pre_norm_layer_adds_its_attention_and_its_mlp_to_the_stream(tiny_run: Run) -> None:
    z = headcount.head_outputs(tiny_run, "3+4")
    x = headcount.streams(tiny_run, "3+4")
    projection = tiny_run.model.projections[headcount.HeadSite("encoder", 0)]
    heads = torch.cat([z[f"E0H{i}"] for i in range(2)], dim=-1)
    torch.testing.assert_close(x["E0.input"] + projection(heads) + x["E0.mlp"], x["E0.stream"])


@torch.no_grad()
def test_one_position_of_a_stream(tiny_run: Run) -> None:
    source = torch.tensor([[3, 10, 4]])
    x, y = headcount.streams(tiny_run, "3+4"), headcount.streams(tiny_run, "8+4")
    with headcount.patched(tiny_run, {"E0.stream": y["E0.stream"]}, queries=[0]):
        patched = headcount.streams(tiny_run, "3+4")
    expected = torch.cat([y["E0.stream"][:, :1], x["E0.stream"][:, 1:]], dim=1)
    assert torch.equal(patched["E0.stream"], expected)
    assert source.shape[1] == x["E0.stream"].shape[1]
    assert torch.equal(headcount.streams(tiny_run, "3+4")["E0.stream"], x["E0.stream"]), "the model is put back"


def test_shared_layers_are_told_apart() -> None:
    model, streams, inputs, _ = found("albert")
    layers = sorted(stream.layer for stream in streams if stream.kind == "stream")
    assert layers == list(range(len(layers)))
    assert len({streams[s].module for s in streams if s.kind == "stream"}) < len(layers) > 1
    with torch.no_grad(), StreamCapture(streams) as seen:
        model(*inputs)
    assert not torch.equal(seen["L0.stream"], seen["L1.stream"])


def test_names() -> None:
    assert str(StreamId.parse(" d1.STREAM ")) == "D1.stream"
    for text in ("E0", "E0H1", "stream", "X0.mlp", "E-1.mlp"):
        with pytest.raises(InputError, match=r"write E0\.input .* E0\.mlp .* or E0\.stream"):
            StreamId.parse(text)


def test_what_is_wrong_is_told(tiny_run: Run) -> None:
    x = headcount.streams(tiny_run, "3+4")
    with (
        pytest.raises(InputError, match=r"no residual stream or MLP output E7\.mlp in this model(.|\n)*E0\.input"),
        headcount.patched(tiny_run, {"E7.mlp": x["E0.mlp"]}),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"the patch .* for E0\.mlp has shape"),
        headcount.patched(tiny_run, {"E0.mlp": torch.zeros(1, 9, 3)}),
    ):
        tiny_run.predict("3+4")
    with (
        pytest.raises(InstrumentError, match=r"no forward pass reached E0\.mlp"),
        headcount.patched(tiny_run, {"E0.mlp": x["E0.mlp"]}),
    ):
        pass


def test_a_module_without_numbered_layers_has_no_streams() -> None:
    model = copy.deepcopy(hub.build("gpt2")).eval()
    opened = open_model(model)
    block = model.transformer.h[0]
    del model.transformer.h
    model.transformer.only = block
    with pytest.raises(InputError, match="the layer of"):
        Streams.of(model, opened.sites, (torch.zeros(1, 3, dtype=torch.long),))


def test_positions_of_a_pass_that_begins_later() -> None:
    assert position_mask([0, 4, 9], 3, torch.device("cpu"), first=3).tolist() == [False, True, False]
