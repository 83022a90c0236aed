"""Output projections by path: what is found, what it is called, and the error when it is not so."""

from __future__ import annotations

from typing import Any

import hub_models as hub
import pytest
import torch
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.intervention_proof import prove
from headcount.hooks.sites import Sites, guess
from headcount.hooks.wrapping import Wrapped, wrap

WIDTH = 8


def tree(paths: dict[str, int] | list[str], width: int = WIDTH) -> Any:
    """A module with layers at these paths; numbers are registered in the order given."""
    root = nn.Module()
    for path in paths:
        *above, last = path.split(".")
        at = root
        for part in above:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]  # type: ignore[assignment]
        at.add_module(last, nn.Linear(width, width))
    return root


def stack(pattern: str, n: int) -> list[str]:
    return [pattern.replace("*", str(i)) for i in range(n)]


def names(sites: Sites) -> list[str]:
    return list(map(str, sites))


ADDER = [*stack("encoder_layers.*.self_attn.W_o", 2), *stack("decoder_layers.*.self_attn.W_o", 2)]
ADDER += stack("decoder_layers.*.cross_attn.W_o", 2)


# --- roles ----------------------------------------------------------------------------------------------------------


def test_roles_are_read_off_paths() -> None:
    model = tree(ADDER)
    patterns = [f"{where}_layers.*.{kind}_attn.W_o" for where, kind in (("encoder", "self"), ("decoder", "self"))]
    sites = Sites.of(model, *patterns, "decoder_layers.*.cross_attn.W_o", n_heads=4)
    expected = ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.1.self"]
    assert names(sites) == [*expected, "decoder.0.cross", "decoder.1.cross"]
    assert sites[HeadSite("decoder", 1, "cross")].projection is model.get_submodule("decoder_layers.1.cross_attn.W_o")
    assert len(sites.heads) == 24


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("layers.*.attn.out", "layer.0.self"),
        ("transformer.h.*.attn.c_proj", "layer.0.self"),
        ("enc.*.attn.o", "encoder.0.self"),
        ("model.dec.*.attn.o", "decoder.0.self"),
        ("decoder.layers.*.encoder_attn.out_proj", "decoder.0.cross"),
        ("decoder.layers.*.enc_attn.out_proj", "decoder.0.cross"),
        ("decoder.block.*.layer.1.EncDecAttention.o", "decoder.0.cross"),
        ("decoder.block.*.layer.0.SelfAttention.o", "decoder.0.self"),
        ("layers.*.src_attn.out", "decoder.0.cross"),
        ("encoder.layer.*.crossattention.output.dense", "decoder.0.cross"),
        ("encoder_decoder.encoder.layers.*.attn.out", "encoder.0.self"),
        ("enc_dec.encoder.layers.*.attn.out", "encoder.0.self"),
        ("enc_dec.decoder.layers.*.attn.out", "decoder.0.self"),
        ("context_encoder.layers.*.attn.out", "encoder.0.self"),
        ("memory_model.layers.*.self_attn.out", "layer.0.self"),
        ("blocks.*.attn.out.0", "layer.0.self"),
    ],
)
def test_the_role_of_a_path(pattern: str, name: str) -> None:
    sites = Sites.of(tree(stack(pattern, 2)), pattern, n_heads=2)
    assert names(sites)[0] == name
    assert len(sites) == 2


def test_roles_may_be_named() -> None:
    model = tree([*stack("a.*.o", 2), *stack("b.*.o", 1), *stack("c.*.o", 1), "last.o"])
    sites = Sites.of(model, encoder=["a.*.o"], decoder="b.*.o", cross="c.*.o", layer="last.o", n_heads=2)
    assert names(sites) == ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross", "layer.0.self"]
    counts = {"encoder": 2, "decoder": 4, "cross": 8}
    sites = Sites.of(model, encoder="a.*.o", decoder="b.*.o", cross="c.*.o", n_heads=counts)
    assert [len(site.heads) for site in sites.values()] == [2, 2, 4, 8]


def test_ten_comes_after_nine() -> None:
    order = [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]  # as a state dict's names would be sorted
    for pattern in ("layers.*.attn.out", "layer_*.attn.out"):
        for numbers in (range(12), order):
            model = tree([pattern.replace("*", str(i)) for i in numbers])
            sites = Sites.of(model, pattern, n_heads=2)
            for i in range(12):
                path = pattern.replace("*", str(i))
                assert sites[HeadSite("layer", i)].projection is model.get_submodule(path)


# --- errors ---------------------------------------------------------------------------------------------------------


def test_what_is_not_there_gets_suggestions() -> None:
    missing = "no module or parameter of Module is at "
    with pytest.raises(InputError, match=missing + r"'encoder_layers\.\*\.self_attn\.W_out'(.|\n)*W_o"):
        Sites.of(tree(ADDER), "encoder_layers.*.self_attn.W_out", n_heads=4)
    with pytest.raises(InputError, match=missing + r"'q'\n  it has, for example: encoder_layers, "):
        Sites.of(tree(ADDER), "q", n_heads=4)


