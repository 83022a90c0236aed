"""The words of a first adapter."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headcount.tasks import TASKS

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
