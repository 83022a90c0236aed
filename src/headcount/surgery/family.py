"""Plans for cutting heads out of Hugging Face models, from the layouts in the table of families.

Some models need more than smaller layers:

* In grouped-query attention, query heads may share keys and values unevenly after a cut. The remaining key and value
  heads are then repeated after their projection, once per query head. No weight is stored twice, but the cache of keys
  and values grows to one head per query head.
* T5 passes the position biases of all heads from block to block; after a cut, every block selects the biases of its own
  heads.
* A block without heads outputs the bias of its output projection. It has no weights, but it still computes, caches and
  returns one head of zeros, because the model's code needs at least one head.
* ALBERT's layers share one block. If they no longer agree on its heads, every layer gets its own block, which uses some
  rows and columns of the same weights. A cut never adds parameters, but a head's parameters are freed only when all
  layers that share the block have lost it.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import AttentionLayout, Family
from headcount.hooks.wrapping import base_of, blocks_at
from headcount.surgery.plan import Places, SitePlan, features, n_inputs, require_plain

COUNTS = ("num_heads", "n_heads", "num_attention_heads")
"""The attributes under which attention modules of Hugging Face models keep their number of heads."""
WIDTHS = ("all_head_size", "split_size", "inner_dim")
"""The attributes under which attention modules keep the number of features of all heads together."""


@dataclass(frozen=True)
class _Block:
    """One attention block of a Hugging Face model, with its heads before and after a cut."""

    site: HeadSite
    layout: AttentionLayout
    attention: nn.Module
    path: str
    projection: nn.Module
    projection_path: str
    n_all: int
    """The number of heads that the attention block had in the original model, before any cut."""
    now: Places
    """The original indices of the heads that the block has before this cut."""
    then: Places
    """The original indices of the heads that the block has after this cut."""

    @property
    def layers(self) -> dict[str, str]:
        """The module paths of the layers that compute queries, keys and values, by their names in the block."""
        layout = self.layout
        names = (layout.fused,) if layout.fused else (layout.query, layout.key, layout.value)
        return {name: f"{self.path}.{name}" for name in names}


def family_plans(
    model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]
) -> Iterator[SitePlan]:
    """Yield the plans of a cut, one per attention block that loses heads.

    `gone` are the heads that are missing before the cut, and `going` those that are missing after it, including `gone`.
    Layers that share an attention block but no longer have the same heads get blocks of their own.
    """
    blocks = _blocks(model, family, gone, going)
    if missing := sorted(set(going) - {block.site.head(i) for block in blocks for i in range(block.n_all)}):
        sites = ", ".join(f"{block.site} ({block.n_all})" for block in blocks)
        raise InputError(
            f"no head {str(missing[0])!r} in {type(model).__name__}",
            f"it has these attention blocks (with the number of their heads): {sites}",
        )
    wanted = {(block.attention, block.then) for block in blocks}
    if family.takes_turns and len(wanted) > len({attention for attention, _ in wanted}):
        _separate_blocks(model, family)
        blocks = _blocks(model, family, gone, going)
    by_weights: dict[Any, dict[nn.Module, _Block]] = {}
    for block in blocks:  # a block that layers share is planned once if they agree on its heads
        weights = getattr(block.projection, "weight", block.projection)
        by_weights.setdefault(weights, {})[block.attention] = block
    for sharing in (list(by_attention.values()) for by_attention in by_weights.values()):
        if any(block.now != block.then for block in sharing):
            for block in sharing:
                for name in block.layers:
                    require_plain(f"{name} of {block.site}", block.attention.get_submodule(name))
                require_plain(f"the output projection of {block.site}", block.projection)
            held = tuple(sorted({head for block in sharing for head in block.now}))
            kept = tuple(sorted({head for block in sharing for head in block.then}))
            d_head = n_inputs(sharing[0].projection) // len(held)
            yield from [_plan(model, family, block, held, kept, d_head) for block in sharing]


def _blocks(model: nn.Module, family: Family, gone: Collection[HeadId], going: Collection[HeadId]) -> list[_Block]:
    """Return all attention blocks of a model, with their heads before the cut (without `gone`) and after (`going`)."""
    blocks, config = [], cast(Any, model.config)
    paths = {module: path for path, module in model.named_modules()}
    for site, layout, attention, projection, _ in blocks_at(model, family):
        n_all = int(getattr(config, layout.n_heads))
        now = tuple(i for i in range(n_all) if site.head(i) not in gone)
        then = tuple(i for i in now if site.head(i) not in going)
        where = attention, paths[attention], projection, paths[projection]
        blocks.append(_Block(site, layout, *where, n_all, now, then))
    return blocks


def _plan(model: nn.Module, family: Family, block: _Block, held: Places, kept: Places, d_head: int) -> SitePlan:
    """Return the plan for one attention block, whose weights hold the heads `held` now and `kept` after the cut."""
    places, paths = tuple(held.index(head) for head in kept), tuple(block.layers.values())
    n_heads = len(block.then) or 1
    values = dict.fromkeys(COUNTS, n_heads) | dict.fromkeys(WIDTHS, n_heads * d_head)
    numbers = {f"{block.path}.{name}": value for name, value in values.items() if hasattr(block.attention, name)}
    common: dict[str, Any] = {"site": str(block.site), "heads": held, "projection": block.projection_path}
    common["numbers"] = numbers
    if family.has_position_bias:
        common["biases"] = {block.path: (block.then or (0,), block.n_all)}
    if not block.then:
        if hasattr(block.attention, "num_key_value_groups"):
            numbers[f"{block.path}.num_key_value_groups"] = 1
        widths = dict.fromkeys(paths, 3 * d_head if block.layout.fused else d_head)
        return SitePlan(way="empty", keep=(), layers=dict.fromkeys(paths, ()), widths=widths, **common)
    if family.is_grouped:
        layers, repeats, n_groups = _grouped(block, d_head, int(cast(Any, model.config).num_key_value_heads))
        numbers[f"{block.path}.num_key_value_groups"] = n_groups
        return SitePlan(way="narrow", keep=places, layers=layers, repeats=repeats, **common)
    inputs = outputs = features(places, d_head)
    if block.layout.fused and block.layout.by_head:
        outputs = features(places, 3 * d_head)
    elif block.layout.fused:
        outputs = tuple(place + part * len(held) * d_head for part in range(3) for place in inputs)
    slices = {}
    if block.then != kept:  # other blocks use other parts of the same weights
        own = features([kept.index(head) for head in block.then], d_head)
        slices = dict.fromkeys((*paths, block.projection_path), own)
    layers = dict.fromkeys(paths, outputs)
    return SitePlan(way="narrow", keep=places, layers=layers, inputs=inputs, slices=slices, **common)


def _grouped(block: _Block, d_head: int, n_shared: int) -> tuple[dict[str, Places], dict[str, Places], int]:
    """Plan the cut of a block with grouped-query attention, where several query heads share a key and value head.

    Return the output features that each layer keeps, those that each layer repeats (both by path), and the number of
    query heads per key head after the cut.
    """
    size, paths = block.n_all // n_shared, block.layers
    layers = {paths[block.layout.query]: features([block.now.index(head) for head in block.then], d_head)}
    held = sorted({head // size for head in block.now})
    owners = [head // size for head in block.then]
    n_served = Counter(owners)
    used = sorted(n_served)
    is_even, repeats = len(set(n_served.values())) == 1, {}
    for name in (block.layout.key, block.layout.value):
        layers[paths[name]] = features([held.index(owner) for owner in used], d_head)
        if not is_even:
            repeats[paths[name]] = features([used.index(owner) for owner in owners], d_head)
    return layers, repeats, n_served[used[0]] if is_even else 1


def _separate_blocks(model: nn.Module, family: Family) -> None:
    """Give every layer its own attention module, in place; the modules share their parameters as before (ALBERT)."""
    config = cast(Any, model.config)
    place, _, _ = family.blocks[0].path.partition(".*")
    above, _, name = place.rpartition(".")
    holder = base_of(model).get_submodule(above)
    groups = cast(nn.ModuleList, holder.get_submodule(name))
    n_layers = config.num_hidden_layers
    shared = {id(item): item for item in (*groups.parameters(), *groups.buffers(), config)}
    serving = [groups[int(i / (n_layers / len(groups)))] for i in range(n_layers)]
    own = nn.ModuleList(deepcopy(group, dict(shared)) for group in serving)
    setattr(holder, name, own.train(groups.training))
    config.num_hidden_groups = n_layers
