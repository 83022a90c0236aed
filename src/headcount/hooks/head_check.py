"""Check that each slice of z is one head: the slice must depend on one attention pattern, and on no other.

z is the input of an output projection: the outputs of all heads, one slice per head. Two rows are passed through the
model. Every softmax over keys, also one written by hand, is replaced by a copy that records gradients. The gradient of
one number of z then shows which attention patterns (one per head and query) this number depends on:

    numbers of one slice share their pattern, numbers of two slices do not    each slice is a head
    two slices share a pattern                                                too many heads, or the wrong axis
    one slice has several patterns                                            too few heads, or the wrong axis

The check assumes nothing about layouts, names or weights, because gradients are exactly zero for unused patterns. Some
models cannot be checked: those whose weights do not sum to 1 (sigmoid or linear attention), and those that mix heads
before the projection on purpose (a norm over all heads, talking heads). They are reported as not checked.
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
from torch.utils.weak import WeakTensorKeyDictionary

from headcount.heads import HeadSite
from headcount.hooks.attention import PRODUCTS, SOFTMAX, computed_weights, softmax_axis
from headcount.hooks.gates import SharedSiteCounter, eval_mode, input_of, split_heads, unfused
from headcount.hooks.parameters import tensors_in
from headcount.hooks.sites import Sites

LAYERS = (F.linear, torch.addmm, Tensor.addmm)
"""PyTorch functions that compute linear layers, which mix their input features."""
DIVISIONS = (torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__)
"""Functions by which a softmax written by hand ends: the division in exp(scores) / sum(exp(scores))."""
PATTERN, AVERAGE, MIXTURE = 1, 2, 3
"""What a tensor after a softmax is: attention weights, values averaged with them, or the output of a later layer."""
Patterns = frozenset[tuple[int, int]]
"""A set of attention patterns (one per head and query); each is the index of a softmax and of a row of its output."""


@dataclass(frozen=True)
class HeadCheck:
    """The outcome for one attention block: is each slice of the output projection's input the output of one head?"""

    is_checked: bool
    """Whether the check could be made; it cannot, for example, for attention whose weights do not sum to 1."""
    fault: str = ""
    """The reason why the slices of z are not heads; empty if they are heads, or if the check could not be made."""


UNDECIDED = HeadCheck(is_checked=False)


def check_heads(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], at: Collection[HeadSite]
) -> dict[HeadSite, HeadCheck]:
    """Check, at the attention blocks in `at`, that each head's slice of z depends on its own attention pattern only.

    z is the input of a block's output projection. One forward pass over `inputs` is made. Return the outcome by block.
    """
    checks = dict.fromkeys(at, UNDECIDED)
    turns, origins = SharedSiteCounter(sites), _Origins()

    def on_projection(module: nn.Module, args: Any) -> Any:
        name = turns.next(module)
        z = input_of(name, args)
        if name in checks:
            site = sites[name]
            split = split_heads(name, z, len(site.heads), site.head_axis)
            with torch._C.DisableTorchFunction():  # the computations of the check are not the model's
                checks[name] = _check(split, origins.patterns, is_mixed=origins.stage(z) == MIXTURE)
        origins.clear()
        return (z.detach(), *args[1:])

    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(unfused(sites))
        for projection in sites.projections:
            stack.callback(projection.register_forward_pre_hook(on_projection).remove)
        two_rows = [tensor[:2].clone() for tensor in inputs]  # a model may squeeze the axis of a single row
        try:
            with origins:
                model(*two_rows)
        except RuntimeError:  # the model cannot run with gradients, for example because it calls .numpy()
            pass
    return checks


