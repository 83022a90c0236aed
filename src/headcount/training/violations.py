"""Does a table of contexts answer every sequence right? If not, which sequences does it get wrong?

The model answers with the first class if one context *fires* (its lead is positive), and with the last class if all
contexts are *quiet*. The task names the pairs of neighbours that the last class allows; any other pair is *broken*.
The model is right on every sequence of every length if and only if

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
"""A boolean for each context, or for each node of the graph (a window with one token less than a context)."""
Index = tuple[Any, ...]
MOST_STEPS = 1000
"""Longest path that is followed to find a shortest sequence."""


@dataclass(frozen=True)
class Decision:
    """The violations of a table of leads: the contexts that sequences with wrong answers contain."""

    shape: ContextShape
    allowed: Marks
    """[token, token]: the pairs of neighbours that the last class allows."""
    leads: NDArray[np.floating]
    """The lead of the first class in each context; NaN where there is no context."""
    margin: float = 0.0
    """How far a lead must be from 0: a context counts as quiet below -margin only, and fires above +margin only."""

    @cached_property
    def unbroken(self) -> Marks:
        """The contexts whose neighbours may follow each other in the last class, such as sorted numbers."""
        n, width = self.shape.n_tokens + 1, self.shape.width
        pairs = np.ones((n, n), dtype=bool)
        pairs[:-1, :-1] = self.allowed
        marks = ~np.isnan(self.leads)
        for i in range(width - 1):
            marks &= pairs.reshape([n if place in (i, i + 1) else 1 for place in range(width)])
        return marks

    @cached_property
    def wrong_contexts(self) -> NDArray[np.int64]:
        """The contexts of the last class (such as sorted) that vote for the first class, the largest lead first."""
        leads = np.where(self.unbroken, self.leads, -np.inf)
        found = np.argwhere(leads >= -self.margin)
        return found[np.argsort(-leads[tuple(found.T)], kind="stable")]

    @cached_property
    def quiet(self) -> Marks:
        """The contexts that do not surely fire: their lead is at most the margin."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.leads <= self.margin)

    # --- paths of quiet contexts --------------------------------------------------------------------------------------

    @cached_property
    def starts(self) -> Marks:
        """The nodes at which a sequence begins: its first token is the centre of the next context."""
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
        """The nodes at which a sequence may end: its last token was the centre of a context."""
        shape, outside = self.shape, self.shape.n_tokens
        marks = np.zeros((outside + 1,) * (shape.width - 1), dtype=bool)
        where: Index = (slice(None),) * shape.left
        marks[(*where, *[outside] * shape.right)] = True
        marks[(outside,) * (shape.width - 1)] = False
        return marks

    @cached_property
    def from_start(self) -> Marks:
        """The nodes that quiet contexts reach from a start."""
        return _closure(self.starts, self.quiet, _forward)

    @cached_property
    def to_end(self) -> Marks:
        """The windows from which a sequence can go on to its end without a context that votes for the first class."""
        return _closure(self.ends, self.quiet, _backward)

    @cached_property
    def wrong_edges(self) -> NDArray[np.int64]:
        """Contexts of sequences of the first class in which no context votes for the first class."""
        on_path = self.quiet & self.from_start[..., None] & self.to_end[None] & ~self.unbroken
        return np.argwhere(on_path)

    @property
    def is_right(self) -> bool:
        """Whether every sequence of every length gets the right answer."""
        return not len(self.wrong_contexts) and not len(self.wrong_edges)

    # --- sequences that are answered wrong ----------------------------------------------------------------------------

    def wrong_sequences(self, rng: np.random.Generator, lengths: range, n: int) -> list[list[int]]:
        """Return up to `n` sequences of each class that the model answers wrong, of random lengths in this range.

        A violation for which no length in the range fits is left out.
        """
        sequences = []
        for contexts, edges in self._violations():
            paths = Paths(self, edges, lengths.stop)
            chosen = contexts[np.sort(rng.permutation(len(contexts))[:n])]
            drawn = (paths.through(rng, tuple(context), lengths) for context in chosen.tolist())
            sequences += [sequence for sequence in drawn if sequence]
        return sequences

    def shortest_wrong_sequence(self, rng: np.random.Generator, shortest: int = 1) -> list[int]:
        """Return a shortest sequence of at least `shortest` tokens that is answered wrong; empty if there is none."""
        return self._shortest(rng, self._violations(), shortest)

    def shortest_quiet_sequence(self, rng: np.random.Generator) -> list[int]:
        """Return a shortest sequence of the first class in which no context surely votes for it; empty if none is."""
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
        """Return the contexts that violate each condition, and the contexts that a sequence answered wrong may have."""
        return [(self.wrong_contexts, self.unbroken), (self.wrong_edges, self.quiet)]


class Paths:
    """Paths along some contexts from a start to an end, by their number of steps (the length of the sequence)."""

    def __init__(self, decision: Decision, edges: Marks, n_steps: int) -> None:
        self.shape, self.edges = decision.shape, edges
        self.after = [decision.starts]
        """`after[t]`: the nodes that t steps from a start reach."""
        self.before = [decision.ends]
        """`before[t]`: the nodes from which t steps reach an end."""
        self.grow(n_steps)

    def grow(self, n_steps: int) -> None:
        """Follow paths of up to `n_steps` steps."""
        while len(self.after) < n_steps:
            self.after.append(_forward(self.after[-1], self.edges))
            self.before.append(_backward(self.before[-1], self.edges))

    def through(self, rng: np.random.Generator, context: tuple[int, ...], lengths: range) -> list[int]:
        """Return a random sequence of one of these lengths that contains the context; empty if there is none."""
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
    """Return one of the marked symbols; in half of all cases the symbol `same`, if it is marked.

    Long runs of one number are common among the sequences that models get wrong.
    """
    if choices[same] and rng.random() < 0.5:
        return same
    marked = np.flatnonzero(choices)
    return int(marked[rng.integers(len(marked))])


def _forward(nodes: Marks, edges: Marks) -> Marks:
    """Return the nodes that one step along these edges reaches."""
    return np.asarray((nodes[..., None] & edges).any(axis=0))


def _backward(nodes: Marks, edges: Marks) -> Marks:
    """Return the nodes from which one step along these edges reaches `nodes`."""
    return np.asarray((nodes[None] & edges).any(axis=-1))


def _closure(nodes: Marks, edges: Marks, step: Callable[[Marks, Marks], Marks]) -> Marks:
    """Return the nodes that any number of steps reaches from `nodes`, including `nodes`."""
    while True:
        more = nodes | step(nodes, edges)
        if (more == nodes).all():
            return nodes
        nodes = more


def as_examples(sequences: list[list[int]], width: int) -> Examples:
    """Return sequences as examples of a class task: `EMPTY` stands after the end of short ones."""
    rows = np.full((len(sequences), width), EMPTY)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return rows
