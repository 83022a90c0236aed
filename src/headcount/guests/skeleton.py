"""A first adapter for somebody's model: what can be read off its class is filled in, the rest says what is wanted."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headcount.errors import HeadcountError, InputError
from headcount.guests.adapter import built, load_adapter, read_weights
from headcount.guests.skeleton_guesses import arguments_of, guessed_values, tree_of
from headcount.guests.skeleton_text import TAKEN, Parts, written
from headcount.guests.user_code import at_home, import_file, user_code_errors
from headcount.heads import HeadId
from headcount.instruments.finding import Guess, guess, sites_calls
from headcount.runs.storage import write_atomically


@dataclass(frozen=True)
class Skeleton:
    """An adapter that was written, and what is known so far."""

    file: Path
    name: str
    """The model's class."""
    guesses: tuple[Guess, ...]
    heads: tuple[HeadId, ...]
    """What the adapter as written finds; none if it does not get that far."""
    notes: tuple[str, ...]
    """What is still to be done before heads are found."""


@dataclass(frozen=True)
class _Made:
    """A model, or what can be known without one."""

    tree: nn.Module | None
    call: str
    """How build() makes it."""
    notes: tuple[str, ...] = ()


def write_skeleton(
    name: str, out: Path, checkpoint: Path | None = None, *, say: Callable[[str], object] = lambda text: None
) -> Skeleton:
    """Look at `my_model.py:MyModel` and write an adapter for it, to a new file; `say` is told that code is run."""
    _require_new(out)
    path, _, kind = name.rpartition(":")
    if not path:
        raise InputError(f"which class of {name}?", f"say {name}:Class, one that inherits torch.nn.Module")
    found = _class_in(Path(path), kind, say)
    weights = None if checkpoint is None else _weights(checkpoint)
    alias = f"Their{kind}" if kind in TAKEN else kind
    with at_home(Path(path).parent):
        made = _made(found, alias, weights)
    guesses = tuple(guess(made.tree)) if made.tree is not None else ()
    parts = Parts(
        file=out,
        home=Path(path),
        kind=kind,
        alias=alias,
        call=made.call,
        notes=made.notes,
        calls=tuple(sites_calls(guesses)),
        modules=tuple(_modules(made.tree)),
        takes=_takes(found),
        checkpoint=None if checkpoint is None else _relative(checkpoint, out),
    )
    write_atomically(out, written(parts).encode())
    heads, faults = _tried(out, checkpoint is not None) if "..." not in made.call else ((), ())
    return Skeleton(out, kind, guesses, heads, (*(f"in build(): {note}" for note in made.notes), *faults))


def _require_new(out: Path) -> None:
    if out.suffix != ".py":
        raise InputError(f"{out} is no Python file", "end its name in .py")
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists", "it is not overwritten: choose another name with -o")


def _class_in(file: Path, kind: str, say: Callable[[str], object]) -> type[nn.Module]:
    if file.suffix != ".py" or not file.is_file():
        what = f"no file {file}" if file.suffix == ".py" else f"'{file}:{kind}' names no class of a Python file"
        raise InputError(what, "say FILE.py:Class")
    say(f"running {file.resolve()} to look at its class")
    module = import_file(file)
    found = getattr(module, kind, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    named = [key for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, nn.Module)]
    raise InputError(
        f"{file} has no torch.nn.Module {kind!r}", f"it has: {', '.join(named)}" if named else "name the model's class"
    )


def _weights(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        what = f"{file} is no regular file" if file.exists() else f"no file {file}"
        raise InputError(what, "give the file of weights with --checkpoint")
    found = read_weights(file)
    if not isinstance(found, Mapping) or not all(isinstance(each, Tensor) for each in found.values()):
        raise InputError(f"{file} holds no weights by name", "save model.state_dict()")
    return found


def _made(kind: type[nn.Module], name: str, weights: Mapping[str, Tensor] | None) -> _Made:
    """By its class alone; else by what its weights suggest; else by the weights' names."""
    model, fault = _called(kind, {})
    if model is not None:
        return _Made(model, f"{name}()")
    wants = arguments_of(kind)
    values = {} if weights is None else guessed_values(wants, weights)
    given = {each: repr(values[each]) if each in values else "..." for each in wants}
    call = f"{name}({', '.join(f'{each}={value}' for each, value in given.items())})"
    note = f"{name} wants {', '.join(wants.values())}" if wants else f"{name}() fails: {fault}"
    if wants and values.keys() == wants.keys():
        model, _ = _called(kind, values)
    if model is not None and weights is not None and _fits(model, weights):
        return _Made(model, call, (f"{note}; {call} is a guess, by the weights, and they fit: check it",))
    return _Made(None if weights is None else tree_of(weights), call, (note,))


def _called(kind: type[nn.Module], values: Mapping[str, Any]) -> tuple[nn.Module | None, str]:
    try:
        return kind(**values), ""
    except (Exception, SystemExit) as error:  # somebody's code
        return None, f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0]


def _fits(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == weights.keys() and all(own[name].shape == each.shape for name, each in weights.items())


def _takes(kind: type[nn.Module]) -> tuple[str, ...]:
    """What forward() must be given, by name."""
    try:
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()  # a forward() that does not say
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in plain and each.default is inspect.Parameter.empty)


def _modules(tree: nn.Module | None) -> list[tuple[str, nn.Module]]:
    """Whatever has to do with attention, as far as names tell; all there is if nothing has."""
    found = [] if tree is None else list(tree.named_modules())[1:]
    attention = [
        (path, each) for path, each in found if "att" in path.lower() or isinstance(each, nn.MultiheadAttention)
    ]
    return attention or found


def _relative(file: Path, out: Path) -> str:
    try:
        return Path(os.path.relpath(file.resolve(), out.resolve().parent)).as_posix()
    except ValueError:
        return file.resolve().as_posix()  # another drive


def _tried(out: Path, has_weights: bool) -> tuple[tuple[HeadId, ...], tuple[str, ...]]:
    """What the adapter as written finds, and what keeps it from finding or loading more."""
    try:
        adapter = load_adapter(f"{out}:Model")
        model = built(adapter)
        with user_code_errors(adapter, "sites"):
            heads = adapter.sites(model).heads
    except HeadcountError as error:
        told = str(error).splitlines() or [type(error).__name__]
        return (), (f"its heads are not found yet: {told[0]}",)
    try:
        with user_code_errors(adapter, "load"):
            adapter.load(model)
    except HeadcountError as error:
        return heads, (f"{error.what}: see build() and checkpoint",)
    return heads, () if has_weights else ("no weights yet: say checkpoint = ..., or load them in build()",)
