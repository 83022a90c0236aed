"""Load a finished run and predict with it.

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
from importlib import import_module, resources
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
from headcount.models.config import ClassifierConfig, DecoderOnlyConfig, EncoderDecoderConfig, StackConfig
from headcount.models.finite import require_finite, require_numbers
from headcount.models.reading import (
    AlignedExamples,
    ChunkReader,
    ShowChunk,
    ValueNorms,
    ValueOutputs,
    examples_per_pass,
)
from headcount.models.transformer import (
    Classifier,
    DecoderOnly,
    EncoderDecoder,
    Model,
    SequenceTransformer,
    greedy,
)
from headcount.runs.config import RunConfig, n_training_ids
from headcount.runs.folder import SAMPLE, RunFolder, claimed_folder, folder_of
from headcount.seeds import integer
from headcount.suggestions import suggestion
from headcount.tasks import TASKS
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, TaskWords, Tokens, longest_rows, past_end
from headcount.training.answers import on_device
from headcount.training.device import workers
from headcount.training.evaluation import Classification, Evaluation, learner_of

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Run:
    """A model that headcount trained, with its task, its settings and its folder."""

    name: str
    folder: RunFolder
    config: RunConfig
    task: Task
    model: Model
    weights_sha256: str
    """The SHA-256 digest of the file of weights; every result records it."""
    controls: ClassVar[tuple[str, ...]] = ("untrained", "shuffled")
    """The names of the methods that return control models: with new random weights, or with shuffled weights."""

    def __repr__(self) -> str:
        n = sum(weight.numel() for weight in self.model.parameters())
        return f"{self.name}: a run on {self.config.task_name}, {len(self.model.heads)} heads, {n:,} parameters"

    @cached_property
    def output(self) -> RunFolder:
        """The folder for results: the run's own folder or, for a run that comes with the package, one in `runs/`."""
        if not self.name.startswith(SAMPLE):
            return self.folder
        return RunFolder(claimed_folder(self.name.replace(":", "-"), self.name, self.weights_sha256))

    def predict(self, text: str) -> str:
        """Return the model's answer to one example, such as "1188" for "374+814"."""
        return self.predict_one(text, with_attention=False).predicted

    def attention(self, text: str, head: str | HeadId) -> Float[Tensor, "query key"]:
        """Return the attention weights [query, key] of one head while the model answers one example, given as text."""
        head = self.find_head(head)
        return self.predict_one(text).weights[head.site][self.model.heads_at(head.site).index(head)]

    def predict_one(self, text: str, *, with_attention: bool = True) -> Prediction:
        """Return the model's answer to one example and its probability, with attention weights if `with_attention`."""
        example = self.task.parse(text)
        return predict_equal_lengths(self.model, self.task, example, with_attention=with_attention)[0]

    def live(self) -> Any:
        """Return a widget for a notebook: type an example, switch heads off, and see the model's answer change."""
        # Imported here because the room `api` imports this module.
        return import_module("headcount.api.reporting").live_frame(self)

    @property
    def shape(self) -> StackConfig:
        """The settings of the model's architecture, from which untrained models of the same shape can be built."""
        return self.config.model

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The names of all attention blocks (sites) that have heads."""
        return self.model.sites

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block (site), in the order of its attention weights."""
        return self.model.heads_at(site)

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Run the model on these examples, teacher-forced, and call `show` with the attention weights in chunks.

        With `norm_weighted`, weights are multiplied by the norms of the values. `progress` is called with the number of
        finished examples.
        """
        inputs = self.inputs(examples)
        widths = [tokens.shape[1] for tokens in inputs]
        # A decoder-only model has one stack, in which the decoder's input follows the source.
        size = examples_per_pass(sum(widths) if isinstance(self.model, DecoderOnly) else max(widths))
        with eval_mode(self.model, gradients=False) as device, ValueNorms(self.model, norm_weighted) as norms:
            reader = ChunkReader(self.model, norms, show)
            for i in range(0, len(examples), size):
                part = on_device(device, *(tokens[i : i + size] for tokens in inputs))
                reader.begin(np.arange(i, i + len(part[0])), part)
                require_numbers(self.model(*part, weights=reader), self.task.show(examples[i]))
                if progress:
                    progress(i + len(part[0]))

    def inputs(self, examples: Examples) -> tuple[Tokens, ...]:
        """Return the model's input tokens for these examples, one array each for the encoder and the decoder."""
        if self.task.output_type == "class":
            return (cast(ClassTask, self.task).encode(examples).source,)
        batch = cast(SequenceTask, self.task).encode(examples)
        return batch.source, batch.decoder_input

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """Return the longest of these examples, in which each position has the same meaning and none is padding."""
        if self.task.output_type == "class":
            lengths = cast(ClassTask, self.task).lengths(examples)
            rows = np.flatnonzero(lengths == lengths.max())
            n = self.inputs(examples[rows])[0].shape[1]
            return AlignedExamples(rows, f"the sequences of {n} tokens in ", tuple(map(str, range(n))))
        task = cast(SequenceTask, self.task)
        source, fed = (tuple(p.label for p in ps) for ps in (task.source_positions, task.decoder_input_positions))
        steps = tuple(f"→ {position.label}" for position in task.answer_positions[len(task.decoding_start.given) :])
        rows = longest_rows(task, examples)
        words = f"the longest {task.words.examples} in " if len(rows) < len(examples) else ""
        return AlignedExamples(rows, words, source, fed, steps)

    def value_outputs(self, examples: Examples) -> dict[HeadSite, ValueOutputs]:
        """Return the value vectors on these examples and the output projections of all attention blocks, by block."""
        with eval_mode(self.model, gradients=False) as device, ValueNorms(self.model) as heads:
            self.model(*on_device(device, *self.inputs(examples)))
        outputs = {}
        for site in self.sites:
            weight_DF, d_head = heads.attentions[site].output.weight.detach().cpu(), heads.attentions[site].d_head
            output_HDE = weight_DF.unflatten(1, (-1, d_head)).transpose(0, 1)
            outputs[site] = ValueOutputs(heads.values[site].cpu(), output_HDE)
        return outputs

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Return a context that yields a function like `map`, which uses all cores in parallel on a CPU."""
        return workers(self.model)

    def untrained(self, seed: int) -> Run:
        """Return a copy of this run whose model has new, untrained weights, drawn with this seed (a control)."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_model(self.config.model, self.task)
        return replace(self, model=model.to(next(self.model.parameters()).device).eval())

    def shuffled(self, seed: int) -> Run:
        """Return a copy of this run whose weight matrices have their entries in random order (a control)."""
        return replace(self, model=shuffle_weights(copy.deepcopy(self.model), seed))

    def encoding_in_use(self) -> EncodingInUse:
        """Return the model's position encoding (in an encoder-decoder, the encoder's), with its training range."""
        (trained, n_ids), (initial, _) = map(_encoding_of, (self.model, build(self.config)[1]))
        hard_codes = ", ".join(getattr(self.model, "hard_codes", ())) or trained.hard_codes
        config, n_trained = self.config.model, n_training_ids(self.task, self.config.model)
        return EncodingInUse(config.encoding, trained, n_trained, config.n_heads, initial, n_ids, hard_codes)

    def evaluate(self, split: str) -> Evaluation | Classification:
        """Return the model's scores on a held-out set, such as "test"."""
        return learner_of(self.model, self.task).evaluate(split, self.weights_sha256)

    def find_head(self, head: str | HeadId) -> HeadId:
        """Return the head called `head`, such as "E1H2"; raise an error if the model does not have this head."""
        head_id = HeadId.parse(head) if isinstance(head, str) else head
        if head_id not in self.model.heads:
            sites = ", ".join(map(str, self.model.sites)) or "no attention block"
            known = f"this model has {self.config.model.n_heads} heads at each of {sites}"
            if pruned := self.config.model.pruned:
                cut = ", ".join(HeadId.parse(name).short for name in pruned)
                known += f", except those that were cut out: {cut}"
            advice = f"list its heads: headcount heads {argument(self.name)}"
            raise InputError(f"no head {str(head_id)!r} in {self.name}", known, advice)
        return head_id


