"""`TaskAttention`, the interface of models whose attention weights can be read in the positions of a task.

The positions of a run are those of its task. The positions of an adapter's model are mapped to those of the task
(experiments/adapter_attention.py). A token that the task does not have, such as a class token, is mapped to no
position, so attention to this token is attention to no target.
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
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, key_positions, stack_positions


class TaskAttention(Protocol):
    """The interface of a model whose attention weights can be read in the positions of a headcount task."""

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
        """The names of the control models that can be made: `untrained` and `shuffled`, which have learned nothing."""

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """The names of all attention blocks that have heads."""

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block, in the order of its attention weights."""

    def read_attention(
        self,
        examples: Examples,
        show: ShowChunk,
        *,
        norm_weighted: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Run the model on these examples, fed the right answers, and call `show` with the attention weights in chunks.

        With `norm_weighted`, weights are multiplied by the norms of the values. `progress` is called with the number of
        finished examples.
        """

    def aligned_examples(self, examples: Examples) -> AlignedExamples:
        """Return the largest group of these examples, such as those of one length, in which positions correspond."""

    def value_outputs(self, examples: Examples) -> Mapping[HeadSite, ValueOutputs] | None:
        """Return value vectors and output projections on these examples, by attention block; None if unknown."""

    def workers(self) -> AbstractContextManager[Callable[..., Iterator[Any]]]:
        """Return a context that yields a function like `map`, which may run the model on several blocks in parallel."""

    def untrained(self, seed: int) -> Self:
        """Return a copy of the model with new random weights, as at the start of training (a control)."""

    def shuffled(self, seed: int) -> Self:
        """Return a copy of the model with the entries of each weight matrix in random order (a control)."""


@dataclass(frozen=True)
class SiteWeights:
    """The attention weights of one attention block for some examples; queries and keys are positions of the task."""

    weights: Float[Tensor, "example head query key"]
    """The weights; an additional last key holds the sum over all keys that only the model has, such as [CLS]."""
    present: NDArray[np.bool_]
    """A mask [example, query] of the queries that the model has; an example without leading zeros has fewer."""
    visible: Bool[Tensor, "query key"]
    """A mask of the keys that each query may see in at least one example."""
    n_task_keys: int
    """The number of keys that the task has, without the additional last key."""

    def without_others(self) -> SiteWeights:
        """Return the weights without the additional last key, for a block whose keys all belong to the task."""
        n = self.n_task_keys
        return replace(self, weights=self.weights[..., :n], visible=self.visible[:, :n])


def visible_in(weights_NQK: Float[Tensor, "n query key"], kind: str) -> Bool[Tensor, "query key"]:
    """Infer from attention weights, of any heads and examples, which keys each query may see; return a mask.

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
    """Return an array [query, key] of the query's position minus the key's position, in the shape of `pairs`."""
    return torch.sub(*torch.meshgrid(*(torch.arange(n, device=pairs.device) for n in pairs.shape), indexing="ij"))


def task_weights(
    model: TaskAttention, examples: Examples, *, norm_weighted: bool = False
) -> dict[HeadSite, SiteWeights]:
    """Return the attention weights of a model on examples, in the positions of the task, by attention block.

    All weights are in memory at once, so the examples must be short.
    """
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
    """Return the numbers of queries and of keys that an attention block has according to the task."""
    if task.output_type == "class":
        n = cast(ClassTask, task).encode(examples).source.shape[1]
        return n, n
    sequence_task = cast(SequenceTask, task)
    return len(stack_positions(sequence_task, site.stack)), len(key_positions(sequence_task, site.stack, site.kind))
