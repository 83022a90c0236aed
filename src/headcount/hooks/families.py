"""What there is to know of a family of models: where its heads are, and what they are made of.

Everything is written as paths from the family's base model (`model.bert`, `model.transformer`, or the model itself).
"""

from dataclasses import dataclass
from functools import partial

from headcount.hooks import FAMILIES

TEXT = ("input_ids", "attention_mask")
BOTH = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class AttentionLayout:
    """The attention blocks of one stack and kind."""

    path: str
    """Of the module that computes z; `*` stands for the layer."""
    projection: str
    """Of the output projection, whose input is z; from the same module, `..` leading to the one above it."""
    stack: str = "layer"
    kind: str = "self"
    n_heads: str = "num_attention_heads"
    """What the configuration calls the number of (query) heads."""
    query: str = ""
    key: str = ""
    value: str = ""
    """The layers whose outputs are the heads' queries, keys and values, side by side."""
    fused: str = ""
    """Or one layer for all three."""
    by_head: bool = False
    """Whether a fused layer has q, k and v of one head beside each other; else all queries, all keys, all values."""

    def projection_path(self) -> str:
        """From the base model."""
        home = self.path.rpartition(".")[0] if self.projection.startswith("..") else self.path
        return f"{home}.{self.projection.removeprefix('..')}"


@dataclass(frozen=True)
class Family:
    """One way to lay out a model."""

    summary: str
    model_types: tuple[str, ...]
    """What configurations call it."""
    blocks: tuple[AttentionLayout, ...]
    inputs: tuple[str, ...] = TEXT
    """What a pass is given, in the order in which tensors may be given without names."""
    is_grouped: bool = False
    """Whether several query heads may share a key and value head."""
    takes_turns: bool = False
    """Whether one block serves several layers, called once for each."""
    has_position_bias: bool = False
    """Whether blocks hand a bias for every head from layer to layer."""


_q_k_v_proj = partial(AttentionLayout, query="q_proj", key="k_proj", value="v_proj")
_query_key_value = partial(AttentionLayout, query="query", key="key", value="value")


def _bart_blocks(path: str, stack: str, kind: str = "self") -> AttentionLayout:
    return _q_k_v_proj(path, "out_proj", stack, kind, f"{stack}_attention_heads")


def _t5_blocks(path: str, stack: str, kind: str = "self") -> AttentionLayout:
    return AttentionLayout(path, "o", stack, kind, query="q", key="k", value="v")


PARTS: dict[str, Family] = {
    # BERT and those that kept its layout: z is computed by `attention.self` and projected by `attention.output.dense`.
    "bert": Family(
        "encoders laid out like BERT",
        ("bert", "roberta", "electra", "xlm-roberta", "camembert"),
        (_query_key_value("encoder.layer.*.attention.self", "..output.dense"),),
    ),
    "distilbert": Family(
        "DistilBERT",
        ("distilbert",),
        (AttentionLayout("transformer.layer.*.attention", "out_lin", query="q_lin", key="k_lin", value="v_lin"),),
    ),
    # ALBERT: one block is called once per layer, so its heads are told apart by the call.
    "albert": Family(
        "encoders whose layers share one block",
        ("albert",),
        (_query_key_value("encoder.albert_layer_groups.*.albert_layers.*.attention", "dense"),),
        takes_turns=True,
    ),
    # GPT-2: queries, keys and values come from one layer, all queries first.
    "gpt2": Family("decoders laid out like GPT-2", ("gpt2",), (AttentionLayout("h.*.attn", "c_proj", fused="c_attn"),)),
    "gpt-neo": Family("GPT-Neo", ("gpt_neo",), (_q_k_v_proj("h.*.attn.attention", "out_proj"),)),
    # GPT-NeoX (Pythia): one layer for queries, keys and values, head by head.
    "gpt-neox": Family(
        "GPT-NeoX, so Pythia too",
        ("gpt_neox",),
        (AttentionLayout("layers.*.attention", "dense", fused="query_key_value", by_head=True),),
    ),
    # Llama, Mistral, Qwen2: several query heads may share keys and values; heads are query heads.
    "llama": Family(
        "decoders laid out like Llama",
        ("llama", "mistral", "qwen2"),
        (_q_k_v_proj("layers.*.self_attn", "o_proj"),),
        is_grouped=True,
    ),
    "bart": Family(
        "encoder-decoders laid out like BART",
        ("bart", "mbart", "marian"),
        (
            _bart_blocks("encoder.layers.*.self_attn", "encoder"),
            _bart_blocks("decoder.layers.*.self_attn", "decoder"),
            _bart_blocks("decoder.layers.*.encoder_attn", "decoder", "cross"),
        ),
        inputs=BOTH,
    ),
    # T5: the first block of a stack has a bias for every head and distance, which it hands on to the others.
    "t5": Family(
        "encoder-decoders laid out like T5",
        ("t5", "mt5"),
        (
            _t5_blocks("encoder.block.*.layer.0.SelfAttention", "encoder"),
            _t5_blocks("decoder.block.*.layer.0.SelfAttention", "decoder"),
            _t5_blocks("decoder.block.*.layer.1.EncDecAttention", "decoder", "cross"),
        ),
        inputs=BOTH,
        has_position_bias=True,
    ),
    "vit": Family(
        "vision transformers",
        ("vit",),
        (_q_k_v_proj("layers.*.attention", "o_proj"),),
        inputs=("pixel_values",),
    ),
}


def family_of(model_type: str) -> Family | None:
    """The family that a configuration's `model_type` belongs to, if we know it."""
    known = map(FAMILIES.get, FAMILIES.names())
    return next((family for family in known if model_type in family.model_types), None)


def model_types() -> tuple[str, ...]:
    """Those of the table, and those that other packages add."""
    known = map(FAMILIES.get, FAMILIES.names())
    return tuple(sorted(name for family in known for name in family.model_types))
