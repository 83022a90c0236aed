"""Is a head removed? Other people's interventions, each with the right verdict.

A head is removed if what stands in its place does not follow what the head computes (headcount.auditing.dependence).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hub_models as hub
import pytest
import torch
import torch_models
from own_models import trace
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import headcount
from headcount.auditing.interventions import InterventionAudit, audit_intervention
from headcount.errors import InputError, InstrumentError

pytestmark = pytest.mark.slow  # seconds together

NAMED, LAYER, HEAD, N_HEADS, D_HEAD, WIDTH = "L1H2", 1, 2, 4, 8, 32
SLICE = slice(HEAD * D_HEAD, (HEAD + 1) * D_HEAD)
TEXT = dict(zip(("input_ids", "attention_mask"), hub.inputs_of("gpt2"), strict=True))
Intervention = Callable[[Any], Any]
"""Makes of a GPT-2 what `audit_intervention` takes."""


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """A small GPT-2 with sharp attention, so that even attention is far from it."""
    model = hub.build("gpt2", torch.float32)
    for block in model.transformer.h:
        block.attn.c_attn.weight.data[:, :WIDTH] *= 10
    return model


def attention_of(gpt2: Any) -> Any:
    return gpt2.transformer.h[LAYER].attn


def audited(model: Any, context: Any) -> InterventionAudit:
    before = trace(model)
    audit = audit_intervention(model, TEXT, context, NAMED)
    assert trace(model) == before  # hooks, training modes, weights, buffers
    return audit


# --- ways to intervene ------------------------------------------------------------------------------------------------


def z_becomes(replacement: Callable[[Tensor], Tensor]) -> Intervention:
    """Replace the head's z [row, position, d_head] in a pre-hook of the output projection."""
    return all_z_becomes(lambda z: replacement(z[..., HEAD, :]))


def all_z_becomes(replacement: Callable[[Tensor], Tensor]) -> Intervention:
    """Replace the head's z by something that is made of all heads' [row, position, head, d_head]."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].unflatten(-1, (N_HEADS, -1)).clone()
        z[..., HEAD, :] = replacement(z.clone())
        return (z.flatten(-2), *args[1:])

    return lambda gpt2: lambda: attention_of(gpt2).c_proj.register_forward_pre_hook(hook)


def slice_becomes(which: str, replacement: Callable[[Tensor], Tensor]) -> Intervention:
    """Replace the head's queries, keys or values in a hook on the output of `c_attn`."""
    start = "qkv".index(which) * WIDTH + SLICE.start

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., start : start + D_HEAD] = replacement(output[..., start : start + D_HEAD].clone())
        return output

    return lambda gpt2: lambda: attention_of(gpt2).c_attn.register_forward_hook(hook)


def weights_become(edit: Callable[[Any], None]) -> Intervention:
    """Edit weights, and put them back when the context ends."""

    def make(gpt2: Any) -> Any:
        @contextmanager
        def context() -> Iterator[None]:
            kept = {name: each.clone() for name, each in gpt2.state_dict().items()}
            with torch.no_grad():
                edit(attention_of(gpt2))
            try:
                yield
            finally:
                gpt2.load_state_dict(kept)

        return context

    return make


def attends_by(function: Callable[..., Any]) -> Intervention:
    """Compute the head's z by a function of z [row, position, head, d], and of q, k, v [row, head, position, d]."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def forward(attention: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return sdpa_attention_forward(attention, query, key, value, *args, **kwargs)

        z, weights = attend(query, key, value)
        if attention.layer_idx == LAYER:
            z = z.clone()
            z[:, :, HEAD] = function(z, query, key, value, attend)
        return z, weights

    def make(gpt2: Any) -> Any:
        @contextmanager
        def context() -> Iterator[None]:
            AttentionInterface.register("of_ones_own", forward)
            AttentionMaskInterface.register("of_ones_own", sdpa_mask)
            before = gpt2.config._attn_implementation
            gpt2.set_attn_implementation("of_ones_own")
            try:
                yield
            finally:
                gpt2.set_attn_implementation(before)

        return context

    return make


def set_to_zero(*columns: tuple[str, int, int]) -> Callable[[Any], None]:
    def edit(attention: Any) -> None:
        for name, start, stop in columns:
            getattr(attention.c_attn, name)[..., start:stop] = 0

    return edit


def own_noise() -> Callable[[Tensor], Tensor]:
    """Noise from a generator of one's own, so that every pass has another."""
    draw = torch.Generator().manual_seed(0)
    return lambda z: torch.randn(z.shape, generator=draw)


