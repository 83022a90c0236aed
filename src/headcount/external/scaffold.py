"""Write a draft of an adapter for a user's model (`headcount adapt`).

The draft is filled in as far as the model's code and weights allow; comments say what is still needed.
"""

import ast
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, InputError, argument
from headcount.external.adapter import built, load_adapter, misfits, read_tensors, without_prefix
from headcount.external.hugging_face import module_tree
from headcount.external.user_code import (
    import_file,
    is_installed,
    isolated_imports,
    module_file,
    package_of,
    relative_path,
    user_code_errors,
)
from headcount.files import write_atomically
from headcount.heads import HeadId
from headcount.hooks.families import family_of, model_type_of
from headcount.hooks.sites import Guess, guess, in_one_stack, sites_calls
from headcount.hooks.wrapping import unknown_family
from headcount.tasks import TASKS

TAKEN = ("Model", "Adapter", "Sites", "HeadcountError", "Path")
"""Names that the adapter's file uses itself; a model class with one of these names is imported under another name."""
MOST_SHOWN = 40
"""Largest number of lines of the list of modules in the adapter's file."""
MOST_TRIED = 32
"""Largest number of combinations of text arguments that are tried to build an object of a model class."""
Maker = type[nn.Module] | Callable[..., nn.Module]
"""A model class, or a function that returns a model."""


@dataclass(frozen=True)
class Scaffold:
    """The draft of an adapter that `write_scaffold` wrote, and the heads and notes about its model."""

    file: Path
    name: str
    """Name of the model class, or of the function that returns the model."""
    guesses: tuple[Guess, ...]
    heads: tuple[HeadId, ...]
    """The heads that the new adapter finds; empty if the adapter does not run yet."""
    notes: tuple[str, ...]
    """Lines that tell the user what is missing or must be checked before the adapter works."""
    reads_files: bool = False
    """Whether the model has a tokenizer, so that it can read a text file given by --data."""


def write_scaffold(
    name: str, out: Path, checkpoint: Path | None = None, *, say: Callable[[str], object] = lambda text: None
) -> Scaffold:
    """Inspect a model, write a draft of an adapter for it to the new file `out`, and return the heads and notes.

    `name` is `my_model.py:MyModel`, `package.module:MyModel` or a Hugging Face folder. `MyModel` is a class, or a
    function that returns a model. `say` prints a message before the user's code is run.
    """
    if out.suffix != ".py":
        raise InputError(f"the adapter's file {out} must be a Python file", "give a name that ends in .py")
    if out.exists() or out.is_symlink():
        raise InputError(f"the file {out} already exists, and is not overwritten", "choose another name with -o")
    if Path(name).is_dir():
        return _for_folder(Path(name), out, checkpoint)
    path, _, maker_name = name.rpartition(":")
    if not path:
        raise InputError(
            f"{name} does not say which class to adapt", f"name a class that inherits torch.nn.Module: {name}:Class"
        )
    home, here = _home(path), out.resolve().parent
    maker = _maker_in(home, maker_name, say)
    weights = None if checkpoint is None else _weights(checkpoint)
    alias = f"Their{maker_name}" if maker_name in TAKEN else maker_name
    with isolated_imports(home.parent):
        tree, call, notes = _model_of(maker, alias, weights, home)
    guesses = () if tree is None else tuple(guess(tree))
    values = {
        "KIND": maker_name,
        "HOME": home.name,
        "FILE": out.name,
        "IMPORT": _import(*_module_name(home, path), maker_name, alias, here),
        "TREE": _tree(tree),
        "CHECKPOINT": json.dumps(relative_path(checkpoint.resolve(), here)) if checkpoint else "None",
        "NOTES": "".join(f"        # TODO: {' '.join(note.split())}\n" for note in notes[:1]),
        "BUILD": call,
    }
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    model_class = maker if isinstance(maker, type) else type(tree)
    takes = [each.name for each in _parameters(getattr(model_class, "forward", None), *kinds)]
    write_atomically(out, _render(values, sites_calls(guesses), takes[1:]).encode())  # but not self
    heads, faults = _heads_found(out, checkpoint is not None) if "..." not in call else ((), ())
    return Scaffold(
        out, maker_name, guesses, heads, (*(f"in build(): {note}" for note in notes[:1]), *notes[1:], *faults)
    )


