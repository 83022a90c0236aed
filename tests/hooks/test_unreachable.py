"""Heads that an instrument cannot reach: an error, never a silent zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faulty_models as faulty
import foreign_models as foreign
import hub_models as hub
import pytest
import torch
from foreign_models import N_HEADS, N_TOKENS, built
from torch import Tensor, nn

from headcount.errors import InputError, InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.attention import attention_of
from headcount.hooks.gates import Capture, Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Site, Sites
from headcount.hooks.wrapping import wrap

pytestmark = pytest.mark.slow  # models of others, or many processes

TOKENS = torch.randint(N_TOKENS, (3, 5), generator=torch.Generator().manual_seed(0))
PATTERN = "blocks.*.attn.out"


def use_gates(model: Any, sites: Sites, given: Tensor) -> None:
    with Gates(sites, closed_gates(sites, sites.heads[:1])):
        model(given)


def use_capture(model: Any, sites: Sites, given: Tensor) -> None:
    with Capture(sites) as captured:
        model(given)
    for site in sites:
        captured.z(site)


def use_proof(model: Any, sites: Sites, given: Tensor) -> None:
    prove(model, sites, [given])


def use_sweep(model: Any, sites: Sites, given: Tensor) -> None:
    cached = CachedPass(model, sites, [given])
    for i, output in sweep(cached, [Intervention((head,)) for head in sites.heads], checked=True):
        assert (output - cached.output).abs().max() > 1e-6, f"{sites.heads[i]} seems to have no effect"


def use_attention(model: Any, sites: Sites, given: Tensor) -> None:
    attention_of(model, sites, given)


Use = Callable[[Any, Sites, Tensor], None]
every_use = pytest.mark.parametrize("use", [use_gates, use_capture, use_proof, use_sweep, use_attention])
but_gates = pytest.mark.parametrize("use", [use_capture, use_proof, use_sweep, use_attention])


def layer(i: int) -> HeadSite:
    return HeadSite("layer", i)


def sites_at(*projections: nn.Module, calls: tuple[int, ...] = (), n_heads: int = N_HEADS) -> Sites:
    """As somebody might write them down who does not know better."""
    calls = calls or (0,) * len(projections)
    made = [
        Site(each, tuple(map(layer(i).head, range(n_heads))), call)
        for i, (each, call) in enumerate(zip(projections, calls, strict=True))
    ]
    return Sites({layer(i): site for i, site in enumerate(made)})


@torch.no_grad()
def refused(use: Use, model: Any, sites: Sites, given: Tensor = TOKENS) -> None:
    with pytest.raises(InstrumentError):
        use(model, sites, given)


# --- fused, bypassed, replaced --------------------------------------------------------------------------------------


@every_use
def test_pytorchs_own_attention_given_as_any_other(use: Use) -> None:
    """Its projection is a module that nobody calls; Sites.of would have found its host."""
    torch.manual_seed(0)
    one = nn.TransformerEncoderLayer(8, N_HEADS, 12, batch_first=True).double().eval()
    states = torch.randn(3, 5, 8).double()
    refused(use, one, sites_at(one.self_attn.out_proj), states)
    refused(use, one.train(), sites_at(one.self_attn.out_proj), states)
    with torch.no_grad():
        use(one.eval(), Sites.of(one, "self_attn.out_proj"), states)


@every_use
@pytest.mark.parametrize("kind", [faulty.Bypasses, faulty.TorchsAttention])
def test_a_projection_whose_weights_are_used_without_it(kind: type[foreign.Model], use: Use) -> None:
    model = built(kind)
    refused(use, model, model.sites)


@every_use
def test_a_projection_that_was_replaced_after_it_was_found(use: Use) -> None:
    model = built(foreign.Model)
    sites = model.sites
    model.blocks[0].attn.out = nn.Linear(8, 8).double()
    refused(use, model, sites)


def test_a_projection_that_was_renamed() -> None:
    model = built(foreign.Model)
    model.blocks[1].attn.final = model.blocks[1].attn.out
    for block in model.blocks:
        del block.attn.out
    with pytest.raises(InputError, match=r"at 'blocks\.\*\.attn\.out'\n  close to it: (.*)blocks\.\*\.attn"):
        Sites.of(model, PATTERN, n_heads=N_HEADS)


@every_use
def test_a_model_that_was_traced(use: Use) -> None:
    with pytest.warns():  # that tracing is deprecated
        traced = torch.jit.trace(built(foreign.Model), TOKENS)
    refused(use, traced, Sites.of(traced, PATTERN, n_heads=N_HEADS))


# --- shared ---------------------------------------------------------------------------------------------------------


class Shares(foreign.Model):
    """All blocks have one output projection."""

    def __init__(self, n_layers: int = 3) -> None:
        super().__init__(n_layers)
        for block in self.blocks[1:]:
            block.attn.out = self.blocks[0].attn.out


def test_a_shared_projection_needs_call_numbers() -> None:
    out = built(Shares).blocks[0].attn.out
    for calls in ((0, 0, 0), (0, 2, 1, 1), (0, 2), (1, 2)):
        with pytest.raises(InputError, match=r"one output projection(.|\n)*call=1"):
            sites_at(*[out] * len(calls), calls=calls)
    with pytest.raises(InputError, match=r"layer\.0\.self is call number 1"):
        sites_at(out, calls=(1,))
    with pytest.raises(InputError, match="share one output projection"):
        Sites.of(built(Shares), PATTERN, n_heads=N_HEADS)


@every_use
@pytest.mark.parametrize("calls", [(0, 1), (0, 1, 2, 3)])
def test_wrong_call_numbers(calls: tuple[int, ...], use: Use) -> None:
    model = built(Shares)
    refused(use, model, sites_at(*[model.blocks[0].attn.out] * len(calls), calls=calls))


@every_use
@torch.no_grad()
def test_right_call_numbers(use: Use) -> None:
    model = built(Shares)
    use(model, sites_at(*[model.blocks[0].attn.out] * 3, calls=(0, 1, 2)), TOKENS)


@but_gates
def test_a_layer_that_is_called_again_and_again(use: Use) -> None:
    """Gates alone cannot know that three calls are not three passes; whoever makes the pass does."""
    model = built(Shares)
    refused(use, model, sites_at(model.blocks[0].attn.out))


# --- sometimes ------------------------------------------------------------------------------------------------------


class Sometimes(foreign.Model):
    """Passes by its second block in every other pass."""

    n_passes = 0

    def forward(self, tokens: Tensor) -> Any:
        x = self.tokens(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x) if i != 1 or self.n_passes % 2 == 0 else x
        self.n_passes += 1
        return self.to_logits(self.norm(x))


@torch.no_grad()
def test_a_block_that_is_passed_by_in_some_passes() -> None:
    model = built(Sometimes)
    sites, second = model.sites, model.sites.heads[2]
    cached = CachedPass(model, sites, [TOKENS])
    with pytest.raises(InstrumentError, match=r"projection of layer\.1\.self was called in the recorded pass"):
        cached.replay([Intervention((second,))])
    model.n_passes = 1
    with pytest.raises(InstrumentError, match=r"no head was ablated at layer\.1\.self"):
        cached.replay([Intervention((sites.heads[0], second))])
    model.n_passes = 1
    with pytest.raises(InstrumentError, match=r"layer\.1\.self was never called"):
        CachedPass(model, sites, [TOKENS])
    model.n_passes = 1
    refused(use_gates, model, sites_at(model.blocks[1].attn.out))
    model.n_passes = 0
    refused(use_proof, model, sites)
    model.n_passes = 0
    refused(use_sweep, model, sites)


# --- quantised ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_quantised_projections_are_refused() -> None:
    if "none" in torch.backends.quantized.supported_engines and len(torch.backends.quantized.supported_engines) == 1:
        pytest.skip("no engine for quantised layers here")
    model = built(foreign.Model).float()
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match=r"output projection of layer\.0\.self is quantised"):
        Sites.of(small, PATTERN, n_heads=N_HEADS)
    with pytest.raises(InputError, match=r"output projection of layer\.0\.self is quantised"):
        sites_at(small.blocks[0].attn.out)


# --- wrapped by others ----------------------------------------------------------------------------------------------


@every_use
@torch.no_grad()
def test_data_parallel(use: Use) -> None:
    model = built(foreign.Model)
    parallel = nn.DataParallel(model)
    wrapped = wrap(parallel, Sites.of(parallel, PATTERN, n_heads=N_HEADS))
    assert wrapped.model is model
    use(wrapped, wrapped.head_sites, TOKENS)
    use(parallel, wrapped.head_sites, TOKENS)  # on one processor it just calls the module
    assert wrap(nn.DataParallel(hub.build("bert"))).heads == wrap(hub.build("bert")).heads


@every_use
@torch.no_grad()
def test_a_compiled_model_is_used_uncompiled(use: Use) -> None:
    model = built(foreign.Model)
    compiled = torch.compile(model, backend="eager")
    wrapped = wrap(compiled, Sites.of(compiled, PATTERN, n_heads=N_HEADS))
    assert wrapped.model is model
    use(wrapped, wrapped.head_sites, TOKENS)


def test_a_model_that_was_compiled_in_place_is_refused() -> None:
    for path, where in (("", "itself"), ("blocks.1", r"blocks\.1")):
        model = built(foreign.Model)
        model.get_submodule(path).compile(backend="eager")
        with pytest.raises(InputError, match=rf"compiled in place \({where}\)"):
            Sites.of(model, PATTERN, n_heads=N_HEADS)
        with pytest.raises(InputError, match="compiled in place"):
            wrap(model, model.sites)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("in_place", [False, True])
@torch.no_grad()
def test_compiled_code_is_never_silently_whole(in_place: bool) -> None:
    """Compiled before, it passes hooks by; compiled inside, it must not stay ablated outside."""
    torch._dynamo.reset()
    model = built(foreign.Model)
    sites, clean = model.sites, model(TOKENS)
    if in_place:
        model.compile(backend="eager")
    called = model if in_place else torch.compile(model, backend="eager")
    for _ in range(3):
        for head in sites.heads[::2]:
            try:
                with Gates(sites, closed_gates(sites, [head])):
                    output = called(TOKENS)
            except InstrumentError:
                output = None
            with Gates(sites, closed_gates(sites, [head])):
                ablated = type(model).forward(model, TOKENS)
            assert output is None or torch.allclose(output, ablated)
            assert torch.allclose(called(TOKENS), clean)
    torch._dynamo.reset()
