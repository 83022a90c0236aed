"""The first position of each pass while a model decodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.heads import HeadSite
from headcount.hooks.decoding import DecodingPositions
from headcount.hooks.sites import Sites

ENCODER, DECODER = HeadSite("encoder", 0), HeadSite("decoder", 0)


def test_a_pass_over_one_position_begins_where_the_last_one_ended() -> None:
    positions = DecodingPositions()
    assert [positions.first(DECODER, n) for n in (3, 1, 1, 1)] == [0, 3, 4, 5]
    assert positions.first(DECODER, 2) == 0  # several positions: a model without a cache begins again
    assert [positions.first(ENCODER, 1) for _ in range(2)] == [0, 0]


class Model(nn.Module):
    """An encoder-decoder with one projection per stack."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, is_new: bool) -> Tensor:
        if is_new:
            self.encoder(x)
        return self.decoder(x)


def test_positions_begin_again_when_the_encoder_runs() -> None:
    model, positions = Model(), DecodingPositions()
    sites = Sites.of(model, encoder="encoder", decoder="decoder", n_heads=2)
    firsts = []
    with positions.watching(model, sites):
        for is_new in (True, False, False, True, False):
            model(torch.zeros(1, 1, 4), is_new)
            firsts.append(positions.first(DECODER, 1))
    assert firsts == [0, 1, 2, 0, 1]
