"""Find the heads that move an event of the task, such as a carry, from where it arises to where the answer needs it.

Quartets (sets of four examples, `Quartets` in tasks/base.py) answer this causally. In two of the four examples the
event is absent, in two it is present; one token rises in equal steps. The output of a head on one example is patched
into another one, and the logits of the answer show how far the answer follows:

    carry patch    without <- with_event, and with_event <- without      the token changes, and so does the event
    placebo        without <- smaller, and with_event <- larger          the token changes as much, the event does not

The *share* of a head is the part of the gap between both answers that its patch moves. The gap is measured in the logit
difference between the token with and without the event. A share is a ratio of sums over quartets. Its interval has a
linearised standard error, Student's t with Hall's correction for skewness, and a Bonferroni correction over all heads
and ways (a way leads from the place where the event arises to a place of the answer). Without Hall's correction, heads
that act on few quartets were too often called "none".

A minimal pair cannot tell a head that moves the event from one that moves the token. Random donors can: with the output
of a head on any other example, the answer must become what its own tokens and the donor's event give.

The same patches of the residual stream, one position of one layer at a time, show where the model holds the event
between the question and the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from headcount.analysis.route_positions import Layout, is_readable, layouts_of, positions_by_layout, read_positions
from headcount.bands import PART, Role, role_of
from headcount.errors import InputError
from headcount.experiments.models import OpenModel, RunModel
from headcount.heads import HeadId
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.intervention_proof import first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.hooks.streams import StreamCapture, StreamId, StreamPatches, Streams
from headcount.limits import MIN_N, N_SCAN
from headcount.results import Contradiction, Count, Positive, Result
from headcount.seeds import stream
from headcount.stats import Proportion, skewed_quantile, skewness
from headcount.tasks.base import Quartets, SequenceTask, stack_positions
from headcount.training.evaluation import SequenceModel

N_RELIABLE = 100
"""From this number of quartets (sets of four examples) on, at most 5 % of scans give a head a wrong role.

