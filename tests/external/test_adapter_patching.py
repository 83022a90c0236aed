"""Streams, patches, path patches and ablations at some positions of an adapter's model equal plain PyTorch hooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcount
from headcount.errors import InputError, InstrumentError
from headcount.experiments.external_models import ExternalModel

FOREIGN = Path(__file__).parents[1] / "foreign_adder"
sys.path.insert(0, str(FOREIGN))

from adder_model import to_ids  # noqa: E402

D_HEAD = 12
Change = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def opened() -> ExternalModel:
    return headcount.load_external(f"{FOREIGN / 'adder_adapter.py'}:Adder")


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, Tensor]:
    return to_ids(["37+81", "12+30"]), to_ids(["118", "42"], sos=True)


@pytest.fixture(scope="module")
def donor() -> tuple[Tensor, Tensor]:
    return to_ids(["95+46", "71+12"]), to_ids(["141", "83"], sos=True)


# --- by hand: hooks of PyTorch on the author's own modules ------------------------------------------------------------


@contextmanager
def changed(at: Mapping[nn.Module, Change], *, is_input: bool = False) -> Iterator[None]:
    """Change what these modules return, or what they take."""
    with ExitStack() as stack:
        for module, change in at.items():
            if is_input:
                handle = module.register_forward_pre_hook(lambda _, args, change=change: (change(args[0]), *args[1:]))
            else:
                handle = module.register_forward_hook(lambda _, args, output, change=change: change(output))
            stack.callback(handle.remove)
        yield


@torch.no_grad()
def seen(model: nn.Module, inputs: tuple[Tensor, ...], *modules: nn.Module, is_input: bool = False) -> list[Tensor]:
    """Return what these modules return, or take, in one pass."""
    kept: dict[nn.Module, Tensor] = {}

    def keeper(module: nn.Module) -> Change:
        return lambda x: kept.setdefault(module, x.clone())

    with changed({module: keeper(module) for module in modules}, is_input=is_input):
        model(*inputs)
    return [kept[module] for module in modules]


def columns(x: Tensor, head: int) -> Tensor:
    """Return a head's part of what an output projection takes."""
    return x[..., D_HEAD * head : D_HEAD * (head + 1)]


