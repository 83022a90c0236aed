"""Does the replacement of a head's output still depend on the example through this head?

The definition of removal: a head computes z on an example, and an intervention replaces z by r. The head is *removed*
if r does not change when z is replaced by what the head computes on another example. So these remove a head: zeros, a
constant, a cached mean, noise instead of z, the output on another example or in another run, another head's output.
These do not, because r changes with z: z scaled, shifted, with noise added, with its features or positions rearranged
or averaged, with negative values set to zero, or computed again with other attention weights.

A mean over the batch depends on every example of the batch by 1/n. It counts as removal, as in the literature: r is the
same in every row, so that it cannot tell one example from another. A mean over the positions of one example does not
count, because r then differs from example to example.

The definition is tested by running the model again with the intervention, in two ways:

    transplant   another example's z replaces z of this head alone, before the intervention sees it
    swap         another example replaces a row of the inputs, so that queries, keys and values change as well

A transplant decides about interventions that act on z. A swap decides about interventions that act before z, on
queries, keys, values, attention weights or a mask, where there is nothing to transplant. If r changes with a swap and
not with the head's own z, then r comes from other heads, which is removal, or the head was computed again from the
inputs of its block, which is not. A transplant to all heads of the block distinguishes the two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headcount.auditing.module_watch import BlockLayout, Event, ModuleWatch, copied, is_same, rounding, tensors_of
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import read_attention

N_EXAMPLES = 3
"""Number of input rows that are replaced by other examples, one at a time; one is too few, as rows can be equal."""
MAX_HEADS_ALONE, N_ALONE = 8, 2
"""Largest number of heads that are tested one by one, and number of other examples per head in these tests.

They are needed if replacements depend on the outputs of several heads. Every test takes a forward pass."""
N_RANDOM = 8
"""Number of passes to average if the intervention draws new noise in every pass."""
MIN_STANDARD_ERRORS = 5.0
"""A noisy replacement r depends on a head's output z if their correlation is this many standard errors above 0."""
MAX_LINEAR_ERROR = 1e-3
"""A replacement r is linear in a head's output z if r = g z + c holds up to this fraction of the change of r."""
MAX_UNEVENNESS = 1e-3
"""Attention is uniform if weights differ from their mean by at most this fraction of the mean."""

Grid = Tensor
"""z (the heads' own outputs) or r (their replacements) of one block, [row, position, head, d_head]."""


@dataclass(frozen=True)
class OtherExample:
    """A copy of the inputs with another example in one row, and the outputs of all heads on it (no intervention)."""

    pairs: tuple[tuple[Tensor, Tensor], ...]
    """Pairs of tensors: an input of the audited pass, and the tensor that replaces it."""
    z: Mapping[HeadSite, Grid]
    places: Mapping[HeadSite, Tensor]
    """For each block, [row, position]: where z (the heads' output) differs from z on the audited inputs."""


@dataclass(frozen=True)
class Following:
    """Whether and how the replacement r of a head's output depends on z, the output that the head computes."""

    is_following: bool | None
    """Whether the replacement r depends on the head's own output z, so the head is not removed; None if not tested."""
    gain: float | None = None
    """The factor g if the replacement is r = g z + c, where c does not depend on the head's output z; else None."""
    where: Tensor | None = None
    """[row, position]: where r (the replacement) changes together with z (the head's output)."""
    is_indirect: bool = False
    """Whether r (the replacement) depends on the example, but on the output z of none of the block's heads."""


