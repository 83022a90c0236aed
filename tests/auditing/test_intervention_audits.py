"""Other people's head ablations, wrong and right: each is named for what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import hub_models as hub
import pytest
import torch
import torch_models
from own_models import scattered, trace
from torch import Tensor, nn

import headcount
from headcount.auditing.interventions import InterventionAudit, audit_intervention
from headcount.errors import InputError
from headcount.hooks.wrapping import wrap

pytestmark = pytest.mark.slow  # seconds together

NAMED = "L1H2"
Act = Callable[[Tensor], Any]
"""What is done to [row, position, head, d_head] in place."""


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return hub.build("gpt2", torch.float32)


TEXT = dict(zip(("input_ids", "attention_mask"), hub.inputs_of("gpt2"), strict=True))


def on_input(module: nn.Module, act: Act, n_heads: int = 4) -> Callable[[], Any]:
    """As it should be, if the module is the output projection."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].clone()
        act(z.unflatten(-1, (n_heads, -1)))
        return (z, *args[1:])

    return lambda: module.register_forward_pre_hook(hook)


def on_output(module: nn.Module, act: Act, n_heads: int = 4) -> Callable[[], Any]:
    """As it is published: an output is taken for heads side by side."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        first = (output[0] if isinstance(output, tuple) else output).clone()
        act(first.unflatten(-1, (n_heads, -1)))
        return (first, *output[1:]) if isinstance(output, tuple) else first

    return lambda: module.register_forward_hook(hook)


def zero(head: Any = 2) -> Act:
    return lambda z: z[..., head, :].zero_()


def audited(model: Any, context: Any, heads: Any = NAMED) -> InterventionAudit:
    before = trace(model)
    found = audit_intervention(model, TEXT, context, heads)
    assert trace(model) == before  # hooks, training modes, weights, buffers
    return found


# --- wrong ones, on a GPT-2 -------------------------------------------------------------------------------------------


def projection_of(gpt2: Any, layer: int = 1) -> nn.Module:
    return gpt2.transformer.h[layer].attn.c_proj


@contextmanager
def masked(model: Any) -> Iterator[None]:
    """As its authors loaded it: an attribute that no code reads."""
    model.head_mask = torch.ones(3, 4)
    model.head_mask[1, 2] = 0
    try:
        yield
    finally:
        del model.head_mask


def removed_early(handle: Any) -> Any:
    handle.remove()
    return handle


def changed_copy(args: tuple[Tensor, ...]) -> None:
    args[0].clone().zero_()


WRONG: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "the block's output, reshaped (thought-anchors 7)": (
        lambda model: on_output(model.transformer.h[1].attn, zero()),
        "residual coordinates instead of a head",
        "coordinates 16 to 23 of the output of transformer.h.1.attn (32 in all) are set to zero",
    ),
    "slices of the projection's output (nnsight 525)": (
        lambda model: on_output(projection_of(model), zero()),
        "residual coordinates instead of a head",
        "coordinates 16 to 23 of the output of transformer.h.1.attn.c_proj (32 in all) are set to zero",
    ),
    "slices of the layer's output": (
        lambda model: on_output(model.transformer.h[1], lambda x: x[..., 2, :].add_(1)),
        "residual coordinates instead of a head",
        "are set to other values",
    ),
    "right head, wrong layer": (
        lambda model: on_input(projection_of(model, 2), zero()),
        "wrong layer",
        "L2H2 removed by zero ablation; L1H2 untouched",
    ),
    "counted from 1": (
        lambda model: on_input(projection_of(model), zero(1)),
        "other heads instead",
        "L1H1 removed by zero ablation; L1H2 untouched: the layer is right, the index is off by one",
    ),
    "another head": (
        lambda model: on_input(projection_of(model), zero(0)),
        "other heads instead",
        "the layer is right, the index is not",
    ),
    "another head of another layer": (
        lambda model: on_input(projection_of(model, 0), zero(3)),
        "other heads instead",
        "L0H3 removed by zero ablation; L1H2 untouched: neither the layer nor the index is right",
    ),
    "all heads of the layer": (
        lambda model: on_input(projection_of(model), zero(slice(None))),
        "other heads as well",
        "L1H2 removed by zero ablation; but also L1H0, L1H1, L1H3 removed by zero ablation (all heads of L1)",
    ),
    "the head in every layer": (
        lambda model: lambda: [on_input(projection_of(model, i), zero())() for i in range(3)],
        "other heads as well",
        "L1H2 removed by zero ablation; but also L0H2, L2H2 removed by zero ablation",
    ),
    "the whole block's output": (
        lambda model: on_output(model.transformer.h[1].attn, lambda x: x.zero_()),
        "other heads as well",
        "(all heads of L1)",
    ),
    "halved": (
        lambda model: on_input(projection_of(model), lambda z: z[..., 2, :].mul_(0.5)),
        "scaled, not removed",
        "L1H2 scaled by 0.5",
    ),
    "mean over positions": (
        lambda model: on_input(projection_of(model), lambda z: z[..., 2, :].copy_(z[..., 2, :].mean(1, keepdim=True))),
        "not removed",
        "L1H2 replaced by its mean over positions, which still depends on the example",
    ),
    "the last position alone": (
        lambda model: on_input(projection_of(model), lambda z: z[:, -1, 2].zero_()),
        "removed in places only",
        "L1H2 zeroed at 3 of 21 positions only",
    ),
    "a little noise": (
        lambda model: on_input(
            projection_of(model), lambda z: z[..., 2, :].add_(0.01 * torch.randn_like(z[..., 2, :]))
        ),
        "not removed",
        "L1H2 hardly changed (its correlation with its own output is 0.999",
    ),
    "the MLP": (
        lambda model: lambda: model.transformer.h[1].mlp.register_forward_hook(lambda module, args, x: 2 * x),
        "changed something that is no head",
        "the output of transformer.h.1.mlp; L1H2 untouched",
    ),
    "what enters the MLP": (
        lambda model: on_input(model.transformer.h[1].mlp, lambda x: x.zero_()),
        "changed something that is no head",
        "the input of transformer.h.1.mlp",
    ),
    "the head and the MLP": (
        lambda model: (
            lambda: [
                on_input(projection_of(model), zero())(),
                model.transformer.h[0].mlp.register_forward_hook(lambda module, args, x: 2 * x),
            ]
        ),
        "something else as well",
        "L1H2 removed by zero ablation; the intervention also changes the output of transformer.h.0.mlp",
    ),
    "head_mask, which transformers 5 ignores": (
        lambda model: {"head_mask": torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])},
        "did nothing",
        "the model accepts and ignores its arguments (head_mask)",
    ),
    "a mask that never reaches the model (optin 6)": (
        masked,
        "did nothing",
        "the model's output is bit for bit the same with and without the intervention: no hook was in place when the "
        "model ran",
    ),
    "removed too early": (
        lambda model: lambda: removed_early(on_input(projection_of(model), zero())()),
        "did nothing",
        "no hook was in place when the model ran",
    ),
    "changed, and not returned": (
        lambda model: lambda: projection_of(model).register_forward_pre_hook(lambda module, args: changed_copy(args)),
        "did nothing",
        "the hook at transformer.h.1.attn.c_proj ran and changed nothing",
    ),
    "attention weights that are only reported": (
        lambda model: (
            lambda: model.transformer.h[1].attn.register_forward_hook(
                lambda module, args, output: (output[0], torch.zeros(3, 4, 7, 7))
            )
        ),
        "did nothing",
        "the hook at transformer.h.1.attn ran",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(gpt2: Any, wrong: str) -> None:
    context, verdict, words = WRONG[wrong]
    found = audited(gpt2, context(gpt2))
    assert (found.verdict, found.is_right) == (verdict, False)
    assert found.summary.startswith(f"{verdict}: ")
    assert words in found.summary
    assert found.repair.startswith("with headcount.ablated(model, ['L1H2']):")


def test_both_repairs_repair(gpt2: Any) -> None:
    line, _, hook = audited(gpt2, on_output(projection_of(gpt2), zero())).repair.partition("  # or, in a pre-hook on ")
    path, _, code = hook.partition(": ")
    with_line = audited(
        gpt2, eval(line.removeprefix("with ").removesuffix(":"), {"headcount": headcount, "model": gpt2})
    )

    def pre_hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        exec(code, {"args": args})

    with_hook = audited(gpt2, lambda: gpt2.get_submodule(path).register_forward_pre_hook(pre_hook))
    assert with_line.summary == with_hook.summary == "exactly L1H2 removed by zero ablation"


# --- right ones -------------------------------------------------------------------------------------------------------


def without_weights(model: Any) -> Any:
    """The head's rows of the output projection at zero, for as long as the context lasts."""

    @contextmanager
    def context() -> Iterator[None]:
        weight = projection_of(model).weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight[16:24] = 0
        try:
            yield
        finally:
            weight.data.copy_(kept)

    return context


