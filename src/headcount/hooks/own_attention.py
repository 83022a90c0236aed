"""Is a head a head? Its slice of z must depend on its own attention pattern, and no other slice may.

Two rows are passed through the model. Each softmax over keys, also one written by hand, returns a copy that gradients
lead back to. So the gradient of one number of z tells which attention patterns, one per head and query, that number was
computed with:

    numbers of one slice share their pattern, numbers of two slices do not    each slice is a head
    two slices share a pattern                                                too many heads, or the wrong axis
    one slice has several patterns                                            too few heads, or the wrong axis

Nothing is assumed about layouts, names or weights: gradients are exactly zero where a pattern was not used. Some models
cannot be decided: those whose weights are no shares of 1 (sigmoid or linear attention), and those that mix heads on
purpose before the projection (a norm over all heads, talking heads). They are reported as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from headcount.heads import HeadSite
from headcount.hooks.attention import PRODUCTS, SOFTMAX, computed_weights
from headcount.hooks.gates import SharedSiteCounter, eval_mode, input_of, split_heads, unfused
from headcount.hooks.sites import Sites

LAYERS = (F.linear, torch.addmm, Tensor.addmm)
"""Functions of linear layers, which mix the features that they are given."""
DIVISIONS = (torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__)
"""Functions that end a softmax written by hand: exp(scores) / their sum."""
PATTERN, AVERAGE, MIXTURE = 1, 2, 3
"""Stages after a softmax: attention weights; values weighted by them; a linear layer's output of these."""
Patterns = frozenset[tuple[int, int]]
"""Attention patterns: which softmax, and which row of its output."""


@dataclass(frozen=True)
class HeadCheck:
    """Whether the slices of z at one site are heads."""

    is_checked: bool
    fault: str = ""
    """What is wrong, if they are not."""


UNDECIDED = HeadCheck(is_checked=False)


def check_heads(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite]
) -> dict[HeadSite, HeadCheck]:
    """Check at these sites that each head's slice of z depends on its own attention pattern alone, by one pass."""
    checks = dict.fromkeys(at, UNDECIDED)
    turns, origins = SharedSiteCounter(sites), _Origins()

    def reached(module: nn.Module, args: Any) -> Any:
        name = turns.next(module)
        z = input_of(name, args)
        if name in checks:
            site = sites[name]
            split = split_heads(name, z, len(site.heads), site.head_axis)
            with torch._C.DisableTorchFunction():  # what is computed here is not the model's
                checks[name] = _check(split, origins.patterns, is_mixed=origins.stage(z) == MIXTURE)
        origins.clear()
        return (z.detach(), *args[1:])

    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(unfused(sites))
        for projection in sites.projections:
            stack.callback(projection.register_forward_pre_hook(reached).remove)
        two_rows = [each[:2].clone() for each in inputs]  # a model may squeeze the axis of a single one
        try:
            with origins:
                model(*two_rows)
        except RuntimeError:  # code that cannot run with gradients, such as .numpy(): it ran without them
            pass
    return checks