The error rate was measured by benchmarks/route_errors.py.
"""
N_DONORS = 400
"""Number of examples in which heads get the outputs of a random other example (the donor)."""
CONFIDENCE = 0.95
Moves = NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Share:
    """The part of the logit gap between examples with and without an event (a carry) that a patch moves."""

    share: float
    low: float
    high: float
    on: float
    """The share for examples without the event (a carry) that get head outputs from examples with it."""
    off: float
    """The share for examples with the event (a carry) that get head outputs from examples without it.

    If two heads are redundant, each of them has on = 1 and off = 0.
    """

    @classmethod
    def of(cls, on: Moves, off: Moves, gap: Moves, n_comparisons: int = 1) -> Share:
        """Return the share as a ratio of sums over quartets (sets of four examples), with its CI.

        >>> Share.of(np.array([1.0, 1.0]), np.array([0.0, 0.0]), np.array([2.0, 2.0])).share
        0.25
        """
        both, total, n = (on + off) / 2, float(gap.sum()), len(gap)
        share = float(both.sum()) / total
        residuals = (both - share * gap) * n / total
        error, skew = float(residuals.std(ddof=1)) / n**0.5, skewness(residuals)
        quantile = float(stdtrit(n - 1, 1 - (1 - CONFIDENCE) / (2 * n_comparisons)))
        low, high = (share - error * float(skewed_quantile(end, skew, n)) for end in (quantile, -quantile))
        return cls(share, low, high, float(on.sum()) / total, float(off.sum()) / total)

    @property
    def role(self) -> Role:
        """The role of the patched head, such as "carrier" of a carry, if the whole interval of the share allows it.

        A negative share, which moves the answer away from the event, gives the role "none".
        """
        return role_of(self.low, self.high)

    @property
    def is_absent(self) -> bool:
        """Whether the patch moves almost nothing: the whole interval of the share lies between -0.1 and 0.1."""
        return self.low > -PART and self.high < PART


@dataclass(frozen=True)
class Way:
    """One way of an event such as the carry: from the place where it arises (1s) to a place of the answer (10s)."""

    source: str
    read: str
    chain: Positive
    n: Count
    """Number of quartets (sets of four) in use: all answers are right, and the event (a carry) changes the answer."""
    n_drawn: Positive
    gap: float
    """By how much, on average, the event (a carry) raises the logit of its token above that of the other token."""
    examples: tuple[str, str]
    """Two examples as text with their right answers: one without the event (a carry) and one with it."""
    is_written_before: bool
    """Whether the place `read` is written before the place `source`, so that no earlier token shows a carry."""

    @property
    def name(self) -> str:
        """The name of the way that an event takes, from where it arises to where the answer needs it: `1s to 10s`."""
        return f"{self.source} to {self.read}"

    @property
    def has_enough(self) -> bool:
        """Whether there are enough quartets (sets of four examples) for wrong roles to be as rare as intended."""
        return self.n >= N_RELIABLE


@dataclass(frozen=True)
class PatchShare:
    """The share of an event (a carry) that one patch moves on one way, such as `1s to 10s`, and its placebo's share.

    The placebo patch changes the token as much, but not the event.
    """

    what: str
    """What was patched: a head (`E0H2`), all heads of a block (`E0`) or a residual stream (`E0.stream`)."""
    way: str
    moved: Share
    placebo: Share
    position: str = ""
    """Name of the only positions that were patched, such as `10s`; empty if all were patched."""

    @property
    def moves_event(self) -> bool:
        """Whether the patch moves at least part of the event (a carry), but nothing where only a token changes."""
        return self.moved.role in ("carrier", "part") and self.placebo.is_absent


@dataclass(frozen=True)
class DonorTest:
    """What happens to answers if heads get their outputs from random other examples (donors)."""

    head: str
    """Name of the head, such as `E0H2`; heads that were patched together are joined by `+`."""
    read: str
    followed: Proportion
    """Fraction of answers that change as the event (a carry) of the donor, whose head outputs are put in, requires.

    The donors are examples with another event than the receiver.
    """
    unchanged: Proportion
    """Fraction of answers that stay right with head outputs of donor examples that have the same event (a carry)."""


@dataclass(frozen=True)
class Routes(Result):
    """How a task's event, such as the carry, moves through a model: by which heads, and where it is held."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
    name: str
    weights_sha256: str
    event: str
    """The task's name for the event, such as `carry`."""
    places: tuple[str, ...]
    """Names of the places of an answer, most significant first, such as `1000s`, ..., `1s`."""
    ways: tuple[Way, ...]
    heads: tuple[PatchShare, ...]
    """The share of the event (such as a carry) that each head moves when it is patched alone."""
    blocks: tuple[PatchShare, ...]
    """The share of the event (such as a carry) that each attention block moves when all its heads are patched."""
    queries: tuple[PatchShare, ...]
    """The share of the event (a carry) that each head moves when patched at a single query position alone."""
    streams: tuple[PatchShare, ...]
    """The share of the event (a carry) that each residual stream at one place (10s), and each MLP output, moves."""
    donors: tuple[DonorTest, ...]
    """Tests of each head that moves the event (a carry) with outputs from random donor examples put in."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if parts of the result disagree with each other.

        Examples: a share on a way (`1s to 10s`) that is not in `ways`, a share outside of its interval, or a way that
        uses more quartets (sets of four examples) than were drawn.
        """
        measured = {way.name for way in self.ways}
        for field in ("heads", "blocks", "queries", "streams"):
            shares: tuple[PatchShare, ...] = getattr(self, field)
            if unknown := [each.way for each in shares if each.way not in measured]:
                yield field, f"only ways that are listed in ways, not {unknown[0]!r}"
            if any(not each.moved.low <= each.moved.share <= each.moved.high for each in shares):
                yield field, "shares inside of their confidence intervals"
        if any(way.n > way.n_drawn for way in self.ways):
            yield "ways", "ways with n (quartets answered right) of at most n_drawn"

    def movers(self, way: str) -> list[PatchShare]:
        """Return the heads that carry the event on a way, wholly or in part; the largest share first.

        Heads whose placebo (a changed token without the event) moves the answer too are left out: they move more than
        the event.
        """
        shares = [each for each in self.heads if each.way == way and each.moves_event]
        return sorted(shares, key=lambda each: -each.moved.share)


