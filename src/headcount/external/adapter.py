"""Adapters: an adapter is a Python file of a dozen lines with which every headcount command works on your own model.

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

Then `headcount ablate my_adapter.py:Model` works, and so does every verb that takes a run. If heads are cut out of such
a model, the pruned model is saved as a folder:

    headcount.json     the path of the adapter's file from this folder, its class, the heads that were cut out, and the
                       original model; if mean head outputs were added to biases, over how many examples
    model.safetensors  the weights

To load the folder, headcount runs the adapter's file, which builds the original model. It repeats the cuts, and reads
the weights from the folder. The adapter's load() is not called, and its checkpoint is no longer needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headcount.config import parse
from headcount.errors import CheckFailed, HeadcountError, InputError, RunError
from headcount.external.user_code import import_class, relative_path, user_code_errors
from headcount.files import friendly_os_errors, read_json, require_regular, write_atomically
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.hooks.intervention_proof import difference
from headcount.hooks.sites import Sites
from headcount.hooks.wrapping import Wrapped, input_names, output_tensor, wrap
from headcount.models.finite import require_finite_model
from headcount.runs.folder import staged
from headcount.surgery.plan import CustomCut, SitePlan, apply_to_sites
from headcount.surgery.tracing import FAILURES
from headcount.tasks import TASKS
from headcount.tasks.base import Task

SCHEMA = 1
ADAPTED, WEIGHTS = "headcount.json", "model.safetensors"
"""Names of the two files in the folder of a pruned model that is loaded through an adapter."""
MOST_LISTED = 12
"""Largest number of weight names that an error message lists, for missing, unknown and wrongly shaped weights each."""
TOLERANCE = 1e-5
"""Largest difference between the outputs of a model and its saved copy, as a fraction of the largest output."""


class Adapter:
    """Base class of adapters: a subclass tells headcount how to build, load and call your own model."""

    checkpoint: str | None = None
    """Path of the file with the trained weights, relative to the adapter's file; None if `build` loads the weights."""
    pretrained: str | None = None
    """Path of a Hugging Face folder with model and tokenizer, instead of `checkpoint`; None for other models."""
    task: str | None = None
    """Name of the headcount task that the model was trained on, such as "addition"; None if `data` gives examples."""
    settings: Mapping[str, Any] = {}
    """Settings of the task that differ from headcount's defaults, such as {"digits": 2}."""
    trained: tuple[int, int] | None = None
    """The shortest and the longest training length, such as (8, 16); None if the task has examples of one length."""
    given: str = ""
    """The first tokens of every answer, such as "0", if your decoder is given them and never predicts them.

    Labels then begin after these tokens. The model is never right on an example whose answer begins with other tokens;
    results say on how many examples this is so.
    """
    claimed: float | None = None
    """Accuracy that the author reports, from 0 to 1, to be compared with the measured accuracy."""
    claimed_n: int | None = None
    """Number of examples on which the author measured `claimed`; None if it is the size of the task's test set."""
    folder: Path = Path()
    """Folder of the adapter's file; set when the adapter is loaded."""
    origin: str = ""
    """The adapter's name with its full path, such as `/home/me/my_adapter.py:Model`; set when the adapter is loaded."""

    def build(self) -> nn.Module:
        """Return your model; its weights may be random, because `load` fills them in.

        By default, load the Hugging Face model in the folder `pretrained`.
        """
        if self.pretrained is not None:
            from headcount.external.hugging_face import load_model  # imported here because it imports this module

            return load_model(self.folder / self.pretrained, any_family=True)
        raise InputError(
            f"the adapter class {type(self).__name__} has no method build(), so its model cannot be built",
            "write build(); it should return the model, as a torch.nn.Module",
        )

    def load(self, model: nn.Module) -> None:
        """Load the trained weights from the file `checkpoint` into the model; code in the file is never run."""
        if self.checkpoint is None:
            return
        file = self.folder / self.checkpoint
        weights = read_weights(file)
        if not isinstance(weights, Mapping):
            raise InputError(
                f"{file} holds a {type(weights).__name__} instead of a state_dict (a mapping from names to tensors)",
                "save the weights with torch.save(model.state_dict(), ...)",
            )
        weights = without_prefix(weights, model)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            faults = misfits(weights, model) or str(error).splitlines()[1:6]
            raise InputError(f"the weights of {file} do not fit {type(model).__name__}", *faults) from error

    def sites(self, model: nn.Module) -> Sites:
        """Return the output projections of the attention blocks, such as Sites.of(model, "layers.*.out", n_heads=4).

        Not needed for model families that headcount knows.
        """
        return wrap(model).head_sites

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> tuple[Any, Tensor]:
        """Convert questions and answers to the inputs of the model and the labels that the model should predict.

        Inputs are one tensor or several, whose first axis counts rows (examples). The input of a decoder contains the
        right answer. Labels are [row] for classes and [row, position] for sequences, with -100 where there is no label.
        """
        raise NotImplementedError

    def forward(self, model: nn.Module, *inputs: Tensor) -> Tensor:
        """Return the model's logits on the inputs that `encode` returned: [row, class] or [row, position, token].

        By default, the first tensor in the model's output is returned.
        """
        output = (
            model(*inputs) if self.pretrained is None else Wrapped(model, Sites.empty(), input_names(model))(*inputs)
        )
        try:
            return output_tensor(output)
        except (StopIteration, TypeError):  # the output contains no tensor
            raise _no_logits(output) from None

    def generate(self, model: nn.Module, questions: Sequence[str]) -> list[str]:
        """Return the answers that the model's own decoding code gives to these questions.

        headcount checks its own, faster results with zero ablation against these answers.
        """
        raise NotImplementedError

    def metric(self, question: str, answer: str, predicted: str) -> float:
        """Return the score of one decoded answer, from 0 to 1; only needed if your score is not exact match."""
        raise NotImplementedError

    def data(self) -> Sequence[tuple[str, str]]:
        """Return (question, right answer) pairs of your test set; only needed if `task` is None."""
        raise NotImplementedError

    def training_data(self) -> Sequence[tuple[str, str]]:
        """Return (question, answer) pairs of your training set; the audit checks that no test example is among them."""
        raise NotImplementedError

    def tokens(self, question: str, answer: str) -> Sequence[Sequence[str]]:
        """Return, for each input of the model, one name per position; the names label the axes of figures.

        By default, headcount uses the characters or words of question and answer, if it can match them to token ids.
        """
        return ()

    def positions(self, model: nn.Module) -> Tensor:
        """Return the model's table of position vectors, [position, d_model], if headcount does not find it."""
        raise NotImplementedError

    def cut(self, model: nn.Module, site: HeadSite, keep: list[int]) -> None:
        """Remove heads from one attention block in place; only needed if headcount cannot cut the block itself.

        `keep` are the indices of the heads to keep, among the heads that the block has now. Afterwards the output
        projection must be at the same path, and take the features of the kept heads side by side. headcount proves the
        cut before using it. If no head is to be kept, you may raise any error, and headcount cuts the block itself. To
        load a pruned model, headcount calls build() and repeats the cuts, so the result must depend only on the model,
        the site (the block's name) and `keep`.
        """
        raise NotImplementedError


