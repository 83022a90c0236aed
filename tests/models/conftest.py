"""One small model of every kind."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from headcount.encodings import ENCODINGS
from headcount.models.config import EncoderDecoderConfig
from headcount.models.transformer import EncoderDecoder

KINDS = [*product(["pre"], ENCODINGS.names()), ("post", "learned"), ("post", "rotary")]
"""No encoding knows where the norms are, so that two stand for all where they come last."""
QUICK = [("pre", "learned"), ("pre", "rotary"), ("pre", "t5"), ("post", "learned")]
"""One of each touch; all kinds together take over 5 seconds."""


@pytest.fixture(
    scope="session",
    params=[pytest.param(kind, id="-".join(kind), marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS],
)
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    """Tokens 0 to 9, `+` 10, start 11, padding 12; no weight is left at 0 or 1, where a fault would not show."""
    norm, encoding = request.param
    shape = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 3, "d_ff": 32, "n_positions": 16}
    config = EncoderDecoderConfig(norm=norm, encoding=encoding, **shape)
    torch.manual_seed(0)
    made = EncoderDecoder(config, n_tokens=13, pad_id=12).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made
