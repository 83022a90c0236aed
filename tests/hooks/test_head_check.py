"""Each slice of z must depend on its own attention pattern; other slices are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import foreign_models as foreign
import pytest
import torch
from counted_heads import recounted, require_refused
from foreign_models import N_HEADS, N_TOKENS, Attention, D, built
from torch import Tensor, nn

import headcount
from headcount.api.opening import open_model
from headcount.cli import main
from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.intervention_proof import prove
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import wrap

TOKENS = torch.randint(N_TOKENS, (5, 6), generator=torch.Generator().manual_seed(0))
FIRST = HeadSite("layer", 0)


@pytest.mark.parametrize("name", ["sample:addition", "sample:sortedness"])
def test_samples_have_heads_and_no_other_number_of_them(name: str) -> None:
    opened = open_model(name)
    inputs = opened.some_inputs(4)
    assert all(each.follows_attention for each in prove(opened.module, opened.sites, inputs))
    require_refused(opened.module, opened.sites, inputs)


class Torchs(nn.Module):
    """PyTorch's own attention, which may have positions first and may compute its weights by a fused function."""

    def __init__(self, *, batch_first: bool, need_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(D, N_HEADS, batch_first=batch_first)
        self.batch_first, self.need_weights = batch_first, need_weights

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.inner(x, x, x, need_weights=self.need_weights)[0]
        return x if self.batch_first else x.transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_pytorchs_own_attention(batch_first: bool, need_weights: bool, is_frozen: bool) -> None:
    """A number of heads that somebody wrote into a site by hand is not believed either."""
    model = Torchs(batch_first=batch_first, need_weights=need_weights).requires_grad_(not is_frozen).eval()
    wrapped, inputs = wrap(model), [torch.randn(3, 5, D)]
    assert all(each.follows_attention for each in prove(wrapped, wrapped.head_sites, inputs))
    require_refused(wrapped, wrapped.head_sites, inputs)


def sound_kinds() -> list[type[foreign.Model]]:
    kinds = [each for each in vars(foreign).values() if isinstance(each, type) and issubclass(each, foreign.Model)]
    return [each for each in kinds if each not in (foreign.FlatProjection, foreign.LengthFirst)]


@pytest.mark.parametrize("kind", sound_kinds())
def test_sound_models_of_others(kind: type[foreign.Model]) -> None:
    model = built(kind)
    assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS]))
    require_refused(model, model.sites, [TOKENS])


@pytest.mark.parametrize("length", [1, 2, 6])
def test_no_length_is_too_short_and_no_attention_too_even(length: int) -> None:
    model = built(foreign.Model)
    for attention in model.attentions:
        attention.qkv.weight.data[: 2 * D] = 0.0  # every query attends to all keys alike
    assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS[:, :length]]))
    require_refused(model, model.sites, [TOKENS[:, :length]])


def test_inside_inference_mode() -> None:
    model = built(foreign.Model)
    with torch.inference_mode():
        assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS.clone()]))
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


# --- what attention looks like elsewhere ------------------------------------------------------------------------------


def patterns(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)


class Parted(Attention):
    """Subclasses get queries, keys and values by head, [row, head, position, d_head]."""

    def z(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.attend(*parts).transpose(1, 2).flatten(start_dim=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class Differential(Parted):
    """The difference of two patterns (Ye et al. 2024)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first, second = ((q[..., i::2], k[..., i::2]) for i in range(2))
        return patterns(*first) @ v - 0.5 * (patterns(*second) @ v)


class OneByOne(Parted):
    """Each head has a softmax of its own."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([patterns(q[:, h], k[:, h]) @ v[:, h] for h in range(N_HEADS)], dim=1)


class KeysFirst(Parted):
    """The softmax is over the axis before the last."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bqkh", q, k), dim=2)
        return torch.einsum("bqkh,bhkd->bhqd", weights, v)


class ChangedAfterwards(Parted):
    """Each head's average is multiplied by a matrix of its own, and by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Parameter(torch.randn(N_HEADS, D // N_HEADS, D // N_HEADS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (patterns(q, k) @ v @ self.after) * q.sigmoid()


@pytest.mark.parametrize("attention", [Differential, OneByOne, KeysFirst, ChangedAfterwards])
def test_other_kinds_of_attention(attention: type[Attention]) -> None:
    model = built(type("Other", (foreign.Model,), {"attention": attention}))
    assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS]))
    require_refused(model, model.sites, [TOKENS])