def without_values(model: Any) -> Any:
    """What the head could find is set to zero where it is computed."""

    def hook(module: nn.Module, args: Any, qkv: Tensor) -> Tensor:
        return qkv.index_fill(-1, torch.arange(64 + 16, 64 + 24), 0.0)

    return lambda: model.transformer.h[1].attn.c_attn.register_forward_hook(hook)


def subtracted(model: Any) -> Any:
    """The head's contribution is computed, and taken away again."""

    def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output - args[0][..., 16:24] @ module.weight[16:24]

    return lambda: projection_of(model).register_forward_hook(hook)


def runs_itself(model: Any) -> Any:
    """As libraries do that call the model in their own way."""

    def run() -> Tensor:
        with on_input(projection_of(model), zero())():
            return model(**TEXT).logits

    return run


def runs_quietly(model: Any) -> Any:
    """As a trace of nnsight does: nothing comes back."""

    def run() -> None:
        with on_input(projection_of(model), zero())():
            model(**TEXT)

    return run


class HooksInADict(dict[str, Any]):
    """As baukit has it: hooks in a dict that is a context, in place from the beginning."""

    def __init__(self, model: Any) -> None:
        super().__init__(hook=on_input(projection_of(model), zero())())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self["hook"].remove()


def replaced(model: Any) -> Any:
    """A module that stands for the output projection."""

    class Without(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, z: Tensor) -> Tensor:
            return self.inner(z.index_fill(-1, torch.arange(16, 24), 0.0))

    @contextmanager
    def context() -> Iterator[None]:
        kept = projection_of(model)
        model.transformer.h[1].attn.c_proj = Without(kept)
        try:
            yield
        finally:
            model.transformer.h[1].attn.c_proj = kept

    return context()


