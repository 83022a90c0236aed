"""Our own models, small, in many styles; and what must be the same before and after an instrument was used."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headcount.models.attention import AttentionCache
from headcount.models.config import ClassifierConfig, EncoderDecoderConfig
from headcount.models.transformer import Classifier, EncoderDecoder, Model

START, PAD = 11, 12
SOURCE = torch.tensor([[3, 7, 4, 10, 8], [9, 10, 1, PAD, PAD], [0, 10, 5, 5, PAD], [6, 6, 10, 6, 6]])
FED = torch.tensor([[START, 1, 1], [START, 0, 3], [START, 7, 7], [START, 4, 2]])
NUMBERS = torch.tensor([[3, 5, 5, 9, 1, 4], [7, 20, 20, 20, 20, 20], [0, 19, 4, 20, 20, 20], [8, 2, 2, 11, 6, 13]])
ADDERS: list[dict[str, Any]] = [
    {"norm": "pre", "encoding": "t5", "softmax": "log-length"},
    {"norm": "post", "encoding": "rotary", "window": 2},
    {"norm": "pre", "encoding": "learned"},
    {"norm": "post", "encoding": "sinusoidal", "dropout": 0.5},
]
CLASSIFIERS: list[dict[str, Any]] = [
    {"norm": "post", "encoding": "learned", "causal": True, "dropout": 0.5, "pooling": "attention"},
    {"norm": "pre", "encoding": "none", "window": 2, "pooling": "mean"},
    {"norm": "pre", "encoding": "fire", "pooling": "max"},
    {"norm": "post", "encoding": "alibi", "causal": True, "pooling": "last"},
]


def scattered(model: Any) -> Any:
    """No weight is left at 0 or 1, where a fault would not show; in double precision, where rounding hides none."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval().double()


def adder(**given: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_positions": 8, "n_encoder_layers": 1, "n_decoder_layers": 2}
    return scattered(EncoderDecoder(EncoderDecoderConfig(**(shape | given)), n_tokens=13, pad_id=PAD))


def classifier(**given: Any) -> Classifier:
    torch.manual_seed(0)
    shape = {"d_model": 9, "n_heads": 3, "d_ff": 12, "n_layers": 2, "n_positions": 8}
    return scattered(Classifier(ClassifierConfig(**(shape | given)), 21, 2, pad_id=20))


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(f"{name}{value}" if isinstance(value, int) else str(value) for name, value in settings.items())


Trace = tuple[Any, ...]


def trace(model: nn.Module) -> Trace:
    """All of a model that an instrument might leave changed."""
    hooks = [
        (name, list(module._forward_hooks), list(module._forward_pre_hooks), list(module._forward_hooks_with_kwargs))
        for name, module in model.named_modules()
    ]
    modes = [module.training for module in model.modules()]
    keys = [sorted(module.__dict__) for module in model.modules()]
    assert not any("forward" in names for names in keys), "a module has a forward of its own"
    state = [(name, tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()]
    grads = [parameter.grad is None for parameter in model.parameters()]
    return hooks, modes, keys, state, grads


def shown_weights(model: Model, *inputs: Tensor) -> AttentionCache:
    """Every site's attention weights [row, head, query, key], as our models show them themselves."""
    weights = AttentionCache()
    model(*inputs, weights=weights)
    return weights
