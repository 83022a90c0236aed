"""Time three sweeps over the 32 heads of a small decoder-only model: by headcount, TransformerLens and plain hooks.

All three get the same weights and the same 256 rows of 20 tokens. headcount and the plain hooks act on the same plain
PyTorch module.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from benchmarks import sweeps
from benchmarks.decoder_only import DecoderOnly

LAYERS, HEADS, D_HEAD, ROWS, TOKENS, WORDS = 4, 8, 8, 256, 20, 64
ROUNDS = 5
BLOCK, BATCH = 32, 128
"""headcount's number of examples per cached pass, and of rows per batch."""


def main() -> None:
    """Run the race, and print its times as JSON."""
    torch.set_num_threads(1)
    bridge, plain = models()
    tokens = torch.randint(WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    sites = sweeps.sites_at([layer.attn.o for layer in plain.layers], HEADS)
    ways = {
        "ours": lambda: sweeps.ours(plain, sites, tokens, BLOCK, BATCH),
        "lens": lambda: lens(bridge, tokens),
        "hooks": lambda: sweeps.hooks(plain, sites, tokens),
    }
    print(json.dumps({**sweeps.race(ways, ROUNDS), "d_model": HEADS * D_HEAD}))


def models() -> tuple[TransformerBridge, nn.Module]:
    """Return a TransformerLens model, and a plain module with the same weights."""
    config = TransformerBridgeConfig(
        n_layers=LAYERS,
        n_heads=HEADS,
        d_head=D_HEAD,
        d_model=HEADS * D_HEAD,
        d_mlp=4 * HEADS * D_HEAD,
        n_ctx=TOKENS,
        d_vocab=WORDS,
        act_fn="gelu",
        normalization_type="LN",
    )
    torch.manual_seed(0)
    bridge = TransformerBridge.boot_native(config)
    sweeps.enlarge(bridge)
    plain = DecoderOnly(LAYERS, HEADS * D_HEAD, HEADS, WORDS, TOKENS)
    state = {name.replace("_original_component.", ""): t for name, t in bridge.original_model.state_dict().items()}
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    return bridge.eval(), plain.eval()


def lens(bridge: TransformerBridge, tokens: Tensor) -> Tensor:
    """Return the effect of each head on the loss, as in TransformerLens' documentation."""
    clean = sweeps.losses(bridge(tokens), tokens).mean()
    effects = []
    for layer in range(bridge.cfg.n_layers):
        for head in range(bridge.cfg.n_heads):

            def zero(z: Tensor, hook: object, head: int = head) -> Tensor:
                z[:, :, head] = 0.0
                return z

            logits = bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])
            effects.append(sweeps.losses(logits, tokens).mean() - clean)
    return torch.stack(effects)


if __name__ == "__main__":
    main()