def added_noise() -> Callable[[Tensor], Tensor]:
    noise = own_noise()
    return lambda z: z + noise(z)


def without_direction(z: Tensor) -> Tensor:
    direction = torch.ones(D_HEAD) / D_HEAD**0.5
    return z - (z @ direction)[..., None] * direction


def with_other_rows_pattern(z: Tensor, query: Tensor, key: Tensor, value: Tensor, attend: Any) -> Tensor:
    return attend(query.roll(1, 0), key.roll(1, 0), value)[0][:, :, HEAD]


def runs_twice(gpt2: Any) -> Any:
    """Cache the head's output in a first pass, and put other rows' in in a second."""

    def run() -> Any:
        kept: list[Tensor] = []
        projection = attention_of(gpt2).c_proj
        with projection.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone())):
            gpt2(**TEXT)

        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            z = args[0].clone()
            z[..., SLICE] = kept[0].roll(1, 0)[..., SLICE]
            return (z, *args[1:])

        with projection.register_forward_pre_hook(hook):
            return gpt2(**TEXT)

    return run


def patched_forward(gpt2: Any) -> Any:
    """Assign another forward() to the output projection."""

    @contextmanager
    def context() -> Iterator[None]:
        projection = attention_of(gpt2).c_proj
        forward = projection.forward
        projection.forward = lambda z: forward(z.index_fill(-1, torch.arange(SLICE.start, SLICE.stop), 0.0))
        try:
            yield
        finally:
            del projection.forward

    return context


def cached_mean(gpt2: Any) -> Any:
    """A mean over other inputs, computed before."""
    other = headcount.head_outputs(gpt2, {**TEXT, "input_ids": TEXT["input_ids"].flip(1)})
    return z_becomes(lambda z: other[NAMED].mean((0, 1)).expand_as(z))(gpt2)


def cached_own_output(gpt2: Any) -> Any:
    """The head's own output on the very same examples, at other positions."""
    own = headcount.head_outputs(gpt2, TEXT)[NAMED]
    return z_becomes(lambda z: own.roll(1, 1))(gpt2)


def recomputed(gpt2: Any) -> Any:
    """The head computed again, from what enters its block, with even attention."""
    attention = attention_of(gpt2)

    def context() -> Any:
        kept: list[Tensor] = []
        handles = [attention.c_attn.register_forward_hook(lambda module, args, qkv: kept.append(qkv))]
        average = torch.ones(7, 7).tril() / torch.arange(1, 8)[:, None]
        again = z_becomes(lambda z: average @ kept[-1][..., 2 * WIDTH :][..., SLICE])(gpt2)
        return [*handles, again()]

    return context


def earlier_layers(gpt2: Any) -> Any:
    """The output of a head of the layer before."""

    def context() -> Any:
        kept: list[Tensor] = []
        before = gpt2.transformer.h[LAYER - 1].attn.c_proj
        handles = [before.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone()))]
        return [*handles, z_becomes(lambda z: kept[-1][..., SLICE])(gpt2)()]

    return context


def mean_contribution(gpt2: Any) -> Any:
    """The head's contribution to the residual stream is taken away, and its mean is put in."""

    def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        contribution = args[0][..., SLICE] @ module.weight[SLICE]
        return output - contribution + contribution.mean((0, 1))

    return lambda: attention_of(gpt2).c_proj.register_forward_hook(hook)


def pruned(gpt2: Any) -> Any:
    """As PyTorch prunes weights: by a mask, with a hook and a parameter of another name."""
    mask = torch.ones(WIDTH, WIDTH)
    mask[SLICE] = 0
    return lambda: prune.custom_from_mask(attention_of(gpt2).c_proj, "weight", mask) and None


def parametrized(gpt2: Any) -> Any:
    """Weights as a function of weights, for which PyTorch gives the module another class."""

    class WithoutHead(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.index_fill(0, torch.arange(SLICE.start, SLICE.stop), 0.0)

    return lambda: parametrize.register_parametrization(attention_of(gpt2).c_proj, "weight", WithoutHead()) and None


def others_than(place: int) -> list[int]:
    return [i for i in range(N_HEADS) if i != place]


VALUES = (2 * WIDTH + SLICE.start, 2 * WIDTH + SLICE.stop)
REMOVED: dict[str, tuple[Intervention, str]] = {
    "zero": (z_becomes(torch.zeros_like), "zero"),
    "times a mask of heads": (
        z_becomes(lambda z: z * torch.ones(N_HEADS).index_fill(0, torch.tensor(2), 0)[2]),
        "zero",
    ),
    "mean over the batch": (z_becomes(lambda z: z.mean(0).expand_as(z)), "mean"),
    "mean over batch and positions": (z_becomes(lambda z: z.mean((0, 1)).expand_as(z)), "mean"),
    "largest of the batch": (z_becomes(lambda z: z.amax(0).expand_as(z)), "constant"),
    "a constant": (z_becomes(lambda z: torch.full_like(z, 0.5)), "constant"),
    "mean over other inputs": (cached_mean, "constant"),
    "mean over the other rows": (z_becomes(lambda z: (z.sum(0) - z) / (len(z) - 1)), "other"),
    "next row's": (z_becomes(lambda z: z.roll(1, 0)), "resample"),
    "next row's, shuffled over positions": (z_becomes(lambda z: z.roll((1, 2), (0, 1))), "other"),
    "another row's, in a run that caches first": (runs_twice, "resample"),
    "noise instead of z": (z_becomes(torch.randn_like), "other"),
    "new noise in every pass": (z_becomes(own_noise()), "other"),
    "another head's": (all_z_becomes(lambda z: z[..., 1, :]), "another head"),
    "another layer's head": (earlier_layers, "another head"),
    "mean of the other heads": (all_z_becomes(lambda z: z[..., others_than(HEAD), :].mean(-2)), "other"),
    "zero values": (slice_becomes("v", torch.zeros_like), "zero"),
    "mean values": (slice_becomes("v", lambda v: v.mean((0, 1)).expand_as(v)), "constant"),
    "zero rows of the output projection": (
        weights_become(lambda attention: attention.c_proj.weight[SLICE].zero_()),
        "zero",
    ),
    "zero weights and biases of values": (
        weights_become(set_to_zero(("weight", *VALUES), ("bias", *VALUES))),
        "zero",
    ),
    "zero weights of values, and their biases": (weights_become(set_to_zero(("weight", *VALUES))), "constant"),
    "an attention function with zeros": (attends_by(lambda z, *given: 0.0), "zero"),
    "an attention function with another head": (attends_by(lambda z, *given: z[:, :, 1]), "another head"),
    "an attention function with another row": (attends_by(lambda z, *given: z[:, :, HEAD].roll(1, 0)), "resample"),
    "another forward()": (patched_forward, "zero"),
    "mean contribution": (mean_contribution, "constant"),
    "torch.nn.utils.prune": (pruned, "zero"),
    "torch.nn.utils.parametrize": (parametrized, "zero"),
}
"""Right ones, and what stands in the head's place."""
NOT_REMOVED: dict[str, tuple[Intervention, str, str]] = {
    "zero queries": (
        slice_becomes("q", torch.zeros_like),
        "not removed",
        "given uniform attention weights, while its values",
    ),
    "zero keys": (
        slice_becomes("k", torch.zeros_like),
        "not removed",
        "given uniform attention weights, while its values",
    ),
    "the key slice taken for values, and its mean": (
        slice_becomes("k", lambda k: k.mean((0, 1)).expand_as(k)),
        "not removed",
        "given uniform attention",
    ),
    "zero weights of queries": (
        weights_become(set_to_zero(("weight", SLICE.start, SLICE.stop), ("bias", SLICE.start, SLICE.stop))),
        "not removed",
        "given uniform attention",
    ),
    "sharper attention": (
        slice_becomes("q", lambda q: 4 * q),
        "not removed",
        "still depends on what the head computes",
    ),
    "another row's values": (slice_becomes("v", lambda v: v.roll(1, 0)), "not removed", "still depends on what"),
    "mean values of each position": (
        slice_becomes("v", lambda v: v.mean(0).expand_as(v)),
        "not removed",
        "still depends",
    ),
    "half its values": (slice_becomes("v", lambda v: 0.5 * v), "scaled, not removed", "scaled by 0.5"),
    "another row's attention weights": (attends_by(with_other_rows_pattern), "not removed", "still depends on what"),
    "attention to itself alone": (
        attends_by(lambda z, query, key, value, attend: value[:, HEAD]),
        "not removed",
        "still depends on what the head computes",
    ),
    "computed again, with even attention": (
        recomputed,
        "not removed",
        "still depend on the example, but not through the head's own output",
    ),
    "noise added": (z_becomes(lambda z: z + torch.randn_like(z)), "not removed", "kept, with other values, such as"),
    "new noise added in every pass": (
        z_becomes(added_noise()),
        "not removed",
        "still depends on what the head computes",
    ),
    "a constant added": (z_becomes(lambda z: z + 1), "not removed", "kept, with a constant added to it"),
    "half itself, half its mean": (
        z_becomes(lambda z: 0.5 * z + 0.5 * z.mean((0, 1))),
        "not removed",
        "still depends on what the head computes",
    ),
    "half itself, half another row's": (z_becomes(lambda z: (z + z.roll(1, 0)) / 2), "not removed", "scaled by 0.5"),
    "features reversed": (z_becomes(lambda z: z.flip(-1)), "not removed", "the features in another order"),
    "features rolled": (z_becomes(lambda z: z.roll(3, -1)), "not removed", "the features in another order"),
    "features averaged": (
        z_becomes(lambda z: z.mean(-1, keepdim=True).expand_as(z)),
        "not removed",
        "mean of its feat",
    ),
    "relu": (z_becomes(torch.relu), "not removed", "with negative values set to zero"),
    "tanh": (z_becomes(torch.tanh), "not removed", ""),
    "sign flipped": (z_becomes(torch.neg), "scaled, not removed", "scaled by -1"),
    "length one": (z_becomes(lambda z: z / z.norm(dim=-1, keepdim=True)), "not removed", "still depends on what"),
    "batch mean subtracted": (z_becomes(lambda z: z - z.mean(0)), "not removed", "the mean over the batch subtracted"),
    "position mean subtracted": (
        z_becomes(lambda z: z - z.mean(1, keepdim=True)),
        "not removed",
        "mean over positions",
    ),
    "feature mean subtracted": (
        z_becomes(lambda z: z - z.mean(-1, keepdim=True)),
        "not removed",
        "the mean of the features subtracted",
    ),
    "one direction removed": (
        z_becomes(lambda z: z - 2 * (z - without_direction(z))),
        "not removed",
        "still depends on what the head computes",
    ),
    "rolled over positions": (
        z_becomes(lambda z: z.roll(1, 1)),
        "not removed",
        "at other positions of the same example",
    ),
    "positions reversed": (z_becomes(lambda z: z.flip(1)), "not removed", "at other positions of the same example"),
    "rolled over positions, from a cache": (cached_own_output, "not removed", "at other positions of the same example"),
    "mean over positions": (z_becomes(lambda z: z.mean(1, keepdim=True).expand_as(z)), "not removed", "over positions"),
    "mean over earlier positions": (
        z_becomes(lambda z: z.cumsum(1) / torch.arange(1, 8)[:, None]),
        "not removed",
        "still depends on what the head computes",
    ),
    "first row's in every row": (
        z_becomes(lambda z: z[:1].expand_as(z)),
        "removed in places only",
        "replaced in 2 of 3 rows only",
    ),
    "mean at the last position": (
        z_becomes(lambda z: torch.cat([z[:, :-1], z[:, -1:].mean(0).expand(3, 1, -1)], dim=1)),
        "removed in places only",
        "replaced at 3 of 21 positions only",
    ),
    "half of the features at zero": (
        z_becomes(lambda z: torch.cat([z[..., :4], 0 * z[..., 4:]], dim=-1)),
        "removed in places only",
        "zeroed in 84 of its 168 values only",
    ),
    "mean of all heads": (all_z_becomes(lambda z: z.mean(-2)), "not removed", "scaled by 0.25"),
}
"""Wrong ones, with verdict and words: the head's own information is still there."""


@pytest.mark.parametrize("name", REMOVED)
def test_a_head_that_does_not_follow_is_removed(gpt2: Any, name: str) -> None:
    intervention, kind = REMOVED[name]
    audit = audited(gpt2, intervention(gpt2))
    assert audit.summary.startswith("exactly L1H2 removed by ")
    assert audit.is_right
    assert {row.head: row.done for row in audit.rows if row.done != "untouched"} == {NAMED: kind}


@pytest.mark.parametrize("name", NOT_REMOVED)
def test_a_head_that_follows_is_not_removed(gpt2: Any, name: str) -> None:
    intervention, verdict, words = NOT_REMOVED[name]
    audit = audited(gpt2, intervention(gpt2))
    assert (audit.verdict, audit.is_right) == (verdict, False)
    assert words in audit.summary
    assert [row.head for row in audit.rows if row.done != "untouched"] == [NAMED]


# --- other models, and other inputs -----------------------------------------------------------------------------------


class OwnAttention(nn.Module):
    """A stranger's model of no family: attention is no module of its own, and z comes to `o` with rows flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = (each(x).unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        z = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(-2)
        return self.out(x + self.o(z.flatten(0, 1)).view_as(x)).mean(1)


@pytest.fixture(scope="module")
def stranger() -> Any:
    torch.manual_seed(0)
    return OwnAttention().eval()


def audited_stranger(model: Any, context: Any, tokens: Tensor | None = None) -> InterventionAudit:
    tokens = torch.arange(24).view(4, 6) % 20 if tokens is None else tokens
    sites = headcount.Sites.of(model, layer="o", n_heads=N_HEADS)
    before = trace(model)
    audit = audit_intervention(model, tokens, context, "L0H2", sites=sites)
    assert trace(model) == before
    return audit


def output_becomes(module: nn.Module, replacement: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., SLICE] = replacement(output[..., SLICE].clone())
        return output

    return lambda: module.register_forward_hook(hook)


def input_becomes(module: nn.Module, replacement: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    def hook(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        z = args[0].clone()
        z[..., SLICE] = replacement(z[..., SLICE].clone())
        return (z,)

    return lambda: module.register_forward_pre_hook(hook)


def mean_over_rows(z: Tensor) -> Tensor:
    return z.view(4, 6, -1).mean(0).repeat(4, 1)


STRANGERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "zero": (lambda model: input_becomes(model.o, torch.zeros_like), "exactly L0H2 removed by zero ablation"),
    "mean": (lambda model: input_becomes(model.o, mean_over_rows), "exactly L0H2 removed by mean"),
    "next example's": (
        lambda model: input_becomes(model.o, lambda z: z.roll(6, 0)),
        "exactly L0H2 removed by resample",
    ),
    "zero values": (lambda model: output_becomes(model.v, torch.zeros_like), "exactly L0H2 removed by zero ablation"),
    "zero queries": (
        lambda model: output_becomes(model.q, torch.zeros_like),
        "not removed: L0H2 given uniform attention",
    ),
    "zero keys": (lambda model: output_becomes(model.k, torch.zeros_like), "not removed: L0H2 given uniform attention"),
    "noise added": (
        lambda model: input_becomes(model.o, lambda z: z + torch.randn_like(z)),
        "not removed: L0H2 kept, with other values, such as noise, added to it",
    ),
    "what is projected already": (
        lambda model: output_becomes(model.o, torch.zeros_like),
        "residual coordinates instead of a head",
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_model_of_no_family_is_audited_if_its_sites_are_given(stranger: Any, name: str) -> None:
    intervention, words = STRANGERS[name]
    assert audited_stranger(stranger, intervention(stranger)).summary.startswith(words)


@pytest.mark.parametrize(("path", "n_heads"), [("o", 2), ("o", 2 * N_HEADS)])
def test_sites_that_are_no_heads_are_refused(stranger: Any, path: str, n_heads: int) -> None:
    """An intervention on half a head, or on two, would be called the removal of one."""
    sites = headcount.Sites.of(stranger, layer=path, n_heads=n_heads)
    intervention = input_becomes(stranger.o, torch.zeros_like)
    with pytest.raises(InstrumentError, match="are not whole heads"):
        audit_intervention(stranger, torch.arange(24).view(4, 6) % 20, intervention, "L0H1", sites=sites)


@pytest.mark.parametrize(
    "tokens",
    [
        torch.tensor([[3, 1, 4, 1, 5, 9]]),
        torch.tensor([[3, 1, 4, 1, 5, 9]] * 3),
        torch.tensor([[3, 1, 4, 1, 5, 9], [9, 5, 1, 4, 1, 3], [1, 1, 3, 4, 5, 9]]),
    ],
    ids=["one row", "rows that are alike", "rows of the same tokens"],
)
def test_even_attention_is_not_taken_for_removal(stranger: Any, tokens: Tensor) -> None:
    """What a head with even attention computes is the same for all orders of the same tokens."""
    audit = audited_stranger(stranger, output_becomes(stranger.q, torch.zeros_like), tokens)
    assert audit.summary.startswith("not removed: L0H2 given uniform attention")
    assert audited_stranger(stranger, input_becomes(stranger.o, torch.randn_like), tokens).is_right


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_weights_of_queries_of_pytorchs_attention(batch_first: bool) -> None:
    layer = torch_models.layer(nn.TransformerEncoderLayer, batch_first=batch_first)
    model, inputs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval(), torch_models.states()
    attention: Any = model.layers[1].self_attn

    def cut(first: int) -> None:
        attention.in_proj_weight.data[first : first + 4] = 0
        attention.in_proj_bias.data[first : first + 4] = 0

    inputs = inputs if batch_first else inputs.transpose(0, 1)
    audits = [audit_intervention(model, inputs, lambda first=first: cut(first), "L1H1") for first in (4, 12, 20)]
    even = "not removed: L1H1 given uniform attention weights, while its values still pass through"
    assert [audit.summary for audit in audits] == [even, even, "exactly L1H1 removed by zero ablation"]


def test_heads_that_change_places_are_both_told(gpt2: Any) -> None:
    """Each follows the other one, and neither itself."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].unflatten(-1, (N_HEADS, -1))
        return (z[..., [0, 2, 1, 3], :].flatten(-2), *args[1:])

    audit = audit_intervention(
        gpt2, TEXT, lambda: attention_of(gpt2).c_proj.register_forward_pre_hook(hook), ["L1H1", "L1H2"]
    )
    assert audit.summary == "exactly L1H1, L1H2 removed by another head's output"


def test_an_intervention_that_fails_on_other_inputs_is_told(gpt2: Any) -> None:
    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        assert torch.equal(kwargs["input_ids"], TEXT["input_ids"])

    def context() -> Any:
        inner = slice_becomes("q", lambda q: q.roll(1, 0))(gpt2)()
        return [inner, gpt2.register_forward_pre_hook(hook, with_kwargs=True)]

    audit = audited(gpt2, context)
    assert not audit.is_right


# --- pyvene -----------------------------------------------------------------------------------------------------------

PYVENE = {
    ("head_attention_value_output", "ZeroIntervention"): "exactly L1H2 removed by zero ablation",
    ("head_attention_value_output", "VanillaIntervention"): "exactly L1H2 removed by other values",
    ("head_attention_value_output", "AdditionIntervention"): "not removed: L1H2 kept, with other values",
    ("head_value_output", "ZeroIntervention"): "exactly L1H2 removed by zero ablation",
    ("head_value_output", "VanillaIntervention"): "not removed",
    ("head_query_output", "ZeroIntervention"): "not removed",
    ("head_key_output", "VanillaIntervention"): "not removed",
}
"""What is put where, and what the audit says."""


@pytest.mark.filterwarnings("ignore")
def test_interventions_of_pyvene() -> None:
    pyvene = pytest.importorskip("pyvene", reason="pyvene is no requirement")
    model, (tokens, _) = hub.build("llama", torch.float32, num_key_value_heads=4), hub.inputs_of("llama")
    for (component, kind), words in PYVENE.items():
        place = {"layer": 1, "component": component, "unit": "h", "intervention_type": getattr(pyvene, kind)}
        is_alone = kind == "ZeroIntervention"
        sources = None if is_alone else [{"input_ids": tokens.flip(1)}]
        locations = {"base": 2} if is_alone else {"sources->base": (2, 2)}

        def run(place: Any = place, sources: Any = sources, locations: Any = locations) -> None:
            pyvene.IntervenableModel(place, model=model)({"input_ids": tokens}, sources, unit_locations=locations)

        assert audit_intervention(model, tokens, run, NAMED).summary.startswith(words), (component, kind)


# --- what is not a number, and what is put back -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "intervention",
    [z_becomes(lambda z: z / 0 * 0), slice_becomes("q", lambda q: q * torch.inf)],
    ids=["a division by zero", "infinite scores"],
)
def test_outputs_that_are_not_numbers_are_told(gpt2: Any, intervention: Intervention) -> None:
    audit = audited(gpt2, intervention(gpt2))
    assert (audit.verdict, audit.is_right, audit.output_change) == ("output that is not a number", False, 1.0)
    assert "values of the model's output are NaN with the intervention; L1H2 replaced by values that are not" in str(
        audit
    )
    assert InterventionAudit.from_json(audit.to_json()) == audit