def load_adapter(name: str) -> Adapter:
    """Return a new object of an adapter class, given as `my_adapter.py:Model`; this runs the file."""
    path, _, class_name = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise InputError(
            f"there is no file {path}", "write an adapter file for your model: headcount adapt my_model.py:MyModel"
        )
    advice = "write a class in this file that inherits headcount.Adapter"
    adapter_class = import_class(file, class_name, Adapter, "adapter", advice)
    adapter_class.folder, adapter_class.origin = file.resolve().parent, f"{file.resolve()}:{class_name}"
    with user_code_errors(adapter_class, "__init__"):
        return adapter_class()


def load_adapted(adapter: Adapter) -> Adapted:
    """Return the adapter's model with trained weights and named heads, in evaluation mode."""
    claimed = adapter.claimed
    if claimed is not None and not (isinstance(claimed, int | float) and math.isfinite(claimed)):
        raise InputError(
            f"claimed, the accuracy that is claimed for the model, must be a number, got {claimed!r}",
            "write an accuracy of 99.85 % as claimed = 0.9985",
        )
    n = adapter.claimed_n
    if n is not None and not (isinstance(n, int) and n > 0):
        raise InputError(
            "claimed_n, the number of examples behind the claimed accuracy, must be a whole number of at least 1, "
            f"got {n!r}",
            "write such a number, or leave claimed_n out",
        )
    model = built(adapter)
    with user_code_errors(adapter, "load"):
        adapter.load(model)
    require_finite_model(model, adapter.origin or type(adapter).__name__)
    with user_code_errors(adapter, "sites"):
        return Adapted(adapter, model.eval(), adapter.sites(model))