def test_a_dot_is_a_dot_and_a_star_is_one_name() -> None:
    for pattern in ("encoder_layers*self_attn.W_o", "encoder_layers.*.self.attn.W_o", "encoder.layers.*.self_attn.W_o"):
        with pytest.raises(InputError, match="no module or parameter of Module"):
            Sites.of(tree(ADDER), pattern, n_heads=2)


def test_the_number_of_heads_must_be_given() -> None:
    model = tree(ADDER)
    pattern = "encoder_layers.*.self_attn.W_o"
    with pytest.raises(
        InputError,
        match=r"heads whose outputs encoder_layers\.0\.self_attn\.W_o projects is not known\n  give n_heads=...$",
    ):
        Sites.of(model, pattern)
    for given in ({"decoder": 4}, {}, ...):
        with pytest.raises(InputError, match="the number of heads"):
            Sites.of(model, pattern, n_heads=given)
    model.encoder_layers._modules["0"].self_attn.n_heads = 4
    with pytest.raises(InputError, match="a module that contains it says 4"):
        Sites.of(model, pattern)


@pytest.mark.parametrize("n_heads", [3, 16, 0, -2])
def test_heads_must_share_the_width(n_heads: int) -> None:
    with pytest.raises(InputError, match=f"{n_heads} heads cannot share the 8 inputs of encoder_layers"):
        Sites.of(tree(ADDER), "encoder_layers.*.self_attn.W_o", n_heads=n_heads)


def test_two_patterns_cannot_mean_the_same_site() -> None:
    model = tree([*ADDER, *stack("encoder_layers.*.other.W_o", 2)])
    first, second = "encoder_layers.*.self_attn.W_o", "encoder_layers.*.other.W_o"
    with pytest.raises(InputError, match=r"both lead to an attention block with the name encoder\.0\.self"):
        Sites.of(model, first, second, n_heads=2)
    with pytest.raises(InputError, match=r"both lead to an attention block with the name encoder\.0\.self"):
        Sites.of(model, first, encoder=second, n_heads=2)


def test_a_stack_that_no_path_tells_must_be_named() -> None:
    model = tree([*stack("a.*.o", 2), *stack("b.*.o", 2)])
    with pytest.raises(InputError, match=r"'a\.\*\.o' does not say whether its layers belong to the encoder"):
        Sites.of(model, "a.*.o", "b.*.o", n_heads=2)
    with pytest.raises(
        InputError, match="there is no kind of attention block 'middle'\n  there are: layer, encoder, decoder, cross"
    ):
        Sites.of(model, middle="a.*.o", n_heads=2)


def test_layers_that_share_a_projection_are_not_one_layer() -> None:
    model = tree(stack("layers.*.attn.out", 3))
    for i in (1, 2):
        model.layers._modules[str(i)].attn.out = model.layers._modules["0"].attn.out
    with pytest.raises(InputError, match=r"layer\.0\.self and layer\.1\.self share one output projection"):
        Sites.of(model, "layers.*.attn.out", n_heads=2)


# --- guesses --------------------------------------------------------------------------------------------------------


def test_a_guess_looks_for_attention() -> None:
    paths = [*ADDER, *stack("encoder_layers.*.feed_forward.out", 2), "head.out", "encoder_layers.0.self_attn.W_q"]
    model = tree(paths)
    found = [(each.pattern, each.n_layers, each.role, each.n_heads) for each in guess(model)]
    assert found == [
        ("encoder_layers.*.self_attn.W_o", 2, "encoder", None),
        ("decoder_layers.*.self_attn.W_o", 2, "decoder", None),
        ("decoder_layers.*.cross_attn.W_o", 2, "cross", None),
    ]
    for layer in model.encoder_layers._modules.values():
        layer.self_attn.num_heads = 4
    assert [each.n_heads for each in guess(model)] == [4, None, None]
    layer.self_attn.num_heads = 2  # layers that disagree
    assert [each.n_heads for each in guess(model)] == [None, None, None]


def test_self_and_cross_without_a_stack_are_a_decoder() -> None:
    model = tree([*stack("blocks.*.self_attn.out", 2), *stack("blocks.*.cross_attn.out", 2)])
    assert [each.role for each in guess(model)] == ["decoder", "cross"]
    model = nn.ModuleDict({"multihead_attn": nn.MultiheadAttention(WIDTH, 2)})
    assert names(wrap(model).head_sites) == ["layer.0.self"]


def test_nothing_is_guessed_where_there_is_nothing() -> None:
    with pytest.raises(
        InputError, match=r"Linear is of no family(.|\n)*say where its heads are: wrap\(model, Sites.of"
    ):
        wrap(nn.Linear(2, 2))


