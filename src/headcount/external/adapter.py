"""A model of your own, brought by a file of a dozen lines.

    from headcount import Adapter, Sites

    class Model(Adapter):
        checkpoint = "adder.pth"
        task, settings = "addition", {"digits": 2}

        def build(self):
            return AdderTransformer()

        def sites(self, model):
            return Sites.of(model, "encoder_layers.*.self_attn.W_o", n_heads=4)

        def encode(self, questions, answers):
            return (to_ids(questions), to_ids(answers, sos=True)), to_ids(answers, eos=True)

        def generate(self, model, questions):
            return solve(model, questions)

Then `headcount ablate my_adapter.py:Model`, and every verb that takes a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from headcount.config import parse
from headcount.errors import InputError
from headcount.external.user_code import import_file, user_code_errors
from headcount.files import friendly_os_errors
from headcount.heads import HeadSite
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import output_tensor, wrap
from headcount.models.finite import require_finite_model
from headcount.surgery.plan import CustomCut, SitePlan
from headcount.tasks import TASKS
from headcount.tasks.base import Task

NESTED = ("model_state_dict", "state_dict", "model")
"""Under which of these names a checkpoint may keep the weights."""


class Adapter:
    """Inherit this, and say what headcount cannot know of your model."""

    checkpoint: str | None = None
    """A file of weights, from beside the adapter's own file; None if `build` loads them."""
    task: str | None = None
    """Which of headcount's tasks the model was trained on; None if `data` gives examples."""
    settings: Mapping[str, Any] = {}
    """Of that task, where they are not the defaults."""
    folder: Path = Path()
    """Where the adapter's file is; set when it is loaded."""
    origin: str = ""
    """`my_adapter.py:Model` by its full path, likewise."""

    def build(self) -> nn.Module:
        """The model, its weights still random."""
        raise InputError(f"{type(self).__name__} does not say how its model is made", "write build() in the adapter")

    def load(self, model: nn.Module) -> None:
        """Put the trained weights in; nothing in the file is ever run."""
        if self.checkpoint is None:
            return
        file = self.folder / self.checkpoint
        _load_weights(model, read_weights(file), file)

    def sites(self, model: nn.Module) -> Sites:
        """Where its heads are; families that headcount knows need not say it."""
        return wrap(model).head_sites

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Any, Tensor]:
        """What the model is given, and what it should say.

        Inputs are one tensor or several, rows first, sequence models being fed the right answer. Labels are [row] for
        classes and [row, position] for sequences, -100 where nothing is asked.
        """
        raise NotImplementedError

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """Logits [row, class] or [row, position, token]."""
        return output_tensor(model(*inputs))

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        """A sequence model's own answers, by its own code; with heads at zero, the quick way is checked against it."""
        raise NotImplementedError

    def data(self) -> Sequence[tuple[str, str]]:
        """Questions and right answers, if the task is none of headcount's."""
        raise NotImplementedError

    def tokens(self, question: str, answer: str) -> Sequence[Sequence[str]]:
        """What stands at each position of each input, to be written on axes; numbers unless said here."""
        return ()

    def cut(self, model: nn.Module, site: HeadSite, keep: list[int]) -> None:
        """Take heads out of one attention block for real, in place; needed only where headcount's own ways fail.

        `keep` are the places in z, from 0, of the heads that stay, out of those that the block has now. Afterwards the
        output projection is where it was and takes their features alone, side by side. The cut is proven before it
        counts; a block that is to keep none may be left to headcount by raising any error. Models are loaded by
        build() and the same cuts again, so do what depends on the block, the site and `keep` alone.
        """
        raise NotImplementedError