@dataclass
class Probes:
    """The replacements r of head outputs z that an intervention makes, also when heads compute z on other examples.

    Arrays are [row, position, head, d_head], for each attention block.
    """

    own: Mapping[HeadSite, Grid] = field(default_factory=dict)
    """z (the heads' own outputs) of each block, without the intervention."""
    examples: Sequence[OtherExample] = ()
    replaced: Mapping[HeadSite, Grid] = field(default_factory=dict)
    """r (what the intervention puts in place of z) of each block, on the audited inputs."""
    is_random: bool = False
    """Whether the intervention draws new noise in every pass; replacements are then means over `N_RANDOM` passes."""
    swapped: list[Mapping[HeadSite, Grid]] = field(default_factory=list)
    """For each other example: the replacement r of z in each block; empty if the intervention fails on this example."""
    transplanted: dict[HeadId, list[tuple[int, Grid]]] = field(default_factory=dict)
    """For each head that hooks change: the index of another example, and r if this head alone gets that example's z."""
    transplanted_together: dict[HeadSite, list[tuple[int, Grid]]] = field(default_factory=dict)
    """For each block: the index of another example, and r if all heads of the block get that example's z."""

    @property
    def n_rows(self) -> int:
        """The number of examples in the batch, which is the number of rows of z."""
        return len(next(iter(self.own.values()), ()))

    def following(self, head: HeadId, place: int) -> Following:
        """Return whether and how a head's replacement depends on its own output; `place` is its index in its block."""
        alone, by_swap = self._by_transplant(head, place), self._by_swap(head, place)
        if alone.is_following is None or not by_swap.is_following:
            return alone if by_swap.is_following is None else by_swap
        together = self._judge(head.site, place, self.transplanted_together.get(head.site, ()))
        return replace(alone, is_indirect=alone.is_following is together.is_following is False)

    def is_unexplained(self, head: HeadId, place: int) -> bool:
        """Return whether a head's replacement depends on the example, but not through the head's own output."""
        alone, by_swap = self._by_transplant(head, place), self._by_swap(head, place)
        return alone.is_following is False and by_swap.is_following is True

    def _by_transplant(self, head: HeadId, place: int) -> Following:
        return self._judge(head.site, place, self.transplanted.get(head, ()))

    def _by_swap(self, head: HeadId, place: int) -> Following:
        return self._judge(head.site, place, _at(head.site, self.swapped))

    def _judge(self, site: HeadSite, place: int, passes: Sequence[tuple[int, Grid]]) -> Following:
        """Return whether a head's replacement r changes where another example changes its output z, in these passes."""
        if site not in self.replaced or not passes:
            return Following(None)
        r = self.replaced[site][..., place, :]
        changes, is_moved = list[tuple[Tensor, Tensor]](), torch.zeros(r.shape[:2], dtype=torch.bool, device=r.device)
        for i, grid in passes:
            other_r = grid[..., place, :]
            places = self.examples[i].places[site]
            z_change = (self.examples[i].z[site] - self.own[site])[..., place, :][places]
            if other_r.shape != r.shape or not z_change.any():
                continue  # the head has the same output on the other example
            # A value that is the same in every row, like a mean over the batch, cannot tell examples apart.
            is_common = _is_near(other_r, other_r[:1]).all(dim=0) & (len(r) > 1 and not bool(places.all()))
            is_moved |= places & ~_is_near(other_r, r) & ~is_common
            changes.append((z_change.flatten().cpu().double(), (other_r - r)[places].flatten().cpu().double()))
        if not changes:
            return Following(None)
        z_change, r_change = (torch.cat(parts) for parts in zip(*changes, strict=True))
        if self.is_random and is_moved.any():
            return Following(_correlation(z_change, r_change) > MIN_STANDARD_ERRORS / len(z_change) ** 0.5)
        gain = float(z_change @ r_change / (z_change @ z_change))
        is_linear = bool((r_change - gain * z_change).norm() <= MAX_LINEAR_ERROR * r_change.norm())
        is_following = bool(is_moved.any())
        return Following(is_following, gain if is_following and is_linear else None, is_moved)


def _is_near(one: Tensor, other: Tensor) -> Tensor:
    """Return [row, position]: whether two outputs of a head are equal up to rounding."""
    return (one - other).abs().amax(dim=-1) <= rounding(one.dtype) * float(one.abs().max())


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()).clamp(min=torch.finfo(one.dtype).tiny))


# --- other examples ---------------------------------------------------------------------------------------------------