def noise(z: Tensor) -> None:
    z[..., 2, :] = torch.randn(z[..., 2, :].shape, generator=torch.Generator().manual_seed(0))


RIGHT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "headcount.ablated": (lambda model: headcount.ablated(model, NAMED), "zero"),
    "headcount.ablated, in a function of the model": (lambda _: lambda model: headcount.ablated(model, NAMED), "zero"),
    "resampled": (lambda model: headcount.ablated(model, NAMED, by="resample"), "resample"),
    "a pre-hook": (lambda model: on_input(projection_of(model), zero()), "zero"),
    "handles in a dict": (lambda model: lambda: {NAMED: on_input(projection_of(model), zero())()}, "zero"),
    "a mean over the batch": (
        lambda model: on_input(projection_of(model), lambda z: z[..., 2, :].copy_(z[..., 2, :].mean(0))),
        "mean",
    ),
    "a mean over batch and positions": (
        lambda model: on_input(projection_of(model), lambda z: z[..., 2, :].copy_(z[..., 2, :].mean((0, 1)))),
        "mean",
    ),
    "a constant": (lambda model: on_input(projection_of(model), lambda z: z[..., 2, :].fill_(0.5)), "constant"),
    "noise": (lambda model: on_input(projection_of(model), noise), "other"),
    "weights": (without_weights, "zero"),
    "values": (without_values, "zero"),
    "subtracted": (subtracted, "zero"),
    "a run of its own": (runs_itself, "zero"),
    "a run that returns nothing": (runs_quietly, "zero"),
    "hooks in a dict": (lambda model: lambda: HooksInADict(model), "zero"),
    "another module": (replaced, "zero"),
}


