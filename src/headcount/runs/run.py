"""A finished run, ready to be asked.

>>> run = load("sample:addition")
>>> run.predict("374+814")
'1188'
>>> run.attention("374+814", "X1H2").shape
torch.Size([4, 7])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import safetensors.torch
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from headcount.config import suggestion
from headcount.errors import InputError, RunError, argument, shortened
from headcount.heads import HeadId
from headcount.limits import require_room
from headcount.models.build import Model, build_model
from headcount.models.finite import require_finite
from headcount.runs.asking import Reply, ask
from headcount.runs.config import RunConfig
from headcount.runs.folder import SAMPLE, RunFolder, claimed_folder
from headcount.seeds import integer
from headcount.tasks import TASKS
from headcount.tasks.base import Task
from headcount.training.classification import Classification
from headcount.training.evaluation import Evaluation
from headcount.training.learners import learner_of


@dataclass(frozen=True)
class Run:
    """A trained model, the task it was trained on, and where it is kept."""

    name: str
    folder: RunFolder
    config: RunConfig
    task: Task
    model: Model
    digest: str
    """Of the weights; every result names it."""

    @cached_property
    def output(self) -> RunFolder:
        """Where analyses of it are written: the same folder, unless the run is a packaged sample."""
        if not self.name.startswith(SAMPLE):
            return self.folder
        return RunFolder(claimed_folder(self.name.replace(":", "-"), self.name, self.digest))

    def predict(self, text: str) -> str:
        """The model's own answer."""
        return self.ask(text, look=False).said

    def attention(self, text: str, head: str | HeadId) -> Float[Tensor, "query key"]:
        """One head's attention weights while the model gives its own answer."""
        head = self.find_head(head)
        return self.ask(text).weights[head.site][self.model.heads_at(head.site).index(head)]

    def ask(self, text: str, *, look: bool = True) -> Reply:
        """The model's own answer, how likely it held it, and (if we `look`) every head's attention meanwhile."""
        return ask(self.model, self.task, self.task.parse(text), look=look)

    def evaluate(self, split: str) -> Evaluation | Classification:
        """Everything that is measured on a held-out set."""
        return learner_of(self.model, self.task).evaluate(split, self.digest)

    def find_head(self, head: str | HeadId) -> HeadId:
        """The head of that name, if this model has it."""
        found = HeadId.parse(head) if isinstance(head, str) else head
        if found not in self.model.heads:
            raise InputError(
                f"no head {str(found)!r} in {self.name}",
                self._has,
                f"list its heads: headcount heads {argument(self.name)}",
            )
        return found

    @property
    def _has(self) -> str:
        n_heads, sites = self.config.model.n_heads, ", ".join(map(str, self.model.sites))
        if not self.config.model.pruned:
            return f"this model has {n_heads} heads at each of {sites}"
        cut = ", ".join(HeadId.parse(name).short for name in self.config.model.pruned)
        return f"this model has {n_heads} heads at each of {sites or 'no site'}, less those that were cut out: {cut}"


def load(run: str | Path, device: str | torch.device = "cpu") -> Run:
    """A finished run from its folder, or a packaged one by `sample:NAME`."""
    name, folder = str(run), locate(run)
    config = folder.read_config()
    weights, digest = folder.read_weights()
    task, model = build(config)
    _fill(model, weights, folder)
    return Run(name, folder, config, task, model.to(device).eval(), digest)


def _fill(model: Model, weights: bytes, folder: RunFolder) -> None:
    try:
        tensors = safetensors.torch.load(weights)
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise RunError(
            f"{folder.weights_file} does not fit the settings beside it: {shortened(str(error))}",
            "restore the folder, or train again in another one",
        ) from error
    require_finite(tensors, str(folder.path))


def locate(run: str | Path) -> RunFolder:
    """The folder of a run, or of a packaged one by `sample:NAME`."""
    return RunFolder(_sample_path(str(run)) if str(run).startswith(SAMPLE) else Path(run))


def build(config: RunConfig) -> tuple[Task, Model]:
    """The task and a fresh model, its weights drawn from the seed."""
    task = TASKS.get(config.task_name)(config.task)
    require_room(config.model.weight_bytes(len(task.tokens)), "a model of this size", "lower d_model, d_ff or n_layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(config.seed, "weights"))
        model = build_model(config.model, task)
    return task, model


def _sample_path(name: str) -> Path:
    samples = Path(str(resources.files("headcount") / "samples"))
    known = sorted(p.name for p in samples.iterdir() if p.is_dir()) if samples.exists() else []
    sample = name.removeprefix(SAMPLE)
    if sample not in known:
        raise InputError(f"no sample {sample!r} in the package", suggestion(sample, known))
    return samples / sample
