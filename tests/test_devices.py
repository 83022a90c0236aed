"""Everything that computes does so where the model is: on fake devices, where mixing two of them is an error.

Tensors of PyTorch's `FakeTensorMode` have a shape and a device but no values, so this machine needs no GPU. What would
read a value, and so wait for a GPU, is an error here too, unless it is said that values are read (`reading`).

Two devices stand for all that are not the CPU: `cuda`, and `meta`, since a build without CUDA cannot differentiate fake
CUDA tensors. Nor can it index or invert them in Python, for which it asks a guard that it does not have; `Guardless`
does the same by other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from own_models import FED, NUMBERS, SOURCE, START, adder, classifier
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headcount.hooks.attention import attention_of
from headcount.hooks.gates import Capture, Gates, closed_gates
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Sites
from headcount.models.attention import AttentionCache
from headcount.models.masking import Padding
from headcount.models.transformer import EncoderDecoder, Model, greedy
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.training.evaluation import learner_of
from headcount.training.loop import fit, new_state

pytestmark = pytest.mark.slow  # fake devices trace every operation

MODELS: dict[str, Callable[[], Model]] = {
    "adder": lambda: adder(encoding="learned", n_decoder_layers=1),
    "adder-biased": lambda: adder(encoding="t5", softmax="log-length", window=2, n_decoder_layers=1),
    "classifier-fixed": lambda: classifier(encoding="rotary", pooling="neighbour-difference", n_layers=1),
    "classifier-random": lambda: classifier(encoding="alibi", random_positions=32, pooling="attention", n_layers=1),
    "classifier-past-table": lambda: classifier(encoding="learned", n_positions=3, pooling="last", n_layers=1),
}
DEVICES = ("meta", "cuda:0")
PADDINGS: tuple[Padding, ...] = ("none", "behind", "anywhere")
N_ROWS = 5
"""Unlike the number of heads, so that attention weights can be read off without a look at their values."""


class Guardless(TorchFunctionMode):
    """Indexing and inversion by operators that ask no device guard."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            part, indices = sliced(*args)
            return torch.ops.aten.index(part, indices) if indices else part
        if func is Tensor.__setitem__:
            part, indices = sliced(*args[:2])
            value = args[2] if isinstance(args[2], Tensor) else part.new_full((), args[2])
            return torch.ops.aten.index_put_(part, indices, value) if indices else torch.ops.aten.copy_(part, value)
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        return func(*args, **(kwargs or {}))


