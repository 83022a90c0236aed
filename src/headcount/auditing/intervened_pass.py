"""Run a model with an intervention of any form, and restore the model afterwards.

a context manager                                      ablated(model, "L1H2")
a function that returns a context manager              lambda: ablated(model, "L1H2")
a function that registers hooks, returns handles       lambda: block.register_forward_hook(hook)
a function that runs the model itself                  lambda: run_with_hooks(model, tokens)
keyword arguments of the model                         {"head_mask": mask}
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

from headcount.auditing.dependence import Probes, find_even_heads, probe, same_noise
from headcount.auditing.model_state import ModelState
from headcount.auditing.module_watch import BlockLayout, Event, ModuleWatch, copied, tensors_of
from headcount.errors import InputError, shortened
from headcount.heads import HeadId, HeadSite


@dataclass
class IntervenedPass:
    """Everything that was recorded while the model ran with an intervention."""

    kept: dict[Event, Any] = field(default_factory=dict)
    """The inputs and outputs of all modules, by event (one call of one module)."""
    arrived: dict[HeadSite, Tensor] = field(default_factory=dict)
    """z (the heads' outputs) of each block, before the intervention's hooks."""
    probes: Probes = field(default_factory=Probes)
    """What the intervention puts in place of head outputs, recorded in passes over other examples."""
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    """The model's output with the intervention, in a pass in which no module was recorded."""
    watched: Tensor = field(default_factory=lambda: torch.empty(0))
    """The model's output with the intervention, in the pass in which all modules were recorded."""
    hooked: tuple[str, ...] = ()
    """Paths of modules that the intervention gave hooks or another forward()."""
    uncalled: frozenset[str] = frozenset()
    """Paths of output projections that PyTorch's attention computes without calling the module."""
    arguments: tuple[str, ...] = ()
    """Names of the keyword arguments, if the intervention consists of arguments of the model."""
    even: frozenset[HeadId] = frozenset()
    """Heads that attend uniformly to all visible keys under the intervention."""
    left: tuple[str, ...] = ()
    """Descriptions of changes to the model that a context manager did not undo when it ended."""

    def keep(self, event: Event, tree: Any) -> Any:
        """Record the input or output of a module, and return it. A new pass replaces the records of the pass before."""
        if not event.path and not event.is_output:
            self.kept.clear()
        self.kept[event] = copied(tree)
        return tree

    def keep_arrival(self, layout: BlockLayout, event: Event, tree: Any) -> Any:
        """Record z (the heads' outputs) of a block before the intervention's hooks see it, and return the inputs."""
        if (site := layout.arrival_of(event)) is not None:
            self.arrived[site] = tensors_of(event, copied(tree))[0]
        return tree


def run_with(
    context: Any,
    model: nn.Module,
    layout: BlockLayout,
    call: Callable[..., Tensor],
    owned: nn.Module,
    probes: Probes,
) -> IntervenedPass:
    """Run the model with an intervention (`context`), record the pass, and undo all changes to the model.

    `owned` is the model as its author wrote it. `probes` holds other examples, on which the model runs as well.
    """
    seen, state = IntervenedPass(probes=probes), ModelState(model)
    try:
        with _entered(context, owned) as (run_itself, arguments):
            seen.hooked, seen.arguments = state.hooked(), tuple(arguments)
            run = partial(call, **arguments) if run_itself is None else run_itself
            if run_itself is None:
                with same_noise():
                    seen.output = call(**arguments)
            arrive = partial(seen.keep_arrival, layout)
            with same_noise(), ModuleWatch(model, layout.sites, seen.keep, arrive) as seen.uncalled:
                result = run()
            seen.watched = result if run_itself is None else _own_output(seen)
            seen.output = seen.output if run_itself is None else seen.watched
            probe(seen.probes, model, layout, run, seen.arrived, _entered_z(layout, seen))
            seen.even = find_even_heads(layout, probes.n_rows, run)
        for path in state.unhooked():  # baukit registers hooks when a context is created, so they were active before
            raise InputError(
                f"the context manager registered its hook on the module {path} before the context was entered",
                "give a function that creates the context manager: lambda: ...",
            )
        seen.left = tuple(state.differences()) if _is_context(context) else ()
    except InputError:
        raise
    except Exception as error:  # user code may raise anything
        text = shortened(" ".join(str(error).split()) or "no message", 200)
        advice = "to debug the intervention, use it around a plain call of the model on these inputs"
        raise InputError(f"the intervention raised {type(error).__name__}: {text}", advice) from error
    finally:
        state.restore()
    return seen


def _entered_z(layout: BlockLayout, seen: IntervenedPass) -> dict[HeadSite, Tensor]:
    """Return z of each block (the input of its output projection) after the intervention."""
    events = {event: site for event in seen.kept if (site := layout.site_of(event)) is not None}
    return {site: tensors_of(event, seen.kept[event])[0] for event, site in events.items()}


def _own_output(seen: IntervenedPass) -> Tensor:
    """Return the output of the model that a user's function ran; raise an error if the function ran no model."""
    tensors = tensors_of(last := Event("", True, 0), seen.kept.get(last))
    if not tensors:
        raise InputError(
            "the intervention's function returned no context manager and no hook handles, and did not run the model",
            "return what register_forward_hook() returned, or call the model in the function, on the given inputs",
        )
    return tensors[0]


@contextmanager
def _entered(context: Any, model: nn.Module) -> Iterator[tuple[Callable[[], Any] | None, Mapping[str, Any]]]:
    """Enter an intervention of any form; yield the user's function that runs the model, and arguments for the model.

    The function is None if headcount runs the model. The arguments are empty unless the intervention consists of
    them.
    """
    if isinstance(context, Mapping) and not _is_context(context):
        yield None, context
        return
    if isinstance(context, RemovableHandle):
        raise InputError(
            "the intervention is the handle of a hook that is registered already",
            "give a function that registers the hook: lambda: register(...)",
        )
    start, entered = None, context
    if not _is_context(context) and callable(context):
        start = partial(context, *([model] if _takes_one(context) else []))
        with _calls_of(model) as calls:
            entered = start()
    handles = [each for each in pytree.tree_leaves(entered) if each is not None]
    with ExitStack() as stack:
        if _is_context(entered):
            stack.enter_context(entered)
        elif start is not None and (handles or not calls) and all(hasattr(each, "remove") for each in handles):
            for each in handles:
                stack.callback(each.remove)
            start = None
        elif start is None:
            raise InputError(
                f"{type(context).__name__} is not an intervention",
                "give a context manager, or a function that returns one or the handles of hooks that it registers",
            )
        yield (None if _is_context(entered) else start), {}


@contextmanager
def _calls_of(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list that collects the model's modules that are called inside the context."""
    own, calls = set(model.modules()), list[nn.Module]()
    handle = register_module_forward_pre_hook(lambda module, args: calls.append(module) if module in own else None)
    with handle:
        yield calls


def _is_context(each: Any) -> bool:
    return hasattr(type(each), "__enter__") and hasattr(type(each), "__exit__")


def _takes_one(function: Callable[..., Any]) -> bool:
    """Return whether a function has a required argument, which is then the model."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return any(each.default is each.empty and each.kind in by_place for each in given)