# --- one way ----------------------------------------------------------------------------------------------------------


class EventPatches:
    """Patches between the examples of quartets (sets of four that differ in one event) on one model.

    Use it inside `torch.no_grad()`, with the model in evaluation mode. In a patch, an example (the receiver) gets head
    outputs of another example of its quartet (the donor).
    """

    def __init__(self, model: OpenModel, quartets: Quartets) -> None:
        self.model, self.quartets = model, quartets
        answers, n = cast(SequenceModel, model.answers), len(quartets)
        self.inputs, labels = answers.teacher_forced(np.concatenate(quartets.examples))
        by_example = labels.unflatten(0, (4, n))
        with Capture(model.sites) as capture:  # the outputs of donors come from the pass that answers
            is_used = right_answers(model, self.inputs, labels).unflatten(0, (4, n)).all(dim=0)
        is_used &= is_readable(answers.task, quartets, by_example)
        self.n = int(is_used.sum())
        rows = torch.arange(4 * n, device=labels.device).unflatten(0, (4, n))[:, is_used]
        smaller, without, with_event, larger = rows
        self.receivers = torch.cat([without, with_event])
        self.donors = {"event": torch.cat([with_event, without]), "placebo": torch.cat([smaller, larger])}
        self.positions = read_positions(answers.task, quartets, by_example)[is_used].repeat(2)
        """For each receiver (patched example), the position of the logits of the token that the event changes."""
        self.tokens = torch.stack([labels[part.repeat(2), self.positions] for part in (without, with_event)])
        """The ids of the changed token without and with the event (a carry) for each patched example, [2, receiver]."""
        self.donor_outputs = {
            kind: {site: capture.z(site)[rows] for site in model.sites} for kind, rows in self.donors.items()
        }
        """The head outputs that patches put in: those of examples with another event (a carry), and of placebo
        examples.

        A placebo example has another token but the same event.
        """

    @cached_property
    def cached(self) -> CachedPass:
        """The cached pass over all patched examples: first those without the event (a carry), then those with it."""
        return CachedPass(self.model.module, self.model.sites, self._inputs(self.receivers))

    @cached_property
    def to_the_read_place(self) -> CachedPass:
        """The cached pass over the patched examples, without the answer's tokens after the one that a carry changes.

        The event need not be a carry. Later tokens cannot change the logits at this place.
        """
        if not self.n or not isinstance(self.model, RunModel):
            return self.cached  # where the inputs of another model's decoder are is not known
        source, decoder_input = self._inputs(self.receivers)
        n_read = int(self.positions.max()) + 1
        if n_read == decoder_input.shape[1]:
            return self.cached
        return CachedPass(self.model.module, self.model.sites, [source, decoder_input[:, :n_read]])

    @cached_property
    def clean(self) -> Moves:
        """For each example before any patch: logit of the token that a carry requires minus logit of the other token.

        The event need not be a carry.
        """
        return self.differences(first_tensor(self.cached.output))

    @property
    def gap(self) -> Moves:
        """For each quartet (set of four examples), by how much the event (a carry) raises the logit difference.

        The difference is the logit of the token with the event minus that of the token without it.
        """
        return self.clean[self.n :] - self.clean[: self.n]

    def _inputs(self, rows: Tensor) -> list[Tensor]:
        return [each[rows] for each in self.inputs]

    def differences(self, logits: Tensor) -> Moves:
        """Return the logit of the token with a carry minus that of the token without it, for each patched example.

        The event need not be a carry.
        """
        rows = torch.arange(len(logits), device=logits.device)
        at = logits[rows, self.positions].double()
        return np.asarray((at[rows, self.tokens[1]] - at[rows, self.tokens[0]]).cpu().numpy())

    def moves(self, logits: Tensor, before: Moves | None = None) -> tuple[Moves, Moves]:
        """Return how far a patch moves the logit difference of each quartet (set of four examples).

        The first array is for the event (a carry) patched in, the second for the event patched out. `logits` are those
        with the patch. `before` are the differences without it; give them if `logits` are from a shorter pass.
        """
        after, before = self.differences(logits), self.clean if before is None else before
        return after[: self.n] - before[: self.n], before[self.n :] - after[self.n :]

    def head_shares(
        self, groups: Sequence[Sequence[HeadId]], n_comparisons: int, positions: Sequence[int | None] = (None,)
    ) -> Iterator[tuple[int, int | None, Share, Share]]:
        """Yield the share of the event (a carry) that each group of heads, patched together, moves at each given
        position.

        Each item has the index of the group, the position (None for all positions), the share, and the share of the
        placebo, which changes a token but not the event.
        """
        cached = self.to_the_read_place if set(positions) == {None} else self.cached
        before = self.differences(first_tensor(cached.output))
        wanted = [(i, at) for i in range(len(groups)) for at in positions]
        patches = [self._patch(cached, groups[i], kind, at) for i, at in wanted for kind in self.donors]
        moved = dict(sweep(cached, patches, checked=True))
        for j, (i, at) in enumerate(wanted):
            moves = [self.moves(moved[2 * j + k], before) for k in range(2)]
            event, placebo = (Share.of(*each, self.gap, n_comparisons) for each in moves)
            yield i, at, event, placebo

    def _patch(self, cached: CachedPass, heads: Sequence[HeadId], kind: str, position: int | None) -> Intervention:
        values = {}
        for site in self.model.sites.head_slots(heads):
            values[site] = self.donor_outputs[kind][site][:, : cached.z(site).shape[1]]
            if position is not None:
                own = cached.z(site).clone()
                own[:, position] = values[site][:, position]
                values[site] = own
        return Intervention(tuple(heads), "patch", values=values)

    def stream_shares(self, streams: Streams, n_comparisons: int) -> Iterator[tuple[StreamId, str, Share, Share]]:
        """Yield the share of the event (a carry) that each residual stream at one place, and each MLP output, moves.

        Each item has the stream, the name of the place (such as `10s`; empty for all positions), the share, and the
        share of the placebo, which changes a token but not the event.
        """
        task = cast(SequenceTask, self.model.answers.task)
        donors, inputs = {}, self._inputs(self.receivers)
        for kind, rows in self.donors.items():
            with StreamCapture(streams) as seen:
                self.model.module(*self._inputs(rows))
            donors[kind] = {place: seen[place] for place in streams}
        for place in streams:
            groups = positions_by_place(task, place.stack, donors["event"][place].shape[1])
            for name, positions in groups.items() if place.kind != "mlp" else (("", None),):
                shares = []
                for kind in donors:
                    with StreamPatches(streams, {place: donors[kind][place]}, positions):
                        output = first_tensor(self.model.module(*inputs))
                    shares.append(Share.of(*self.moves(output), self.gap, n_comparisons))
                yield place, name, shares[0], shares[1]