def sliced(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The tensor after all that is no tensor in an index, and the tensors that are left, if any."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is ... for part in parts):
        n_named = sum(part is not None and part is not ... for part in parts)
        at = next(i for i, part in enumerate(parts) if part is ...)
        parts[at : at + 1] = [slice(None)] * (tensor.dim() - n_named)
    found: list[Tensor | None] = []
    for part in parts:
        if isinstance(part, int):
            tensor = tensor.select(len(found), part)
            continue
        if part is None:
            tensor = tensor.unsqueeze(len(found))
        elif isinstance(part, slice):
            tensor = torch.ops.aten.slice(tensor, len(found), part.start, part.stop, part.step or 1)
        found.append(torch.tensor(part) if isinstance(part, list) else part if isinstance(part, Tensor) else None)
    return tensor, found if any(each is not None for each in found) else []


class reading(TorchDispatchMode):  # noqa: N801 - a context
    """Inside, values may be read: tensors are never equal, nothing is true, and every number is 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.equal.default:
            return False
        if func is torch.ops.aten._local_scalar_dense.default:
            return False if args[0].dtype == torch.bool else 1
        return func(*args, **(kwargs or {}))


@contextmanager
def faked(device: str) -> Iterator[torch.device]:
    """Inside, tensors are fake; no gradients on CUDA, which would end the process of a build without it."""
    with FakeTensorMode(allow_non_fake_inputs=True), Guardless(), torch.set_grad_enabled(device == "meta"):
        yield torch.device(device)


def move(module: nn.Module, device: torch.device) -> None:
    """What `Module.to` does, which cannot make a real module fake."""
    for each in module.modules():
        for name, tensor in each.named_parameters(recurse=False):
            each._parameters[name] = nn.Parameter(torch.empty_like(tensor, device=device))
        for name, buffer in each.named_buffers(recurse=False):
            each._buffers[name] = torch.empty_like(buffer, device=device)


class Case(NamedTuple):
    """A model somewhere else than on the CPU, and its inputs there."""

    device: torch.device
    model: Model
    inputs: list[Tensor]

    @property
    def sites(self) -> Sites:
        return Sites.of(self.model)


@pytest.fixture(params=[(device, name) for device in DEVICES for name in MODELS], ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    device, name = request.param
    model = MODELS[name]()
    inputs = (SOURCE, FED) if isinstance(model, EncoderDecoder) else (NUMBERS,)
    with faked(device) as there:
        move(model, there)
        yield Case(there, model, [torch.cat([each, each[:1]]).to(there) for each in inputs])


def of(*names: str) -> pytest.MarkDecorator:
    """These models alone, on CUDA alone: all of them would take a minute."""
    return pytest.mark.parametrize("case", [("cuda:0", name) for name in names], indirect=True, ids="-".join)


# --- the set-up -------------------------------------------------------------------------------------------------------


@of("adder", "classifier-fixed")
def test_a_tensor_that_stays_behind_is_an_error(case: Case) -> None:
    bias = case.model.to_logits.bias
    case.model.to_logits.bias = nn.Parameter(torch.zeros(bias.shape, dtype=bias.dtype))
    with pytest.raises(RuntimeError, match="to be on the same device"):
        case.model(*case.inputs, padding="behind")


@pytest.mark.parametrize("device", DEVICES)
def test_what_mixes_devices_or_reads_a_value_is_an_error(device: str) -> None:
    with faked(device) as there:
        here, away = torch.ones(3), torch.ones(3, device=there)
        for mix in (torch.add, torch.mul, torch.dot, lambda one, other: torch.cat([one, other])):
            with pytest.raises(RuntimeError, match="to be on the same device"):
                mix(away, here)
        with pytest.raises(DataDependentOutputException):
            bool(away.all())
        with reading():
            assert not away.all()
            assert away.sum(dim=0, keepdim=True).tolist() == [1]
            assert not torch.equal(away, away)


@pytest.mark.parametrize(
    "index",
    [
        1,
        None,
        slice(1, 3),
        (slice(None), None, slice(None, None, 2)),
        (..., 0),
        (..., [2, 0], slice(None)),
        torch.tensor([3, 0]),
        (torch.tensor([[0], [3]]), torch.tensor([1, 2])),
        (slice(None), [0, 2]),
        (0, ..., None),
    ],
)
def test_indexing_without_a_guard_is_indexing(index: Any) -> None:
    tensor = torch.arange(60).view(4, 3, 5)
    changed, other = tensor.clone(), tensor.clone()
    changed[index] = 7
    with Guardless():
        found = tensor[index]
        other[index] = 7
    assert torch.equal(found, tensor[index])
    assert torch.equal(changed, other)
    assert not torch.equal(changed, tensor)


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_pass_reads_no_value(case: Case) -> None:
    for padding in PADDINGS:
        assert case.model(*case.inputs, padding=padding).device == case.device
    assert case.model.train()(*case.inputs, padding="behind").device == case.device


@of("adder", "classifier-fixed")
def test_unless_padding_is_said_its_place_is_read(case: Case) -> None:
    with pytest.raises(DataDependentOutputException):
        case.model(*case.inputs)
    with reading():
        assert case.model(*case.inputs).device == case.device


@of("adder", "adder-biased")
def test_decoding_reads_no_value(case: Case) -> None:
    assert isinstance(case.model, EncoderDecoder)
    memory = case.model.encode(case.inputs[0], padding="behind")
    for use_cache in (True, False):
        tokens = greedy(case.model, memory, START, 4, use_cache=use_cache)
        assert (tokens.device, tuple(tokens.shape)) == (case.device, (N_ROWS, 4))


# --- hooks ------------------------------------------------------------------------------------------------------------


@of("adder", "classifier-random")
def test_gates_are_moved_to_the_model(case: Case) -> None:
    heads = case.sites.heads[::2]
    gates = closed_gates(case.sites, heads)
    with Capture(case.sites) as seen:
        case.model(*case.inputs, padding="behind")
    for there in ("cpu", case.device):
        values = {site: seen.z(site).mean(dim=0, keepdim=True).to(there) for site in gates}
        for replacements in (None, values):
            with reading(), Gates(case.sites, gates, replacements) as acting:
                assert case.model(*case.inputs, padding="behind").device == case.device
            assert set(acting.calls) == set(gates)


@of("adder", "classifier-random")
def test_what_is_captured_stays_with_the_model(case: Case) -> None:
    with Capture(case.sites) as seen:
        case.model(*case.inputs, padding="behind")
    for site in case.sites:
        found = (seen.z(site), seen.output(site), seen.contributions(site), seen.bias(site))
        assert {each.device for each in found} == {case.device}


@of("adder", "classifier-random")
def test_attention_weights_stay_with_the_model(case: Case) -> None:
    kept = AttentionCache()
    case.model(*case.inputs, padding="behind", weights=kept)
    with reading():
        computed = attention_of(case.model, case.sites, *case.inputs)
    assert set(kept) == set(computed) == set(case.sites)
    for weights in (*kept.values(), *computed.values()):
        assert weights.device == case.device


@of("adder", "classifier-random")
@torch.no_grad()
def test_a_cached_pass_is_replayed_where_it_was_made(case: Case) -> None:
    with reading():
        cached = CachedPass(case.model, case.sites, case.inputs, base=case.sites.heads[1:2])
        for head in (case.sites.heads[0], case.sites.heads[-1]):
            for there in ("cpu", case.device):
                values = {head.site: cached.z(head.site).mean(dim=0, keepdim=True).to(there)}
                output = cached.replay([Intervention((head,)), Intervention((head,), "mean", values=values)])
                assert (output.device, len(output)) == (case.device, 2 * N_ROWS)
        outputs = [output for _, output in sweep(cached, [Intervention((head,)) for head in case.sites.heads])]
    assert {each.device for each in outputs} == {case.device}


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["addition", "sortedness"])
def config(request: pytest.FixtureRequest, tiny: dict[str, Any], tiny_sorting: dict[str, Any]) -> RunConfig:
    given = tiny if request.param == "addition" else tiny_sorting | {"random_positions": 32}
    return RunConfig.build(request.param, **given | {"steps": 100, "averaging": 0.9})


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_reads_no_value(device: str, config: RunConfig) -> None:
    """So that a step of training can be queued while the last one runs."""
    task, model = build(config)
    with faked(device) as there:
        move(model, there)
        loss = learner_of(model.train(), task).loss(task.split("validation"))
        assert loss.device == there
        assert not loss.requires_grad or all(grad.device == there for grad in _gradients(loss, model))


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_of_training(device: str, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loop as it is, which then reads the loss to report it; but for the gradients on CUDA."""
    task, model = build(config)
    with faked(device) as there, reading():
        move(model, there)
        state = new_state(model, config.training)
        state.step = 4  # the next step moves the average, too
        if not torch.is_grad_enabled():
            monkeypatch.setattr(Tensor, "backward", lambda loss: _plant_gradients(model))
        assert not fit(state, task, config.training, 0, asked_to_stop=lambda: True)
        moments = [each for kept in state.optimizer.state.values() for name, each in kept.items() if name != "step"]
        assert len(moments) == 2 * len(list(model.parameters()))
        assert {each.device for each in (*moments, *state.average.values())} == {there}
    assert state.step == 5


def _gradients(loss: Tensor, model: Model) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()))


def _plant_gradients(model: Model) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