class _Origins(TorchFunctionMode):
    """A context that finds the attention patterns (rows of a softmax) on which an output projection's input depends.

    Gradients are recorded only between a softmax and the output projection that follows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._softmaxes: list[tuple[Tensor, int]] = []
        self._stages = WeakTensorKeyDictionary()

    def stage(self, tensor: Tensor) -> int:
        """Return what a tensor is: `PATTERN`, `AVERAGE` or `MIXTURE`; 0 if it does not depend on a softmax."""
        return int(self._stages.get(tensor, 0))

    def clear(self) -> None:
        """Forget all attention patterns found so far, and record no gradients until the next softmax."""
        self._softmaxes.clear()
        self._stages = WeakTensorKeyDictionary()
        torch.set_grad_enabled(False)

    def patterns(self, number: Tensor) -> Patterns:
        """Return the attention patterns of the latest softmax that `number`, one entry of z, depends on."""
        weights = [leaf for leaf, _ in self._softmaxes]
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
            with self:  # so that the functions called inside reach this mode
                return _undispatched(func)(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in SOFTMAX and result.is_floating_point() and result.dim() > 1:
            axis = softmax_axis(args, kwargs)
            return self._tracked(result, -1 if axis is None else axis)
        if func in DIVISIONS and _is_distribution(result):
            return self._tracked(result, -1)
        stage = max((self.stage(tensor) for tensor in tensors_in((args, kwargs))), default=0)
        if stage:
            for tensor in tensors_in(result):
                self._stages[tensor] = self._next_stage(func, stage, args)
        return result

    def _next_stage(self, func: Any, stage: int, args: Any) -> int:
        """Return the stage (`PATTERN`, `AVERAGE` or `MIXTURE`) of `func`'s result; `stage` is that of its arguments."""
        if func in LAYERS and stage == AVERAGE:
            return MIXTURE
        if func not in PRODUCTS or any(isinstance(tensor, nn.Parameter) for tensor in tensors_in(args)):
            return stage  # talking heads multiply patterns by weights
        # Without a pattern among the factors, the product is a score of the next attention.
        return AVERAGE if any(self.stage(tensor) == PATTERN for tensor in tensors_in(args)) else 0

    def _tracked(self, weights: Tensor, dim: int) -> Tensor:
        """Return a copy of attention weights with respect to which gradients are recorded."""
        torch.set_grad_enabled(True)
        leaf = weights.detach().requires_grad_()
        self._softmaxes.append((leaf, dim))
        tracked = leaf * 1  # the model may change this copy in place, but not a leaf
        self._stages[tracked] = PATTERN
        return tracked

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        weights = self._tracked(computed_weights(query, key, value, *args, **kwargs).to(value), -1)
        if kwargs.get("enable_gqa"):
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        result = weights @ value
        self._stages[result] = AVERAGE
        return result


def _undispatched(func: Any) -> Callable[..., Any]:
    """Return a version of a PyTorch function that reports only the calls inside it, not its own, to function modes."""
    return FunctionType(
        func.__code__, {**func.__globals__, "has_torch_function": lambda _: False}, argdefs=func.__defaults__
    )


def _is_distribution(weights: Any) -> bool:
    """Return whether a value is a tensor that looks like attention weights: its last axis sums to 1."""
    if not isinstance(weights, Tensor) or not weights.is_floating_point() or weights.dim() < 3 or weights.shape[-1] < 2:
        return False
    sums = weights.detach().float().sum(dim=-1)
    return bool((weights >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-2))


# --- the verdict ------------------------------------------------------------------------------------------------------


def _check(z: Tensor, patterns_of: Callable[[Tensor], Patterns], *, is_mixed: bool) -> HeadCheck:
    """Check the slices of z [..., head, d_head] at one example and position, chosen so that every slice has a pattern.

    `patterns_of` returns the attention patterns that a number of z depends on.
    """
    last = z.shape[-1] - 1
    features = sorted({0, min(1, last), last})  # neighbours reveal interleaved heads, the ends two heads in one slice
    for place in _places(z):
        slices = [[patterns_of(head[i]) for i in features] for head in z[place]]
        slices = [[patterns for patterns in numbers if patterns] for numbers in slices]
        if all(slices):
            return judge(slices, is_mixed=is_mixed)
    return UNDECIDED


def _places(z: Tensor) -> Iterator[tuple[int, ...]]:
    """Yield three index pairs (row, position) of z: the middle, the last and the first; some may be padding."""
    for share in (0.5, 1.0, 0.0):
        yield tuple(round(share * (n - 1)) for n in z.shape[:-2])


def judge(slices: Sequence[Sequence[Patterns]], *, is_mixed: bool = False) -> HeadCheck:
    """Decide whether each slice of z (the input of an output projection) is the output of one head.

    `slices` has, for each slice and a few of its numbers, the attention patterns that the number depends on. `is_mixed`
    means that a linear layer stands between the attention and z.

    >>> one, other = frozenset({(0, 0)}), frozenset({(0, 1)})
    >>> judge([[one, one], [other, other]])
    HeadCheck(is_checked=True, fault='')
    >>> judge([[one, other]]).fault
    '1 of 1 slices of z follow several attention patterns'
    >>> judge([[one], [one]]).fault
    '2 slices of z follow 1 attention pattern'
    """
    kinds = {patterns for numbers in slices for patterns in numbers}
    n_patterns = len(frozenset[tuple[int, int]]().union(*kinds))
    is_apart = sum(map(len, kinds)) == n_patterns  # any two sets of patterns are equal or disjoint
    if not is_apart or (len(kinds) == 1 < len(slices) and n_patterns > 1):
        fault = "a linear layer stands between its attention and z" if is_mixed else ""
        return HeadCheck(is_checked=is_mixed, fault=fault)
    n_merged = sum(len(set(numbers)) > 1 for numbers in slices)
    if n_merged:
        return HeadCheck(True, f"{n_merged} of {len(slices)} slices of z follow several attention patterns")
    patterns = "1 attention pattern" if len(kinds) == 1 else f"{len(kinds)} attention patterns"
    return HeadCheck(True, f"{len(slices)} slices of z follow {patterns}" if len(kinds) < len(slices) else "")
