"""Families of Hugging Face models: the module paths of their attention blocks, and the layout of their projections.

All paths start at the base model, which is, for example, `model.bert`, `model.transformer`, or the model itself.
"""

from dataclasses import dataclass
from functools import partial

from headcount.hooks import FAMILIES

TEXT = ("input_ids", "attention_mask")
BOTH = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class AttentionLayout:
    """The module path of all attention blocks of one stack (such as the encoder), and their projections' names."""

    path: str
    """The path of the module that computes z, the outputs of all heads; `*` stands for the number of the layer."""
    projection: str
    """The path of the output projection relative to the module at `path`; `..` at the start means the parent module."""
    stack: str = "layer"
    kind: str = "self"
    n_heads: str = "num_attention_heads"
    """The field of the model's configuration that holds the number of (query) heads."""
    query: str = ""
    """The name of the layer that computes the queries of all heads, concatenated."""
    key: str = ""
    """The name of the layer that computes the keys of all heads."""
    value: str = ""
    """The name of the layer that computes the values of all heads."""
    fused: str = ""
    """The name of a single layer that computes queries, keys and values; empty if there are three separate layers."""
    by_head: bool = False
    """Whether the outputs of the layer `fused` are ordered by head; otherwise all queries come first, then all keys."""

    def projection_path(self) -> str:
        """Return the path of the output projection, starting at the base model."""
        home = self.path.rpartition(".")[0] if self.projection.startswith("..") else self.path
        return f"{home}.{self.projection.removeprefix('..')}"


@dataclass(frozen=True)
class Family:
    """A family of Hugging Face models (such as BERT) whose attention blocks have the same module names and layout."""

    summary: str
    model_types: tuple[str, ...]
    """The values of `model_type` in the configurations of this family's models, such as `bert`."""
    blocks: tuple[AttentionLayout, ...]
    inputs: tuple[str, ...] = TEXT
    """The names of the model's inputs, in the order in which a wrapped model takes them as positional arguments."""
    is_grouped: bool = False
    """Whether several query heads may share one key head and one value head (grouped-query attention)."""
    takes_turns: bool = False
    """Whether several layers share one attention module, which is called once per layer (ALBERT)."""
    has_position_bias: bool = False
    """Whether the first attention block of a stack computes a position bias that all later blocks reuse (T5)."""


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
    """Return the `model_type` in a model's Hugging Face configuration, such as `bert`; empty if there is none."""
    return str(getattr(getattr(model, "config", None), "model_type", None) or "")


def family_of(model_type: str) -> Family | None:
    """Return the family that a `model_type`, such as `bert`, belongs to, or None if it is unknown."""
    known = map(FAMILIES.get, FAMILIES.names())
    return next((family for family in known if model_type in family.model_types), None)


def model_types() -> tuple[str, ...]:
    """Return the `model_type` of all supported Hugging Face models, sorted, including those that other packages add."""
    known = map(FAMILIES.get, FAMILIES.names())
    return tuple(sorted(name for family in known for name in family.model_types))
