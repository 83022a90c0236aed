"""Families of Hugging Face models: where their attention blocks are, and how these are laid out.

All paths start at the family's base model (`model.bert`, `model.transformer`, or the model itself).
"""

from dataclasses import dataclass
from functools import partial

from headcount.hooks import FAMILIES

TEXT = ("input_ids", "attention_mask")
BOTH = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class AttentionLayout:
    """Where the attention blocks of one stack and kind are in a model, and how their projections are laid out."""

    path: str
    """The path of the module that computes z; `*` stands for the layer."""
    projection: str
    """The path of the output projection, relative to that module; `..` at the start means its parent module."""
    stack: str = "layer"
    kind: str = "self"
    n_heads: str = "num_attention_heads"
    """The name of the field in the configuration that holds the number of (query) heads."""
    query: str = ""
    """The name of the layer that computes the queries of all heads, concatenated."""
    key: str = ""
    """The name of the layer that computes the keys."""
    value: str = ""
    """The name of the layer that computes the values."""
    fused: str = ""
    """The name of a single layer that computes queries, keys and values, instead of the three above."""
    by_head: bool = False
    """Whether the fused layer's outputs are ordered by head; otherwise queries come first, then keys, then values."""

    def projection_path(self) -> str:
        """Return the path of the output projection from the base model."""
        home = self.path.rpartition(".")[0] if self.projection.startswith("..") else self.path
        return f"{home}.{self.projection.removeprefix('..')}"


@dataclass(frozen=True)
class Family:
    """A family of Hugging Face models whose attention blocks are laid out alike."""

    summary: str
    model_types: tuple[str, ...]
    """The values of `model_type` in the configurations of this family."""
    blocks: tuple[AttentionLayout, ...]
    inputs: tuple[str, ...] = TEXT
    """The names of the model's inputs, in the order of positional tensors."""
    is_grouped: bool = False
    """Whether several query heads may share a key and value head (grouped-query attention)."""
    takes_turns: bool = False
    """Whether several layers share one attention block, which is called once per layer."""
    has_position_bias: bool = False
    """Whether the first block of a stack computes a position bias that later blocks reuse."""


_q_k_v_proj = partial(AttentionLayout, query="q_proj", key="k_proj", value="v_proj")
_query_key_value = partial(AttentionLayout, query="query", key="key", value="value")


def _bart_blocks(path: str, stack: str, kind: str = "self") -> AttentionLayout:
    return _q_k_v_proj(path, "out_proj", stack, kind, f"{stack}_attention_heads")


def _t5_blocks(path: str, stack: str, kind: str = "self") -> AttentionLayout:
    return AttentionLayout(path, "o", stack, kind, query="q", key="k", value="v")


PARTS: dict[str, Family] = {
    # BERT and models with its layout: `attention.self` computes z, and `attention.output.dense` projects it.
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
    # ALBERT: one block is called once per layer, so the number of the call distinguishes the layers' heads.
    "albert": Family(
        "encoders whose layers share one block",
        ("albert",),
        (_query_key_value("encoder.albert_layer_groups.*.albert_layers.*.attention", "dense"),),
        takes_turns=True,
    ),
    # GPT-2: one layer computes queries, keys and values, all queries first.
    "gpt2": Family("decoders laid out like GPT-2", ("gpt2",), (AttentionLayout("h.*.attn", "c_proj", fused="c_attn"),)),
    "gpt-neo": Family("GPT-Neo", ("gpt_neo",), (_q_k_v_proj("h.*.attn.attention", "out_proj"),)),
    # GPT-NeoX (Pythia): one layer computes queries, keys and values, ordered by head.
    "gpt-neox": Family(
        "GPT-NeoX, so Pythia too",
        ("gpt_neox",),
        (AttentionLayout("layers.*.attention", "dense", fused="query_key_value", by_head=True),),
    ),
    # Llama, Mistral, Qwen2: several query heads may share keys and values; "heads" means query heads.
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
    # T5: the first block of a stack computes a bias per head and distance, which the other blocks reuse.
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


def model_type_of(model: object) -> str:
    """Return the `model_type` in a model's configuration; empty if there is none."""
    return str(getattr(getattr(model, "config", None), "model_type", None) or "")


def family_of(model_type: str) -> Family | None:
    """Return the family of a configuration's `model_type`, or None if it is unknown."""
    known = map(FAMILIES.get, FAMILIES.names())
    return next((family for family in known if model_type in family.model_types), None)


def model_types() -> tuple[str, ...]:
    """Return all known model types, including those of other packages, sorted."""
    known = map(FAMILIES.get, FAMILIES.names())
    return tuple(sorted(name for family in known for name in family.model_types))