def _for_folder(folder: Path, out: Path, checkpoint: Path | None) -> Scaffold:
    """Write an adapter for a Hugging Face folder whose model is of an unknown family; it names output projections."""
    if checkpoint is not None:
        raise InputError(f"the folder {folder} contains the model's weights already", "leave --checkpoint out")
    tree = module_tree(folder)
    if family_of(model_type_of(tree)) is not None:
        raise InputError(
            f"{folder} needs no adapter file: headcount knows where the heads of a {type(tree).__name__} are",
            f"list them: headcount heads {argument(folder)}",
        )
    guesses = tuple(in_one_stack(guess(tree)))
    if not guesses:
        raise unknown_family(tree)
    values = {
        "KIND": type(tree).__name__,
        "HOME": folder.resolve().name,
        "FILE": out.name,
        "TREE": _tree(tree),
        "PRETRAINED": json.dumps(relative_path(folder.resolve(), out.resolve().parent)),
    }
    write_atomically(out, _render(values, sites_calls(guesses), (), _FOLDER_TEXT).encode())
    heads, faults = _heads_found(out, has_weights=True)
    return Scaffold(out, type(tree).__name__, guesses, heads, faults, reads_files=True)


def _maker_in(file: Path, name: str, say: Callable[[str], object]) -> Maker:
    """Return the model class called `name` in a Python file, or the function of this name that returns a model."""
    if file.suffix != ".py" or not file.is_file():
        what = f"there is no file {file}" if file.suffix == ".py" else f"'{file}:{name}' names no class in a .py file"
        raise InputError(what, "give FILE.py:Class, package.module:Class, or a folder of a Hugging Face model")
    say(f"running {file.resolve()} to look at its class")
    module = import_file(file)
    maker = getattr(module, name, None)
    is_class = isinstance(maker, type) and issubclass(maker, nn.Module)
    if is_class or (inspect.isfunction(maker) and maker.__module__ == module.__name__):
        return cast(Maker, maker)
    models = [key for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, nn.Module)]
    makers = [key for key, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    makers = [key for key in makers if inspect.isfunction(getattr(module, key)) and re.search("make|build|model", key)]
    listed = ", ".join((*models, *makers))
    raise InputError(
        f"{file} has no torch.nn.Module {name!r}, and no function of that name",
        f"it has: {listed}" if listed else "name the model's class, or a function that returns a model",
    )


def _weights(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        what = f"{file} is no regular file" if file.exists() else f"there is no file {file}"
        raise InputError(what, "give the file that torch.save wrote: --checkpoint FILE")
    return read_tensors(file, "save model.state_dict()")


def _model_of(
    maker: Maker, name: str, weights: Mapping[str, Tensor] | None, home: Path
) -> tuple[nn.Module | None, str, list[str]]:
    """Try to build a model; return the model, the Python call that builds it, and notes on what the user must check.

    The class is called without arguments, then with arguments guessed from weights and source code. If both fail, the
    model is a tree of empty modules made from the names of the weights, or None without weights.
    """
    plain, fault = _called(maker, {})
    if plain is not None and (weights is None or fits(weights, plain)):
        return plain, f"{name}()", []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wants = {each.name: str(each).replace("'", "") for each in _parameters(maker, *kinds)}
    note = f"{name} needs the arguments {', '.join(wants.values())}" if wants else f"{name}() fails: {fault}"
    parameters = list(wants) if plain is None else [each.name for each in _parameters(maker, *kinds, required=False)]
    tried = _arguments(maker, parameters, weights or {}, home)
    for values in (each for each in tried if each.keys() >= wants.keys()):
        model, _ = _called(maker, values)
        if model is not None and (weights is None or fits(weights, model)):
            call = _call(name, [*values], values)
            if weights is not None:
                why = note if plain is None else f"with {name}() the weights do not fit"
                return model, call, [f"{why}; {call} was guessed from the weights, and they fit: check it"]
            return model, call, [f"{note}; {call} was guessed from its source code: check it"]
    if plain is not None:
        return plain, f"{name}()", []  # loading reports the weights that do not fit
    notes = [note]
    if wants and weights is None:
        beside = sorted(each.name for each in home.parent.iterdir() if each.suffix in (".pth", ".pt", ".ckpt"))
        such = f" (such as {beside[0]})" if beside else ""
        notes.append(f"sizes can be read from its weights: give the file with --checkpoint{such}")
    elif heads := [each for each in wants if each not in tried[0] and "head" in each.lower()]:
        notes.append(f"the weights do not show {heads[0]}: fill in the number of heads that the model was trained with")
    call = _call(name, [*wants], tried[0])
    return None if weights is None else tree_of(weights), call, notes


def _call(name: str, wanted: Sequence[str], values: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{each}={values[each]!r}' if each in values else f'{each}=...' for each in wanted)})"


def _called(maker: Maker, values: Mapping[str, Any]) -> tuple[nn.Module | None, str]:
    try:
        model: object = maker(**values)
    except (Exception, SystemExit) as error:  # user code may raise anything
        return None, f"{type(error).__name__}: {str(error).strip() or 'no reason given'}".splitlines()[0]
    if isinstance(model, nn.Module):
        return model, ""
    return None, f"it returns {type(model).__name__} instead of a torch.nn.Module"


def fits(weights: Mapping[str, Tensor], model: nn.Module) -> bool:
    """Return whether the names and shapes of weights fit a model."""
    return not misfits(without_prefix(weights, model), model)


def _parameters(function: Any, *kinds: Any, required: bool = True) -> list[inspect.Parameter]:
    """Return the parameters of a function that are of these kinds and have no default (with default if not `required`).

    The list is empty if the function has no signature.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in parameters if each.kind in kinds and (each.default is each.empty) == required]


def _heads_found(out: Path, has_weights: bool) -> tuple[tuple[HeadId, ...], tuple[str, ...]]:
    """Load the new adapter; return the heads that it finds, and notes on what does not work yet."""
    try:
        adapter = load_adapter(f"{out}:Model")
        model = built(adapter)
        with user_code_errors(adapter, "sites"):
            heads = adapter.sites(model).heads
    except HeadcountError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return (), (f"the heads of the model are not found yet: {lines[0]}",)
    try:
        with user_code_errors(adapter, "load"):
            adapter.load(model)
    except HeadcountError as error:
        return heads, (f"{error.what}: see build() and checkpoint", *error.advice)
    return heads, () if has_weights else ("the model has no weights yet: set checkpoint, or load them in build()",)


# --- guesses ----------------------------------------------------------------------------------------------------------
# If the model cannot be built yet, guesses are made from the names and shapes of the weights in its checkpoint.


def _arguments(maker: Maker, names: Sequence[str], weights: Mapping[str, Tensor], home: Path) -> list[dict[str, Any]]:
    """Return combinations of arguments to try for a model class: sizes guessed from weights, texts from source code."""
    sizes = guessed_values(names, weights)
    texts = {name: choices for name in names if name not in sizes and (choices := text_choices(maker, name, home))}
    combinations = islice(product(*texts.values()), MOST_TRIED)
    return [sizes | dict(zip(texts, some, strict=True)) for some in combinations]


def text_choices(maker: Maker, name: str, home: Path) -> list[str]:
    """Return the texts that a parameter may take, from its `Literal` annotation or from comparisons in the code."""
    with suppress(Exception):  # evaluating annotations runs user code
        hint = get_type_hints(vars(maker).get("__init__", maker)).get(name)
        if choices := [each for each in get_args(hint) if isinstance(each, str)]:
            return choices
    choices = []
    for node in ast.walk(ast.parse(home.read_text("utf-8"))):
        beside: list[ast.AST] = []
        if isinstance(node, ast.Compare) and any(_is_named(each, name) for each in (node.left, *node.comparators)):
            beside = [node.left, *node.comparators]
        elif isinstance(node, ast.Match) and _is_named(node.subject, name):
            beside = [case.pattern for case in node.cases]
        elif isinstance(node, ast.Subscript) and _is_named(node.slice, name) and isinstance(node.value, ast.Dict):
            beside = [each for each in node.value.keys if each is not None]
        inner = (each for part in beside for each in ast.walk(part))
        choices += [each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return list(dict.fromkeys(choices))


def _is_named(node: ast.AST, name: str) -> bool:
    """Return whether an expression in source code is a variable called `name`, or an attribute of this name."""
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def guessed_values(names: Iterable[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Guess values of arguments from their names, such as `d_model`, and from the shapes and names of weights.

    >>> guessed_values(["d_model", "vocab", "eps"], {"embed.weight": torch.zeros(14, 48)})
    {'d_model': 48, 'vocab': 14}
    """
    places = [
        each for name, each in weights.items() if re.search(r"pos|(^|\.)pe$", name, re.I) and each.dim() in (2, 3)
    ]
    tables = {name: each for name, each in weights.items() if re.search(r"emb|tok|wte", name, re.I) and each.dim() == 2}
    tables = {name: each for name, each in tables.items() if "pos" not in name.lower()}
    layers = [int(found[1]) for name in weights if (found := re.search(r"(?:^|\.)(\d+)\.", name))]
    sizes: dict[str, Any] = {}  # maps patterns of parameter names to values; the first match is used
    if places:
        sizes[r"max_?(seq_?)?len|max_?pos|n_pos|block_size|context|seq_?len"] = places[0].numel() // places[0].shape[-1]
    if layers:
        sizes[r"layer|depth|block"] = max(layers) + 1
    if tables:
        n_tokens, width = next(iter(tables.values())).shape
        inner = [each for name, each in weights.items() if re.search(r"\.\d+\.(?!.*att)", name) and each.dim() == 2]
        if wide := [len(each) for each in inner if each.shape[1] == width]:
            sizes[r"ff|mlp|inner|feed|hidden_dim"] = max(wide)
        outputs = [len(each) for name, each in tables.items() if re.search(r"tgt|trg|target|dec", name, re.I)]
        sizes |= {r"(tgt|trg|target|dec|out).*(vocab|token|words)": (*outputs, n_tokens)[0]}
        sizes |= {r"vocab|token|n_words|num_emb": n_tokens, r"model|emb|hidden|width|^dim$": width}
    if weights:
        sizes |= {"^device$": "cpu", "drop": 0.0}  # the weights do not depend on either
    fits = {name: [size for each, size in sizes.items() if re.search(each, name, re.I)] for name in names}
    return {name: found[0] for name, found in fits.items() if found}


def tree_of(weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a tree of modules without code, built from the names of weights, to look for output projections in it."""
    root, known = nn.Module(), set[tuple[int, torch.Size]]()
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr(), tensor.shape
        if tensor.numel() and place in known:
            continue  # another name of a tensor that is already there
        known.add(place)
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


def _render(values: dict[str, str], calls: Sequence[str], takes: Sequence[str], text: str | None = None) -> str:
    """Return the text of an adapter file: the template with its gaps filled in.

    `values` maps gaps to texts, `calls` are guesses of `Sites.of`, the likeliest first, and `takes` are the inputs of
    forward().
    """
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
        values["CONFIRM"], values["SITES"] = "Guessed from the names of modules. Check what it finds:", calls[0]
    if len(values["SITES"]) >= 100:  # a line for each argument
        arguments = re.split(r", (?=\w+=)", calls[0].removeprefix("Sites.of(").removesuffix(")"))
        values["SITES"] = "Sites.of(\n" + "".join(f"            {each},\n" for each in arguments) + "        )"
    text = text or _TEXT
    for name, value in values.items():
        text = text.replace(f"<{name}>", value)
    return text


def _home(path: str) -> Path:
    """Return the Python file that a path or a dotted module name, such as `package.module`, refers to."""
    is_module = not path.endswith(".py") and all(part.isidentifier() for part in path.split("."))
    return (module_file(path) if is_module else None) or Path(path)


def _module_name(home: Path, path: str) -> tuple[str, Path]:
    """Return the module name under which a user's file is imported, and the folder from which it is imported."""
    file = home.resolve()
    if not path.endswith(".py"):
        n_above = path.count(".") + (file.name == "__init__.py")
        return path, file.parents[n_above]
    package = package_of(file)
    if package is None:
        return file.stem, file.parent
    return ".".join(file.relative_to(package.parent).with_suffix("").parts), package.parent


def _import(module: str, there: Path, class_name: str, alias: str, here: Path) -> str:
    """Return the import statements of an adapter file in the folder `here`, including that of the model's class.

    The class is in `module`, which is found in the folder `there`, and is imported under the name `alias`.
    """
    statement = f"from {module} import {class_name}" + (f" as {alias}" if alias != class_name else "")
    if not all(part.isidentifier() for part in module.split(".")):
        statement = f"from importlib import import_module\n\n{alias} = import_module({json.dumps(module)}).{class_name}"
    if there == here or is_installed(there):
        return f"{statement}\n\nfrom headcount import Adapter, HeadcountError, Sites"
    where = f"str(Path(__file__).resolve().parent / {json.dumps(relative_path(there, here))})"
    return (
        "import sys\nfrom pathlib import Path\n\nfrom headcount import Adapter, HeadcountError, Sites\n\n"
        f"sys.path.insert(0, {where})\n{statement}"
    )


def _tree(tree: nn.Module | None) -> str:
    """Return comment lines that list the modules whose names suggest attention or, if there are none, all modules.

    All layers of a stack share one line.
    """
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

`headcount adapt` wrote this draft. Fill in what is marked TODO.

    headcount heads    <FILE>:Model                needs build() and sites()
    headcount ablate   <FILE>:Model                needs encode(), and a task or data()
    headcount prune    <FILE>:Model -o smaller     needs the same; writes a smaller model, with a proof
    headcount evaluate <FILE>:Model                needs the same, as does audit
    headcount verify   <FILE>:Model                needs a task, as do stretch and positions
"""

<IMPORT>

# The modules of the model that look like attention; * stands for a layer's number:
<TREE>


class Model(Adapter):
    # The path of the trained weights, relative to this file. torch.save(model.state_dict(), ...) writes such a file; a
    # checkpoint may have the weights under "model", "state_dict" or "model_state_dict". None if build() loads them.
    checkpoint = <CHECKPOINT>

    # TODO: the task that the model was trained on, if it is one of headcount's:
    # <TASKS>,
    # with settings such as {"digits": 2, "low": 0, "n_validation": 500, "n_test": 500}.
    # `headcount train addition --help` lists all of them.
    # For other tasks, leave None: data() then gives the examples.
    task = None
    settings = {}

    # If you know them: the shortest and longest length in training, the accuracy that the author reports, and the first
    # tokens of every answer, if the decoder is given them and never predicts them.
    # trained, claimed, given = (8, 16), 0.985, "0"

    def build(self):
        # Return the model; its weights may still be random.
<NOTES>        return <BUILD>

    def sites(self, model):
        # The output projection of each attention block: the layer that gets the outputs of all heads, concatenated.
        # <CONFIRM> headcount heads <FILE>:Model
        return <SITES>
<OTHERS>
    def encode(self, questions, answers):
        # TODO: convert texts to tensors whose first axis counts rows. `questions` is a list such as ["37+81", "5+4"],
        # and `answers` a list such as ["118", "9"], as people write them. If the model needs 05+04 and 009, add the
        # zeros here. Return the model's inputs, and the labels that it should predict:
        #   return <INPUTS>, labels
        # labels are [row] for a classifier. For a model that predicts sequences, they are [row, position]: the right
        # token at each position, and -100 where there is none (padding). A decoder is fed the right answer, shifted by
        # one: its input is <s> 1 1 8, and its labels are 1 1 8 </s>.
        raise HeadcountError("encode() of the adapter is still to be written", "see the comments there")

    def forward(self, model, <TAKES>):
        # Called with the inputs that encode() returned. Return logits: [row, class] or [row, position, token].
        return super().forward(model, <TAKES>)  # the first tensor in the output of model(<TAKES>)

    # For a model that predicts sequences: return its answers, decoded greedily by its own code, as texts like those in
    # `answers`. headcount computes answers faster, and checks them against these under zero ablation.
    # def generate(self, model, questions):
    #     return solve(model, questions)

    def data(self):
        # TODO, if task is None: return some hundred pairs of question and right answer that were not in training.
        #   return [("37+81", "118"), ("5+99", "104")]
        raise HeadcountError("data() of the adapter is still to be written, or task to be named", "see the comments")

    # The training examples, in the same form; headcount audit looks for them in the test set.
    # def training_data(self):
    #     return [("12+34", "46"), ("7+5", "12")]

    # The author's own score of one decoded answer, if it is not exact match; `claimed` is compared with its mean.
    # def metric(self, question, answer, predicted):
    #     return answer.lstrip("0") == predicted.lstrip("0")

    # A name for each position of each input, for figures (headcount heads --on "37+81"), if headcount finds none:
    # def tokens(self, question, answer):
    #     return list(question), ["<s>", *answer]
'''
_FOLDER_TEXT = '''"""<KIND> in <HOME>, for headcount, which does not know its family.

`headcount adapt` wrote this adapter. It is complete if sites() is right.

    headcount heads  <FILE>:Model                    list the heads that were found
    headcount heads  <FILE>:Model --on "some text"   show what every head attends to
    headcount ablate <FILE>:Model --data FILE        measure how much each head matters
"""

from headcount import Adapter, Sites

# The modules of the model that look like attention; * stands for a layer's number:
<TREE>


class Model(Adapter):
    # The path of the model's folder, relative to this file. Weights and tokenizer are read; code in it is never run.
    pretrained = <PRETRAINED>

    def sites(self, model):
        # The output projection of each attention block: the layer that gets the outputs of all heads, concatenated.
        # <CONFIRM> headcount heads <FILE>:Model
        return <SITES>
<OTHERS>'''
