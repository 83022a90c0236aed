"""Where does each head look? On one example, or on average over a held-out set."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.head_measures import WEIGHTINGS, ValueNorms
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.models.attention import AttentionCache
from headcount.models.transformer import Classifier
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import ClassTask, SequenceTask, Tokens
from headcount.training.evaluation import BLOCK, on_device

Matrix = tuple[tuple[float, ...], ...]
Moments = Mapping[HeadSite, tuple[NDArray[np.floating], NDArray[np.floating] | None]]


@dataclass(frozen=True)
class HeadPattern:
    """One head's attention weights, [query][key]."""

    head: str
    short: str
    weights: Matrix
    deviation: Matrix | None
    """Standard deviation over examples; None for a single example."""


@dataclass(frozen=True)
class SitePattern:
    """The heads of one attention block, and what stands on their axes."""

    site: str
    stack: str
    layer: int
    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    heads: tuple[HeadPattern, ...]


@dataclass(frozen=True)
class AttentionPatterns(Result):
    """Every head of a model."""

    SCHEMA: ClassVar[int] = 2
    FORMER: ClassVar[Mapping[str, str]] = {
        "run": "name",
        "model": "weights_sha256",
        "said": "predicted",
        "why": "explanation",
    }
    name: str
    weights_sha256: str
    title: str
    n: int
    """Examples averaged over."""
    sites: tuple[SitePattern, ...]
    example: str | None = None
    predicted: str | None = None
    right: str | None = None
    probability: float | None = None
    """That the model gave to its whole answer."""
    correct: bool | None = None
    explanation: str | None = None
    """What is wrong with the answer; empty if it is right."""
    weighting: str = WEIGHTINGS[0]
    """Whether a key counts by its attention weight or by its share of norms."""

    @property
    def verdict(self) -> str:
        """`374+814 = 0188 (wrong: 1000s: 0, should be 1; probability 0.9312)`, in full; of averages, their title."""
        if self.example is None:
            return self.title
        if self.correct is None:
            return self.title  # a result of before
        told = "right" if self.correct else f"wrong: {self.explanation}"
        return f"{self.example} = {self.predicted} ({told}; probability {self.probability:.4f})"


def patterns_on(run: Run, text: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Every head on one example, while the model gives its own answer."""
    with ValueNorms(run.model) if norm_weighted else nullcontext() as norms:
        prediction = run.predict_one(text)
    weights = {site: w if norms is None else norms.share(site, w[None])[0] for site, w in prediction.weights.items()}
    steps = tuple(
        f"{heard} → {word}" for heard, word in zip(prediction.decoder_input, prediction.output_tokens, strict=True)
    )
    verdict = f"wrong, should be {prediction.right}" if prediction.explanation else "right"
    moments, probability = {site: (w.numpy(), None) for site, w in weights.items()}, prediction.probability
    assert probability is not None, "a run gives one"
    return AttentionPatterns(
        name=run.name,
        weights_sha256=run.weights_sha256,
        title=f"{shortened(prediction.example)} = {prediction.predicted} ({verdict}; probability {probability:.4f})",
        n=1,
        sites=_sites(run, moments, prediction.source, prediction.decoder_input, steps),
        example=prediction.example,
        predicted=prediction.predicted,
        right=prediction.right,
        probability=probability,
        correct=not prediction.explanation,
        explanation=prediction.explanation,
        weighting=WEIGHTINGS[norm_weighted],
    )


def shortened(example: str) -> str:
    """An example that fits into a title."""
    return example if len(example) <= 60 else f"{example[:40]} … {example[-15:]}"


def average_patterns(run: Run, split: str, *, norm_weighted: bool = False) -> AttentionPatterns:
    """Every head on average over a held-out set: by column, or over the longest sequences, by place."""
    if isinstance(run.model, Classifier):
        inputs, source, decoder_input, steps, what = _classified(run, split)
    else:
        inputs, source, decoder_input, steps, what = _fed_the_answer(run, split)
    moments, n = _moments(run, inputs, norm_weighted), len(inputs[0])
    return AttentionPatterns(
        name=run.name,
        weights_sha256=run.weights_sha256,
        title=f"average over {what} (n = {n:,})",
        n=n,
        sites=_sites(run, moments, source, decoder_input, steps),
        weighting=WEIGHTINGS[norm_weighted],
    )


Averaged = tuple[tuple[Tokens, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], str]
"""What goes into the model, the labels of its source, of what is fed and of what is said, and what this is."""


def _fed_the_answer(run: Run, split: str) -> Averaged:
    task = cast(SequenceTask, run.task)
    batch = task.encode(task.split(split))
    source, decoder_input = (
        tuple(p.label for p in positions) for positions in (task.source_positions, task.decoder_input_positions)
    )
    asked = task.answer_positions[len(task.decoding_start.given) :]
    return (
        (batch.source, batch.decoder_input),
        source,
        decoder_input,
        tuple(f"→ {p.label}" for p in asked),
        f"the {split} set",
    )


def _classified(run: Run, split: str) -> Averaged:
    """Sequences of one length, so that a place means the same in all of them."""
    task = cast(ClassTask, run.task)
    examples = task.split(split)
    lengths = task.lengths(examples)
    tokens = task.encode(examples[lengths == lengths.max()]).source
    places = tuple(map(str, range(tokens.shape[1])))
    return (tokens,), places, (), (), f"the sequences of {tokens.shape[1]} in the {split} set"


def _moments(run: Run, inputs: tuple[Tokens, ...], norm_weighted: bool) -> Moments:
    """Mean and standard deviation of every weight, in double precision."""
    n, sums = len(inputs[0]), dict[HeadSite, tuple[Tensor, Tensor]]()
    with (
        eval_mode(run.model, gradients=False) as device,
        ValueNorms(run.model) if norm_weighted else nullcontext() as norms,
    ):
        for i in range(0, n, BLOCK):
            weights = AttentionCache()
            run.model(*on_device(device, *(tokens[i : i + BLOCK] for tokens in inputs)), weights=weights)
            for site, w in weights.items():
                w = (w if norms is None else norms.share(site, w)).cpu().double()
                first, second = sums.get(site, (torch.zeros(()), torch.zeros(())))
                sums[site] = first + w.sum(dim=0), second + (w * w).sum(dim=0)
    return {
        site: ((first / n).numpy(), (second / n - (first / n) ** 2).clamp(min=0).sqrt().numpy())
        for site, (first, second) in sums.items()
    }


def _sites(
    run: Run, moments: Moments, source: tuple[str, ...], decoder_input: tuple[str, ...], steps: tuple[str, ...]
) -> tuple[SitePattern, ...]:
    found = []
    for site in run.model.sites:
        mean, deviation = moments[site]
        heads = tuple(
            HeadPattern(
                head=str(head),
                short=head.short,
                weights=_matrix(mean[place]),
                deviation=None if deviation is None else _matrix(deviation[place]),
            )
            for place, head in enumerate(run.model.heads_at(site))
        )
        queries = steps if site.stack == "decoder" else source
        keys = decoder_input if (site.stack, site.kind) == ("decoder", "self") else source
        found.append(SitePattern(str(site), site.stack, site.layer, site.kind, queries, keys, heads))
    return tuple(found)


def _matrix(array: NDArray[np.floating]) -> Matrix:
    return tuple(tuple(float(f"{value:.6g}") for value in row) for row in array)
