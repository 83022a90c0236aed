"""A sweep over the 32 heads of a small decoder-only model: ours, TransformerLens', and a loop of plain hooks.

Runs in an environment of its own, which has TransformerLens (`make .venv-lens/.ready`), and prints one line of JSON.
All three get the same weights and the same 256 rows of 20 tokens, and compute the same thing: what silencing each head
alone does to the mean loss of the next token. Ours and the plain hooks act on one and the same plain PyTorch module.
Rounds alternate; medians of the rounds' ratios count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from benchmarks.decoder_only import DecoderOnly
from headcount.heads import HeadSite
from headcount.instruments.recording import Change, Recording
from headcount.instruments.sites import Site, Sites
from headcount.instruments.sweep import sweep

LAYERS, HEADS, D_HEAD, ROWS, TOKENS, WORDS = 4, 8, 8, 256, 20, 64
ROUNDS = 5
BLOCK, BATCH = 32, 128
"""Our examples per recorded pass, and rows per batch."""


def main() -> None:
    """Check that the effects agree, then race."""
    torch.set_num_threads(1)
    bridge, plain = models()
    tokens = torch.randint(WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    ways: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: ours(plain, tokens),
        "lens": lambda: lens(bridge, tokens),
        "hooks": lambda: hooks(plain, tokens),
    }
    with torch.no_grad():
        effects = {name: way() for name, way in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                started = time.process_time()
                way()
                times[name].append(time.process_time() - started)
    worst = {name: float((effects["ours"] - effects[name]).abs().max()) for name in ("lens", "hooks")}
    print(json.dumps({"times": times, "difference": worst, "d_model": HEADS * D_HEAD}))


def models() -> tuple[TransformerBridge, nn.Module]:
    """The same weights twice: behind the bridge, and as the plain module."""
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
    for parameter in bridge.parameters():  # a fresh model's heads do next to nothing
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)
    plain = DecoderOnly(LAYERS, HEADS * D_HEAD, HEADS, WORDS, TOKENS)
    state = {name.replace("_original_component.", ""): t for name, t in bridge.original_model.state_dict().items()}
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    return bridge.eval(), plain.eval()


def ours(model: nn.Module, tokens: Tensor) -> Tensor:
    """One job for all heads."""
    sites = Sites(dict(_sites(model)))
    changes = [Change((head,)) for head in sites.heads]
    total, clean = torch.zeros(len(changes)), torch.zeros(())
    for start in range(0, len(tokens), BLOCK):
        part = tokens[start : start + BLOCK]
        recording = Recording(model, sites, [part])
        clean += losses(_logits(recording.output), part).sum()
        for i, output in sweep(recording, changes, batch_size=BATCH, checked=start == 0):
            total[i] += losses(output, part).sum()
    return (total - clean) / len(tokens)


def _sites(model: nn.Module) -> Iterator[tuple[HeadSite, Site]]:
    for i, layer in enumerate(model.layers):
        site = HeadSite("layer", i)
        yield site, Site(layer.attn.o, tuple(site.head(h) for h in range(HEADS)))


def lens(bridge: TransformerBridge, tokens: Tensor) -> Tensor:
    """As its documentation loops over heads."""
    clean = losses(bridge(tokens), tokens).mean()
    effects = []
    for layer in range(LAYERS):
        for head in range(HEADS):

            def silence(z: Tensor, hook: object, head: int = head) -> Tensor:
                z[:, :, head] = 0.0
                return z

            said = bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", silence)])
            effects.append(losses(said, tokens).mean() - clean)
    return torch.stack(effects)


def hooks(model: nn.Module, tokens: Tensor) -> Tensor:
    """A forward hook per head, and the whole model again."""
    clean = losses(_logits(model(tokens)), tokens).mean()
    effects = []
    for layer in model.layers:
        for head in range(HEADS):

            def silence(module: nn.Module, args: tuple[Tensor], head: int = head) -> tuple[Tensor]:
                z = args[0].clone()
                z[..., head * D_HEAD : (head + 1) * D_HEAD] = 0.0
                return (z,)

            handle = layer.attn.o.register_forward_pre_hook(silence)
            effects.append(losses(_logits(model(tokens)), tokens).mean() - clean)
            handle.remove()
    return torch.stack(effects)


def losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean loss of the next token, row by row."""
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return each.mean(dim=1)


def _logits(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


if __name__ == "__main__":
    main()
