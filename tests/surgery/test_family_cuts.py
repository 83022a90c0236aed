"""Cutting a head out must equal ablating it, in every family."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import hub_models as hub
import pytest
import torch
from cuts import FAMILIES, GENERATING, PLANS, apart, generated, masked, planned, says, size
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError
from headcount.heads import HeadId
from headcount.hooks.families import family_of
from headcount.hooks.gates import Gates, closed_gates
from headcount.hooks.intervention_proof import prove
from headcount.hooks.wrapping import CUT, blocks_at, wrap
from headcount.surgery.cut_proof import prove_cut
from headcount.surgery.cutting import cut_heads
from headcount.surgery.layers import RepeatedKV, SharedSlice, Zeros

pytestmark = pytest.mark.slow  # models of others, or many processes

QUICK = ("several", "a layer")
"""Plans that are tried every time; the others go with the slow tests."""
plans = pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=() if plan in QUICK else pytest.mark.slow) for plan in PLANS]
)


def ids(*names: str) -> list[HeadId]:
    return [HeadId.parse(name) for name in names]


def snapshot(model: Any) -> tuple[Any, ...]:
    """Return everything about a model that a cut might change."""
    modules = [(path, type(module), vars(module).get("num_heads")) for path, module in model.named_modules()]
    tensors = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return modules, tensors, model.config.to_dict()


def require_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[0] == other[0]
    assert one[2] == other[2]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


@plans
@pytest.mark.parametrize("name", FAMILIES)
def test_cut_is_masked_and_the_model_stays_as_it_was(name: str, plan: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    before, heads = snapshot(model), planned(plan, model)
    expected, clean = masked(model, heads, inputs), says(model, inputs)
    cut: Any = cut_heads(model, heads)
    assert apart(expected, clean) > 1e-3, "a cut that changes nothing is no test"
    assert apart(says(cut, inputs), expected) < 1e-9
    assert set(wrap(cut).heads) == set(wrap(model).heads) - set(heads)
    assert getattr(cut.config, CUT) == sorted(map(str, heads), key=HeadId.parse)
    require_same(snapshot(model), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_whoever_computes_the_attention(name: str) -> None:
    model, inputs = hub.build(name, attn_implementation="eager"), hub.inputs_of(name)
    for plan in ("several", "a layer"):
        heads = planned(plan, model)
        # Some compute their softmax in single precision.
        assert apart(says(cut_heads(model, heads), inputs), masked(model, heads, inputs)) < 1e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_proof_in_the_models_own_precision(name: str) -> None:
    model, inputs = hub.build(name, torch.float32), hub.inputs_of(name, torch.float32)
    heads = planned("several", model)
    cut = cut_heads(model, heads)
    assert prove_cut(model, cut, map(str, heads), inputs) <= 1e-5
    with pytest.raises(CheckFailed, match="differ by"):
        prove_cut(model, cut, heads[:-1], inputs)
    proof = prove(wrap(cut), wrap(cut).head_sites, inputs)  # the instruments act on it
    assert all(each.follows_attention for each in proof)


@pytest.mark.parametrize("name", FAMILIES)
def test_cut_in_two_steps_is_cut_at_once(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    heads = planned("all but one", model)
    at_once: Any = cut_heads(model, heads)
    steps: Any = cut_heads(cut_heads(cut_heads(model, heads[::3]), heads[1::3]), heads[2::3])
    assert torch.equal(says(steps, inputs), says(at_once, inputs))
    assert size(steps) == size(at_once)
    assert getattr(steps.config, CUT) == getattr(at_once.config, CUT)


@plans
@pytest.mark.parametrize("name", [name for name in FAMILIES if "albert" not in name or name == "distilbert"])
def test_parameters_fall_by_those_of_the_heads(name: str, plan: str) -> None:
    model = hub.build(name)
    family, heads = family_of(model.config.model_type), set(planned(plan, model))
    assert family is not None
    expected = 0
    for site, layout, attention, projection, _ in blocks_at(model, family):
        n_heads = len(wrap(model).heads_at(site))
        gone = [i for i in range(n_heads) if site.head(i) in heads]
        group = n_heads // getattr(model.config, "num_key_value_heads", n_heads)
        gone_keys = [k for k in range(n_heads // group) if set(range(k * group, (k + 1) * group)) <= set(gone)]
        queries = [attention.get_submodule(each) for each in (layout.query, layout.fused) if each]
        keys = [attention.get_submodule(each) for each in (layout.key, layout.value) if each]
        expected += len(gone) * (projection.weight.numel() + sum(map(size, queries))) // n_heads
        expected += len(gone_keys) * group * sum(map(size, keys)) // n_heads
    assert expected > 0
    assert size(model) - size(cut_heads(model, heads)) == expected


@pytest.mark.parametrize("name", GENERATING)
def test_generating_with_a_cache(name: str) -> None:
    model = hub.build(name)
    sites = wrap(model).head_sites
    for plan in QUICK:
        heads = planned(plan, model)
        cut = cut_heads(model, heads)
        for more in ({}, {"use_cache": False}, {"num_beams": 3})[: 3 if plan == "a layer" else 1]:
            with Gates(sites, closed_gates(sites, heads)):
                tokens, logits = generated(name, model, **more)
            found = generated(name, cut, **more)
            assert torch.equal(found[0], tokens)
            assert apart(found[1], logits) < 1e-6
            assert apart(generated(name, model, **more)[1], logits) > 1e-3, "generation should depend on heads"


# --- one family at a time ---------------------------------------------------------------------------------------------


def test_even_groups_of_queries_keep_plain_layers() -> None:
    model = hub.build("llama", num_attention_heads=8, num_key_value_heads=2, hidden_size=64)
    inputs = hub.inputs_of("llama")
    heads = ids("L0H0", "L0H6", "L1H0", "L1H1", "L1H2", "L1H3", "L1H5", "L2H7")
    cut: Any = cut_heads(model, heads)
    even, fewer, uneven = (layer.self_attn for layer in cut.model.layers)
    assert (even.num_key_value_groups, fewer.num_key_value_groups, uneven.num_key_value_groups) == (3, 3, 1)
    assert [type(each.k_proj) for each in (even, fewer, uneven)] == [nn.Linear, nn.Linear, RepeatedKV]
    assert [len(each.v_proj.weight) for each in (even, fewer, uneven)] == [16, 8, 16]
    assert apart(says(cut, inputs), masked(model, heads, inputs)) < 1e-9
    assert type(cut_heads(cut, ["L2H1"]).get_submodule("model.layers.2.self_attn.k_proj")) is nn.Linear


@pytest.mark.parametrize("name", FAMILIES)
def test_a_block_without_heads_holds_no_weights(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    cut: Any = cut_heads(model, wrap(model).heads)
    assert apart(cut_says(cut, name, inputs), masked(model, wrap(model).heads, inputs)) < 1e-9
    family = family_of(cut.config.model_type)
    assert family is not None
    for _, layout, attention, projection, _ in blocks_at(cut, family):
        parts = [attention.get_submodule(each) for each in (layout.query, layout.key, layout.fused) if each]
        assert all(type(each) is Zeros for each in parts)
        assert [path for path, _ in projection.named_parameters()] in (["bias"], [])
    with pytest.raises(InputError, match="no heads"):
        cut_heads(cut, ["L0H0"])


def cut_says(model: nn.Module, name: str, inputs: tuple[Tensor, ...]) -> Tensor:
    """Of a model that has no heads to be wrapped by."""
    output = hub.called(name, model, inputs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def test_layers_that_share_a_block_keep_sharing_its_weights() -> None:
    model, inputs = hub.build("albert"), hub.inputs_of("albert")
    everywhere: Any = cut_heads(model, ["L0H1", "L1H1", "L2H1"])
    assert everywhere.config.num_hidden_groups == 1
    assert size(model) - size(everywhere) == 32 * 8 * 4 + 3 * 8
    one: Any = cut_heads(model, ["L1H0"])
    assert size(one) == size(model)
    groups = one.albert.encoder.albert_layer_groups
    queries = [group.albert_layers[0].attention.query for group in groups]
    assert [type(each) for each in queries] == [nn.Linear, SharedSlice, nn.Linear]
    assert len({id(each.weight) for each in queries}) == 1
    assert len({id(each) for group in groups for each in group.parameters()}) == len(list(groups[0].parameters()))
    both = cut_heads(one, ["L0H0", "L2H0", "L2H3"])
    assert size(model) - size(both) == 32 * 8 * 4 + 3 * 8
    assert apart(says(both, inputs), masked(model, ids("L0H0", "L1H0", "L2H0", "L2H3"), inputs)) < 1e-9


def test_a_t5_without_heads_somewhere_is_copied_and_pickled() -> None:
    model, inputs = hub.build("t5"), hub.inputs_of("t5")
    cut = cut_heads(model, ["E0H0", "E1H3", "D0H1", "X1H2"])
    expected = says(cut, inputs)
    assert torch.equal(says(deepcopy(cut), inputs), expected)
    assert torch.equal(says(pickle.loads(pickle.dumps(cut)), inputs), expected)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "albert in groups"])  # numbered anew
def test_what_is_left_is_trained_as_if_the_rest_were_silent(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    heads = [*planned("a layer", model), wrap(model).heads[-1]]
    cut, sites = cut_heads(model, heads), wrap(model).head_sites
    with Gates(sites, closed_gates(sites, heads)):
        wrap(model)(*inputs).square().sum().backward()
    wrap(cut)(*inputs).square().sum().backward()
    whole = dict(model.named_parameters())
    # Of the largest of all: a key's bias has no gradient, and what is left there is rounding.
    atol = 1e-6 * max(float(each.grad.abs().max()) for each in whole.values() if each.grad is not None)
    n_same = 0
    for path, each in cut.named_parameters():
        if path in whole and each.shape == whole[path].shape:
            expected = whole[path].grad
            expected = torch.zeros_like(each) if expected is None else expected
            found = torch.zeros_like(each) if each.grad is None else each.grad
            torch.testing.assert_close(found, expected, atol=atol, rtol=1e-6)
            n_same += 1
    assert n_same > 10


@pytest.mark.parametrize(
    ("heads", "explanation"),
    [
        (["L0H9"], "no head 'layer.0.self.9'"),
        (["L0H0"], "no head 'layer.0.self.0'"),
        (["E0H0"], "no head"),
        (["head"], "not the name of a head"),
        ([], "no heads to cut"),
    ],
)
def test_heads_that_are_not_there(heads: list[str], explanation: str) -> None:
    cut = cut_heads(hub.build("gpt2"), ["L0H0"])
    with pytest.raises(InputError, match=explanation) as error:
        cut_heads(cut, heads)
    assert "no head '" not in explanation or "L0H1, L0H2" in str(error.value)


def test_layers_on_common_queries_lose_each_their_own() -> None:
    """Layers may share some weights and not others."""
    model, inputs = hub.build("llama"), hub.inputs_of("llama")
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    second.q_proj.weight = first.q_proj.weight
    heads = [HeadId.parse(name) for name in ("L0H0", "L1H1", "L1H2")]
    assert apart(says(cut_heads(model, heads), inputs), masked(model, heads, inputs)) < 1e-9
    alike = [HeadId.parse(name) for name in ("L0H1", "L1H1")]
    cut = cut_heads(model, alike)
    assert cut.model.layers[0].self_attn.q_proj.weight is cut.model.layers[1].self_attn.q_proj.weight
    assert apart(says(cut, inputs), masked(model, alike, inputs)) < 1e-9


def test_what_is_put_around_a_model_is_left_aside() -> None:
    model, inputs = hub.build("bert"), hub.inputs_of("bert")
    heads = planned("several", model)
    expected = says(cut_heads(model, heads), inputs)
    for around in (nn.DataParallel(model), torch.compile(model, backend="eager"), wrap(model)):
        cut = cut_heads(around, heads)
        assert type(cut) is type(model)
        assert torch.equal(says(cut, inputs), expected)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_left_trains_or_rests_as_before(name: str, training: bool) -> None:
    model = hub.build(name).train(training)
    for plan in ("one head", "a layer"):
        cut = cut_heads(model, planned(plan, model))
        assert all(module.training == training for module in cut.modules())


def test_models_that_cannot_be_cut() -> None:
    with pytest.raises(InputError, match="family"):
        cut_heads(nn.TransformerEncoderLayer(8, 2, batch_first=True), ["L0H0"])
    model = hub.build("llama")
    model.model.layers[0].self_attn.q_proj = nn.Sequential(model.model.layers[0].self_attn.q_proj)
    with pytest.raises(InputError, match=r"q_proj of layer\.0\.self"):
        cut_heads(model, ["L0H0"])
