"""The model that analyses of attention need: with a task, heads, and attention weights in positions of the task.

The positions of a run are those of its task. The positions of an adapter's model are mapped to those of the task
(experiments/adapter_attention.py). A token that the task does not have, such as a class token, is mapped to none, and
attention on it is attention on no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.heads import HeadId, HeadSite
from headcount.models.reading import AlignedExamples, AttentionChunk, ShowChunk, ValueOutputs
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task


class TaskAttention(Protocol):
    """A model of one of headcount's tasks whose attention can be read."""

    @property
    def name(self) -> str:
        """The name of the model in results, such as `runs/addition-0`."""

    @property
    def weights_sha256(self) -> str:
        """SHA-256 digest of the weights, which every result contains."""

    @property
    def task(self) -> Task:
        """The task that the model was trained on."""

    @property
    def shape(self) -> object:
        """A key that is equal for models whose initial weights have the same distribution."""

    @property
    def controls(self) -> tuple[str, ...]:
        """The kinds of control models, which learned nothing: `untrained`, `shuffled`."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention block of the model that still has heads."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block, in the order of their weights."""

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
        """Return the largest group of these examples in which each position has the same meaning."""

    def value_outputs(self, examples: Examples) -> Mapping[HeadSite, ValueOutputs] | None:
        """Return the vectors that each key adds to the residual stream, by attention block; None if unknown."""

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Return a function like `map`, which may run several models at the same time."""

    def untrained(self, seed: int) -> Self:
        """Return the model with new random weights, as at the start of training."""

    def shuffled(self, seed: int) -> Self:
        """Return the model with the entries of each weight matrix in random order."""


@dataclass(frozen=True)
class SiteWeights:
    """Attention weights of one attention block in the task's positions, for each example."""

    weights: Float[Tensor, "example head query key"]
    """Weights. If the model has keys that the task does not have, the last key holds the sum over all of them."""
    present: NDArray[np.bool_]
    """Whether the model has each query, [example, query]. Without leading zeros, an example has fewer queries."""
    visible: Bool[Tensor, "query key"]
    """Whether each query may see each key, in any example."""
    n_task_keys: int
    """Number of keys that the task has."""

    def without_others(self) -> SiteWeights:
        """Remove the last key, for an attention block whose keys all belong to the task."""
        n = self.n_task_keys
        return replace(self, weights=self.weights[..., :n], visible=self.visible[:, :n])


def visible_in(weights_NQK: Float[Tensor, "n query key"], kind: str) -> Bool[Tensor, "query key"]:
    """Infer the visible keys from the weights of some heads, in one or more examples.

    Small weights may round to 0. A key therefore counts as visible if any query attends to it; in self-attention, only
    within the range of distances at which any query attends.
    """
    positive = torch.zeros(weights_NQK.shape[1:], dtype=torch.bool, device=weights_NQK.device)
    for weights_QK in weights_NQK:  # one by one, to save memory
        positive |= weights_QK > 0
    sees = positive.any(dim=0).expand_as(positive)
    if kind == "self" and positive.any():
        lag = query_minus_key(positive)
        sees = sees & (lag >= lag[positive].min()) & (lag <= lag[positive].max())
    return sees


def query_minus_key(pairs: Bool[Tensor, "query key"]) -> Int[Tensor, "query key"]:
    """Return the position of the query minus that of the key, for every pair."""
    return torch.sub(*torch.meshgrid(*(torch.arange(n, device=pairs.device) for n in pairs.shape), indexing="ij"))


def task_weights(
    model: TaskAttention, examples: Examples, *, norm_weighted: bool = False
) -> dict[HeadSite, SiteWeights]:
    """Return all attention weights of short examples, in the positions of the task."""
    by_site: dict[HeadSite, SiteWeights] = {}
    has_others: set[HeadSite] = set()

    def show(chunk: AttentionChunk) -> None:
        n_queries, n_keys = _task_shape(model.task, chunk.site, examples)
        n_all = n_keys + 1  # some examples may have other keys where the first ones have none
        if (chunk.key_places < 0).any():
            has_others.add(chunk.site)
        if chunk.site not in by_site:
            weights = torch.zeros(len(examples), chunk.weights.shape[1], n_queries, n_all, dtype=chunk.weights.dtype)
            present = np.zeros((len(examples), n_queries), dtype=bool)
            visible = torch.zeros(n_queries, n_all, dtype=torch.bool)
            by_site[chunk.site] = SiteWeights(weights, present, visible, n_keys)
        here, known = by_site[chunk.site], np.flatnonzero(chunk.query_places >= 0)
        rows, queries = torch.from_numpy(chunk.rows), torch.from_numpy(chunk.query_places[known])
        keys = torch.from_numpy(np.where(chunk.key_places < 0, n_keys, chunk.key_places))
        moved = torch.zeros(*chunk.weights.shape[:2], len(known), n_all, dtype=chunk.weights.dtype)
        moved.index_add_(3, keys, chunk.weights[:, :, known].cpu())
        here.weights[rows[:, None], :, queries] += moved.transpose(1, 2)
        here.present[chunk.rows[:, None], chunk.query_places[known]] = True
        seen = torch.zeros(len(known), n_all).index_add_(1, keys, chunk.sees[known].cpu().float())
        here.visible[queries] |= seen > 0

    model.read_attention(examples, show, norm_weighted=norm_weighted)
    return {site: by_site[site] if site in has_others else by_site[site].without_others() for site in model.sites}


def _task_shape(task: Task, site: HeadSite, examples: Examples) -> tuple[int, int]:
    """Return the numbers of queries and keys that the task has at an attention block."""
    if task.output_type == "class":
        n = cast(ClassTask, task).encode(examples).source.shape[1]
        return n, n
    task = cast(SequenceTask, task)
    n_source, n_predicted = len(task.source_positions), task.decoding_start.n_tokens
    n_keys = len(task.decoder_input_positions) if (site.stack, site.kind) == ("decoder", "self") else n_source
    return n_source if site.stack == "encoder" else n_predicted, n_keys
