"""A first adapter for somebody's model: what can be read off its class is filled in, the rest says what is wanted."""

import inspect
import json
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
from headcount.external.user_code import at_home, import_class, relative_path, user_code_errors
from headcount.files import write_atomically
from headcount.heads import HeadId
from headcount.hooks.sites import Guess, guess, sites_calls
from headcount.tasks import TASKS

TAKEN = ("Model", "Adapter", "Sites", "HeadcountError", "Path")
"""Names that mean something else in an adapter."""
MOST_SHOWN = 40
"""Lines of the module tree."""


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


def write_scaffold(
    name: str, out: Path, checkpoint: Path | None = None, *, say: Callable[[str], object] = lambda text: None
) -> Scaffold:
    """Look at `my_model.py:MyModel` and write an adapter for it, to a new file; `say` is told that code is run."""
    if out.suffix != ".py":
        raise InputError(f"{out} is no Python file", "end its name in .py")
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists", "it is not overwritten: choose another name with -o")
    path, _, class_name = name.rpartition(":")
    if not path:
        raise InputError(f"which class of {name}?", f"say {name}:Class, one that inherits torch.nn.Module")
    home, here = Path(path), out.resolve().parent
    model_class = _class_in(home, class_name, say)
    weights = None if checkpoint is None else _weights(checkpoint)
    alias = f"Their{class_name}" if class_name in TAKEN else class_name
    with at_home(home.parent):
        tree, call, note = _model_of(model_class, alias, weights)
    guesses = () if tree is None else tuple(guess(tree))
    values = {
        "KIND": class_name,
        "HOME": home.name,
        "FILE": out.name,
        "IMPORT": _import(home, class_name, alias, here),
        "TREE": _tree(tree),
        "CHECKPOINT": json.dumps(relative_path(checkpoint.resolve(), here)) if checkpoint else "None",
        "NOTES": f"        # TODO: {' '.join(note.split())}\n" if note else "",
        "BUILD": call,
    }
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [each.name for each in _required(model_class.forward, *kinds)][1:]  # but not self
    write_atomically(out, _render(values, sites_calls(guesses), takes).encode())
    heads, faults = _heads_found(out, checkpoint is not None) if "..." not in call else ((), ())
    return Scaffold(out, class_name, guesses, heads, (f"in build(): {note}", *faults) if note else faults)


def _class_in(file: Path, name: str, say: Callable[[str], object]) -> type[nn.Module]:
    if file.suffix != ".py" or not file.is_file():
        what = f"no file {file}" if file.suffix == ".py" else f"'{file}:{name}' names no class of a Python file"
        raise InputError(what, "say FILE.py:Class")
    say(f"running {file.resolve()} to look at its class")
    return import_class(file, name, nn.Module, "torch.nn.Module", "name the model's class")


def _weights(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        what = f"{file} is no regular file" if file.exists() else f"no file {file}"
        raise InputError(what, "give the file of weights with --checkpoint")
    found = read_weights(file)
    if not isinstance(found, Mapping) or not all(isinstance(each, Tensor) for each in found.values()):
        raise InputError(f"{file} holds no weights by name", "save model.state_dict()")
    return found


def _model_of(
    model_class: type[nn.Module], name: str, weights: Mapping[str, Tensor] | None
) -> tuple[nn.Module | None, str, str]:
    """A model or what is known of its modules, how build() makes it, and a note on what is not known.

    By its class alone; else by what its weights suggest; else by the weights' names.
    """
    model, fault = _called(model_class, {})
    if model is not None:
        return model, f"{name}()", ""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wants = {each.name: str(each).replace("'", "") for each in _required(model_class, *kinds)}
    values = {} if weights is None else guessed_values(wants, weights)
    given = [f"{each}={values[each]!r}" if each in values else f"{each}=..." for each in wants]
    call = f"{name}({', '.join(given)})"
    note = f"{name} wants {', '.join(wants.values())}" if wants else f"{name}() fails: {fault}"
    if weights is None:
        return None, call, note
    if wants and values.keys() == wants.keys():
        model, _ = _called(model_class, values)
    own = {} if model is None else model.state_dict()
    if own.keys() == weights.keys() and all(own[key].shape == each.shape for key, each in weights.items()):
        return model, call, f"{note}; {call} is a guess, by the weights, and they fit: check it"
    return tree_of(weights), call, note


def _called(model_class: type[nn.Module], values: Mapping[str, Any]) -> tuple[nn.Module | None, str]:
    try:
        return model_class(**values), ""
    except (Exception, SystemExit) as error:  # somebody's code
        return None, f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0]


