"""Greedy decoding: the model hears only what it said itself."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from headcount.models.blocks import Caches
from headcount.models.encoder_decoder import EncoderDecoder, Memory


@torch.no_grad()
def greedy(
    model: EncoderDecoder,
    memory: Memory,
    first: int,
    n_tokens: int,
    *,
    use_cache: bool = True,
) -> Int[Tensor, "batch n_tokens"]:
    """The `n_tokens` tokens that the model writes about `memory` after it is fed `first`.

    With the cache each step feeds one token; without it each step feeds all tokens again. Same tokens either way.
    """
    caches: Caches | None = {} if use_cache else None
    said = torch.full((len(memory.x), 1), first, device=memory.x.device)
    for n_past in range(n_tokens):
        if use_cache:
            logits = model.decode(said[:, -1:], memory, n_past=n_past, caches=caches)
        else:
            logits = model.decode(said, memory)
        said = torch.cat([said, logits[:, -1:].argmax(dim=-1)], dim=1)
    return said[:, 1:]
