"""Sweeps: compute how much each head's zero ablation raises the mean loss of the next token; and races of sweeps.

A race with other tools runs in their environment (`make .venv-lens/.ready`) and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import Ratio, timed
from headcount.heads import HeadSite
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.sites import Site, Sites

LENS = Path(".venv-lens/bin/python")


def sites_at(projections: Sequence[nn.Module], n_heads: int) -> Sites:
    """Return the sites of a single stack with these output projections."""
    names = [HeadSite("layer", i) for i in range(len(projections))]
    heads = [tuple(name.head(h) for h in range(n_heads)) for name in names]
    return Sites({name: Site(*parts) for name, *parts in zip(names, projections, heads, strict=True)})


def ours(model: nn.Module, sites: Sites, tokens: Tensor, block: int, batch: int, *, checked: bool = True) -> Tensor:
    """Return the effect of each head by headcount: `block` examples per cached pass, `batch` rows per replayed pass.

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
    """Return the effect of each head by a loop of plain hooks, with a whole pass for each head."""
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
    """Return the mean loss of the next token for each row."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none").mean(dim=1)


def enlarge(model: nn.Module) -> None:
    """Draw larger weight matrices, because the heads of a new model have almost no effect."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=1.5 / parameter.shape[1] ** 0.5)


def _logits(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


@torch.no_grad()
def race(ways: Mapping[str, Callable[[], Tensor]], rounds: int) -> dict[str, Any]:
    """Time all sweeps, in alternating rounds, and compare their effects with headcount's ("ours")."""
    effects = {name: way() for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(timed(way)[1])
    differences = {name: float((effects["ours"] - other).abs().max()) for name, other in effects.items()}
    return {"times": times, "difference": differences}


def run_race(module: str, *arguments: str) -> dict[str, Any]:
    """Run a race in the environment of the other tools, without downloads, and return the JSON that it prints."""
    if not LENS.exists():
        print(f"  {LENS} is missing: make bench makes it", file=sys.stderr)
    environment = {**os.environ, "PYTHONPATH": "src:.", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [LENS, "-m", module, *arguments]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment).stdout
    outcome: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return outcome


def compare(outcome: Mapping[str, Any], name: str, question: str, least: float) -> Ratio:
    """Compare one sweep of a race with headcount's, by the median of the rounds' ratios; their effects must agree."""
    ours, others, difference = outcome["times"]["ours"], outcome["times"][name], outcome["difference"][name]
    ratio = statistics.median(other / own for own, other in zip(ours, others, strict=True))
    question += f" (1 thread; effects apart by {difference:.0e})"
    own_time, other_time = (f"{statistics.median(seconds):.2f} s" for seconds in (ours, others))
    return Ratio.at_least(question, own_time, other_time, ratio, least, valid=difference <= 1e-5)