@pytest.mark.parametrize("right", RIGHT)
def test_what_is_right_is_said_to_be(gpt2: Any, right: str) -> None:
    context, by = RIGHT[right]
    found = audited(gpt2, context(gpt2))
    assert (found.verdict, found.is_right, found.repair) == ("exactly these heads removed", True, "")
    assert found.summary.startswith("exactly L1H2 removed by ")
    assert {row.head: row.done for row in found.rows if row.done != "untouched"} == {NAMED: by}


def test_an_output_of_another_run_is_patched_in(gpt2: Any) -> None:
    other = headcount.head_outputs(gpt2, {**TEXT, "input_ids": TEXT["input_ids"].flip(1)})
    found = audited(gpt2, headcount.patched(gpt2, {NAMED: other[NAMED]}))
    assert found.is_right
    assert (
        found.summary
        == "exactly L1H2 removed by other values that do not depend on its own output (such as noise, or another run's "
        "output)"
    )


def test_several_heads_in_several_layers(gpt2: Any) -> None:
    heads = ["L0H1", "L1H0", "L1H3", "L2H2"]
    found = audited(gpt2, headcount.ablated(gpt2, heads), heads)
    assert found.summary == "exactly L0H1, L1H0, L1H3, L2H2 removed by zero ablation"
    found = audited(gpt2, headcount.ablated(gpt2, heads[:3]), heads)
    assert found.summary == "not all of them: L0H1, L1H0, L1H3 removed by zero ablation; L2H2 untouched"


def test_what_follows_from_a_change_is_not_taken_for_another(gpt2: Any) -> None:
    """Every later layer differs, and only one head was touched."""
    found = audited(gpt2, headcount.ablated(gpt2, "L0H0"), "L0H0")
    assert [row.head for row in found.rows if row.change] == ["L0H0"]
    assert found.output_change > 0.01


def test_weights_at_zero_under_autocast() -> None:
    """What heads find is of another precision than the weights that it is projected by."""
    model = hub.build("gpt2", torch.float32)
    model.transformer.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.transformer.forward)
    for context in (without_weights(model), on_input(projection_of(model), zero())):
        assert audit_intervention(model, TEXT, context, NAMED).verdict == "exactly these heads removed"


# --- other models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "albert"])
def test_families(name: str) -> None:
    model, inputs = hub.build(name, torch.float32), hub.inputs_of(name)
    sites = wrap(model).head_sites
    heads = [sites.heads[1], sites.heads[-1]]
    assert audit_intervention(model, inputs, headcount.ablated(model, heads), heads).is_right
    site = sites[heads[-1].site]
    wrong = on_output(site.projection, zero(1), len(site.heads))
    assert audit_intervention(model, inputs, wrong, heads[1:]).verdict == "residual coordinates instead of a head"


def test_heads_that_share_values_go_together() -> None:
    """Slices of v_proj's output are those of two query heads each; the number of a query head names others."""
    model, inputs = hub.build("llama", torch.float32), hub.inputs_of("llama")
    values = model.model.layers[1].self_attn.v_proj
    found = audit_intervention(model, inputs, on_output(values, zero(0), 2), ["L1H0"])
    told = (
        "other heads as well: L1H0 removed by zero ablation; but also L1H1 removed by zero ablation (they share keys "
        "and values)"
    )
    assert found.summary == told
    found = audit_intervention(model, inputs, on_output(values, zero(1), 2), ["L1H1"])
    told = "other heads instead: L1H2, L1H3 removed by zero ablation (they share keys and values)"
    assert found.summary.startswith(told)