def with_head(head: int, values: Tensor | float, at: slice = slice(None)) -> Change:
    """Return a change that replaces one head at some positions."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        columns(x, head)[:, at] = values[:, at] if isinstance(values, Tensor) else values
        return x

    return change


@torch.no_grad()
def test_streams(opened: ExternalModel, inputs: tuple[Tensor, ...]) -> None:
    model: Any = opened.inner
    streams = headcount.streams(opened, inputs)
    for letter, layers in (("E", model.encoder_layers), ("D", model.decoder_layers)):
        (first,) = seen(model, inputs, layers[0], is_input=True)
        after, mlps = seen(model, inputs, *layers), seen(model, inputs, *(layer.ff[2] for layer in layers))
        by_hand = {f"{letter}0.input": first}
        by_hand |= {
            f"{letter}{i}.{kind}": x for kind, xs in (("stream", after), ("mlp", mlps)) for i, x in enumerate(xs)
        }
        assert {name for name in streams if name[0] == letter} == set(by_hand)
        for name, x in by_hand.items():
            torch.testing.assert_close(streams[name], x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["E0.input", "E1.mlp", "E0.stream", "D0.stream", "E0H1", "X1H2", "D0H3"])
@torch.no_grad()
def test_a_patch_at_one_position(
    opened: ExternalModel, inputs: tuple[Tensor, ...], donor: tuple[Tensor, ...], name: str
) -> None:
    model: Any = opened.inner
    layer = (model.encoder_layers if name[0] == "E" else model.decoder_layers)[int(name[1])]
    at, queries = slice(1, 2), [1]
    if "." in name:
        kind = name.rpartition(".")[2]
        module, is_input = layer.ff[2] if kind == "mlp" else layer, kind == "input"
        patch = headcount.streams(opened, donor)[name]
        (given,) = seen(model, donor, module, is_input=is_input)
        change: Change = lambda x: torch.cat([x[:, :1], given[:, at], x[:, 2:]], dim=1)  # noqa: E731
    else:
        module, is_input = (layer.cross_attn if name[0] == "X" else layer.self_attn).W_o, True
        patch, head = headcount.head_outputs(opened, donor)[name], int(name[3])
        (given,) = seen(model, donor, module, is_input=True)
        change = with_head(head, columns(given, head), at)
    with changed({module: change}, is_input=is_input):
        by_hand = model(*inputs)
    with headcount.patched(opened, {name: patch}, queries=queries, inputs=inputs):
        ours = opened.module(*inputs)
    torch.testing.assert_close(ours, by_hand, rtol=0, atol=1e-5)
    assert not torch.allclose(ours, model(*inputs), atol=1e-3), "the patch matters in this model"


@torch.no_grad()
def test_an_ablation_at_one_position(opened: ExternalModel, inputs: tuple[Tensor, ...]) -> None:
    model: Any = opened.inner
    with changed({model.decoder_layers[1].cross_attn.W_o: with_head(1, 0.0, slice(1, 2))}, is_input=True):
        by_hand = model(*inputs)
    with headcount.ablated(opened, "X1H1", queries=[1]):
        ours = opened.module(*inputs)
    torch.testing.assert_close(ours, by_hand, rtol=0, atol=1e-5)
    assert not torch.allclose(ours, model(*inputs), atol=1e-3)


@pytest.mark.parametrize("through_mlps", [True, False])
@pytest.mark.parametrize("receiver", ["E1H3", "X1H0", None])
@torch.no_grad()
def test_a_path_patch(
    opened: ExternalModel,
    inputs: tuple[Tensor, ...],
    donor: tuple[Tensor, ...],
    receiver: str | None,
    through_mlps: bool,
) -> None:
    """By hand: hold all other heads (and MLPs), let the receiver read E0H1 of the donor, then patch the receiver."""
    model: Any = opened.inner
    encoder, decoder = model.encoder_layers, model.decoder_layers
    sites = [layer.self_attn.W_o for layer in (*encoder, *decoder)] + [layer.cross_attn.W_o for layer in decoder]
    mlps = [] if through_mlps else [layer.ff[2] for layer in (*encoder, *decoder)]
    clean = dict(zip(sites, seen(model, inputs, *sites, is_input=True), strict=True))
    held = {mlp: (lambda _, own=own: own) for mlp, own in zip(mlps, seen(model, inputs, *mlps), strict=True)}
    (given,) = seen(model, donor, sites[0], is_input=True)
    place = None if receiver is None else sites[1] if receiver[0] == "E" else sites[5]
    head = 0 if receiver is None else int(receiver[3])
    received: list[Tensor] = []

    def hold(site: nn.Module) -> Change:
        def change(x: Tensor) -> Tensor:
            if site is place:
                received.append(columns(x, head).clone())
            value = clean[site].clone()
            if site is sites[0]:
                columns(value, 1)[:] = columns(given, 1)
            if site is place:
                columns(value, head)[:] = received[0]
            return value

        return change

    with changed({site: hold(site) for site in sites}, is_input=True), changed(held):
        by_hand = model(*inputs)
    if place is not None:
        with changed({place: with_head(head, received[0])}, is_input=True):
            by_hand = model(*inputs)
    ours = headcount.path_patched(opened, "E0H1", receiver, donor, inputs, through_mlps=through_mlps)
    torch.testing.assert_close(ours, by_hand, rtol=0, atol=1e-5)
    is_read = receiver is not None  # encoder heads have no direct path to the logits
    assert torch.allclose(ours, model(*inputs), atol=1e-5) != is_read


@torch.no_grad()
def test_a_patch_that_does_not_act_is_an_error(
    opened: ExternalModel, inputs: tuple[Tensor, ...], donor: tuple[Tensor, ...]
) -> None:
    streams, outputs = headcount.streams(opened, donor), headcount.head_outputs(opened, donor)
    for name, patch in (("E0.stream", streams["E0.stream"]), ("E0H1", outputs["E0H1"])):
        with (
            pytest.raises(InstrumentError, match=r"no forward pass reached|no head was ablated"),
            headcount.patched(opened, {name: patch}),
        ):
            pass
        with (
            pytest.raises(
                InstrumentError,
                match=r"no forward pass had the positions -1, 9(.|\n)*the longest forward pass had 5 positions",
            ),
            headcount.patched(opened, {name: patch}, queries=[-1, 9]),
        ):
            opened.module(*inputs)
    with (
        pytest.raises(InstrumentError, match="no forward pass had the positions 9"),
        headcount.ablated(opened, "E0H1", queries=[9]),
    ):
        opened.module(*inputs)
    with pytest.raises(InputError, match="patching E1H0 does not change the outputs of E0H1"):
        headcount.path_patched(opened, "E1H0", "E0H1", donor, inputs)
    with pytest.raises(InputError, match="patching E0H1 does not change the outputs of E1H0"):
        headcount.path_patched(opened, "E0H1", "E1H0", inputs, inputs)
