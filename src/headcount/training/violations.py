"""Decide from a table of contexts whether a model is right on every sequence, or which sequences it gets wrong.

A context is the tokens that one position sees. Its lead is the logit of the first class minus that of the last class.
The model answers with the first class (such as unsorted) if one context *fires* (its lead is positive), and with the
last class (such as sorted) if all contexts are *quiet*. The task names the pairs of neighbours that the last class
allows; any other pair is *broken*. The model is right on every sequence of every length if and only if

1. every context without a broken pair is quiet (it is part of a sequence of the last class), and
2. every sequence with a broken pair has a context that fires. Contexts that overlap form a graph: a node is a window of
   neighbours, an edge is a quiet context. A path from a beginning to an end of a sequence through a broken pair is a
   sequence of the first class that stays quiet, and there are no others.

Both conditions are exact: each violation is part of a sequence that the model gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headcount.tasks.base import EMPTY, Examples
from headcount.training.contexts import ContextShape

Marks = NDArray[np.bool_]
"""A mask of contexts, indexed by their tokens, or of nodes (the tokens that two overlapping contexts share)."""
Index = tuple[Any, ...]
MOST_STEPS = 1000
"""Largest length up to which a shortest sequence with a wrong answer is searched."""


@dataclass(frozen=True)
class Decision:
    """Decides from the leads of all contexts whether a model is right on every sequence, and finds wrong contexts.

    A context is the tokens that one position sees; its lead is the logit of the first class minus that of the last.
    """

    shape: ContextShape
    allowed: Marks
    """A mask [token, token] of the pairs of neighbours that the last class allows, such as 3 before 5 if sorted."""
    leads: NDArray[np.floating]
    """The logit of the first class minus that of the last class in each context; NaN at indices that are no context."""
    margin: float = 0.0
    """How far a lead must be from 0 to be certain: quiet contexts lie below -margin, firing ones above +margin."""

    @cached_property
    def unbroken(self) -> Marks:
        """A mask of the contexts in which each pair of neighbours is allowed in the last class (such as sorted)."""
        n, width = self.shape.n_tokens + 1, self.shape.width
        pairs = np.ones((n, n), dtype=bool)
        pairs[:-1, :-1] = self.allowed
        marks = ~np.isnan(self.leads)
        for i in range(width - 1):
            marks &= pairs.reshape([n if place in (i, i + 1) else 1 for place in range(width)])
        return marks

    @cached_property
    def wrong_contexts(self) -> NDArray[np.int64]:
        """The contexts that are allowed in the last class (such as sorted) but vote for the first class.

        The context with the largest lead comes first.
        """
        leads = np.where(self.unbroken, self.leads, -np.inf)
        found = np.argwhere(leads >= -self.margin)
        return found[np.argsort(-leads[tuple(found.T)], kind="stable")]

    @cached_property
    def quiet(self) -> Marks:
        """A mask of the contexts that do not certainly vote for the first class: their lead is at most the margin."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.leads <= self.margin)

    # --- paths of quiet contexts --------------------------------------------------------------------------------------

    @cached_property
    def starts(self) -> Marks:
        """A mask of the nodes (tokens shared by two overlapping contexts) at which a sequence begins."""
        shape, outside = self.shape, self.shape.n_tokens
        marks = np.zeros((outside + 1,) * (shape.width - 1), dtype=bool)
        for n in range(shape.right + 1):  # tokens to the right that the node has
            tokens: Index = (slice(0, outside),) * n
            marks[(*[outside] * shape.left, *tokens, *[outside] * (shape.right - n))] = True
        if shape.right:  # an empty sequence has no node
            marks[(outside,) * (shape.width - 1)] = False
        return marks

    @cached_property
    def ends(self) -> Marks:
        """A mask of the nodes (tokens shared by two overlapping contexts) at which a sequence may end."""
        shape, outside = self.shape, self.shape.n_tokens
        marks = np.zeros((outside + 1,) * (shape.width - 1), dtype=bool)
        where: Index = (slice(None),) * shape.left
        marks[(*where, *[outside] * shape.right)] = True
        marks[(outside,) * (shape.width - 1)] = False
        return marks

    @cached_property
    def from_start(self) -> Marks:
        """A mask of the nodes that a sequence can reach without a context that votes for the first class.

        A node is the tokens that two overlapping contexts share.
        """
        return _closure(self.starts, self.quiet, _forward)

    @cached_property
    def to_end(self) -> Marks:
        """A mask of the nodes from which a sequence can end without a context that votes for the first class.

        A node is the tokens that two overlapping contexts share.
        """
        return _closure(self.ends, self.quiet, _backward)

    @cached_property
    def wrong_edges(self) -> NDArray[np.int64]:
        """The contexts with a forbidden pair of neighbours, in sequences of the first class without a vote for it.

        The model answers such sequences wrong.
        """
        on_path = self.quiet & self.from_start[..., None] & self.to_end[None] & ~self.unbroken
        return np.argwhere(on_path)

    @property
    def is_right(self) -> bool:
        """Whether the model gives the right answer to every sequence of every length."""
        return not len(self.wrong_contexts) and not len(self.wrong_edges)

    # --- sequences that are answered wrong ----------------------------------------------------------------------------

    def wrong_sequences(self, rng: np.random.Generator, lengths: range, n: int) -> list[list[int]]:
        """Return up to `n` sequences of each class that the model answers wrong, with random lengths in this range.

        Wrong contexts that occur in no sequence of these lengths are left out.
        """
        sequences = []
        for contexts, edges in self._violations():
            paths = Paths(self, edges, lengths.stop)
            chosen = contexts[np.sort(rng.permutation(len(contexts))[:n])]
            drawn = (paths.through(rng, tuple(context), lengths) for context in chosen.tolist())
            sequences += [sequence for sequence in drawn if sequence]
        return sequences

    def shortest_wrong_sequence(self, rng: np.random.Generator, shortest: int = 1) -> list[int]:
        """Return a shortest sequence of at least `shortest` tokens that the model answers wrong; empty without one."""
        return self._shortest(rng, self._violations(), shortest)

    def shortest_quiet_sequence(self, rng: np.random.Generator) -> list[int]:
        """Return a shortest sequence of the first class in which no context certainly votes for this class.

        Return an empty list if there is no such sequence.
        """
        return self._shortest(rng, self._violations()[1:], 1)

    def _shortest(
        self, rng: np.random.Generator, violations: list[tuple[NDArray[np.int64], Marks]], shortest: int
    ) -> list[int]:
        with_paths = [(contexts, Paths(self, edges, 0)) for contexts, edges in violations if len(contexts)]
        for length in range(shortest, shortest + MOST_STEPS if with_paths else shortest):
            for contexts, paths in with_paths:
                paths.grow(length)
                first, second = tuple(contexts[:, :-1].T), tuple(contexts[:, 1:].T)
                for left in range(length):
                    fits = np.flatnonzero(paths.after[left][first] & paths.before[length - 1 - left][second])
                    if len(fits):
                        return paths.through(rng, tuple(contexts[fits[0]].tolist()), range(length, length + 1))
        return []

    def _violations(self) -> list[tuple[NDArray[np.int64], Marks]]:
        """Return pairs (violating contexts, mask of contexts): for sequences of the last class, then of the first.

        A wrong sequence consists of contexts in the mask and contains a violating context.
        """
        return [(self.wrong_contexts, self.unbroken), (self.wrong_edges, self.quiet)]