class TalkingHeads(Parted):
    """Patterns are mixed over heads (Shazeer et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(N_HEADS, N_HEADS))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("gh,bhqk->bgqk", self.mix, patterns(q, k)) @ v


class Normed(Attention):
    """A norm over all heads stands before the output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)

    def z(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().z(x))
        return normed


class ByHand(Parted):
    """A softmax written by hand."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.transpose(-2, -1)).exp()
        return weights / weights.sum(dim=-1, keepdim=True) @ v


class Sigmoid(Parted):
    """Attention weights that do not sum to 1."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1)).sigmoid() @ v


class WithoutGradients(Parted):
    @torch.no_grad()
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return patterns(q, k).detach() @ v


class Logging(Parted):
    """Keeps its weights as an array, which a tensor with gradients refuses."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = patterns(q, k)
        self.kept = weights.numpy().copy()
        return weights @ v


class NoValues(Parted):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return patterns(q, k) @ (0 * v) + q


@pytest.mark.parametrize("attention", [TalkingHeads, Normed, Sigmoid, WithoutGradients, Logging, NoValues])
def test_what_cannot_be_decided_is_not_checked_and_not_refused(attention: type[Attention]) -> None:
    model = built(type("Undecided", (foreign.Model,), {"attention": attention}))
    assert not any(each.follows_attention for each in prove(model, model.sites, [TOKENS]))
    assert torch.is_grad_enabled()


class Braided(Parted):
    """Heads are not side by side: their features take turns in z."""

    def z(self, x: Tensor) -> Tensor:
        z: Tensor = super().z(x).unflatten(-1, (N_HEADS, -1)).transpose(-2, -1).flatten(start_dim=-2)
        return z

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return patterns(q, k) @ v


def test_features_that_take_turns_are_no_heads() -> None:
    model = built(type("Taking", (foreign.Model,), {"attention": Braided}))
    with pytest.raises(
        InstrumentError, match=r"layer\.0\.self are not the outputs of heads: 2 of 2 slices of z follow several"
    ):
        prove(model, model.sites, [TOKENS])


def test_a_softmax_written_by_hand_is_seen() -> None:
    model = built(type("Written", (foreign.Model,), {"attention": ByHand}))
    assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS]))
    for n_heads in (1, 2 * N_HEADS):
        with pytest.raises(InstrumentError, match="are not the outputs of heads"):
            prove(model, Sites.of(model, "blocks.*.attn.out", n_heads=n_heads), [TOKENS])


class HalfSigmoid(foreign.Model):
    """The first block computes attention by softmax, the others do not."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        for block in self.blocks[1:]:
            block.attn = Sigmoid()


def test_a_block_whose_attention_is_not_seen_is_not_refused_for_another_one() -> None:
    model = built(HalfSigmoid)
    others = Sites({name: site for name, site in model.sites.items() if name != FIRST})
    assert not any(each.follows_attention for each in prove(model, others, [TOKENS]))
    assert [each.follows_attention for each in prove(model, model.sites, [TOKENS])] == [True, False, False]


class Squeezing(foreign.Model):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).squeeze()[:, -1, :]


def test_a_model_that_cannot_take_a_single_row() -> None:
    model = built(Squeezing)
    assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS]))


def test_features_of_an_mlp_are_no_heads() -> None:
    model = built(foreign.Model)
    sites = Sites.of(model, "blocks.*.mlp.2", n_heads=2)
    with pytest.raises(InstrumentError, match="a linear layer stands between its attention and z"):
        prove(model, sites, [TOKENS])


# --- where it is asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_heads", [2, 8])
def test_every_verb_refuses_a_wrong_number_of_heads(n_heads: int) -> None:
    model = built(foreign.Model)
    sites = recounted(model.sites, n_heads / 4)

    def metric(output: Tensor, rows: Tensor) -> Tensor:
        return output[:, 0, 0]

    with pytest.raises(InstrumentError, match="are not the outputs of heads"):
        headcount.ablate_heads(model, TOKENS, metric, sites=sites, quiet=True)
    with pytest.raises(InstrumentError, match="are not the outputs of heads"):
        headcount.ablated(model, ["L0H0"], inputs=TOKENS, sites=sites).__enter__()


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "why"), [(2, "2 of 2 slices"), (8, "8 slices of z follow 4 attention patterns")])
def test_a_submission_with_a_wrong_number_of_heads(
    wrong: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `headcount heads --on` refuses it, `ablate` does."""
    for file in (Path(__file__).parents[1] / "foreign_sorter").glob("sorter*"):
        text = file.read_bytes().replace(b"n_heads=4)", b"n_heads=%d)" % wrong)
        (tmp_path / file.name).write_bytes(text)
    adapter = f"{tmp_path}/sorter_adapter.py:Sorted"
    assert main(["ablate", adapter, "--n", "20", "--replacements", "zero", "--quiet"]) == 1
    assert why in capsys.readouterr().err


# --- blocks in the place of projections -------------------------------------------------------------------------------


def test_a_block_is_no_projection() -> None:
    with pytest.raises(InputError, match=r"blocks\.0\.attn is a whole attention block(.|\n)*blocks\.\*\.attn\.out"):
        Sites.of(built(foreign.Model), "blocks.*.attn", n_heads=2)
    with pytest.raises(InputError, match=r"(.|\n)*blocks\.\*\.attn\.out"):
        Sites.of(built(foreign.Model), "blocks.*", n_heads=2)


class Unknown(nn.Module):
    """A block in which nothing is called as elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, causal: bool, *, scale: float) -> Any:
        q, k, v = self.inner(x).chunk(3, dim=-1)
        return self.last(patterns(q, k * scale) @ v), causal


class UnknownBlock(foreign.Block):
    def forward(self, x: Tensor) -> Any:
        return x + self.attn(x, True, scale=1.0)[0]


class Untupled(Unknown):
    def forward(self, x: Tensor, causal: bool, *, scale: float) -> Any:
        return super().forward(x, causal, scale=scale)[0][None]


@pytest.mark.parametrize(
    ("attention", "why"), [(Unknown, "returns a tuple"), (Untupled, "cannot be called with the head outputs alone")]
)
def test_a_block_that_nothing_tells_is_found_by_the_proof(attention: type[nn.Module], why: str) -> None:
    model = built(type("Told", (foreign.Model,), {"attention": attention, "block": UnknownBlock}))
    sites = Sites.of(model, "blocks.*.attn", n_heads=2)
    with pytest.raises(
        InputError, match=rf"given for layer\.0\.self is not its output projection: this \w+ {why}(.|\n)*inner, last"
    ):
        prove(model, sites, [TOKENS])


def test_a_block_that_is_not_linear_is_told_apart() -> None:
    class Lone(Unknown):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return super().forward(x, True, scale=1.0)[0]

    model = built(type("NotLinear", (foreign.Model,), {"attention": Lone}))
    with pytest.raises(InstrumentError, match=r"name its output projection: inner, last"):
        prove(model, Sites.of(model, "blocks.*.attn", n_heads=2), [TOKENS])


def test_projections_around_a_layer_are_none() -> None:
    """A layer and its dropout, or a layer with something beside it: both are projections."""

    class Beside(nn.Module):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.linear, self.more = linear, nn.Linear(D, D, bias=False)

        def forward(self, z: Tensor) -> Tensor:
            added: Tensor = self.linear(z) + self.more(z)
            return added

    model = built(foreign.Model)
    for around in (lambda layer: nn.Sequential(layer, nn.Dropout()), lambda layer: Beside(layer).double()):
        for attention in model.attentions:
            attention.out = around(attention.out)
        model.eval()
        assert all(each.follows_attention for each in prove(model, model.sites, [TOKENS]))
        Sites.of(model, "blocks.*.attn.out", n_heads=2)