def shuffle_weights(model: M, seed: int) -> M:
    """Permute the entries of each weight matrix at random, in place, and return the model.

    Biases and scales, which are vectors, stay as they are.
    """
    order = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for matrix in (weight for weight in model.parameters() if weight.ndim > 1):
            entries = matrix.flatten()[torch.randperm(matrix.numel(), generator=order).to(matrix.device)]
            matrix.copy_(entries.reshape(matrix.shape))
    return model.eval()


def _encoding_of(model: Any) -> tuple[Encoding, int | None]:
    """Return a copy of a model's position encoding, and the number of ids that random ids are drawn from, or None."""
    encoding = model.positions if hasattr(model, "positions") else model.source_positions
    # Random positions only replace the ids; the encoding inside determines the effect of an id.
    n_ids = encoding.n_ids if isinstance(encoding, Randomised) else None
    inner = encoding.inner if isinstance(encoding, Randomised) else encoding
    return copy.deepcopy(inner).cpu().eval(), n_ids


def load(run: str | Path, device: str | torch.device = "cpu") -> Run:
    """Return a finished run, loaded from its folder, a snapshot `RUN@STEP`, or the package (`sample:NAME`)."""
    folder = locate(run)
    config = folder.read_config()
    weights, digest = folder.read_weights()
    task, model = build(config)
    try:
        tensors = safetensors.torch.load(weights)
        model.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        raise RunError(
            f"{folder.weights_file} does not fit the settings in config.json: {shortened(str(error))}",
            "restore the folder, or train again in another one",
        ) from error
    require_finite(tensors, str(folder.path))
    return Run(str(run), folder, config, task, model.to(device).eval(), digest)