def right_answers(model: OpenModel, inputs: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return, for each example, whether every token of the answer is predicted right (teacher-forced)."""
    predicted = first_tensor(model.module(*inputs)).argmax(dim=-1)
    return ((predicted == labels) | (labels < 0)).all(dim=1)


# --- all ways ---------------------------------------------------------------------------------------------------------


def routes(model: OpenModel, n: int = N_SCAN, *, seed: int = 0, progress: Progress | None = None) -> Routes:
    """Measure which share of the task's event (a carry) each head, block and residual stream moves.

    The event moves on several ways, such as from the 1s to the 10s. `n` is the number of quartets (sets of four
    examples that differ in the event) for each way.
    """
    task = require_event(model)
    quartets = measurable(model, task.quartets(stream(seed, "quartets"), n), min(n, MIN_N))
    some, _ = cast(SequenceModel, model.answers).teacher_forced(quartets[0].examples[1][:4])
    prove(model.module, model.sites, some)
    streams = Streams.of(model.module, model.sites, some)
    parts: list[_WayResult] = []
    with eval_mode(model.module), torch.no_grad():
        for each in quartets:
            parts.append(_measure_way(model, task, each, streams, len(model.sites.heads) * len(quartets), seed))
            if progress:
                progress(len(parts), len(quartets))
    assert task.words.event is not None, "require_event has checked this"
    donors = {(test.head, test.read): test for part in parts for test in part.donors}
    return Routes(
        name=model.name,
        weights_sha256=model.weights_sha256,
        event=task.words.event.name,
        places=tuple(each.label for each in sorted(task.answer_positions, key=lambda each: -(each.column or 0))),
        ways=tuple(part.way for part in parts),
        heads=tuple(each for part in parts for each in part.heads),
        blocks=tuple(each for part in parts for each in part.blocks),
        queries=tuple(each for part in parts for each in part.queries),
        streams=tuple(each for part in parts for each in part.streams),
        donors=tuple(donors.values()),
    )


@dataclass(frozen=True)
class _WayResult:
    way: Way
    heads: Sequence[PatchShare] = ()
    blocks: Sequence[PatchShare] = ()
    queries: Sequence[PatchShare] = ()
    streams: Sequence[PatchShare] = ()
    donors: Sequence[DonorTest] = ()


def _measure_way(
    model: OpenModel, task: SequenceTask, quartets: Quartets, streams: Streams, n_comparisons: int, seed: int
) -> _WayResult:
    patches, sites = EventPatches(model, quartets), model.sites
    gap = float(patches.gap.mean()) if patches.n else 0.0
    way = _way(task, quartets, patches.n, gap)
    if patches.n < MIN_N or gap <= 0:
        return _WayResult(way)
    heads = [
        PatchShare(sites.heads[i].short, way.name, moved, placebo)
        for i, _, moved, placebo in patches.head_shares([(head,) for head in sites.heads], n_comparisons)
    ]
    names = list(sites)
    blocks = [
        PatchShare(names[i].short, way.name, moved, placebo)
        for i, _, moved, placebo in patches.head_shares([site.heads for site in sites.values()], n_comparisons)
    ]
    movers = [head for head, each in zip(sites.heads, heads, strict=True) if each.moved.role in ("carrier", "part")]
    queries = []
    for head in movers:
        labels = position_labels(task, head.site.stack, patches.cached.z(head.site).shape[1])
        for _, at, moved, placebo in patches.head_shares([(head,)], n_comparisons, range(len(labels))):
            queries.append(PatchShare(head.short, way.name, moved, placebo, labels[at or 0]))
    held = [
        PatchShare(str(place), way.name, moved, placebo, position)
        for place, position, moved, placebo in patches.stream_shares(streams, n_comparisons)
    ]
    donors = [donor_test(model, head, quartets, seed) for head in movers]
    return _WayResult(way, heads, blocks, queries, held, [test for test in donors if test is not None])


def _way(task: SequenceTask, quartets: Quartets, n: int, gap: float) -> Way:
    """Describe a way of an event (a carry from the 1s to the 10s): its ends, number of quartets, and two examples.

    Quartets are sets of four examples that differ in the event.
    """
    pair = (part[0] for part in quartets.examples[1:3])
    examples = [
        f"{task.show(each)}{task.words.sign}{task.show_tokens(task.encode(each[None]).answer[0])}" for each in pair
    ]
    written = [each.label for each in task.answer_positions]
    is_before = quartets.source in written and written.index(quartets.read) < written.index(quartets.source)
    names = quartets.source, quartets.read, quartets.chain
    return Way(*names, n, len(quartets), gap, (examples[0], examples[1]), is_before)


def require_event(model: OpenModel) -> SequenceTask:
    """Return the task of a model; raise an error if the task has no event (such as a carry) that heads could move."""
    task = model.answers.task
    if task.output_type != "sequence" or task.words.event is None:
        raise InputError(
            f"the task {task.name} has no intermediate result, such as a carry, that heads could move",
            "choose a model of a task that has one, such as addition",
        )
    return cast(SequenceTask, task)


def measurable(model: OpenModel, quartets: Sequence[Quartets], fewest: int) -> list[Quartets]:
    """Return the ways of the event (a carry from the 1s to the 10s) that can be measured on a model.

    A way needs enough quartets (sets of four examples), and the model must predict the token at every place that the
    event changes. Raise an error if there is no such way.
    """
    answers, ways = cast(SequenceModel, model.answers), []
    for way in quartets:
        if len(way) >= fewest:
            _, labels = answers.teacher_forced(np.concatenate(way.examples))
            if bool(is_readable(answers.task, way, labels.unflatten(0, (4, len(way)))).any()):
                ways.append(way)
    if not ways:
        event = answers.task.words.event
        assert event is not None, "require_event has checked this"
        raise InputError(
            f"the task {answers.task.name} has too few sets of examples that differ only in a {event.name}",
            f"choose a model whose task has a wider range of examples: at least {fewest} such sets are needed",
            f"the model must predict every token of the answer, and a {event.name} must not change the answer's length",
        )
    return ways


def position_labels(task: SequenceTask, stack: str, n: int) -> list[str]:
    """Return the names of all positions of a stack: source tokens (encoder), or predicted tokens (decoder)."""
    positions = stack_positions(task, stack)
    return [each.label for each in positions] if len(positions) == n else [str(i) for i in range(n)]


def positions_by_place(task: SequenceTask, stack: str, n: int) -> dict[str, list[int]]:
    """Return the positions in a stack that belong to each place of the answer, such as the 10s of both operands."""
    positions = stack_positions(task, stack)
    if len(positions) != n:
        return {str(i): [i] for i in range(n)}
    names = {each.column: each.label for each in task.answer_positions}
    groups: dict[str, list[int]] = {}
    for i, position in enumerate(positions):
        groups.setdefault(position.label if position.column is None else names[position.column], []).append(i)
    return groups


# --- random donors ----------------------------------------------------------------------------------------------------


def donor_test(
    model: OpenModel, heads: HeadId | Sequence[HeadId], quartets: Quartets, seed: int = 0, n: int = N_DONORS
) -> DonorTest | None:
    """Give heads the outputs that they have on random other examples (donors), and count answers that follow the donor.

    An answer follows if it changes as the donor's event (a carry) requires. Several heads are patched together, from
    one donor. Donor and receiver have labels at the same positions (one layout), because a head's output at another
    position would be about another place. Return None if all random examples have the event, or none has. Use it inside
    `torch.no_grad()`, with the model in evaluation mode.
    """
    answers, heads = cast(SequenceModel, model.answers), (heads,) if isinstance(heads, HeadId) else tuple(heads)
    task, place = answers.task, quartets.place
    positions = positions_by_layout(answers, quartets)
    examples = task.sample(stream(seed, "random donors"), 2 * n)
    inputs, labels = answers.teacher_forced(examples)
    layouts, is_right = layouts_of(labels), right_answers(model, inputs, labels).tolist()
    rows = [i for i, layout in enumerate(layouts) if is_right[i] and layout in positions][:n]
    if not rows:
        return None
    own, at, donors = examples[rows], [positions[layouts[i]] for i in rows], _previous([layouts[i] for i in rows])
    cached = CachedPass(model.module, model.sites, [each[rows] for each in inputs])
    values = {site: cached.z(site)[donors] for site in model.sites.head_slots(heads)}
    output = first_tensor(cached.replay([Intervention(heads, "patch", values=values)]))
    predicted = output[range(len(rows)), at].argmax(dim=-1).tolist()
    # The ids of the model's labels for the task's tokens.
    ids = dict(zip(task.encode(own).answer[:, place].tolist(), labels[rows, at].tolist(), strict=True))
    has_event = task.has_event(own, place)
    tokens = task.event_tokens(own, place)[np.arange(len(own)), has_event[donors].astype(int)]
    hits = np.array([ids.get(token) == label for token, label in zip(tokens.tolist(), predicted, strict=True)])
    is_other, has_donor = has_event != has_event[donors], donors != np.arange(len(rows))
    followed, unchanged = hits[is_other], hits[~is_other & has_donor]
    if not len(followed) or not len(unchanged):
        return None
    name = "+".join(head.short for head in heads)
    return DonorTest(name, quartets.read, Proportion.count(followed), Proportion.count(unchanged))


def _previous(layouts: Sequence[Layout]) -> NDArray[np.int64]:
    """Return, for each example, the index of the example before it that has labels at the same positions.

    The first example gets the index of the last one.
    """
    previous, groups = np.empty(len(layouts), dtype=np.int64), dict[Layout, list[int]]()
    for i, layout in enumerate(layouts):
        groups.setdefault(layout, []).append(i)
    for group in groups.values():
        previous[group] = np.roll(group, 1)
    return previous
