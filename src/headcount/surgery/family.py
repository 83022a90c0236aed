"""Plans for Hugging Face models: their family's table says where queries, keys and values are, and their layout.

In some places more is needed than smaller layers:

* Query heads that share keys and values, unevenly after the cut: the key and value heads still in use are repeated
  after the projection, once for every query head. No weight is stored twice, but the cache then holds as many heads as
  there are queries.
* T5's position biases stay whole and are handed on whole; every block picks its own.
* A block without heads outputs the bias of its output projection. No weight is left of it, but one head of zeros is
  still computed and cached, and shown as attention: the model's own code cannot do with none.
* ALBERT's layers take turns with one block. Where they no longer agree on its heads, every layer gets a block of its
  own on the same weights, and uses its rows and columns of them. So a cut never costs parameters, but a head frees its
  own only when it is gone from all the layers that share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import AttentionLayout, Family
from headcount.hooks.wrapping import base_of, blocks_at
from headcount.surgery.layers import features, n_inputs, require_plain
from headcount.surgery.plan import Places, SitePlan

COUNTS = ("num_heads", "n_heads", "num_attention_heads")
"""What attention modules call the number of their heads."""
WIDTHS = ("all_head_size", "split_size", "inner_dim")
"""What they call the number of their heads' features."""


@dataclass(frozen=True)
class _Block:
    """One attention block, and the heads that it has now and shall have."""

    site: HeadSite
    layout: AttentionLayout
    attention: nn.Module
    projection: nn.Module
    paths: tuple[str, str]
    """Of the two."""
    n_all: int
    """Heads that it had when it was whole."""
    now: Places
    then: Places

    @property
    def layers(self) -> tuple[str, ...]:
        """Of the layers that compute queries, keys and values."""
        layout = self.layout
        return (layout.fused,) if layout.fused else (layout.query, layout.key, layout.value)


def family_plans(
    model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]
) -> Iterator[SitePlan]:
    """From one set of missing heads to a larger one; layers that come to disagree get blocks of their own."""
    blocks = _blocks(model, family, gone, going)
    if missing := sorted(set(going) - {block.site.head(i) for block in blocks for i in range(block.n_all)}):
        sites = ", ".join(f"{block.site} ({block.n_all})" for block in blocks)
        raise InputError(f"no head {str(missing[0])!r} in {type(model).__name__}", f"it has heads at {sites}")
    if family.takes_turns and _disagree(blocks):
        _give_each_its_own(model, family)
        blocks = _blocks(model, family, gone, going)
    for sharing in _sharing(blocks):
        if any(block.now != block.then for block in sharing):
            held, kept = (_union(getattr(block, when) for block in sharing) for when in ("now", "then"))
            for block in sharing:
                for name in block.layers:
                    require_plain(f"{name} of {block.site}", block.attention.get_submodule(name))
                require_plain(f"the output projection of {block.site}", block.projection)
            d_head = n_inputs(sharing[0].projection) // len(held)
            yield from [_plan(model, family, block, held, kept, d_head) for block in sharing]


def _blocks(model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]) -> list[_Block]:
    found, config = [], cast(Any, model.config)
    paths = {module: path for path, module in model.named_modules()}
    for site, layout, attention, projection, _ in blocks_at(model, family):
        n_all = int(getattr(config, layout.n_heads))
        now = tuple(i for i in range(n_all) if site.head(i) not in gone)
        then = tuple(i for i in now if site.head(i) not in going)
        where = paths[attention], paths[projection]
        found.append(_Block(site, layout, attention, projection, where, n_all, now, then))
    return found