def locate(run: str | Path) -> RunFolder:
    """Return the folder of a run, given by its path, as a snapshot `RUN@STEP`, or as a packaged run `sample:NAME`."""
    if not str(run).startswith(SAMPLE):
        return folder_of(Path(run))
    sample, samples = str(run).removeprefix(SAMPLE), Path(str(resources.files("headcount") / "samples"))
    known = sorted(folder.name for folder in samples.iterdir() if folder.is_dir()) if samples.exists() else []
    folder = folder_of(samples / sample)
    if folder.config_file.parent not in [samples / name for name in known]:
        raise InputError(
            f"no trained model with the name 'sample:{sample}' comes with headcount", suggestion(sample, known)
        )
    return folder


def build_model(config: StackConfig, task: Task) -> Model:
    """Return a new, untrained model for a task; weights are drawn from PyTorch's global random generator."""
    if isinstance(config, ClassifierConfig):
        class_task = cast(ClassTask, task)
        pad_id = class_task.pad_id if class_task.masks_padding else None
        return Classifier(config, len(class_task.tokens), len(class_task.classes), pad_id)
    if isinstance(config, DecoderOnlyConfig):
        is_order, schemes = config.position_ids == "order", cast(SequenceTask, task).id_schemes
        scheme = None if is_order else schemes[config.position_ids](task.config)
        return DecoderOnly(config, len(task.tokens), task.pad_id, scheme)
    return EncoderDecoder(cast(EncoderDecoderConfig, config), n_tokens=len(task.tokens), pad_id=task.pad_id)


def build(config: RunConfig) -> tuple[Task, Model]:
    """Return the task and a new, untrained model for these settings; weights are drawn from the run's seed."""
    task = TASKS.get(config.task_name)(config.task)
    require_room(config.model.weight_bytes(len(task.tokens)), "a model of this size", "lower d_model, d_ff or n_layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(config.seed, "weights"))
        model = build_model(config.model, task)
    return task, model


# --- prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one example, with the attention weights of its heads."""

    example: str
    predicted: str
    right: str
    """The right answer; empty if it is not known."""
    explanation: str
    """What is wrong with the prediction; empty if it is right."""
    note: str = ""
    """A note on the example, such as its first unsorted pair."""
    probability: float | None = None
    """The probability that the model assigns to its whole prediction; None if it is not known."""
    source: tuple[str, ...] = ()
    """The tokens of the encoder's input, as text."""
    decoder_input: tuple[str, ...] = ()
    """The tokens of the decoder's input: the start token, then the model's own output; empty for a classifier."""
    output_tokens: tuple[str, ...] = ()
    """The token that is predicted at each position of the decoder's input; empty for a classifier."""
    positions: tuple[str, ...] = ()
    """The label of each position of the answer, such as `10s` for the tens digit; empty for a classifier."""
    sign: str = TaskWords().sign
    """The text between an example and its answer when they are printed, such as " = "."""
    weights: Mapping[HeadSite, Float[Tensor, "head query key"]] = field(default_factory=dict)


def predict_equal_lengths(
    model: Model, task: Task, examples: Examples, *, with_attention: bool = True
) -> list[Prediction]:
    """Return the model's predictions for examples that all have the same number of tokens, from one batch.

    Predictions have attention weights only if `with_attention`.
    """
    cache = AttentionCache() if with_attention else None
    with eval_mode(model, gradients=False) as device:
        if isinstance(model, Classifier):
            predictions = _predict_classes(model, cast(ClassTask, task), examples, device, cache)
        else:
            predictions = _predict_sequences(model, cast(SequenceTask, task), examples, device, cache)
    if cache is None:
        return predictions
    weights = {site: cache[site].cpu() for site in model.sites}
    return [
        replace(prediction, weights={site: rows[i] for site, rows in weights.items()})
        for i, prediction in enumerate(predictions)
    ]


def _predict_sequences(
    model: SequenceTransformer,
    task: SequenceTask,
    examples: Examples,
    device: torch.device,
    cache: AttentionCache | None,
) -> list[Prediction]:
    task = task.sized_for(examples)
    start, batch = task.decoding_start, task.encode(examples)
    memory: Any = model.encode(on_device(device, batch.source)[0], weights=cache)
    own_tokens = greedy(model, memory, start.first, start.n_tokens, end_id=task.end_id)
    own = own_tokens.cpu().numpy()
    first, given = np.full((len(own), 1), start.first), np.tile(start.given, (len(own), 1))
    decoder_input = np.concatenate([first, own[:, :-1]], axis=1)
    logits = model.decode(on_device(device, decoder_input)[0], memory, weights=cache)
    for example, row in zip(examples, logits, strict=True):
        require_numbers(row, task.show(example))
    is_own = torch.from_numpy(~past_end(own, task.end_id)).to(device)
    log_p = (logits.log_softmax(dim=-1).gather(-1, own_tokens[..., None])[..., 0] * is_own).sum(dim=1)
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
            sign=task.words.sign,
        )
        for i, example in enumerate(examples)
    ]


def _predict_classes(
    model: Classifier, task: ClassTask, examples: Examples, device: torch.device, cache: AttentionCache | None
) -> list[Prediction]:
    batch = task.encode(examples)
    logits = model(on_device(device, batch.source)[0], weights=cache)
    for example, row in zip(examples, logits, strict=True):
        require_numbers(row, task.show(example))
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
            sign=task.words.sign,
        )
        for i, example in enumerate(examples)
    ]
