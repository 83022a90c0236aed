"""A small, randomly initialised model of every Hugging Face family, in double precision unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WORDS, ROWS, LENGTH, FED = 48, 3, 7, 5
_NOBODY = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": WORDS,
    "max_position_embeddings": 24,
}
_LLAMA = _BERT | {"num_key_value_heads": 2} | _NOBODY
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": WORDS,
    "max_position_embeddings": 24,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
} | _NOBODY

T = transformers
Maker = Callable[..., Any]
FAMILIES: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "bert": (T.BertConfig, T.BertForMaskedLM, _BERT),
    "bert alone": (T.BertConfig, T.BertModel, _BERT),
    "roberta": (T.RobertaConfig, T.RobertaForMaskedLM, _BERT | _NOBODY),
    "electra": (T.ElectraConfig, T.ElectraForMaskedLM, _BERT | {"embedding_size": 16}),
    "distilbert": (
        T.DistilBertConfig,
        T.DistilBertForSequenceClassification,
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "vocab_size": WORDS, "max_position_embeddings": 24},
    ),
    "albert": (T.AlbertConfig, T.AlbertForMaskedLM, _BERT | {"embedding_size": 16} | _NOBODY),
    "albert in groups": (
        T.AlbertConfig,
        T.AlbertForMaskedLM,
        _BERT | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2} | _NOBODY,
    ),
    "gpt2": (
        T.GPT2Config,
        T.GPT2LMHeadModel,
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": WORDS, "n_positions": 24} | _NOBODY,
    ),
    "gpt_neo": (
        T.GPTNeoConfig,
        T.GPTNeoForCausalLM,
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 24,
            "window_size": 3,
        }
        | _NOBODY,
    ),
    "gpt_neox": (T.GPTNeoXConfig, T.GPTNeoXForCausalLM, _BERT | _NOBODY),
    "llama": (T.LlamaConfig, T.LlamaForCausalLM, _LLAMA),
    "mistral": (T.MistralConfig, T.MistralForCausalLM, _LLAMA | {"sliding_window": 4}),
    "qwen2": (T.Qwen2Config, T.Qwen2ForCausalLM, _LLAMA),
    "t5": (
        T.T5Config,
        T.T5ForConditionalGeneration,
        {
            "d_model": 32,
            "d_kv": 8,
            "num_layers": 2,
            "num_heads": 4,
            "d_ff": 40,
            "vocab_size": WORDS,
            "decoder_start_token_id": 1,
        }
        | _NOBODY,
    ),
    "bart": (T.BartConfig, T.BartForConditionalGeneration, _BART),
    "marian": (T.MarianConfig, T.MarianMTModel, _BART),
    "vit": (
        T.ViTConfig,
        T.ViTForImageClassification,
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "image_size": 16,
            "patch_size": 8,
        },
    ),
}
SEQUENCE_TO_SEQUENCE = ("t5", "bart", "marian")


def build(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Weights are large enough for every head to matter."""
    config, kind, settings = FAMILIES[name]
    torch.manual_seed(0)
    model: nn.Module = kind(config(**settings | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def inputs_of(name: str, dtype: torch.dtype = torch.float64, rows: int = ROWS) -> tuple[Tensor, ...]:
    """Tokens with padding on the right, which is masked."""
    draw = torch.Generator().manual_seed(0)
    if name == "vit":
        return (torch.randn(rows, 3, 16, 16, generator=draw, dtype=torch.float64).to(dtype),)
    tokens = torch.randint(2, WORDS, (rows, LENGTH), generator=draw)
    mask = torch.ones_like(tokens)
    mask[1, LENGTH - 2 :] = 0
    if name not in SEQUENCE_TO_SEQUENCE:
        return tokens * mask, mask
    return tokens * mask, torch.randint(2, WORDS, (rows, FED), generator=draw), mask


def called(name: str, model: nn.Module, inputs: tuple[Tensor, ...], **more: Any) -> Any:
    """The model itself, called as its documentation says."""
    names = ("input_ids", "attention_mask")
    if name in SEQUENCE_TO_SEQUENCE:
        names = ("input_ids", "decoder_input_ids", "attention_mask")  # type: ignore[assignment]
    if name == "vit":
        names = ("pixel_values",)  # type: ignore[assignment]
    with torch.no_grad():
        return model(**dict(zip(names, inputs, strict=True)), **more)
