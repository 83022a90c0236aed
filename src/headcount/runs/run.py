"""A finished run, ready to be asked.

>>> run = load("sample:addition")
>>> run.predict("374+814")
'1188'
>>> run.attention("374+814", "X1H2").shape
torch.Size([4, 7])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn

from headcount.encodings.base import Encoding, EncodingInUse, Randomised
from headcount.errors import InputError, RunError, argument, shortened
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import eval_mode
from headcount.limits import require_room
from headcount.models.attention import AttentionCache
from headcount.models.config import ClassifierConfig, EncoderDecoderConfig, StackConfig
from headcount.models.finite import require_finite, require_numbers
from headcount.models.reading import (
    AlignedExamples,
    ChunkReader,
    ShowChunk,
    ValueNorms,
    ValueOutputs,
    examples_per_pass,
)
from headcount.models.transformer import Classifier, EncoderDecoder, Model, greedy
from headcount.registry import suggestion
from headcount.runs.config import RunConfig
from headcount.runs.folder import SAMPLE, RunFolder, claimed_folder
from headcount.seeds import integer
from headcount.tasks import TASKS
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens
from headcount.training.answers import on_device
from headcount.training.device import workers
from headcount.training.evaluation import Classification, Evaluation, learner_of

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Run:
    """A trained model, the task it was trained on, and where it is kept."""

    name: str
    folder: RunFolder
    config: RunConfig
    task: Task
    model: Model
    weights_sha256: str
    """Every result names it."""
    controls: ClassVar[tuple[str, ...]] = ("untrained", "shuffled")
    """What can be made of it that has learned nothing."""

    def __repr__(self) -> str:
        n = sum(each.numel() for each in self.model.parameters())
        return f"{self.name}: a run on {self.config.task_name}, {len(self.model.heads)} heads, {n:,} parameters"

    @cached_property
    def output(self) -> RunFolder:
        """Where analyses of it are written: the same folder, unless the run is a packaged sample."""
        if not self.name.startswith(SAMPLE):
            return self.folder
        return RunFolder(claimed_folder(self.name.replace(":", "-"), self.name, self.weights_sha256))

    def predict(self, text: str) -> str:
        """The model's own answer."""
        return self.predict_one(text, with_attention=False).predicted

    def attention(self, text: str, head: str | HeadId) -> Float[Tensor, "query key"]:
        """One head's attention weights while the model gives its own answer."""
        head = self.find_head(head)
        return self.predict_one(text).weights[head.site][self.model.heads_at(head.site).index(head)]

    def predict_one(self, text: str, *, with_attention: bool = True) -> Prediction:
        """The model's own answer, how likely it held it, and (`with_attention`) every head's attention meanwhile."""
        return predict_one(self.model, self.task, self.task.parse(text), with_attention=with_attention)

    @property
    def shape(self) -> StackConfig:
        """Equal for models whose untrained weights are drawn alike."""
        return self.config.model

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention site that has heads."""
        return self.model.sites

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """The heads of one site, in the order of their weights."""
        return self.model.heads_at(site)

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`show` all weights while these examples are answered with right answers; `progress` counts examples."""
        inputs = self.inputs(examples)
        widths = tuple(tokens.shape[1] for tokens in inputs)
        size = examples_per_pass(max(widths))
        with eval_mode(self.model, gradients=False) as device, ValueNorms(self.model, norm_weighted) as norms:
            reader = ChunkReader(self.model, norms, show)
            for i in range(0, len(examples), size):
                part = [tokens[i : i + size] for tokens in inputs]
                reader.begin(np.arange(i, i + len(part[0])), widths)
                require_numbers(self.model(*on_device(device, *part), weights=reader), self.task.show(examples[i]))
                if progress:
                    progress(i + len(part[0]))

    def inputs(self, examples: Examples) -> tuple[Tokens, ...]:
        """What the model is fed of these examples."""
        if self.task.output_type == "class":
            return (cast(ClassTask, self.task).encode(examples).source,)
        batch = cast(SequenceTask, self.task).encode(examples)
        return batch.source, batch.decoder_input

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """All of a sequence task; of a classifier, sequences of one length."""
        if self.task.output_type == "class":
            lengths = cast(ClassTask, self.task).lengths(examples)
            rows = np.flatnonzero(lengths == lengths.max())
            n = self.inputs(examples[rows])[0].shape[1]
            return AlignedExamples(rows, f"the sequences of {n} in ", tuple(map(str, range(n))))
        task = cast(SequenceTask, self.task)
        source, fed = (tuple(p.label for p in ps) for ps in (task.source_positions, task.decoder_input_positions))
        steps = tuple(f"→ {position.label}" for position in task.answer_positions[len(task.decoding_start.given) :])
        return AlignedExamples(np.arange(len(examples)), "", source, fed, steps)

    def value_outputs(self, examples: Examples) -> dict[HeadSite, ValueOutputs]:
        """What the heads add to the residual stream, key by key."""
        with eval_mode(self.model, gradients=False) as device, ValueNorms(self.model) as heads:
            self.model(*on_device(device, *self.inputs(examples)))
        found = {}
        for site in self.sites:
            weight_DF, d_head = heads.attentions[site].output.weight.detach(), heads.attentions[site].d_head
            found[site] = ValueOutputs(
                heads.values[site].cpu(), weight_DF.cpu().unflatten(1, (-1, d_head)).transpose(0, 1)
            )
        return found

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Something like `map`, for several such models at once."""
        return workers(self.model)

    def untrained(self, seed: int) -> Run:
        """The same with weights as training begins with, drawn from this seed of PyTorch's."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_model(self.config.model, self.task)
        return replace(self, model=model.to(next(self.model.parameters()).device).eval())

    def shuffled(self, seed: int) -> Run:
        """The same with the entries of each of its weight matrices in random order."""
        return replace(self, model=shuffle_weights(copy.deepcopy(self.model), seed))

    def encoding_in_use(self) -> EncodingInUse:
        """Its positions; in an encoder-decoder, those of the encoder."""
        (now, n_ids), (initial, _) = map(_encoding_of, (self.model, build(self.config)[1]))
        hard_codes = ", ".join(getattr(self.model, "hard_codes", ())) or now.hard_codes
        config, trained = self.config.model, n_ids or self.task.longest
        return EncodingInUse(config.encoding, now, trained, config.n_heads, initial, n_ids, hard_codes)

    def evaluate(self, split: str) -> Evaluation | Classification:
        """Everything that is measured on a held-out set."""
        return learner_of(self.model, self.task).evaluate(split, self.weights_sha256)

    def find_head(self, head: str | HeadId) -> HeadId:
        """The head of that name, if this model has it."""
        found = HeadId.parse(head) if isinstance(head, str) else head
        if found not in self.model.heads:
            sites = ", ".join(map(str, self.model.sites)) or "no site"
            there = f"this model has {self.config.model.n_heads} heads at each of {sites}"
            if pruned := self.config.model.pruned:
                cut = ", ".join(HeadId.parse(name).short for name in pruned)
                there += f", less those that were cut out: {cut}"
            advice = f"list its heads: headcount heads {argument(self.name)}"
            raise InputError(f"no head {str(found)!r} in {self.name}", there, advice)
        return found


