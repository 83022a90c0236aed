"""A first adapter for somebody's model: what can be read off its class is filled in, the rest says what is wanted."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, InputError
from headcount.external.adapter import built, load_adapter, read_weights
from headcount.external.user_code import at_home, import_file, user_code_errors
from headcount.files import write_atomically
from headcount.heads import HeadId
from headcount.hooks.sites import Guess, guess, sites_calls
from headcount.tasks import TASKS


@dataclass(frozen=True)
class Scaffold:
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


def write_scaffold(
    name: str, out: Path, checkpoint: Path | None = None, *, say: Callable[[str], object] = lambda text: None
) -> Scaffold:
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
    return Scaffold(out, kind, guesses, heads, (*(f"in build(): {note}" for note in made.notes), *faults))


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


# --- guesses ----------------------------------------------------------------------------------------------------------
# What a checkpoint tells of a model that cannot be built yet: the names and shapes of its weights.


def arguments_of(kind: type) -> dict[str, str]:
    """What a class must be given, each as it stands in its signature."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return {}  # a class that does not say
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = [each for each in parameters if each.kind in plain and each.default is inspect.Parameter.empty]
    return {each.name: str(each).replace("'", "") for each in wanted}


def guessed_values(names: Iterable[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments by their names: sizes that can be read off shapes, and layers that can be counted.

    >>> guessed_values(["d_model", "vocab", "eps"], {"embed.weight": torch.zeros(14, 48)})
    {'d_model': 48, 'vocab': 14}
    """
    sizes = _sizes(weights)
    found = {}
    for name in names:
        for pattern, size in sizes.items():
            if re.search(pattern, name, re.IGNORECASE):
                found[name] = size
                break
    return found


def tree_of(weights: Mapping[str, Tensor]) -> nn.Module:
    """Modules at the weights' paths, without any numbers in them: enough to look for output projections."""
    root = nn.Module()
    for name, tensor in weights.items():
        *above, last = name.split(".")
        module = root
        for part in above:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        if last not in module._parameters:
            module.register_parameter(last, nn.Parameter(torch.empty_like(tensor, device="meta"), False))
    return root


def _sizes(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Patterns of names, and what they would be; the first that fits counts."""
    tables = [each for name, each in weights.items() if re.search(r"emb|tok|wte", name, re.I) and each.dim() == 2]
    layers = [int(found[1]) for name in weights if (found := re.search(r"(?:^|\.)(\d+)\.", name))]
    sizes = {}
    if layers:
        sizes[r"layer|depth|block"] = max(layers) + 1
    if tables:
        n_tokens, width = tables[0].shape
        wide = [len(each) for name, each in weights.items() if _is_wide(name, each, width)]
        if wide:
            sizes[r"ff|mlp|inner|feed|hidden_dim"] = max(wide)
        sizes |= {r"vocab|token|n_words|num_emb": n_tokens, r"model|emb|hidden|width|^dim$": width}
    return sizes


def _is_wide(name: str, tensor: Tensor, width: int) -> bool:
    return "." in name and tensor.dim() == 2 and tensor.shape[1] == width and bool(re.search(r"\.\d+\.", name))


# --- the text ---------------------------------------------------------------------------------------------------------
# The words of a first adapter.


TAKEN = ("Model", "Adapter", "Sites", "HeadcountError", "Path")
"""Names that mean something else in an adapter."""
MOST_SHOWN = 40
"""Lines of the module tree."""
CONFIRM = {True: "Found by the names of modules. Is it right? See what it finds:", False: "TODO: nothing was found."}


@dataclass(frozen=True)
class Parts:
    """What goes into it."""

    file: Path
    home: Path
    """The file of the model's class."""
    kind: str
    alias: str
    """What the class is called in the adapter."""
    call: str
    notes: tuple[str, ...]
    calls: tuple[str, ...]
    """Of Sites.of, the likeliest first."""
    modules: tuple[tuple[str, nn.Module], ...]
    takes: tuple[str, ...]
    """What forward() is given."""
    checkpoint: str | None


def written(parts: Parts) -> str:
    """A Python file."""
    takes = ", ".join(parts.takes) or "*inputs"
    values = {
        "KIND": parts.kind,
        "HOME": parts.home.name,
        "FILE": parts.file.name,
        "IMPORT": _import(parts),
        "TREE": "\n".join(f"#   {line}" for line in _tree(parts.modules)) or "#   (not known: the model was not built)",
        "CHECKPOINT": json.dumps(parts.checkpoint) if parts.checkpoint else "None",
        "TASKS": ", ".join(f'"{name}"' for name in TASKS.names()),
        "NOTES": "".join(f"        # TODO: {_line(note)}\n" for note in parts.notes),
        "BUILD": parts.call,
        "CONFIRM": CONFIRM[bool(parts.calls)],
        "SITES": _folded(parts.calls[0]) if parts.calls else 'Sites.of(model, "layers.*.attention.out", n_heads=...)',
        "OTHERS": "".join(f"        # or: return {call}\n" for call in parts.calls[1:]),
        "TAKES": takes,
        "INPUTS": f"({takes},)" if len(parts.takes) == 1 else f"({takes})" if parts.takes else "inputs",
    }
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def _import(parts: Parts) -> str:
    """The model's class, from beside the adapter or from elsewhere."""
    home, here = parts.home.resolve().parent, parts.file.resolve().parent
    found = f"from {parts.home.stem} import {parts.kind}" + (f" as {parts.alias}" if parts.alias != parts.kind else "")
    if not parts.home.stem.isidentifier():
        found = f"from importlib import import_module\n\n{parts.alias} = import_module({json.dumps(parts.home.stem)})"
        found += f".{parts.kind}"
    if home == here:
        return f"{found}\n\nfrom headcount import Adapter, HeadcountError, Sites"
    try:
        where = f"str(Path(__file__).resolve().parent / {json.dumps(Path(os.path.relpath(home, here)).as_posix())})"
    except ValueError:
        where = json.dumps(str(home))  # another drive
    return (
        "import sys\nfrom pathlib import Path\n\nfrom headcount import Adapter, HeadcountError, Sites\n\n"
        f"sys.path.insert(0, {where})\n{found}"
    )


def _folded(call: str) -> str:
    """A line for each argument, if they are too many for one."""
    if len(call) < 100:
        return call
    arguments = re.split(r", (?=\w+=)", call.removeprefix("Sites.of(").removesuffix(")"))
    return "Sites.of(\n" + "".join(f"            {each},\n" for each in arguments) + "        )"


def _tree(modules: Sequence[tuple[str, nn.Module]]) -> list[str]:
    """One line for all layers of a stack."""
    count = Counter((_starred(path), _described(module)) for path, module in modules)
    width = max((len(path) for path, _ in count), default=0)
    lines = [f"{path:{width}}  {what}" + (f", {n} of them" if n > 1 else "") for (path, what), n in count.items()]
    more = [f"... and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return lines[:MOST_SHOWN] + more


def _described(module: nn.Module) -> str:
    weight: Any = getattr(module, "weight", None)
    shape = "" if weight is None else f" {list(weight.shape)}"
    return ("" if type(module) is nn.Module else type(module).__name__) + shape


def _starred(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _line(text: str) -> str:
    return " ".join(text.split())


_TEXT = '''"""<KIND> of <HOME>, for headcount.

Written by `headcount adapt`; what is marked TODO is yours to write.

    headcount heads  <FILE>:Model                  needs build() and sites()
    headcount ablate <FILE>:Model                  needs encode(), and a task or data()
    headcount prune  <FILE>:Model -o smaller       likewise; a smaller model, proven
"""

<IMPORT>

# What looks like attention in it; * stands for a layer's number:
<TREE>


class Model(Adapter):
    # The trained weights, as a path from this file: what torch.save(model.state_dict(), ...) wrote, also inside a
    # checkpoint under "model", "state_dict" or "model_state_dict". None if build() loads them.
    checkpoint = <CHECKPOINT>

    # TODO: one of headcount's own tasks (<TASKS>), with settings such as {"digits": 2};
    # or None, and data() gives the examples.
    task = None
    settings = {}

    def build(self):
        # The model; its weights may still be random.
<NOTES>        return <BUILD>

    def sites(self, model):
        # Each block's output projection: the layer whose input is the outputs of its heads, side by side.
        # <CONFIRM> headcount heads <FILE>:Model
        return <SITES>
<OTHERS>
    def encode(self, questions, answers):
        # TODO: texts as tensors, rows first: questions such as "37+81", answers such as "118", a list of each.
        # Return what the model is given, and what it should say:
        #   return <INPUTS>, labels
        # labels are [row] if it says one class for each row, or [row, position] if it says a sequence: the right token
        # at each position, and -100 where nothing is asked (padding). A decoder is fed the right answer, shifted: it is
        # given <s> 1 1 8 and should say 1 1 8 </s>.
        raise HeadcountError("encode() of the adapter is still to be written", "see the comments there")

    def forward(self, model, <TAKES>):
        # Called with what encode() made. Return logits: [row, class] or [row, position, token].
        return super().forward(model, <TAKES>)  # model(<TAKES>), the first tensor of what it returns

    # For a sequence model: its own answers, by its own greedy decoding, as texts like those in `answers`.
    # headcount asks in a quicker way, and checks that against this wherever heads are at zero.
    # def generate(self, model, questions):
    #     return solve(model, questions)

    def data(self):
        # TODO if task is None: questions and right answers, some hundreds of them that it was not trained on.
        #   return [("37+81", "118"), ("5+99", "104")]
        raise HeadcountError("data() of the adapter is still to be written, or task to be named", "see the comments")

    # What stands at each position of each input, for pictures (headcount heads --on "37+81"):
    # def tokens(self, question, answer):
    #     return list(question), ["<s>", *answer]
'''