def built(adapter: Adapter) -> nn.Module:
    """Return the model that the adapter's build() makes, before trained weights are loaded."""
    with user_code_errors(adapter, "build"):
        model = adapter.build()
    if not isinstance(model, nn.Module):
        raise InputError(
            f"build() of the adapter returned {type(model).__name__}", "it should return a torch.nn.Module"
        )
    return model


class Adapted(nn.Module):
    """A user's model that headcount calls through its adapter; `cuts` are the plans by which heads were cut out."""

    def __init__(self, adapter: Adapter, model: nn.Module, sites: Sites, cuts: tuple[SitePlan, ...] = ()) -> None:
        super().__init__()
        self.adapter, self.model, self.head_sites, self.cuts = adapter, model, sites, cuts

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs of a Hugging Face model (`pretrained`); empty for other models."""
        return () if self.adapter.pretrained is None else input_names(self.model)

    @property
    def custom_cut(self) -> CustomCut | None:
        """The adapter's method cut(), as a function whose errors name the failing line; None if there is none."""
        adapter = self.adapter

        def cut(model: nn.Module, site: HeadSite, keep: list[int]) -> None:
            with user_code_errors(adapter, "cut"):
                adapter.cut(model, site, keep)

        return cut if type(adapter).cut is not Adapter.cut else None

    def after(self, plan: SitePlan, model: nn.Module, sites: Sites) -> Adapted:
        """Return a copy of this wrapper for `model`, to which `plan` was applied; `sites` are the remaining blocks."""
        return Adapted(self.adapter, model, sites, (*self.cuts, plan))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits that the adapter's method `forward` computes from these inputs."""
        with user_code_errors(self.adapter, "forward"):
            logits = self.adapter.forward(self.model, *inputs)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise _no_logits(logits)
        return logits

    @torch.no_grad()
    def require_answer(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the model once without gradients and return its logits; errors name the adapter's method that failed."""
        return cast(Tensor, self(*inputs))


def _no_logits(output: Any) -> InputError:
    """Build the error for an adapter whose forward() returned `output` instead of logits, such as decoded answers."""
    what = type(output).__name__
    if isinstance(output, Tensor):
        what = f"whole numbers (a tensor of shape {tuple(output.shape)}, {output.dtype})"
    elif isinstance(output, list | tuple) and output:
        what = f"a {what} of {type(output[0]).__name__}"
    return InputError(
        f"forward() returned {what}: it should return a tensor of logits",
        "if forward() decodes an answer, move that code into generate(); forward() should make one teacher-forced "
        "pass and return logits of shape [example, position, token], or [example, class] for a classifier",
    )


def adapter_name(adapter: Adapter) -> str:
    """Return the name of an adapter for messages: its file and its class, such as `my_adapter.py:Model`."""
    return adapter.origin.rpartition("/")[2] or type(adapter).__name__


def task_of(adapter: Adapter) -> Task:
    """Return the headcount task that an adapter names, with the adapter's settings and training lengths."""
    task = TASKS.get(str(adapter.task))
    settings = dict(adapter.settings)
    if adapter.trained is not None and task.output_type == "class":
        settings |= dict(zip(("shortest", "longest"), adapter.trained, strict=True))
    return cast(Task, task(parse({"task": task.config_class}, {"task": settings})["task"]))


def read_weights(file: Path) -> Any:
    """Return the weights in a checkpoint file; code in the file is never run."""
    with friendly_os_errors(f"read {file}"):
        if file.exists() and not file.is_file():
            raise InputError(
                f"{file} is a folder or a device, not a file of weights", "give the file that torch.save wrote"
            )
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            text = str(error)
            # torch's own message advises unpickling the file, which would run its code
            pickled = re.search(r"GLOBAL (\S+)", text)
            explanation = f"it contains a {pickled[1]}" if pickled else text.partition(". ")[0] or type(error).__name__
            raise InputError(
                f"{file} holds more than weights, or is damaged: {explanation}",
                "save only the weights, in the project that has the model's code: torch.save(model.state_dict(), ...)",
            ) from error
    for name in ("model_state_dict", "state_dict", "model"):  # where a checkpoint may keep the weights
        if isinstance(saved, Mapping) and isinstance(saved.get(name), Mapping):
            saved = saved[name]
    if isinstance(saved, Mapping):  # or under a name of the user's own, if only one entry holds weights
        inner = [each for each in saved.values() if isinstance(each, Mapping) and _is_weights(each)]
        saved = inner[0] if len(inner) == 1 and not _is_weights(saved) else saved
    return saved


def _is_weights(saved: Mapping[Any, Any]) -> bool:
    return bool(saved) and all(isinstance(each, Tensor) for each in saved.values())


def read_tensors(file: Path, advice: str) -> Mapping[str, Tensor]:
    """Return the weights in a checkpoint file, by name.

    If the file holds anything but tensors by name, raise an error that ends with `advice`.
    """
    weights = read_weights(file)
    if not isinstance(weights, Mapping) or not all(isinstance(each, Tensor) for each in weights.values()):
        raise InputError(f"{file} holds no state_dict (a mapping from names to tensors)", advice)
    return weights


def without_prefix(weights: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    """Return the weights with a prefix such as `module.` removed from all names, if the names then fit the model."""
    own = model.state_dict().keys()
    prefix = next(iter(weights), "").removesuffix(next(iter(own), ""))
    names = {name.removeprefix(prefix): each for name, each in weights.items()}
    return names if prefix and names.keys() == own and len(names) == len(weights) else weights


def misfits(weights: Mapping[str, Any], model: nn.Module) -> list[str]:
    """Return lines that list the weights in a file that do not fit a model: missing, unknown or wrongly shaped ones."""
    own = model.state_dict()
    shapes = [
        f"{name} (file {list(weights[name].shape)}, model {list(each.shape)})"
        for name, each in own.items()
        if isinstance(each, Tensor) and isinstance(weights.get(name), Tensor) and weights[name].shape != each.shape
    ]
    faults = {
        "not in the file": _layers_starred([name for name in own if name not in weights]),
        "not in the model": _layers_starred([name for name in weights if name not in own]),
        "of another shape": _layers_starred(shapes),
    }
    return [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]


def _layers_starred(names: Sequence[str]) -> list[str]:
    """Return a short list of weight names: names that differ in their layer become one name with `*`."""
    count = Counter(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names)
    lines = [f"{name} ({n} of them)" if n > 1 else name for name, n in count.items()]
    return lines if len(lines) <= MOST_LISTED else [*lines[:MOST_LISTED], f"and {len(lines) - MOST_LISTED} more"]


def digest_of(model: nn.Module) -> str:
    """Return a SHA-256 digest of a model's weights and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- folders ----------------------------------------------------------------------------------------------------------


def save_cut(adapted: Adapted, parent: str, folder: Path, inputs: Sequence[Tensor], *, folded_over: int = 0) -> None:
    """Write an adapter's pruned model to a new folder, and check that the model loads with the same output.

    After an error, there is no folder. `parent` names the original model. `folded_over` is the number of examples over
    which mean head outputs were taken and added to biases; 0 if none were added.
    """
    file, _, class_name = adapted.adapter.origin.rpartition(":")
    if not file:
        raise InputError(
            "this model cannot be saved: its adapter class was not loaded from a file, from which it could be "
            "loaded again",
            "load the model by the name of its file: load_external('my_adapter.py:Model')",
        )
    state = adapted.model.state_dict()
    if odd := [name for name, each in state.items() if not isinstance(each, Tensor)]:
        raise InputError(
            f"{odd[0]} in the model's state_dict is not a tensor, so the model cannot be saved without pickle",
            "keep only tensors in the state_dict",
        )
    gone = [f"{cut.site}.{index}" for cut in adapted.cuts for i, index in enumerate(cut.heads) if i not in cut.keep]
    header = {
        "schema": SCHEMA,
        "adapter": relative_path(file, folder.resolve()),
        "class": class_name,
        "heads": sorted(gone),
        "parent": parent,
        "digest": digest_of(adapted.model),
        "cuts": [cut.to_dict() for cut in adapted.cuts],
    } | ({"folded_over": folded_over} if folded_over else {})
    with staged(folder) as draft, friendly_os_errors(f"write {folder}"):
        # Tensors that several layers share are written once per layer.
        tensors = {name: each.detach().cpu().clone().contiguous() for name, each in state.items()}
        write_atomically(draft / WEIGHTS, save(tensors))
        write_atomically(draft / ADAPTED, f"{json.dumps(header, indent=2)}\n".encode())
        try:
            read = load_cut(draft).to(next(adapted.parameters()).device)
        except InputError as error:
            what = f"the model that was written to {folder} cannot be read again, so the folder was not kept"
            raise CheckFailed(what, str(error)) from error
        with torch.no_grad(), eval_mode(adapted), eval_mode(read):
            apart = difference(read(*inputs), adapted(*inputs))
        if not apart <= TOLERANCE:
            raise CheckFailed(
                f"the model was written to {folder} and read again, but then its output differs (by {apart:.2g} of "
                "the largest value), so the folder was not kept",
                "if load() of the adapter does more than fill in weights, move that code into build()",
            )


def load_cut(folder: Path) -> Adapted:
    """Return the pruned model of an adapter, loaded from a folder that `save_cut` wrote."""
    file, header = adapter_file(folder)
    try:
        cuts = tuple(map(SitePlan.from_dict, header["cuts"]))
    except (KeyError, TypeError, AttributeError, ValueError, HeadcountError) as error:
        raise InputError(
            f"the entry 'cuts' (the heads that were removed) in {folder / ADAPTED} is damaged: {error!r}",
            "remove the heads again with headcount prune",
        ) from error
    require_regular(folder / WEIGHTS)
    adapter = load_adapter(f"{file}:{header['class']}")
    adapted = rebuilt(adapter, cuts)
    model = adapted.model
    _fill(model, folder)
    if digest_of(model) != header["digest"]:
        raise InputError(
            f"the weights in {folder} have changed since they were written",
            "copy the folder again from its original, or remove the heads again with headcount prune",
        )
    require_finite_model(model, str(folder))
    return adapted


def rebuilt(adapter: Adapter, cuts: Sequence[SitePlan]) -> Adapted:
    """Return the adapter's model with random weights, out of which heads are cut as the plans `cuts` say."""
    model = built(adapter).eval()
    with user_code_errors(adapter, "sites"):
        adapted = Adapted(adapter, model, adapter.sites(model))
    for cut in cuts:
        try:
            adapted = adapted.after(cut, model, apply_to_sites(cut, model, adapted.head_sites, adapted.custom_cut))
        except FAILURES as error:  # the user's code fails, or has changed
            raise InputError(
                f"{adapter.origin} has changed: its model no longer has the parts from which heads were removed, or "
                "they are removed in another way",
                f"removing heads failed at {cut.site}: {type(error).__name__}: {error}",
            ) from error
    return adapted


def adapter_file(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the adapter's file, which must be run to load the model in a folder, and the content of headcount.json."""
    header_file = folder / ADAPTED
    try:
        header = read_json(header_file)
    except RunError as error:
        raise InputError(
            error.what, "copy the folder again from its original, or remove the heads again with headcount prune"
        ) from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise InputError(
            f"{header_file} was not written by headcount, or by another version of it",
            f"remove the heads again with headcount prune: this version reads only schema {SCHEMA}",
        )
    types = {"adapter": str, "class": str, "digest": str, "cuts": list}
    if odd := [key for key, each in types.items() if not isinstance(header.get(key), each)]:
        raise InputError(
            f"{header_file} has no valid entry {', '.join(map(repr, odd))}",
            "copy the folder again from its original, or remove the heads again with headcount prune",
        )
    file = Path(os.path.normpath(folder.resolve() / header["adapter"]))
    if file.suffix != ".py" or not os.path.isfile(file):  # noqa: PTH113, for is_file() fails on odd names
        raise InputError(
            f"the model in {folder} is built by the Python code of its adapter, and there is no file {file}",
            f'if the file has moved, correct the entry "adapter" in {header_file}: a path from {folder}, or a full '
            "path",
        )
    return file, header


def _fill(model: nn.Module, folder: Path) -> None:
    with friendly_os_errors(f"read {folder}"):
        try:
            tensors = load_file(folder / WEIGHTS)
        except (SafetensorError, ValueError) as error:
            raise InputError(
                f"{folder / WEIGHTS} is damaged or cut short: {error}",
                "copy the folder again from its original, or remove the heads again with headcount prune",
            ) from error
    expected = model.state_dict()
    odd = sorted(expected.keys() ^ tensors.keys())
    odd += [name for name, each in expected.items() if name in tensors and each.shape != tensors[name].shape]
    if odd:
        raise InputError(
            f"the weights in {folder} do not fit the model that its adapter builds: {odd[0]} is missing in one of "
            "them, or has another shape",
            "if the model's code has changed, remove the heads again with headcount prune",
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in tensors:
            tensor.data = tensor.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)