def test_a_model_whose_own_output_is_not_a_number_is_refused() -> None:
    model = OwnAttention().eval()
    model.out.bias.data[0] = torch.nan
    with pytest.raises(InputError, match=r"the model's output has NaN without any intervention \(4 of 8 values\)"):
        audited_stranger(model, input_becomes(model.o, torch.zeros_like))


def spoil(model: Any) -> None:
    """Change everything that an intervention may change, and put nothing back."""
    block = model.transformer.h[0]
    with torch.no_grad():
        block.attn.c_proj.weight[SLICE] = 0
    block.attn.c_proj.bias = nn.Parameter(torch.zeros(WIDTH))
    block.mlp.c_fc.weight.data = block.mlp.c_fc.weight.data.half().float()
    block.ln_1.requires_grad_(False)
    block.mlp = nn.Identity()
    block.new_attribute, model.transformer.extra = 3, nn.Identity()
    model.config.attn_pdrop = 0.9
    model.train()
    model.transformer.ln_f.forward = lambda x: x
    block.register_forward_hook(lambda module, args, output: None)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("ends", ["as it should", "with an error", "with an interrupt"])
def test_the_model_is_put_back(ends: str, is_training: bool) -> None:
    model: Any = hub.build("gpt2", torch.float32).train(is_training)
    before, settings, weight = trace(model), dict(vars(model.config)), model.transformer.h[0].attn.c_proj.weight
    errors = {"with an error": RuntimeError, "with an interrupt": KeyboardInterrupt}

    @contextmanager
    def context() -> Iterator[None]:
        spoil(model)
        yield
        if ends in errors:
            raise errors[ends]

    noise = torch.random.get_rng_state()
    if ends in errors:
        with pytest.raises(InputError if ends == "with an error" else KeyboardInterrupt):
            audit_intervention(model, TEXT, context(), "L0H2")
    else:
        summary = audit_intervention(model, TEXT, context(), "L0H2").summary
        assert "when its context ended, the intervention had not undone these changes: hooks at" in summary
    assert trace(model) == before
    assert [each.training for each in model.modules()] == [is_training] * len(list(model.modules()))
    assert vars(model.config) == settings
    assert model.transformer.h[0].attn.c_proj.weight is weight
    assert all(each.requires_grad for each in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), noise)


def test_a_function_may_change_weights_for_good(gpt2: Any) -> None:
    """There is nothing that would put them back but the audit."""

    def cut(model: Any) -> None:
        attention_of(model).c_proj.weight.data[SLICE] = 0

    assert audited(gpt2, cut).summary == "exactly L1H2 removed by zero ablation"


def test_a_class_is_put_back(gpt2: Any) -> None:
    kind: Any = type(attention_of(gpt2).c_proj)
    forward = kind.forward

    def patch() -> None:
        kind.forward = lambda self, x: 0 * forward(self, x)

    audit_intervention(gpt2, TEXT, patch, NAMED)
    assert kind.forward is forward