def _sharing(blocks: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Blocks on the same weights; a block that serves several layers which agree on its heads, once."""
    found: dict[Any, dict[nn.Module, _Block]] = {}
    for block in blocks:
        weights = getattr(block.projection, "weight", block.projection)
        found.setdefault(weights, {})[block.attention] = block
    yield from (list(each.values()) for each in found.values())


def _plan(model: nn.Module, family: Family, block: _Block, held: Places, kept: Places, d_head: int) -> SitePlan:
    home, projection = block.paths
    paths = {name: f"{home}.{name}" for name in block.layers}
    places = [held.index(head) for head in kept]
    common: dict[str, Any] = {"site": str(block.site), "heads": held, "projection": projection}
    if family.has_position_bias:
        common["biases"] = {home: (block.then or (0,), block.n_all)}
    if not block.then:
        width = 3 * d_head if block.layout.fused else d_head
        numbers = _counts(block, home, 1, d_head)
        if hasattr(block.attention, "num_key_value_groups"):
            numbers[f"{home}.num_key_value_groups"] = 1
        empty: dict[str, Places] = dict.fromkeys(paths.values(), ())
        return SitePlan(
            way="empty", keep=(), layers=empty, widths=dict.fromkeys(empty, width), numbers=numbers, **common
        )
    numbers = _counts(block, home, len(block.then), d_head)
    if family.is_grouped:
        layers, repeats, n_groups = _grouped(block, paths, d_head, int(cast(Any, model.config).num_key_value_heads))
        numbers[f"{home}.num_key_value_groups"] = n_groups
        return SitePlan(way="narrow", keep=tuple(places), layers=layers, repeats=repeats, numbers=numbers, **common)
    outputs = _fused(block.layout, places, len(held), d_head) if block.layout.fused else _features(places, d_head)
    slices = {}
    if block.then != kept:  # of weights that others share
        own = _features([kept.index(head) for head in block.then], d_head)
        slices = dict.fromkeys((*paths.values(), projection), own)
    return SitePlan(
        way="narrow",
        keep=tuple(places),
        layers=dict.fromkeys(paths.values(), outputs),
        inputs=_features(places, d_head),
        slices=slices,
        numbers=numbers,
        **common,
    )


def _features(places: Sequence[int], size: int) -> Places:
    return tuple(features(places, size).tolist())


def _fused(layout: AttentionLayout, places: Sequence[int], n_heads: int, d_head: int) -> Places:
    if layout.by_head:
        return _features(places, 3 * d_head)
    own = _features(places, d_head)
    return tuple(place + part * n_heads * d_head for part in range(3) for place in own)


def _grouped(
    block: _Block, paths: dict[str, str], d_head: int, n_shared: int
) -> tuple[dict[str, Places], dict[str, Places], int]:
    """Queries of the heads that stay; keys and values that one of them uses, repeated where that is uneven."""
    size = block.n_all // n_shared
    layers = {paths[block.layout.query]: _features([block.now.index(head) for head in block.then], d_head)}
    held = sorted({head // size for head in block.now})
    owners = [head // size for head in block.then]
    n_served = Counter(owners)
    used = sorted(n_served)
    is_even, repeats = len(set(n_served.values())) == 1, {}
    for name in (block.layout.key, block.layout.value):
        layers[paths[name]] = _features([held.index(each) for each in used], d_head)
        if not is_even:
            repeats[paths[name]] = _features([used.index(each) for each in owners], d_head)
    return layers, repeats, n_served[used[0]] if is_even else 1


def _counts(block: _Block, home: str, n_heads: int, d_head: int) -> dict[str, Any]:
    values = dict.fromkeys(COUNTS, n_heads) | dict.fromkeys(WIDTHS, n_heads * d_head)
    return {f"{home}.{name}": value for name, value in values.items() if hasattr(block.attention, name)}


def _disagree(blocks: Sequence[_Block]) -> bool:
    """Whether layers that are served by one block shall have different heads."""
    wanted: dict[nn.Module, set[Places]] = {}
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
    own = nn.ModuleList(deepcopy(group, dict(shared)) for group in serving)
    setattr(holder, name, own.train(groups.training))
    config.num_hidden_groups = n_layers


def _union(several: Iterator[Places]) -> Places:
    return tuple(sorted(set().union(*several)))