class Paths:
    """Finds sequences in which every context (the tokens that a position sees) is one of the given contexts `edges`.

    They are paths in the graph of overlapping contexts.
    """

    def __init__(self, decision: Decision, edges: Marks, n_steps: int) -> None:
        self.shape, self.edges = decision.shape, edges
        self.after = [decision.starts]
        """`after[t]` is a mask of the nodes (tokens shared by overlapping contexts) reached t steps after a sequence's
        start."""
        self.before = [decision.ends]
        """`before[t]` is a mask of the nodes (tokens shared by overlapping contexts) that are t steps before a
        sequence's end."""
        self.grow(n_steps)

    def grow(self, n_steps: int) -> None:
        """Extend the lists `after` and `before` so that they cover sequences of up to `n_steps` tokens."""
        while len(self.after) < n_steps:
            self.after.append(_forward(self.after[-1], self.edges))
            self.before.append(_backward(self.before[-1], self.edges))

    def through(self, rng: np.random.Generator, context: tuple[int, ...], lengths: range) -> list[int]:
        """Return a random sequence that contains a given context and has one of these lengths; empty without one."""
        first, second = context[:-1], context[1:]
        splits = [
            (left, length - 1 - left)
            for length in lengths
            for left in range(length)
            if self.after[left][first] and self.before[length - 1 - left][second]
        ]
        if not splits:
            return []
        left, right = splits[rng.integers(len(splits))]
        symbols = list(context)
        for t in range(left - 1, -1, -1):
            node: Index = tuple(symbols[: self.shape.width - 1])
            steps = self.after[t][(slice(None), *node[:-1])] & self.edges[(slice(None), *node)]
            symbols.insert(0, _choose(rng, steps, symbols[0]))
        for t in range(right - 1, -1, -1):
            node = tuple(symbols[len(symbols) - self.shape.width + 1 :])
            steps = self.before[t][(*node[1:], slice(None))] & self.edges[(*node, slice(None))]
            symbols.append(_choose(rng, steps, symbols[-1]))
        return [symbol for symbol in symbols if symbol != self.shape.n_tokens]


def _choose(rng: np.random.Generator, choices: Marks, same: int) -> int:
    """Return a random token among those marked in `choices`; if `same` is marked, return it in half of all cases.

    `same` is the neighbouring token, because models often get long runs of one number wrong.
    """
    if choices[same] and rng.random() < 0.5:
        return same
    marked = np.flatnonzero(choices)
    return int(marked[rng.integers(len(marked))])


def _forward(nodes: Marks, edges: Marks) -> Marks:
    """Return a mask of the nodes (token windows) that one step from `nodes` reaches; `edges` are allowed contexts."""
    return np.asarray((nodes[..., None] & edges).any(axis=0))


def _backward(nodes: Marks, edges: Marks) -> Marks:
    """Return a mask of the nodes (token windows) from which one step reaches `nodes`; `edges` are allowed contexts."""
    return np.asarray((nodes[None] & edges).any(axis=-1))


def _closure(nodes: Marks, edges: Marks, step: Callable[[Marks, Marks], Marks]) -> Marks:
    """Return a mask of the nodes (token windows) that any number of steps reaches from `nodes`, including `nodes`.

    `step` is `_forward` or `_backward`, and `edges` are the contexts that a step may use.
    """
    while True:
        more = nodes | step(nodes, edges)
        if (more == nodes).all():
            return nodes
        nodes = more


def as_examples(sequences: list[list[int]], width: int) -> Examples:
    """Return token sequences as one array of examples of a class task; short sequences are filled up with `EMPTY`."""
    rows = np.full((len(sequences), width), EMPTY)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows
