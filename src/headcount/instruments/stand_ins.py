"""Whoever stands in for modules while a recorded pass is run again, and what was recorded of each call.

Why a module may hand back what was recorded is told in recording.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from headcount.instruments.trees import Rows, replace_tensor, tensors_in

Forward = Callable[..., Any]


@dataclass(eq=False)
class Call:
    """One call of one module."""

    module: nn.Module
    inside: list[Call] = field(default_factory=list)
    """Calls that were made meanwhile."""
    inputs: tuple[Tensor, ...] = ()
    """What a plain layer was given."""
    output: Any = None
    held: tuple[tuple[Tensor, int], ...] | None = None
    """Every tensor of the above and its version, which counts changes in place; None if they cannot be handed back."""
    order: int = -1
    """How many calls were over before this one was."""

    def finish(self, args: Any, output: Any, order: int) -> None:
        """Keep what it was given (if it is a plain layer) and what it returned."""
        self.inputs = tuple(tensors_in(args) or ()) if _is_plain(self.module) else ()
        self.output, self.order = output, order
        found = tensors_in(output)
        self.held = None if found is None else tuple((tensor, tensor._version) for tensor in (*self.inputs, *found))

    @property
    def is_intact(self) -> bool:
        """Whether what it returned can still be handed back."""
        return self.held is not None and all(tensor._version == version for tensor, version in self.held)

    def forget(self) -> None:
        """Keep no tensors: whoever made this call hands back its own."""
        self.inputs, self.output, self.held = (), None, None


@dataclass(eq=False)
class Passage:
    """One site in the recorded pass."""

    z: Tensor
    version: int
    call: Call
    carrier: Call
    """The outermost call that returned the projection's output itself."""

    def concerns(self, call: Call) -> bool:
        """Whether a call may be stood in for when a pass begins here: it was over, carries the change, or is plain."""
        return call is self.carrier or call.order < self.call.order or bool(call.inputs)


class Players:
    """Whoever stands in for modules while a pass is run again."""

    def __init__(self, passage: Passage, projected: Tensor, rows: Rows) -> None:
        self.passage, self.projected, self.rows = passage, projected, rows
        self.n_called: Counter[nn.Module] = Counter()
        self.n_skipped: Counter[nn.Module] = Counter()
        """Calls that did not happen because whoever would have made them was stood in for."""
        self.has_acted = False
        """Whether the change was handed over."""

    @contextmanager
    def standing_in(self, cast: Mapping[nn.Module, Sequence[Call]]) -> Iterator[None]:
        """Inside, modules hand back what was recorded, wherever that is what they would compute."""
        before = {module: module.__dict__.get("forward") for module in cast}
        try:
            for module, calls in cast.items():
                module.__dict__["forward"] = self._forward(module, calls, module.forward)
            yield
        finally:
            for module, own in before.items():
                if own is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = own

    def _forward(self, module: nn.Module, calls: Sequence[Call], forward: Forward) -> Forward:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            n = self.n_called[module]
            self.n_called[module] += 1
            call = calls[n] if n < len(calls) else None
            if call is self.passage.carrier:
                self.has_acted = True
                self._skip(self.passage.carrier)
                was = self.passage.call.output
                return replace_tensor(self.passage.carrier.output, was, self.projected, self.rows.repeat)
            if call is None or not call.is_intact:
                return forward(*args, **kwargs)
            if call.order < self.passage.call.order or self._unchanged(call, args, kwargs):
                self._skip(call)
                return self.rows.repeat_tree(call.output)
            return forward(*args, **kwargs)

        return stand_in

    def _skip(self, call: Call) -> None:
        """What this call would have called is not called now."""
        for inner in call.inside:
            self.n_called[inner.module] += 1
            self.n_skipped[inner.module] += 1

    def _unchanged(self, call: Call, args: Any, kwargs: Any) -> bool:
        """Whether a plain layer was given just what was recorded: such a layer depends on nothing else."""
        found = tensors_in((args, kwargs))
        if not found or len(found) != len(call.inputs):
            return False
        return all(
            self.rows.repeats_very(tensor, recorded) or self.rows.repeats(tensor, recorded)
            for tensor, recorded in zip(found, call.inputs, strict=True)
        )


def _is_plain(module: nn.Module) -> bool:
    """PyTorch's own layers, which have no others inside."""
    return type(module).__module__.startswith("torch.nn.modules") and not any(module.children())
