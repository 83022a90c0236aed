"""Plans for headcount's own models: their settings say which heads are there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headcount.heads import HeadId
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import AttentionBlock, Transformer
from headcount.surgery.layers import features
from headcount.surgery.plan import SitePlan


def own_plans(model: Transformer, gone: Collection[HeadId]) -> list[SitePlan]:
    """What takes these heads out, site by site."""
    paths = {module: path for path, module in model.named_modules()}
    touched = {head.site for head in gone}
    return [_plan(paths[block], block, gone) for site, block in model.blocks.items() if site in touched]


def _plan(path: str, block: AttentionBlock, gone: Collection[HeadId]) -> SitePlan:
    attention, home = block.attention, f"{path}.attention"
    assert isinstance(attention, MultiHeadAttention), "it has heads"
    keep = tuple(place for place, head in enumerate(block.heads) if head not in gone)
    kept = tuple(features(keep, attention.d_head).tolist())
    return SitePlan(
        site=str(block.site),
        heads=tuple(head.index for head in block.heads),
        keep=keep,
        way="narrow" if keep else "headless",
        projection=f"{home}.output",
        layers={f"{home}.{name}": kept for name in ("query", "key", "value")} if keep else {},
        numbers={f"{home}.kept": tuple(block.heads[place].index for place in keep)} if keep else {},
        tensors={f"{home}.log_n_scale": 0} if keep and attention.log_n_scale is not None else {},
    )


def tell_settings(model: Transformer, gone: Collection[HeadId]) -> None:
    """Let the model's settings say that these heads are gone."""
    model.config = replace(model.config, pruned=(*model.config.pruned, *map(str, gone)))
