"""Ways to compute what silencing each head alone does to the mean loss of the next token, and a race between ways.

A race runs in an environment that has the other tools (`make .venv-lens/.ready`) and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.heads import HeadSite
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Site, Sites

LENS = Path(".venv-lens/bin/python")


def sites_at(projections: Sequence[nn.Module], n_heads: int) -> Sites:
    """The heads of a single stack, whose output projections are given."""
    names = [HeadSite("layer", i) for i in range(len(projections))]
    heads = [tuple(name.head(h) for h in range(n_heads)) for name in names]
    return Sites({name: Site(*each) for name, *each in zip(names, projections, heads, strict=True)})


def ours(model: nn.Module, sites: Sites, tokens: Tensor, block: int, batch: int, *, checked: bool = True) -> Tensor:
    """One job for all heads: `block` examples to a cached pass, `batch` rows to a pass that is run again.

    If `checked`, samples of the first block are compared with whole passes, as in a sweep over all data.
    """
    interventions = [Intervention((head,)) for head in sites.heads]
    total, clean = torch.zeros(len(interventions)), torch.zeros(())
    for start in range(0, len(tokens), block):
        part = tokens[start : start + block]
        cached = CachedPass(model, sites, [part])
        clean += losses(_logits(cached.output), part).sum()
        for i, output in sweep(cached, interventions, batch_size=batch, checked=checked and start == 0):
            total[i] += losses(output, part).sum()
    return (total - clean) / len(tokens)


def hooks(model: nn.Module, sites: Sites, tokens: Tensor) -> Tensor:
    """A forward hook per head, and the whole model again."""
    clean = losses(_logits(model(tokens)), tokens).mean()
    effects = []
    for site in sites.values():
        for head in range(len(site.heads)):

            def zero(module: nn.Module, args: tuple[Tensor], head: int = head, n: int = len(site.heads)) -> Tensor:
                z = args[0].clone()
                z.unflatten(-1, (n, -1))[..., head, :] = 0.0
                return z

            handle = site.projection.register_forward_pre_hook(zero)
            effects.append(losses(_logits(model(tokens)), tokens).mean() - clean)
            handle.remove()
    return torch.stack(effects)


def losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean loss of the next token, row by row."""
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    return each.mean(dim=1)


def _logits(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


@torch.no_grad()
def race(ways: Mapping[str, Callable[[], Tensor]], rounds: int) -> dict[str, Any]:
    """Check that the effects agree with ours, which come first, then race: rounds alternate."""
    effects = {name: way() for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            times[name].append(time.process_time() - started)
    worst = {name: float((effects["ours"] - each).abs().max()) for name, each in effects.items()}
    return {"times": times, "difference": worst, "largest": float(effects["ours"].abs().max())}


def run_race(module: str, *arguments: str) -> dict[str, Any]:
    """The outcome of a race that runs in the other environment, where nothing can be downloaded."""
    if not LENS.exists():
        print(f"  {LENS} is missing: make bench makes it", file=sys.stderr)
    environment = {**os.environ, "PYTHONPATH": "src:.", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [LENS, "-m", module, *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    timed: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return timed


def compare(timed: Mapping[str, Any], name: str, question: str, least: float) -> dict[str, Any]:
    """One way against ours: the median of the rounds' ratios counts."""
    ours, theirs, apart = timed["times"]["ours"], timed["times"][name], timed["difference"][name]
    ratio = statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True))
    return {
        "question": f"{question} (1 thread; effects apart by {apart:.0e})",
        "ours": f"{statistics.median(ours):.2f} s",
        "other": f"{statistics.median(theirs):.2f} s",
        "ratio": ratio,
        "promise": f"at least {least:g}",
        "kept": ratio >= least and apart <= 1e-5,
    }