@pytest.mark.parametrize("batch_first", [True, False])
def test_hooks_that_pytorch_never_calls(batch_first: bool) -> None:
    layer = torch_models.layer(nn.TransformerEncoderLayer, batch_first=batch_first)
    model = scattered(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    inputs = torch_models.states(first=batch_first)
    before = torch_models.flags(model)
    attention = model.layers[1].self_attn
    found = audit_intervention(model, inputs, on_input(attention.out_proj, zero(1), 2), ["L1H1"])
    assert found.verdict == "did nothing"
    path = "layers.1.self_attn.out_proj"
    assert found.summary.endswith(f"the model never calls {path}, where the intervention has its hook")
    assert found.repair == "with headcount.ablated(model, ['L1H1']):"
    assert audit_intervention(model, inputs, headcount.ablated(model, "L1H1"), ["L1H1"]).is_right
    found = audit_intervention(model, inputs, on_output(attention, zero(1), 2), ["L1H1"])
    assert found.verdict == "residual coordinates instead of a head"
    found = audit_intervention(model, inputs, on_output(attention, lambda x: x.zero_(), 2), ["L1H1"])
    assert "but also L1H0 removed by zero ablation (all heads of L1)" in found.summary
    assert torch_models.flags(model) == before


def test_a_forward_that_the_fast_path_passes_by() -> None:
    model = torch_models.encoder().float()
    attention = model.layers[1].self_attn

    def patch() -> Any:
        attention.forward = lambda *args, **kwargs: (args[0] * 0, None)

        class Handle:
            def remove(self) -> None:
                del attention.forward

        return Handle()

    found = audit_intervention(model, torch_models.states().float(), patch, ["L1H1"])
    assert found.verdict == "did nothing"
    assert "PyTorch's fast path computes whole layers without calling layers.1.self_attn" in found.summary


def test_a_run_of_headcount() -> None:
    run: Any = headcount.load("sample:addition")
    batch = run.task.encode(run.task.split("test")[:8])
    inputs = torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input)
    heads = ["E0H1", "X1H2", "D1H0"]
    found = audit_intervention(run, inputs, headcount.ablated(run, heads, by="mean"), heads)
    assert found.is_right
    assert found.summary.startswith("exactly E0H1, X1H2, D1H0 removed by a constant")
    wrong = on_input(run.model.decoder[1].self_attention.attention.output, zero(2))
    found = audit_intervention(run, inputs, wrong, ["X1H2"])
    assert found.summary.startswith("wrong layer: D1H2 removed by zero ablation; X1H2 untouched")