def load_adapter(name: str) -> Adapter:
    """`my_adapter.py:Model`: run the user's own file and make its class."""
    path, _, kind = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no file {path}", "write one: headcount adapt my_model.py:MyModel")
    module = import_file(file)
    found = getattr(module, kind, None)
    if not (isinstance(found, type) and issubclass(found, Adapter)):
        named = [key for key, each in vars(module).items() if _is_adapter(each)]
        raise InputError(
            f"{file} has no adapter {kind!r}",
            f"it has: {', '.join(named)}" if named else "make a class there that inherits headcount.Adapter",
        )
    found.folder, found.origin = file.resolve().parent, f"{file.resolve()}:{kind}"
    with user_code_errors(found, "__init__"):
        return found()


def load_adapted(adapter: Adapter) -> tuple[nn.Module, Sites]:
    """The model with its weights, at rest, and where its heads are."""
    model = built(adapter)
    with user_code_errors(adapter, "load"):
        adapter.load(model)
    require_finite_model(model, adapter.origin or type(adapter).__name__)
    with user_code_errors(adapter, "sites"):
        return model.eval(), adapter.sites(model)


def built(adapter: Adapter) -> nn.Module:
    """The model without its weights."""
    with user_code_errors(adapter, "build"):
        model = adapter.build()
    if not isinstance(model, nn.Module):
        raise InputError(f"build() returned {type(model).__name__}", "it should return a torch.nn.Module")
    return model


class Adapted(nn.Module):
    """The model, called as its adapter says."""

    def __init__(self, adapter: Adapter, model: nn.Module, sites: Sites) -> None:
        super().__init__()
        self.model, self.adapter, self._sites = model, adapter, sites
        self.cuts: tuple[SitePlan, ...] = ()
        """What was done to take heads out of it, in order."""

    @property
    def head_sites(self) -> Sites:
        """Where its heads are."""
        return self._sites

    @property
    def custom_cut(self) -> CustomCut | None:
        """The adapter's own way to take heads out of a block, if it has one."""
        return _cut_by(self.adapter) if type(self.adapter).cut is not Adapter.cut else None

    def after(self, plan: SitePlan, model: nn.Module, sites: Sites) -> Adapted:
        """The same around a model that a plan was applied to."""
        made = Adapted(self.adapter, model, sites)
        made.cuts = (*self.cuts, plan)
        return made

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits."""
        with user_code_errors(self.adapter, "forward"):
            logits = self.adapter.forward(self.model, *inputs)
        if not isinstance(logits, Tensor):
            raise InputError(f"forward() returned {type(logits).__name__}", "it should return a tensor of logits")
        return logits

    @torch.no_grad()
    def require_answer(self, inputs: Sequence[Tensor]) -> None:
        """Let it answer once: what fails is told as the adapter's fault, whatever it is."""
        with user_code_errors(self.adapter, "forward"):
            self(*inputs)


def _cut_by(adapter: Adapter) -> CustomCut:
    def cut(model: nn.Module, site: HeadSite, keep: list[int]) -> None:
        with user_code_errors(adapter, "cut"):
            adapter.cut(model, site, keep)

    return cut


def task_of(adapter: Adapter) -> Task:
    """The task that the model was trained on."""
    kind = TASKS.get(str(adapter.task))
    settings = parse({"task": kind.config_class}, {"task": adapter.settings})["task"]
    return cast(Task, kind(settings))


def read_weights(file: Path) -> Any:
    """What a checkpoint has for weights; nothing in the file is ever run."""
    with friendly_os_errors(f"read {file}"):
        if file.exists() and not file.is_file():
            raise InputError(f"{file} is no regular file", "name the file that torch.save wrote")
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # whatever torch makes of a damaged file
            explanation = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{file} holds more than weights, or is damaged: {explanation}",
                "save the weights alone: torch.save(model.state_dict(), ...)",
            ) from error
    for name in NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    return found


def _is_adapter(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Adapter) and value is not Adapter


def _load_weights(model: nn.Module, weights: Any, file: Path) -> None:
    if not isinstance(weights, Mapping):
        raise InputError(f"{file} holds {type(weights).__name__}, no weights by name", "save model.state_dict()")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the weights of {file} do not fit {type(model).__name__}", *str(error).splitlines()[1:6]
        ) from error