class _Origins(TorchFunctionMode):
    """Knows which attention patterns a tensor was computed with, from one output projection to the next.

    Gradients are recorded from a softmax to the output projection only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._softmaxes: list[tuple[Tensor, int]] = []
        self._stages = WeakTensorKeyDictionary()

    def stage(self, tensor: Tensor) -> int:
        """How far a tensor is from a softmax; 0 if it does not descend from one."""
        return int(self._stages.get(tensor, 0))

    def clear(self) -> None:
        """Forget every pattern, and record no gradients until the next softmax."""
        self._softmaxes.clear()
        self._stages = WeakTensorKeyDictionary()
        torch.set_grad_enabled(False)

    def patterns(self, number: Tensor) -> Patterns:
        """Return the patterns of the latest softmax that a number of z depends on."""
        weights = [each for each, _ in self._softmaxes]
        if not weights or not number.requires_grad:
            return frozenset()
        gradients = torch.autograd.grad(number, weights, retain_graph=True, allow_unused=True)
        for i in reversed(range(len(weights))):
            if (gradient := gradients[i]) is not None:
                is_used = (gradient.nan_to_num() != 0).any(dim=self._softmaxes[i][1]).flatten()
                if bool(is_used.any()):
                    return frozenset((i, place) for place in is_used.nonzero().flatten().tolist())
        return frozenset()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:  # its body, too, is to be seen
                return _undispatched(func)(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in SOFTMAX and result.is_floating_point() and result.dim() > 1:
            dim = args[1] if len(args) > 1 and args[1] is not None else kwargs.get("dim")
            return self._tracked(result, -1 if dim is None else dim)
        if func in DIVISIONS and _is_distribution(result):
            return self._tracked(result, -1)
        stage = max((self.stage(each) for each in _tensors((args, kwargs))), default=0)
        if stage:
            for each in _tensors(result):
                self._stages[each] = self._next_stage(func, stage, args)
        return result

    def _next_stage(self, func: Any, stage: int, args: Any) -> int:
        """Return the stage of what a function computes."""
        if func in LAYERS and stage == AVERAGE:
            return MIXTURE
        if func not in PRODUCTS or any(isinstance(each, nn.Parameter) for each in _tensors(args)):
            return stage  # talking heads multiply patterns by weights
        return AVERAGE if any(self.stage(each) == PATTERN for each in _tensors(args)) else 0  # of another attention

    def _tracked(self, weights: Tensor, dim: int) -> Tensor:
        """Return the same attention weights, from here on with gradients."""
        torch.set_grad_enabled(True)
        leaf = weights.detach().requires_grad_()
        self._softmaxes.append((leaf, dim))
        handed_on = leaf * 1  # may be changed in place, as a leaf may not
        self._stages[handed_on] = PATTERN
        return handed_on

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        weights = self._tracked(computed_weights(query, key, value, *args, **kwargs).to(value), -1)
        if kwargs.get("enable_gqa"):
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        result = weights @ value
        self._stages[result] = AVERAGE
        return result


def _undispatched(func: Any) -> Callable[..., Any]:
    """Return a function of PyTorch's that does not ask modes first, so that a mode sees what is inside."""
    return FunctionType(
        func.__code__, {**func.__globals__, "has_torch_function": lambda _: False}, argdefs=func.__defaults__
    )


def _is_distribution(weights: Any) -> bool:
    """Whether these are attention weights that were normalised by hand: shares of 1 over the last axis."""
    if not isinstance(weights, Tensor) or not weights.is_floating_point() or weights.dim() < 3 or weights.shape[-1] < 2:
        return False
    sums = weights.detach().float().sum(dim=-1)
    return bool((weights >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-2))


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, Tensor)]


# --- the verdict ------------------------------------------------------------------------------------------------------


def _check(z: Tensor, patterns_of: Callable[[Tensor], Patterns], *, is_mixed: bool) -> HeadCheck:
    """Judge the slices of z [..., head, d_head] by the patterns of some numbers of each."""
    last = z.shape[-1] - 1
    features = sorted({0, min(1, last), last})  # neighbours differ where heads take turns, ends where a slice has two
    for place in _places(z):
        slices = [[patterns_of(head[i]) for i in features] for head in z[place]]
        slices = [[patterns for patterns in each if patterns] for each in slices]
        if all(slices):
            return judge(slices, is_mixed=is_mixed)
    return UNDECIDED


def _places(z: Tensor) -> Iterator[tuple[int, ...]]:
    """Yield a row and position in the middle, then the last, then the first: some may be padding."""
    for share in (0.5, 1.0, 0.0):
        yield tuple(round(share * (n - 1)) for n in z.shape[:-2])


def judge(slices: Sequence[Sequence[Patterns]], *, is_mixed: bool = False) -> HeadCheck:
    """Judge slices of z by the attention patterns that some numbers of each depend on.

    >>> one, other = frozenset({(0, 0)}), frozenset({(0, 1)})
    >>> judge([[one, one], [other, other]])
    HeadCheck(is_checked=True, fault='')
    >>> judge([[one, other]]).fault
    '1 of 1 slices of z follow several attention patterns'
    >>> judge([[one], [one]]).fault
    '2 slices of z follow 1 attention pattern'
    """
    kinds = {patterns for each in slices for patterns in each}
    n_patterns = len(frozenset[tuple[int, int]]().union(*kinds))
    is_apart = sum(map(len, kinds)) == n_patterns  # any two are equal or have nothing in common
    if not is_apart or (len(kinds) == 1 < len(slices) and n_patterns > 1):
        fault = "a linear layer stands between its attention and z" if is_mixed else ""
        return HeadCheck(is_checked=is_mixed, fault=fault)
    n_merged = sum(len(set(each)) > 1 for each in slices)
    if n_merged:
        return HeadCheck(True, f"{n_merged} of {len(slices)} slices of z follow several attention patterns")
    patterns = "1 attention pattern" if len(kinds) == 1 else f"{len(kinds)} attention patterns"
    return HeadCheck(True, f"{len(slices)} slices of z follow {patterns}" if len(kinds) < len(slices) else "")
