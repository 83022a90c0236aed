"""Live models in a browser, for tests: the page's engine, and what PyTorch computes for the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headcount.describing.live import LiveModel, LiveTask
from headcount.models.exporting import ExportedModel
from headcount.models.transformer import Model

NO_TASK = LiveTask("none", "class", {}, {}, (), ())
ENGINE = "document.querySelector('figure.live-figure').live.engine.constructor"

ANSWER = f"""async ([header, packed, sources, forced, n, replaced]) => {{
  const engine = await {ENGINE}.unpacked(header, packed);
  const others = new Map(Object.entries(replaced).map(([short, rows]) =>
    [short, rows && {{ rows: Float32Array.from(rows.flat()), n: rows.length, wraps: true }} || {{ rows: null }}]));
  return sources.map((source, i) => {{
    const run = forced
      ? engine.answer(source, {{ n, forced: forced[i], replaced: others }})
      : engine.classify(source, {{ replaced: others }});
    return forced ? run.logits.map((each) => [...each]) : [[...run.logits]];
  }});
}}"""
"""Logits [example, position, token] of a model that the test hands to the engine, with some heads replaced."""


def in_page(
    page: Any,
    exported: ExportedModel,
    sources: Sequence[Sequence[int]],
    forced: Sequence[Sequence[int]] | None = None,
    replaced: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the logits of the page's engine; `replaced` maps heads to the rows in place of their output, or None."""
    live = LiveModel(NO_TASK, exported.architecture, exported.arrays, exported.n_positions, 0, "half", 0)
    n = len(forced[0]) if forced else 0
    return page.evaluate(ANSWER, [live.header(), live.packed(), sources, forced, n, dict(replaced or {})])


@contextmanager
def replaced_outputs(model: Model, replaced: Mapping[str, Any]) -> Iterator[None]:
    """Put rows in the place of heads' outputs by plain hooks; None stands for zeros."""
    handles = []
    for site, projection in model.projections.items():
        heads = model.heads_at(site)
        width = model.config.d_model // model.config.n_heads

        def put(module: Any, inputs: Any, heads: Any = heads, width: int = width) -> tuple[torch.Tensor]:
            z = inputs[0].clone()
            for i, head in enumerate(heads):
                if head.short in replaced:
                    rows = replaced[head.short]
                    part = z[..., i * width : (i + 1) * width]
                    n = part.shape[-2]
                    part[:] = 0.0 if rows is None else torch.tensor(np.array(rows)[np.arange(n) % len(rows)])
            return (z,)

        handles.append(projection.register_forward_pre_hook(put))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def in_torch(
    model: Model,
    sources: Sequence[Sequence[int]],
    forced: Sequence[Sequence[int]] | None = None,
    replaced: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the logits of PyTorch, one example at a time."""
    with torch.no_grad(), replaced_outputs(model, replaced or {}):
        if forced is not None:
            return model(torch.tensor(sources), torch.tensor(forced)).tolist()
        return [[model(torch.tensor([source]))[0].tolist()] for source in sources]


def worst(one: list[Any], other: list[Any]) -> float:
    """Return the largest difference between logits."""
    return max(float(np.abs(np.array(a) - np.array(b)).max()) for a, b in zip(one, other, strict=True))
