"""One attention block after the other loses heads, in place.

The families' tables say where queries, keys, values and the output projection are, and how they are laid out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headcount.errors import InputError
from headcount.guests import cut_layers as layers
from headcount.guests.cut_bias import pick_bias
from headcount.heads import HeadId, HeadSite
from headcount.instruments.families.base import Blocks, Family
from headcount.instruments.wrapping import base_of, blocks_at

COUNTS = ("num_heads", "n_heads", "num_attention_heads")
"""What attention modules call the number of their heads."""
WIDTHS = ("all_head_size", "split_size", "inner_dim")
"""What they call the number of their heads' features."""
Heads = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """One attention block, and the heads that it has now and shall have."""

    site: HeadSite
    layout: Blocks
    attention: nn.Module
    projection: nn.Module
    n_all: int
    """Heads that it had when it was whole."""
    now: Heads
    then: Heads

    def layer(self, name: str) -> nn.Module:
        """Queries, keys or values."""
        return self.attention.get_submodule(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers that compute queries, keys and values."""
        return (self.layout.fused,) if self.layout.fused else (self.layout.query, self.layout.key, self.layout.value)


def cut_in_place(model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]) -> None:
    """Take a model from one set of missing heads to a larger one."""
    blocks = _blocks(model, family, gone, going)
    if missing := sorted(set(going) - {block.site.head(i) for block in blocks for i in range(block.n_all)}):
        sites = ", ".join(f"{block.site} ({block.n_all})" for block in blocks)
        raise InputError(f"no head {str(missing[0])!r} in {type(model).__name__}", f"it has heads at {sites}")
    if family.takes_turns and _disagree(blocks):
        _give_each_its_own(model, family)
        blocks = _blocks(model, family, gone, going)
    for sharing in _sharing(blocks):
        if any(block.now != block.then for block in sharing):
            _cut(model, family, sharing)


def _blocks(model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]) -> list[Block]:
    found, config = [], cast(Any, model.config)
    for site, layout, attention, projection, _ in blocks_at(model, family):
        n_all = int(getattr(config, layout.n_heads))
        now = tuple(i for i in range(n_all) if site.head(i) not in gone)
        then = tuple(i for i in now if site.head(i) not in going)
        found.append(Block(site, layout, attention, projection, n_all, now, then))
    return found


def _sharing(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks on the same weights; a block that serves several layers which agree on its heads, once."""
    found: dict[Any, dict[nn.Module, Block]] = {}
    for block in blocks:
        weights = getattr(block.projection, "weight", block.projection)
        found.setdefault(weights, {})[block.attention] = block
    yield from (list(each.values()) for each in found.values())


# --- the cut ----------------------------------------------------------------------------------------------------------


def _cut(model: nn.Module, family: Family, sharing: Sequence[Block]) -> None:
    held, kept = _union(block.now for block in sharing), _union(block.then for block in sharing)
    for block in sharing:
        for name in block.names:
            layers.require_plain(f"{name} of {block.site}", block.layer(name))
        layers.require_plain(f"the output projection of {block.site}", block.projection)
    d_head = layers.n_inputs(sharing[0].projection) // len(held)
    made: layers.Made = {}
    for block in sharing:
        if family.has_position_bias:
            pick_bias(block.attention, block.then or (0,), block.n_all, cast(Tensor, block.projection.weight).device)
        if not block.then:
            _hollow(block, d_head)
            continue
        _narrow(model, family, block, held, kept, d_head, made)
        _recount(block.attention, len(block.then), d_head)


def _narrow(
    model: nn.Module, family: Family, block: Block, held: Heads, kept: Heads, d_head: int, made: layers.Made
) -> None:
    places = [held.index(head) for head in kept]
    if family.is_grouped:
        _narrow_grouped(block, d_head, block.n_all // int(cast(Any, model.config).num_key_value_heads))
    elif block.layout.fused:
        layers.keep_outputs(block.layer(block.layout.fused), _fused(block.layout, places, len(held), d_head), made)
    else:
        for name in block.names:
            _narrow_shared(block, block.layer(name), layers.features(places, d_head), kept, d_head, made)
    layers.make_plain(block.projection)
    layers.keep_inputs(block.projection, layers.features(places, d_head), made)
    if block.then != kept:
        own = layers.features([kept.index(head) for head in block.then], d_head)
        layers.use_part(cast(nn.Linear, block.projection), own, axis=1)


def _narrow_shared(
    block: Block, layer: nn.Module, features: Tensor, kept: Heads, d_head: int, made: layers.Made
) -> None:
    layers.make_plain(layer)
    layers.keep_outputs(layer, features, made)
    if block.then != kept:
        own = layers.features([kept.index(head) for head in block.then], d_head)
        layers.use_part(cast(nn.Linear, layer), own, axis=0)


def _fused(layout: Blocks, places: Sequence[int], n_heads: int, d_head: int) -> Tensor:
    if layout.by_head:
        return layers.features(places, 3 * d_head)
    return torch.cat([layers.features(places, d_head) + part * n_heads * d_head for part in range(3)])


def _narrow_grouped(block: Block, d_head: int, size: int) -> None:
    """`size` query heads shared a key and value head when all were there."""
    places = [block.now.index(head) for head in block.then]
    layers.keep_outputs(block.layer(block.layout.query), layers.features(places, d_head), {})
    held = sorted({head // size for head in block.now})
    owners = [head // size for head in block.then]
    n_served = Counter(owners)
    used = sorted(n_served)
    is_even = len(set(n_served.values())) == 1
    for name in (block.layout.key, block.layout.value):
        layer = cast(nn.Linear, block.layer(name))
        layers.make_plain(layer)
        layers.keep_outputs(layer, layers.features([held.index(each) for each in used], d_head), {})
        if not is_even:
            layers.pick_outputs(layer, layers.features([used.index(each) for each in owners], d_head))
    block.attention.num_key_value_groups = n_served[used[0]] if is_even else 1  # type: ignore[assignment]


def _hollow(block: Block, d_head: int) -> None:
    """No head is left: nothing is computed of which anything is heard, and no weights are kept."""
    for name in block.names:
        setattr(block.attention, name, layers.Zeros(3 * d_head if block.layout.fused else d_head))
    layers.leave_bias(block.projection)
    _recount(block.attention, 1, d_head)
    if hasattr(block.attention, "num_key_value_groups"):
        block.attention.num_key_value_groups = 1  # type: ignore[assignment]


def _recount(attention: nn.Module, n_heads: int, d_head: int) -> None:
    for name in COUNTS:
        if hasattr(attention, name):
            setattr(attention, name, n_heads)
    for name in WIDTHS:
        if hasattr(attention, name):
            setattr(attention, name, n_heads * d_head)


# --- layers that take turns with one block ----------------------------------------------------------------------------


def _disagree(blocks: Sequence[Block]) -> bool:
    """Whether layers that are served by one block shall have different heads."""
    wanted: dict[nn.Module, set[Heads]] = {}
    for block in blocks:
        wanted.setdefault(block.attention, set()).add(block.then)
    return any(len(each) > 1 for each in wanted.values())


def _give_each_its_own(model: nn.Module, family: Family) -> None:
    """A group of blocks for every layer, on the same parameters: the model's own code can do that."""
    config = cast(Any, model.config)
    place, _, _ = family.blocks[0].path.partition(".*")
    above, _, name = place.rpartition(".")
    holder = base_of(model).get_submodule(above)
    groups = cast(nn.ModuleList, holder.get_submodule(name))
    n_layers = config.num_hidden_layers
    shared = {id(each): each for each in (*groups.parameters(), *groups.buffers(), config)}
    serving = [groups[int(i / (n_layers / len(groups)))] for i in range(n_layers)]
    setattr(holder, name, nn.ModuleList(deepcopy(group, dict(shared)) for group in serving))
    config.num_hidden_groups = n_layers


def _union(several: Iterator[Heads]) -> Heads:
    return tuple(sorted(set().union(*several)))