class HookedLinear(nn.Module):
    """As TransformerLens 4 has it: a hook point, which hands z on, before the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_in, self._original_component = nn.Identity(), nn.Linear(8, 8)

    def forward(self, z: Tensor) -> Tensor:
        return self._original_component(self.hook_in(z))


class HookedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v, self.o = nn.Linear(8, 8), HookedLinear()

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.v(x).cumsum(dim=1))


class Bridge(nn.Module):
    """A model of TransformerLens 4, as far as its heads go."""

    def __init__(self) -> None:
        super().__init__()
        self.cfg, self.config = SimpleNamespace(n_heads=4), SimpleNamespace(model_type="gpt2")
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": HookedAttention()}) for _ in range(2))

    def forward(self, input: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            input = input + block["attn"](input)
        return input

    def run_with_hooks(self, input: Tensor, path: str) -> Tensor:
        with on_output(self.get_submodule(path), zero())():
            return self.forward(input)  # not self(input)


@pytest.mark.parametrize("path", ["blocks.1.attn.o.hook_in", "blocks.1.attn.v"])
def test_a_bridge_of_transformer_lens(path: str) -> None:
    model, inputs = scattered(Bridge()), torch.randn(3, 5, 8, dtype=torch.double)
    assert audit_intervention(model, inputs, lambda: model.run_with_hooks(inputs, path), [NAMED]).is_right
    assert audit_intervention(model, inputs, on_output(model.get_submodule(path), zero()), [NAMED]).is_right
    assert audit_intervention(model, inputs, headcount.ablated(model, NAMED), [NAMED]).is_right
    wrong = audit_intervention(model, inputs, lambda: model.run_with_hooks(inputs, "blocks.1.attn"), [NAMED])
    assert wrong.verdict == "residual coordinates instead of a head"


def test_sites_of_ones_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6)).eval()
    sites = headcount.Sites.of(model, layer="1", n_heads=2)
    found = audit_intervention(model, torch.randn(3, 5, 6), on_input(model[1], zero(0), 2), ["L0H1"], sites=sites)
    assert found.verdict == "other heads instead"
    assert "headcount.ablated(model, ['L0H1'], sites=sites)" in found.repair


def test_a_head_that_nothing_depends_on() -> None:
    model = hub.build("gpt2", torch.float32)
    with torch.no_grad():
        projection_of(model).weight[16:24] = 0
    found = audited(model, headcount.ablated(model, NAMED))
    told = "exactly L1H2 removed by zero ablation; but the model's output is bit for bit the same"
    assert found.summary.startswith(told)


# --- what cannot be audited, and what is left behind ------------------------------------------------------------------


def test_an_exception_inside_is_told(gpt2: Any) -> None:
    before = trace(gpt2)

    def fails(module: nn.Module, args: Any) -> None:
        raise RuntimeError("shape '[3, 7, 5, 8]' is invalid")

    with pytest.raises(InputError, match=r"the intervention raised RuntimeError: shape '\[3, 7, 5, 8\]' is invalid"):
        audit_intervention(gpt2, TEXT, lambda: projection_of(gpt2).register_forward_pre_hook(fails), NAMED)
    assert trace(gpt2) == before


def test_hooks_that_are_left_behind_are_taken_away_and_told(gpt2: Any) -> None:
    @contextmanager
    def forgets() -> Iterator[None]:
        on_input(projection_of(gpt2), zero())()
        yield

    found = audited(gpt2, forgets())
    assert not found.is_right
    left = (
        "when its context ended, the intervention had not undone these changes: hooks at transformer.h.1.attn.c_proj "
        "(this audit has undone them)"
    )
    assert found.summary == f"exactly L1H2 removed by zero ablation; {left}"


def test_weights_that_are_left_changed_are_put_back_and_told(gpt2: Any) -> None:
    @contextmanager
    def cuts() -> Iterator[None]:
        with torch.no_grad():
            projection_of(gpt2).weight[16:24] = 0
        yield

    found = audited(gpt2, cuts())
    assert not found.is_right
    left = (
        "the intervention had not undone these changes: other values of transformer.h.1.attn.c_proj.weight (this audit "
        "has undone them)"
    )
    assert found.summary == f"exactly L1H2 removed by zero ablation; when its context ended, {left}"


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (3, "int is not an intervention"),
        (lambda: 3, "did not run the model"),
        ({"mask_of_heads": 3}, "the intervention raised TypeError"),
    ],
)
def test_what_is_no_intervention(context: Any, words: str) -> None:
    model = torch_models.encoder()
    with pytest.raises(InputError, match=words):
        audit_intervention(model, torch_models.states(), context, "L0H0")


def test_hooks_that_are_there_already_are_refused(gpt2: Any) -> None:
    with on_input(projection_of(gpt2), zero())() as handle, pytest.raises(InputError, match="registered already"):
        audit_intervention(gpt2, TEXT, handle, NAMED)


def test_a_context_whose_hooks_are_there_already_is_refused(gpt2: Any) -> None:
    before = trace(gpt2)
    with pytest.raises(InputError, match=r"registered its hook on .* before the context was entered"):
        audit_intervention(gpt2, TEXT, HooksInADict(gpt2), NAMED)
    assert trace(gpt2) == before


def test_heads_and_inputs_are_checked(gpt2: Any) -> None:
    with pytest.raises(InputError, match=r"no head 'layer\.7\.self\.0'"):
        audit_intervention(gpt2, TEXT, {}, "L7H0")
    with pytest.raises(InputError, match="no heads were named"):
        audit_intervention(gpt2, TEXT, {}, [])
    with pytest.raises(InputError, match="the inputs must be tensors"):
        audit_intervention(gpt2, "a text", {}, NAMED)


def test_the_result_is_one(gpt2: Any) -> None:
    found = audited(gpt2, on_input(projection_of(gpt2), zero(1)))
    assert InterventionAudit.from_json(found.to_json()) == found
    assert [row["head"] for row in found.to_rows() if row["is_named"]] == [NAMED]
    assert str(found).splitlines()[0] == found.summary