def shuffle_weights(model: M, seed: int) -> M:
    """The entries of each matrix in random order, in place; biases and scales, which are vectors, stay."""
    order = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for matrix in (each for each in model.parameters() if each.ndim > 1):
            entries = matrix.flatten()[torch.randperm(matrix.numel(), generator=order).to(matrix.device)]
            matrix.copy_(entries.reshape(matrix.shape))
    return model.eval()


def _encoding_of(model: Any) -> tuple[Encoding, int | None]:
    """A model's encoding, and out of how many ids it draws if they are random."""
    found = model.positions if hasattr(model, "positions") else model.source_positions
    # Random positions hand the tokens other ids; what an id does is up to the encoding inside.
    n_ids = found.n_ids if isinstance(found, Randomised) else None
    inner = found.inner if isinstance(found, Randomised) else found
    return copy.deepcopy(inner).cpu().eval(), n_ids


def load(run: str | Path, device: str | torch.device = "cpu") -> Run:
    """A finished run from its folder, or a packaged one by `sample:NAME`."""
    folder = locate(run)
    config = folder.read_config()
    weights, digest = folder.read_weights()
    task, model = build(config)
    try:
        tensors = safetensors.torch.load(weights)
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise RunError(
            f"{folder.weights_file} does not fit the settings beside it: {shortened(str(error))}",
            "restore the folder, or train again in another one",
        ) from error
    require_finite(tensors, str(folder.path))
    return Run(str(run), folder, config, task, model.to(device).eval(), digest)


def locate(run: str | Path) -> RunFolder:
    """The folder of a run, or of a packaged one by `sample:NAME`."""
    if not str(run).startswith(SAMPLE):
        return RunFolder(Path(run))
    sample, samples = str(run).removeprefix(SAMPLE), Path(str(resources.files("headcount") / "samples"))
    known = sorted(each.name for each in samples.iterdir() if each.is_dir()) if samples.exists() else []
    if sample not in known:
        raise InputError(f"no sample {sample!r} in the package", suggestion(sample, known))
    return RunFolder(samples / sample)


def build_model(config: StackConfig, task: Task) -> Model:
    """A fresh model for this task, its weights drawn from PyTorch's stream."""
    if isinstance(config, ClassifierConfig):
        asked = cast(ClassTask, task)
        pad_id = asked.pad_id if asked.masks_padding else None
        return Classifier(config, len(asked.tokens), len(asked.classes), pad_id)
    return EncoderDecoder(cast(EncoderDecoderConfig, config), n_tokens=len(task.tokens), pad_id=task.pad_id)