def find_other_examples(
    model: nn.Module, layout: BlockLayout, inputs: Sequence[Tensor], call: Callable[[], object]
) -> tuple[Mapping[HeadSite, Grid], tuple[OtherExample, ...]]:
    """Return z (the heads' outputs) on the inputs, and copies of the inputs in which another example replaces one row.

    Rows are usually the first axis of the inputs. If replacing a row along the first axis changes more than one row of
    z, the second axis is tried as well, and the axis that changes less of z is used.
    """
    own = record_z(model, layout, call)
    examples = _examples_along(0, model, layout, inputs, call, own)
    if not examples or _reach(examples[0]) > 1 / inputs[0].shape[0]:
        along_axes = filter(None, [examples, _examples_along(1, model, layout, inputs, call, own)])
        examples = min(along_axes, key=lambda each: _reach(each[0]), default=())
    return own, examples


def _reach(example: OtherExample) -> float:
    """Return the largest fraction of a block's head outputs z that the other example changes."""
    return max(float(places.float().mean()) for places in example.places.values())


def _examples_along(
    axis: int,
    model: nn.Module,
    layout: BlockLayout,
    inputs: Sequence[Tensor],
    call: Callable[[], object],
    own: Mapping[HeadSite, Grid],
) -> tuple[OtherExample, ...]:
    examples = []
    for pairs in _swaps(inputs, axis):
        try:
            z = record_z(model, layout, call, InputSwap(pairs))
        except (ValueError, RuntimeError, IndexError, AssertionError):
            continue  # the model may reject the changed inputs
        if all(z[site].shape == own[site].shape for site in own):
            places = {site: ~_is_near(z[site].flatten(2), own[site].flatten(2)) for site in own}
            is_apart = all(len(each) == 1 or not each.all() for each in places.values())
            if is_apart and any(each.any() for each in places.values()):
                examples.append(OtherExample(pairs, z, places))
    return tuple(examples)