def _required(function: Callable[..., Any], *kinds: Any) -> list[inspect.Parameter]:
    """Parameters of these kinds that must be given; none if the function does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty]


def _heads_found(out: Path, has_weights: bool) -> tuple[tuple[HeadId, ...], tuple[str, ...]]:
    """What the adapter as written finds, and what keeps it from finding or loading more."""
    try:
        adapter = load_adapter(f"{out}:Model")
        model = built(adapter)
        with user_code_errors(adapter, "sites"):
            heads = adapter.sites(model).heads
    except HeadcountError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return (), (f"its heads are not found yet: {lines[0]}",)
    try:
        with user_code_errors(adapter, "load"):
            adapter.load(model)
    except HeadcountError as error:
        return heads, (f"{error.what}: see build() and checkpoint",)
    return heads, () if has_weights else ("no weights yet: say checkpoint = ..., or load them in build()",)


# --- guesses ----------------------------------------------------------------------------------------------------------
# What a checkpoint tells of a model that cannot be built yet: the names and shapes of its weights.


def guessed_values(names: Iterable[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments by their names: sizes that can be read off shapes, and layers that can be counted.

    >>> guessed_values(["d_model", "vocab", "eps"], {"embed.weight": torch.zeros(14, 48)})
    {'d_model': 48, 'vocab': 14}
    """
    tables = [each for name, each in weights.items() if re.search(r"emb|tok|wte", name, re.I) and each.dim() == 2]
    layers = [int(found[1]) for name in weights if (found := re.search(r"(?:^|\.)(\d+)\.", name))]
    sizes = {}  # by a pattern of names; the first that fits counts
    if layers:
        sizes[r"layer|depth|block"] = max(layers) + 1
    if tables:
        n_tokens, width = tables[0].shape
        inner = [each for name, each in weights.items() if re.search(r"\.\d+\.", name) and each.dim() == 2]
        if wide := [len(each) for each in inner if each.shape[1] == width]:
            sizes[r"ff|mlp|inner|feed|hidden_dim"] = max(wide)
        sizes |= {r"vocab|token|n_words|num_emb": n_tokens, r"model|emb|hidden|width|^dim$": width}
    fits = {name: [size for each, size in sizes.items() if re.search(each, name, re.I)] for name in names}
    return {name: found[0] for name, found in fits.items() if found}


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


# --- the text ---------------------------------------------------------------------------------------------------------


def _render(values: dict[str, str], calls: Sequence[str], takes: Sequence[str]) -> str:
    """The text of an adapter; `calls` are those of Sites.of, the likeliest first, `takes` what forward() is given."""
    inputs = ", ".join(takes) or "*inputs"
    values |= {
        "TASKS": ", ".join(f'"{name}"' for name in TASKS.names()),
        "CONFIRM": "TODO: nothing was found.",
        "SITES": 'Sites.of(model, "layers.*.attention.out", n_heads=...)',
        "OTHERS": "".join(f"        # or: return {call}\n" for call in calls[1:]),
        "TAKES": inputs,
        "INPUTS": f"({inputs},)" if len(takes) == 1 else f"({inputs})" if takes else "inputs",
    }
    if calls:
        values["CONFIRM"], values["SITES"] = "Found by the names of modules. Is it right? See what it finds:", calls[0]
    if len(values["SITES"]) >= 100:  # a line for each argument
        arguments = re.split(r", (?=\w+=)", calls[0].removeprefix("Sites.of(").removesuffix(")"))
        values["SITES"] = "Sites.of(\n" + "".join(f"            {each},\n" for each in arguments) + "        )"
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def _import(home: Path, class_name: str, alias: str, here: Path) -> str:
    """The model's class, from beside the adapter or from elsewhere."""
    there = home.resolve().parent
    found = f"from {home.stem} import {class_name}" + (f" as {alias}" if alias != class_name else "")
    if not home.stem.isidentifier():
        found = f"from importlib import import_module\n\n{alias} = import_module({json.dumps(home.stem)}).{class_name}"
    if there == here:
        return f"{found}\n\nfrom headcount import Adapter, HeadcountError, Sites"
    where = f"str(Path(__file__).resolve().parent / {json.dumps(relative_path(there, here))})"
    return (
        "import sys\nfrom pathlib import Path\n\nfrom headcount import Adapter, HeadcountError, Sites\n\n"
        f"sys.path.insert(0, {where})\n{found}"
    )


def _tree(tree: nn.Module | None) -> str:
    """Whatever has to do with attention, as far as names tell, or all there is; one line for all layers of a stack."""
    modules = [] if tree is None else list(tree.named_modules())[1:]
    named = [each for each in modules if "att" in each[0].lower() or isinstance(each[1], nn.MultiheadAttention)]
    count = Counter[tuple[str, str]]()
    for path, module in named or modules:
        weight: Any = getattr(module, "weight", None)
        what = "" if type(module) is nn.Module else type(module).__name__
        what += "" if weight is None else f" {list(weight.shape)}"
        count[re.sub(r"(?<![^.])\d+(?![^.])", "*", path), what] += 1
    width = max((len(path) for path, _ in count), default=0)
    lines = [f"#   {path:{width}}  {what}" + (f", {n} of them" if n > 1 else "") for (path, what), n in count.items()]
    if len(lines) > MOST_SHOWN:
        lines[MOST_SHOWN:] = [f"#   ... and {len(lines) - MOST_SHOWN} more"]
    return "\n".join(lines) or "#   (not known: the model was not built)"


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
