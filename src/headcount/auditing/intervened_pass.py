"""One pass of a model with somebody's intervention, whatever form that has; the model is left as it was.

a context manager                                      ablated(model, "L1H2")
a function that returns one                            lambda: ablated(model, "L1H2")
a function that registers hooks, returns handles       lambda: block.register_forward_hook(hook)
a function that runs the model itself                  lambda: run_with_hooks(model, tokens)
keyword arguments that the model is called with        {"head_mask": mask}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from headcount.auditing.module_watch import Event, ModuleWatch, copied, set_forward, tensors_of
from headcount.errors import InputError, shortened
from headcount.hooks.sites import Sites


@dataclass
class IntervenedPass:
    """What was seen."""

    kept: dict[Event, Any] = field(default_factory=dict)
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    """As the model returns it, with nothing of ours around it."""
    watched: Tensor = field(default_factory=lambda: torch.empty(0))
    """And while it was watched."""
    hooked: tuple[str, ...] = ()
    """Modules with more hooks than before."""
    uncalled: frozenset[str] = frozenset()
    """Output projections that PyTorch's attention does not call."""
    arguments: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    """Modules that a context left hooks at."""

    def keep(self, event: Event, tree: Any) -> Any:
        """Of the last pass, if there are several."""
        if not event.path and not event.is_output:
            self.kept.clear()
        self.kept[event] = copied(tree)
        return tree


def run_with(
    context: Any, model: nn.Module, sites: Sites, call: Callable[..., Tensor], owned: nn.Module
) -> IntervenedPass:
    """Run the model inside, and take away hooks that are left behind; `owned` is what its owner has of it."""
    seen, before = IntervenedPass(), _hooks(model)
    try:
        with _entered(context, owned) as (run_itself, arguments):
            seen.hooked, seen.arguments = _more_hooks(before, model), tuple(arguments)
            seen.output = call(**arguments) if run_itself is None else seen.output
            with ModuleWatch(model, sites, seen.keep) as seen.uncalled:
                result = call(**arguments) if run_itself is None else run_itself()
        _require_new_hooks(before)
        seen.watched = result if run_itself is None else _own_output(seen)
        seen.output = seen.output if run_itself is None else seen.watched
        seen.left = _more_hooks(before, model) if _is_context(context) else ()
    except InputError:
        raise
    except Exception as error:  # whatever somebody's code does
        text = shortened(" ".join(str(error).split()) or "no message", 200)
        advice = "try it around a plain call of the model, on these inputs"
        raise InputError(f"the intervention raised {type(error).__name__}: {text}", advice) from error
    finally:
        _restore(before)
    return seen


def _own_output(seen: IntervenedPass) -> Tensor:
    """What the model returned to a function that ran it itself."""
    found = tensors_of(last := Event("", True, 0), seen.kept.get(last))
    if not found:
        raise InputError(
            "the function returned neither a context nor handles of hooks, and did not run the model",
            "return what register_forward_hook() returned; or call the model in it, on the inputs that are given here",
        )
    return found[0]


@contextmanager
def _entered(context: Any, model: nn.Module) -> Iterator[tuple[Callable[[], Any] | None, Mapping[str, Any]]]:
    """Inside, the intervention acts; it may run the model itself, or be arguments that the model is called with."""
    if isinstance(context, Mapping) and not _is_context(context):
        yield None, context
        return
    if isinstance(context, RemovableHandle):
        raise InputError("this hook is registered already", "give a function that registers it: lambda: register(...)")
    start, made = None, context
    if not _is_context(context) and callable(context):
        start = partial(context, *([model] if _takes_one(context) else []))
        with _calls_of(model) as calls:
            made = start()
    handles = [each for each in pytree.tree_leaves(made) if each is not None]
    with ExitStack() as stack:
        if _is_context(made):
            stack.enter_context(made)
        elif start is not None and (handles or not calls) and all(map(_is_handle, handles)):
            for each in handles:
                stack.callback(each.remove)
            start = None
        elif start is None:
            raise InputError(
                f"{type(context).__name__} is no intervention",
                "give a context manager, or a function that returns one or the handles of hooks that it registers",
            )
        yield (None if _is_context(made) else start), {}


@contextmanager
def _calls_of(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Modules of the model that are called inside."""
    own, calls = set(model.modules()), list[nn.Module]()
    handle = register_module_forward_pre_hook(lambda module, args: calls.append(module) if module in own else None)
    with handle:
        yield calls


def _is_handle(each: Any) -> bool:
    return callable(getattr(each, "remove", None))


def _is_context(each: Any) -> bool:
    return hasattr(type(each), "__enter__") and hasattr(type(each), "__exit__")


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it must be given something: the model."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return any(each.default is each.empty and each.kind in by_place for each in given)


_Hooks = dict[str, tuple[nn.Module, frozenset[int], Any]]


def _hooks(model: nn.Module) -> _Hooks:
    """By path, a module, the numbers of its hooks, and a forward() of its own."""
    return {
        path: (each, frozenset((*each._forward_hooks, *each._forward_pre_hooks)), each.__dict__.get("forward"))
        for path, each in model.named_modules()
    }


def _more_hooks(before: _Hooks, model: nn.Module) -> tuple[str, ...]:
    """Modules that are new, or have hooks or a forward() that they did not have."""
    none = (None, frozenset[int](), None)
    found = []
    for path, (module, hooks, forward) in _hooks(model).items():
        was, had, own = before.get(path, none)
        if was is not module or hooks - had or forward is not own:
            found.append(path)
    return tuple(found)


def _require_new_hooks(before: _Hooks) -> None:
    """Refuse a context that took away what was there: so its hooks acted in the pass without it, too (baukit's do)."""
    for path, (module, hooks, _) in before.items():
        if hooks - {*module._forward_hooks, *module._forward_pre_hooks}:
            raise InputError(
                f"the hook of this context at {path} was in place before the context was entered",
                "give a function that makes it: lambda: ...",
            )


def _restore(before: _Hooks) -> None:
    for module, hooks, forward in before.values():
        for kept in (module._forward_hooks, module._forward_pre_hooks):
            for number in set(kept) - hooks:
                del kept[number]
        set_forward(module, forward)