def _swaps(inputs: Sequence[Tensor], axis: int) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
    """Yield (audited, other) pairs of input tensors, where one row of `other` is replaced along the given axis.

    The row is replaced by another row or, in the first pairs, by its own tokens doubled (a, b, c, d to a, a, b, b).
    Doubled tokens are another example even if all rows are equal, or have the same tokens in another order.
    """
    if axis >= inputs[0].dim():
        return
    n_rows = inputs[0].shape[axis]
    tensors = [each for each in inputs if each.dim() > axis and each.shape[axis] == n_rows]
    yield tuple((each, _with_doubled_tokens(each, axis)) for each in tensors)
    for row in sorted({0, n_rows // 2, n_rows - 1})[:N_EXAMPLES]:
        for step in range(1, n_rows):
            donor = (row + step) % n_rows
            if any(not torch.equal(each.select(axis, row), each.select(axis, donor)) for each in tensors):
                order = torch.arange(n_rows)
                order[row] = donor
                yield tuple((each, each.index_select(axis, order.to(each.device))) for each in tensors)
                break


def _with_doubled_tokens(tensor: Tensor, axis: int) -> Tensor:
    """Return a copy of an input tensor with the tokens of its first row doubled: a, b, c, d becomes a, a, b, b."""
    tensor = tensor.clone()
    first = tensor.select(axis, 0)  # a view
    if first.dim() > 0:
        doubled = torch.arange(first.shape[0], device=tensor.device) // 2
        first.copy_(first.index_select(0, doubled).clone() if first.shape[0] > 1 else first.flip(-1))
    return tensor


class InputSwap:
    """A hook that replaces the model's audited input tensors by those of another example, before any other hook."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.pairs = pairs
        self.is_audited = False
        """Whether the current forward pass got the input tensors that this hook replaces."""

    def __call__(self, event: Event, tree: Any) -> Any:
        """Return the inputs of a module; if the module is the whole model, replace the audited tensors in them."""
        if event.path:
            return tree
        self.is_audited = False
        return pytree.tree_map(self._other, tree)

    def _other(self, leaf: Any) -> Any:
        for audited, other in self.pairs:
            is_alike = isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype) == (audited.shape, audited.dtype)
            if is_alike and leaf.device == audited.device and torch.equal(leaf, audited):
                self.is_audited = True
                return other.clone()
        return leaf


class Transplant(InputSwap):
    """A hook that replaces the outputs z of some heads by those on another example, before any other hook."""

    def __init__(self, layout: BlockLayout, example: OtherExample, heads: Sequence[HeadId]) -> None:
        super().__init__([(audited, audited) for audited, _ in example.pairs])
        self._layout, self._example = layout, example
        self._slots = layout.sites.head_slots(heads)

    def __call__(self, event: Event, tree: Any) -> Any:
        """Return the inputs of a module; if they are a block's head outputs z, replace z of the chosen heads."""
        tree, site = super().__call__(event, tree), self._layout.arrival_of(event)
        if site not in self._slots or not self.is_audited:
            return tree
        leaves, shape = pytree.tree_flatten(tree)
        i = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        grid = self._layout.grid(site, leaves[i]).clone()
        if grid.shape == self._example.z[site].shape:
            places, slots = self._example.places[site], list(self._slots[site])
            part = grid[places]
            part[:, slots] = self._example.z[site][places][:, slots]
            grid[places] = part
            leaves[i] = grid.reshape(leaves[i].shape)
        return pytree.tree_unflatten(leaves, shape)


def record_z(
    model: nn.Module, layout: BlockLayout, run: Callable[[], object], arrive: InputSwap | None = None
) -> dict[HeadSite, Grid]:
    """Run the model and return z of every block (the input of its output projection) as hooks have changed it.

    `arrive` replaces the inputs of modules before these hooks.
    """
    grids: dict[HeadSite, Grid] = {}

    def meet(event: Event, tree: Any) -> Any:
        if not event.path and not event.is_output:
            grids.clear()  # keep the last pass only
        if (site := layout.site_of(event)) is not None:
            grids[site] = layout.grid(site, tensors_of(event, tree)[0]).clone()
        return tree

    with ModuleWatch(model, layout.sites, meet, arrive):
        run()
    return grids


# --- passes with the intervention -------------------------------------------------------------------------------------


def probe(
    probes: Probes,
    model: nn.Module,
    layout: BlockLayout,
    run: Callable[[], object],
    arrived: Mapping[HeadSite, Tensor],
    entered: Mapping[HeadSite, Tensor],
) -> None:
    """Run the model with the intervention, on other examples and with single heads' outputs z on other examples.

    The results are added to `probes`. `arrived` is z (the head outputs) of each block before all hooks, and `entered`
    is z after all hooks.
    """

    def record(arrive: InputSwap | None = None) -> Mapping[HeadSite, Grid]:
        passes = []
        try:
            for _ in range(N_RANDOM if probes.is_random else 1):
                with same_noise():
                    passes.append(record_z(model, layout, run, arrive))
        except Exception:  # user code may fail on inputs that it was not written for
            return {}
        is_audited = arrive is None or arrive.is_audited
        return {site: torch.stack([each[site] for each in passes]).mean(dim=0) for site in passes[0] if is_audited}

    alike = {site: z for site, z in entered.items() if z.numel() == probes.own[site].numel()}
    probes.replaced = {site: layout.grid(site, z) for site, z in alike.items()}
    repeated = record()
    probes.is_random = any(not is_same(r, repeated[site]) for site, r in probes.replaced.items() if site in repeated)
    probes.replaced = record() if probes.is_random else probes.replaced
    probes.swapped = [record(InputSwap(example.pairs)) for example in probes.examples]
    acted_on = [head for site in alike if site in arrived for head in _heads_acted_on(layout, site, arrived, alike)]
    if acted_on:
        _transplant(probes, layout, acted_on, record)


def _heads_acted_on(
    layout: BlockLayout, site: HeadSite, arrived: Mapping[HeadSite, Tensor], entered: Mapping[HeadSite, Tensor]
) -> list[HeadId]:
    """Return the heads of a block whose outputs z the hooks change to other values than zero (which needs no test)."""
    if entered[site].numel() != arrived[site].numel():
        return []
    before, after = (layout.grid(site, tensors[site]).unbind(dim=2) for tensors in (arrived, entered))
    heads = zip(layout.sites[site].heads, before, after, strict=True)
    return [head for head, z, r in heads if r.any() and not is_same(z, r)]


def _transplant(
    probes: Probes,
    layout: BlockLayout,
    heads: Sequence[HeadId],
    record: Callable[[InputSwap], Mapping[HeadSite, Grid]],
) -> None:
    """Test which heads' replacements r depend on the head outputs z, by giving heads their z on another example.

    First all changed heads get such a z at once. Then the heads whose r changed get it one by one, because r of a head
    may depend on z of another head. If r depends on the example but on z of none of these heads, all heads of the
    block get it at once. The results are added to `probes`.
    """
    places = {head: layout.sites[head.site].heads.index(head) for head in heads}

    def transplant(chosen: Sequence[HeadId], n: int) -> list[Mapping[HeadSite, Grid]]:
        return [record(Transplant(layout, example, chosen)) for example in probes.examples[:n]]

    together = transplant(heads, len(probes.examples))
    probes.transplanted = {head: _at(head.site, together) for head in heads}
    moved = [head for head in heads if probes.following(head, places[head]).is_following]
    for head in moved[:MAX_HEADS_ALONE] if len(heads) > 1 else ():
        probes.transplanted[head] = _at(head.site, transplant([head], N_ALONE))
    for site in dict.fromkeys(head.site for head in heads if probes.is_unexplained(head, places[head])):
        probes.transplanted_together[site] = _at(site, transplant(layout.sites[site].heads, N_ALONE))


def _at(site: HeadSite, passes: Sequence[Mapping[HeadSite, Grid]]) -> list[tuple[int, Grid]]:
    """Return pairs (i, r): r is the replacement of head outputs at this block in the pass with the i-th example."""
    return [(i, grids[site]) for i, grids in enumerate(passes) if site in grids]


def find_even_heads(layout: BlockLayout, n_rows: int, run: Callable[[], object]) -> frozenset[HeadId]:
    """Run the model and return the heads that attend uniformly to all visible keys; empty if this cannot be read."""
    even = set[HeadId]()

    def show(site: HeadSite, weights_BHQK: Tensor) -> None:
        is_seen = weights_BHQK > 0
        n_seen = is_seen.sum(dim=-1, keepdim=True)
        is_even = ((weights_BHQK * n_seen - is_seen.to(weights_BHQK)).abs() < MAX_UNEVENNESS).all(dim=-1)
        if bool((n_seen > 1).any()):
            flags = is_even.transpose(0, 1).flatten(1).all(dim=1).tolist()
            even.update(head for head, flag in zip(layout.sites[site].heads, flags, strict=True) if flag)

    try:
        with same_noise():
            read_attention(_Runner(run), layout.sites, [torch.empty(n_rows)], show)
    except Exception:  # attention may be unreadable, and user code may fail
        return frozenset()
    return frozenset(even)


class _Runner(nn.Module):
    """A module whose forward() runs the model, so that attention can be read while a user's function runs it."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self._run = run

    def forward(self, *inputs: Tensor) -> object:
        """Call the user's function and ignore the inputs, because the function has its own."""
        return self._run()


def acts_through_z(
    model: nn.Module,
    layout: BlockLayout,
    call: Callable[[], Tensor],
    event: Event,
    changed: Any,
    own: Mapping[HeadSite, Grid],
    clean: Tensor,
) -> bool:
    """Return whether a change of a module's output affects the model's output only through the next block's z.

    z is the input of a block's output projection (the head outputs). The result is true for queries, keys and values,
    and so finds them in models whose attention is no module of its own.
    """
    blocks = [site for path, sites in layout.projections.items() if path not in layout.attentions for site in sites]
    if not event.is_output or not blocks:
        return False
    is_changed, passed = False, list[HeadSite]()

    def meet(other: Event, tree: Any) -> Any:
        nonlocal is_changed
        is_changed |= other == event
        site = layout.site_of(other)
        if site in blocks and is_changed and not passed:
            passed.append(site)
            leaves, shape = pytree.tree_flatten(tree)
            i = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
            leaves[i] = own[site].reshape(leaves[i].shape)
            return pytree.tree_unflatten(leaves, shape)
        return copied(changed) if other == event else tree

    with ModuleWatch(model, layout.sites, meet):
        output = call()
    return bool(passed) and is_same(output, clean)


@contextmanager
def same_noise() -> Iterator[None]:
    """Seed all global random number generators while the context is open, and restore their states afterwards."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    of_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            random.setstate(of_python)
            if of_mps is not None:
                torch.mps.set_rng_state(of_mps)
            np.random.set_state(of_numpy)