T = hub.T
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 48}
_BIG = _SMALL | {"max_position_embeddings": 24}
_NOBODY = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
UNKNOWN: dict[str, tuple[Any, Any, list[str]]] = {
    "opt": (T.OPTForCausalLM, T.OPTConfig(**_BIG, ffn_dim=40, word_embed_proj_dim=32, **_NOBODY), ["decoder"]),
    "bloom": (T.BloomForCausalLM, T.BloomConfig(vocab_size=48, hidden_size=32, n_layer=2, n_head=4), ["layer"]),
    "gptj": (
        T.GPTJForCausalLM,
        T.GPTJConfig(vocab_size=48, n_positions=24, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **_NOBODY),
        ["layer"],
    ),
    "phi": (T.PhiForCausalLM, T.PhiConfig(**_BIG, intermediate_size=40, **_NOBODY), ["layer"]),
    "clip_text_model": (
        T.CLIPTextModel,
        T.CLIPTextConfig(**_BIG, intermediate_size=40, bos_token_id=1, eos_token_id=2, pad_token_id=0),
        ["encoder"],
    ),
    "whisper": (
        T.WhisperForConditionalGeneration,
        T.WhisperConfig(
            vocab_size=48, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=40, num_mel_bins=8, max_source_positions=10,
            max_target_positions=20, decoder_start_token_id=1, **_NOBODY,
        ),
        ["encoder", "decoder", "cross"],
    ),
}  # fmt: skip


def offered(model: nn.Module) -> Wrapped:
    """Return the sites from the code that the error suggests."""
    with pytest.raises(InputError, match="of no family that headcount knows") as told:
        wrap(model)
    call = told.value.advice[-1].split("for you to confirm: ")[1].split(", or wrap")[0]
    return eval(call, {"wrap": wrap, "Sites": Sites, "model": model})


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_family_is_offered_a_guess_that_works(name: str) -> None:
    kind, config, roles = UNKNOWN[name]
    torch.manual_seed(0)
    wrapped = offered(kind(config).eval().double())
    sites = wrapped.head_sites
    known = {"cross": "decoder.{}.cross"}
    assert names(sites) == [known.get(role, f"{role}.{{}}.self").format(i) for role in roles for i in range(2)]
    assert len(wrapped.heads) == (16 if name == "whisper" else 8)
    inputs: tuple[Tensor, ...] = hub.inputs_of("gpt2")
    if name == "whisper":
        wrapped = wrap(wrapped.model, sites, inputs=("input_features", "decoder_input_ids"))
        inputs = torch.randn(3, 8, 20).double(), inputs[0][:, :5]
    prove(wrapped, sites, inputs)


def test_two_towers_are_offered_one_by_one() -> None:
    text = _BIG | {"intermediate_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {
        key: text[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    sizes = {"image_size": 16, "patch_size": 8}
    model = T.CLIPModel(T.CLIPConfig(text_config=text, vision_config=vision | sizes, projection_dim=16))
    with pytest.raises(InputError, match=r"text_model\.encoder\S* n_heads=4\)\), or wrap\(.*vision_model\.encoder"):
        wrap(model)
    assert len(offered(model).heads) == 8


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_cross_attention_where_we_do_not_look_is_an_error(name: str) -> None:
    with pytest.raises(InputError, match="has cross-attention, and headcount looks only for self-attention"):
        wrap(hub.build(name, is_decoder=True, add_cross_attention=True))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_given_sites_do_not_change_the_order_of_inputs(name: str) -> None:
    model, inputs = hub.build(name), hub.inputs_of(name)
    wrapped = wrap(model)
    assert torch.equal(wrap(model, wrapped.head_sites)(*inputs), wrapped(*inputs))


class _Heads(nn.Module):
    """A module for each head, as in tutorials; nothing on the way to it is called attention."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(nn.Linear(8, 4) for _ in range(2)), nn.Linear(8, 8)


@pytest.mark.parametrize(
    ("block", "pattern", "n_heads"),
    [
        (lambda: nn.ModuleDict({"sa": _Heads()}), "*.sa.proj", 2),
        (lambda: nn.ModuleDict({"attn": nn.ModuleDict({"linears": nn.ModuleList(nn.Linear(8, 8) for _ in range(4))})}),
         "*.attn.linears.3", None),
        (lambda: nn.ModuleDict({"attn": nn.ModuleDict({"to_out": nn.Sequential(nn.Linear(8, 8), nn.Dropout())})}),
         "*.attn.to_out.0", None),
        (lambda: nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2)}), "*.attn", 2),
    ],
)  # fmt: skip
def test_projections_as_tutorials_name_them(block: Any, pattern: str, n_heads: int | None) -> None:
    (found,) = guess(nn.ModuleList(block() for _ in range(3)))
    assert (found.pattern, found.n_layers, found.n_heads) == (pattern, 3, n_heads)
