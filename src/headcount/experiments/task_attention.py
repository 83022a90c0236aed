"""What analyses of attention need of a model: its task, its heads, and attention weights in the task's positions.

A run has the positions of its task. An adapter's model has its own (experiments/adapter_attention.py): each is known by
which of the task's it is. A token of its own, such as a class token, is none of them, and weight on it is weight on no
target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from headcount.heads import HeadId, HeadSite
from headcount.models.reading import AlignedExamples, AttentionChunk, ShowChunk, ValueOutputs
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task


class TaskAttention(Protocol):
    """A model of one of headcount's tasks whose attention can be read."""

    @property
    def name(self) -> str:
        """The name that it was opened by."""

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights, which every result names."""

    @property
    def task(self) -> Task:
        """The task that it was trained on."""

    @property
    def shape(self) -> object:
        """A key that is equal for models whose untrained weights are drawn alike."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The controls that have learned nothing: `untrained`, `shuffled`."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention site that has heads."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one site, in the order of their weights."""

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Call `show` with all weights of these examples, fed the right answers; `progress` gets the number done."""

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """Return the largest group of these examples in which each position means the same."""

    def value_outputs(self, examples: Examples) -> Mapping[HeadSite, ValueOutputs] | None:
        """Return what the heads add to the residual stream, key by key; None if it is not known."""

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Return a function like `map`, which may run several models at a time."""

    def untrained(self, seed: int) -> Self:
        """Return the model with weights as at the start of training."""

    def shuffled(self, seed: int) -> Self:
        """Return the model with the entries of each weight matrix in random order."""


@dataclass(frozen=True)
class SiteWeights:
    """Attention weights of one site in the task's positions, for each example."""

    weights: Float[Tensor, "example head query key"]
    """If the model has keys that are not the task's, the last key is the sum of all of them."""
    present: NDArray[np.bool_]
    """[example, query]: whether the model has that query; a number without leading zeros has fewer."""
    visible: Bool[Tensor, "query key"]
    """Which keys a query may see, in any example."""
    n_task_keys: int
    """Number of keys that are the task's."""

    def without_others(self) -> SiteWeights:
        """Remove the last key, for a site whose keys are all the task's."""
        n = self.n_task_keys
        return replace(self, weights=self.weights[..., :n], visible=self.visible[:, :n])


def task_weights(
    model: TaskAttention, examples: Examples, *, norm_weighted: bool = False
) -> dict[HeadSite, SiteWeights]:
    """Collect all weights of short examples, in the positions of the task."""
    found: dict[HeadSite, SiteWeights] = {}
    has_others: set[HeadSite] = set()

    def show(chunk: AttentionChunk) -> None:
        n_queries, n_keys = _task_shape(model.task, chunk.site, examples)
        n_all = n_keys + 1  # some examples may have other keys where the first ones have none
        if (chunk.key_places < 0).any():
            has_others.add(chunk.site)
        if chunk.site not in found:
            weights = torch.zeros(len(examples), chunk.weights.shape[1], n_queries, n_all, dtype=chunk.weights.dtype)
            present = np.zeros((len(examples), n_queries), dtype=bool)
            found[chunk.site] = SiteWeights(weights, present, torch.zeros(n_queries, n_all, dtype=torch.bool), n_keys)
        here, known = found[chunk.site], np.flatnonzero(chunk.query_places >= 0)
        rows, queries = torch.from_numpy(chunk.rows), torch.from_numpy(chunk.query_places[known])
        keys = torch.from_numpy(np.where(chunk.key_places < 0, n_keys, chunk.key_places))
        moved = torch.zeros(*chunk.weights.shape[:2], len(known), n_all, dtype=chunk.weights.dtype)
        moved.index_add_(3, keys, chunk.weights[:, :, known].cpu())
        here.weights[rows[:, None], :, queries] += moved.transpose(1, 2)
        here.present[chunk.rows[:, None], chunk.query_places[known]] = True
        seen = torch.zeros(len(known), n_all).index_add_(1, keys, chunk.sees[known].cpu().float())
        here.visible[queries] |= seen > 0

    model.read_attention(examples, show, norm_weighted=norm_weighted)
    return {site: found[site] if site in has_others else found[site].without_others() for site in model.sites}


def _task_shape(task: Task, site: HeadSite, examples: Examples) -> tuple[int, int]:
    """Return the numbers of queries and keys that the task has at a site."""
    if task.output_type == "class":
        n = cast(ClassTask, task).encode(examples).source.shape[1]
        return n, n
    asked = cast(SequenceTask, task)
    n_source, n_predicted = len(asked.source_positions), asked.decoding_start.n_tokens
    n_keys = len(asked.decoder_input_positions) if (site.stack, site.kind) == ("decoder", "self") else n_source
    return n_source if site.stack == "encoder" else n_predicted, n_keys
