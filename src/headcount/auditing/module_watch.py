"""Record everything that enters or leaves a module while a model runs, after all other hooks.

    with ModuleWatch(model, sites, meet):
        model(tokens)                  # meet(Event("h.1.attn.c_proj", False, 0), ((z,), {})), which returns the inputs

`meet` is called after all other hooks. `arrive` is called with a module's inputs before all other hooks, and returns
the inputs that these hooks get.

PyTorch's own attention computes its output projection without calling the module, so hooks on this module never fire.
The input z of the projection is recorded all the same. Hooks on it still do not fire while the model is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.gates import split_heads, unfused_forward
from headcount.hooks.intervention_proof import difference
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.sites import Sites

MAX_DIFFERENCE = {torch.float64: 1e-11, torch.float32: 1e-5}
"""Largest difference between two passes of one computation that counts as rounding, relative to the largest value."""
MAX_ROUNDINGS = 8
"""Largest relative difference that counts as rounding in half precision, in units of machine epsilon."""


class Event(NamedTuple):
    """The input or the output of one call of a module in a forward pass."""

    path: str
    """The path of the module; empty for the model itself."""
    is_output: bool
    n: int
    """Number of earlier calls of the module in this pass."""

    def __str__(self) -> str:
        return f"{'the output of' if self.is_output else 'the input of'} {self.path or 'the model itself'}"


Meet = Callable[[Event, Any], Any]
"""A function that gets an event (a module's input or output) and its tensors, and returns the tensors to go on with."""


class ModuleWatch:
    """A context that calls `arrive` and `meet` with the inputs of every module, and `meet` with the outputs."""

    def __init__(self, model: nn.Module, sites: Sites, meet: Meet, arrive: Meet | None = None) -> None:
        self._modules, self._meet = dict(model.named_modules()), meet
        self._arrive = arrive or (lambda event, tree: tree)
        self._calls, self._stack, self._is_called = Counter[str](), ExitStack(), False
        self._mha = dict.fromkeys(site.mha for site in sites.values() if site.mha is not None)

    def __enter__(self) -> frozenset[str]:
        """Begin to record; return the paths of output projections that PyTorch computes without calling them."""
        for path, module in self._modules.items():
            module.__dict__["_call_impl"] = partial(self._call, path, module, module._call_impl)
            self._stack.callback(module.__dict__.pop, "_call_impl", None)
        paths = {module: path for path, module in self._modules.items()}
        fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(fused and not self._mha)
        self._stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        closed = [mha for mha in self._mha if mha in paths and "forward" not in mha.__dict__]
        uncalled = {mha.out_proj for mha in closed}
        for mha in closed:
            self._stack.callback(mha._modules.update, out_proj=mha.out_proj)
            self._stack.callback(mha.__dict__.pop, "forward", None)
            mha.__dict__["forward"] = partial(unfused_forward, mha)
            mha._modules["out_proj"] = _Uncalled(partial(self._project, paths[mha.out_proj], mha.out_proj))
        model = self._modules[""]
        self._stack.callback(set_forward, model, model.__dict__.get("forward"))
        set_forward(model, partial(self._forward, model.forward))
        return frozenset(path for path, module in self._modules.items() if module in uncalled)

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _call(self, path: str, module: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not path:
            self._calls.clear()  # a new pass
            self._is_called = True
        n = self._next(path)

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return self._meet(Event(path, False, n), (args, kwargs))

        args, kwargs = self._arrive(Event(path, False, n), (args, kwargs))
        last = module.register_forward_pre_hook(enter, with_kwargs=True)  # for this call, so none comes after it
        try:
            output = inner(*args, **kwargs)
        finally:
            last.remove()
            self._is_called &= bool(path)
        return self._meet(Event(path, True, n), output)

    def _forward(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record a direct call of the model's forward(), as TransformerLens makes in run_with_hooks()."""
        if self._is_called:
            return inner(*args, **kwargs)
        self._calls.clear()
        args, kwargs = self._arrive(Event("", False, 0), (args, kwargs))
        args, kwargs = self._meet(Event("", False, 0), (args, kwargs))
        return self._meet(Event("", True, 0), inner(*args, **kwargs))

    def _project(self, path: str, projection: nn.Linear, z: Tensor) -> Tensor:
        n = self._next(path)
        (z,), _ = self._arrive(Event(path, False, n), ((z,), {}))
        (z,), _ = self._meet(Event(path, False, n), ((z,), {}))
        projected: Tensor = self._meet(Event(path, True, n), F.linear(z, projection.weight, projection.bias))
        return projected

    def _next(self, path: str) -> int:
        self._calls[path] += 1
        return self._calls[path] - 1


class _Uncalled(nn.Module):
    """A stand-in for an output projection that PyTorch computes without calling the module, so that no hook fires."""

    def __init__(self, project: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.project = project

    def __call__(self, z: Tensor) -> Tensor:
        return self.project(z)


def set_forward(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Replace the forward() of a module; None restores the forward() of its class."""
    module.__dict__.pop("forward", None)
    module.__dict__.update({} if forward is None else {"forward": forward})


# --- recorded tensors -------------------------------------------------------------------------------------------------


def copied(tree: Any) -> Any:
    """Return copies of all tensors in nested lists and dictionaries, because a model may change tensors in place."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def tensors_of(event: Event, tree: Any) -> list[Tensor]:
    """Return all tensors of a module's input, or the first tensor of its output (without attention weights)."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return tensors[:1] if event.is_output else tensors


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding; NaN equals NaN."""
    if one.shape != other.shape:
        return False
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    is_finite = one.isfinite()
    if not is_finite.all():
        if not is_finite.any() or not torch.equal(is_finite, other.isfinite()):
            return bool(one.isnan().all() and other.isnan().all())
        kinds = (each[~is_finite].nan_to_num(nan=0.0) for each in (one, other))
        one, other = (one[is_finite], other[is_finite]) if torch.equal(*kinds) else (one, other)
    return difference(one, other) <= rounding(one.dtype)


def rounding(dtype: torch.dtype) -> float:
    """Return the largest relative difference between two passes of the same computation in this precision."""
    return MAX_DIFFERENCE.get(dtype, MAX_ROUNDINGS * torch.finfo(dtype).eps)


# --- which module belongs to which block ------------------------------------------------------------------------------


@dataclass
class BlockLayout:
    """Where the attention blocks are among a model's modules: paths of projections, and of what surrounds them."""

    sites: Sites
    n_rows: int
    """Number of rows of the audited inputs."""
    projections: dict[str, tuple[HeadSite, ...]]
    """For the path of each output projection, the attention blocks that use it, in the order of their calls."""
    holders: dict[str, str]
    """For the path of each module with exactly one output projection inside, the path of that projection."""
    attentions: dict[str, str] = field(default_factory=dict)
    """For the path of each projection, the path of the module that computes its input z (the head outputs)."""
    widths: dict[str, int] = field(default_factory=dict)
    """For the path of each projection, the width of its output, which is the width of the residual stream."""
    entrances: dict[str, str] = field(default_factory=dict)
    """For the path of the outermost module that gets z (head outputs) and only projects it, the projection's path."""

    @classmethod
    def of(cls, model: nn.Module, sites: Sites, n_rows: int) -> BlockLayout:
        """Return the layout for these attention blocks (sites); `learn` completes it by a forward pass."""
        paths = {module: path for path, module in model.named_modules()}
        for name, site in sites.items():
            if site.head_axis is not None or isinstance(site.projection, ParameterProjection):
                raise InputError(
                    f"interventions at {name} cannot be audited: its head outputs have an axis for heads, or no module "
                    "projects them",
                    "the outputs of all heads must be side by side on the last axis of one tensor, and a module (such "
                    "as nn.Linear) must project this tensor",
                )
            if site.projection not in paths:
                raise InputError(
                    f"the output projection of {name} is not in this model",
                    "check `sites` (the list of attention blocks): it may belong to another model",
                )
        projections = {paths[projection]: names for projection, names in sites.projections.items()}
        above = Counter(each for path in projections for each in modules_above(path))
        holders = {each: path for path in projections for each in modules_above(path) if above[each] == 1}
        return cls(sites, n_rows, projections, holders | {path: path for path in projections})

    def site_of(self, event: Event) -> HeadSite | None:
        """Return the attention block whose z (heads' outputs) this event carries; None if it carries no z."""
        sharing = () if event.is_output else self.projections.get(event.path, ())
        return sharing[event.n % len(sharing)] if sharing else None

    def arrival_of(self, event: Event) -> HeadSite | None:
        """Return the attention block whose z (heads' outputs) this event carries, before any hook; None for no z."""
        path = None if event.is_output else self.entrances.get(event.path)
        sharing = () if path is None else self.projections[path]
        return sharing[event.n % len(sharing)] if sharing else None

    def grid(self, site: HeadSite, z: Tensor) -> Tensor:
        """Return z (head outputs) of a block as [row, position, head, d_head]; rows and positions may share an axis."""
        if z.dim() == 2 and len(z) % self.n_rows == 0:
            z = z.unflatten(0, (self.n_rows, -1))
        by_head = split_heads(site, z, len(self.sites[site].heads))
        return by_head.reshape(len(by_head), -1, *by_head.shape[-2:])

    def path_of(self, site: HeadSite) -> str:
        """Return the path of the output projection of a site (attention block)."""
        return next(path for path, names in self.projections.items() if site in names)

    def learn(self, model: nn.Module, call: Callable[[], object]) -> None:
        """Run a pass to find, for each output projection, the smallest module around it that computes its input z."""
        met: dict[Event, list[Tensor]] = {}

        def meet(event: Event, tree: Any) -> Any:
            met[event] = tensors_of(event, tree)
            if event.is_output and event.path in self.projections:
                self.widths[event.path] = tensors_of(event, tree)[0].shape[-1]
            return tree

        with ModuleWatch(model, self.sites, meet):
            call()
        for path, sharing in self.projections.items():
            if Event(path, False, 0) not in met:
                raise InputError(
                    f"the model never calls {path}, the output projection of {sharing[0]}",
                    "leave this attention block out of `sites`, or give a model that uses the projection",
                )
            self._find_attention(path, met, is_torch=self.sites[sharing[0]].mha is not None)
            self._find_entrance(path, met)

    def _find_attention(self, path: str, met: Mapping[Event, Sequence[Tensor]], *, is_torch: bool) -> None:
        z, before = met[Event(path, False, 0)], list(met)[: list(met).index(Event(path, False, 0))]
        for above in modules_above(path):
            is_used = self.holders.get(above) == path and Event(above, False, 0) in before
            inside = [met[each] for each in before if each.is_output and each.path.startswith(f"{above}.")]
            if is_used and (is_torch or not all(_is_z(each, z) for each in inside)):
                self.attentions[path] = above
                return

    def _find_entrance(self, path: str, met: Mapping[Event, Sequence[Tensor]]) -> None:
        z, entrance = met[Event(path, False, 0)], path
        for above in modules_above(path):
            given = met.get(Event(above, False, 0), ())
            if self.holders.get(above) != path or not _is_z(given, z):
                break
            entrance = above
        self.entrances[entrance] = path


def _is_z(tensors: Sequence[Tensor], z: Sequence[Tensor]) -> bool:
    """Return whether the first tensor equals z, as in modules that only pass z on (TransformerLens' hook points)."""
    is_alike = bool(tensors) and tensors[0].dtype == z[0].dtype and tensors[0].numel() == z[0].numel()
    return is_alike and torch.equal(tensors[0].flatten(), z[0].flatten())


def modules_above(path: str) -> list[str]:
    """Return the paths of all modules that contain this one, the innermost first, without the model itself.

    >>> modules_above("h.1.attn.c_proj")
    ['h.1.attn', 'h.1', 'h']
    """
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