def build(config: RunConfig) -> tuple[Task, Model]:
    """The task and a fresh model, its weights drawn from the seed."""
    task = TASKS.get(config.task_name)(config.task)
    require_room(config.model.weight_bytes(len(task.tokens)), "a model of this size", "lower d_model, d_ff or n_layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(config.seed, "weights"))
        model = build_model(config.model, task)
    return task, model


# --- prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What a model outputs for one example, and where its heads attended meanwhile."""

    example: str
    predicted: str
    right: str
    """The right answer; empty if it is not known."""
    explanation: str
    """What is wrong with the answer; empty if it is right."""
    note: str = ""
    """What there is to know of the example, such as its first broken pair."""
    probability: float | None = None
    """That the model gave to its whole answer, where it gave one."""
    source: tuple[str, ...] = ()
    """The tokens it read."""
    decoder_input: tuple[str, ...] = ()
    """The tokens its decoder was given: the start token, then its own output. Empty for a classifier."""
    output_tokens: tuple[str, ...] = ()
    """What it predicted after each of those; empty for a classifier."""
    positions: tuple[str, ...] = ()
    """What each of those is, such as `10s`."""
    weights: Mapping[HeadSite, Float[Tensor, "head query key"]] = field(default_factory=dict)


def predict_one(model: Model, task: Task, example: Examples, *, with_attention: bool = True) -> Prediction:
    """One example, [1, ...], by the model's own output; attention is read only if it is asked for."""
    (found,) = predict_alike(model, task, example, with_attention=with_attention)
    return found


def predict_alike(model: Model, task: Task, examples: Examples, *, with_attention: bool = True) -> list[Prediction]:
    """Examples that have equally many tokens, in one batch without padding."""
    cache = AttentionCache() if with_attention else None
    with eval_mode(model, gradients=False) as device:
        if isinstance(model, Classifier):
            found = _predict_classes(model, cast(ClassTask, task), examples, device, cache)
        else:
            found = _predict_sequences(model, cast(SequenceTask, task), examples, device, cache)
    if cache is None:
        return found
    weights = {site: cache[site].cpu() for site in model.sites}
    return [replace(each, weights={site: of[i] for site, of in weights.items()}) for i, each in enumerate(found)]


def _predict_sequences(
    model: EncoderDecoder, task: SequenceTask, examples: Examples, device: torch.device, cache: AttentionCache | None
) -> list[Prediction]:
    start, batch = task.decoding_start, task.encode(examples)
    memory = model.encode(on_device(device, batch.source)[0], weights=cache)
    own_tokens = greedy(model, memory, start.first, start.n_tokens)
    own = own_tokens.cpu().numpy()
    first, given = np.full((len(own), 1), start.first), np.tile(start.given, (len(own), 1))
    decoder_input = np.concatenate([first, own[:, :-1]], axis=1)
    logits = model.decode(on_device(device, decoder_input)[0], memory, weights=cache)
    for example, its in zip(examples, logits, strict=True):
        require_numbers(its, task.show(example))
    log_p = logits.log_softmax(dim=-1).gather(-1, own_tokens[..., None]).sum(dim=(1, 2))
    predicted = np.concatenate([given, own], axis=1) if start.given else own
    return [
        Prediction(
            example=task.show(example),
            predicted=task.show_tokens(predicted[i]),
            right=task.show_tokens(batch.answer[i]),
            explanation=task.explain(example, predicted[i]),
            probability=float(log_p[i].exp()),
            source=tuple(task.tokens[token] for token in batch.source[i]),
            decoder_input=tuple(task.tokens[token] for token in decoder_input[i]),
            output_tokens=tuple(task.tokens[token] for token in own[i]),
            positions=tuple(position.label for position in task.answer_positions[len(start.given) :]),
        )
        for i, example in enumerate(examples)
    ]


def _predict_classes(
    model: Classifier, task: ClassTask, examples: Examples, device: torch.device, cache: AttentionCache | None
) -> list[Prediction]:
    batch = task.encode(examples)
    logits = model(on_device(device, batch.source)[0], weights=cache)
    for example, its in zip(examples, logits, strict=True):
        require_numbers(its, task.show(example))
    probability = logits.softmax(dim=-1)
    predicted = probability.argmax(dim=-1).tolist()
    return [
        Prediction(
            example=task.show(example),
            predicted=task.classes[predicted[i]],
            right=task.classes[int(batch.labels[i])],
            explanation=task.explain(example, predicted[i]),
            note=task.describe(example),
            probability=float(probability[i, predicted[i]]),
            source=tuple(task.tokens[token] for token in batch.source[i]),
        )
        for i, example in enumerate(examples)
    ]
