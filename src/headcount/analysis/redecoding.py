"""Decode for real what one forward pass decided, and say what broke.

Free-running exact match needs no decoding loop (training/margins.py), with heads silent or not; a sample of every trial
is decoded all the same, and must come out as found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.breakage import Breakage, Broken, breakage
from headcount.analysis.subjects import FREE, Subject
from headcount.analysis.trials import Trial, Tried
from headcount.errors import CheckFailed
from headcount.heads import HeadSite
from headcount.instruments.gates import Gates, silenced
from headcount.models.decoding import greedy
from headcount.models.encoder_decoder import EncoderDecoder
from headcount.tasks.base import SequenceTask, Tokens

CHECKED = 8
"""Examples of each trial that are decoded for real to check the quick way."""
EXPLAINED = 100
"""Broken examples of each trial that are decoded for real to say what broke."""
Picks = list[tuple[int, int]]
"""Trial and row of a block."""


class Redecoder:
    """Is shown block after block as it was tried."""

    def __init__(self, subject: Subject, trials: Sequence[Trial], *, explain: bool) -> None:
        self.subject, self.trials, self.explain = subject, trials, explain
        self.decodes = subject.metric is FREE and isinstance(subject.model, EncoderDecoder)
        self.generates = subject.metric is FREE and subject.decode is not None
        self.decoded = 0
        self.decoded_kinds: tuple[str, ...] = ()
        self._n_broken = np.zeros(len(trials), dtype=int)
        self._broken: list[list[Broken]] = [[] for _ in trials]
        self._counted: list[list[int]] = [[] for _ in trials]

    def __call__(self, tried: Tried) -> None:
        """Check the first block; look for what broke in every one."""
        if self.decodes and not self.decoded:
            self._check(tried)
        if self.generates and not self.decoded:
            self._check_generated(tried)
        if self.explain and self.subject.metric.is_share and self.subject.task is not None:
            self._collect(tried)

    def breakages(self) -> tuple[Breakage, ...]:
        """What broke, trial by trial."""
        if not self.explain or self.subject.task is None or self.subject.examples is None:
            return ()
        task, examples = self.subject.task, self.subject.examples
        return tuple(
            breakage(task, examples, str(trial.heads[0]), trial.kind, np.array(rows, dtype=int), broken)
            for trial, rows, broken in zip(self.trials, self._counted, self._broken, strict=True)
            if trial.draw == 0
        )

    def _check(self, tried: Tried) -> None:
        rows = np.unique(np.linspace(0, len(tried.block.rows) - 1, CHECKED).astype(int))
        picks = [(trial, int(row)) for trial in range(len(self.trials)) for row in rows]
        right = (self._say(tried, picks) == self._answers(tried, picks)).all(axis=1)
        found = np.array([tried.scores[trial, row] > 0.5 for trial, row in picks])
        if (right != found).any():
            trial, row = picks[int((right != found).argmax())]
            example = self._show(tried, row)
            raise CheckFailed(
                f"without {self.trials[trial].heads[0]}, one forward pass and real decoding disagree on {example}",
                "this is a fault in the pipeline, not in the model: please report it",
            )
        self.decoded = len(picks)
        self.decoded_kinds = tuple(dict.fromkeys(trial.kind for trial in self.trials))

    def _check_generated(self, tried: Tried) -> None:
        """By the model's own code, trial by trial; only where nothing stands in, for it may see one token at a time."""
        assert self.subject.decode is not None, "asked for by generates"
        rows = np.unique(np.linspace(0, len(tried.block.rows) - 1, CHECKED).astype(int))
        sites = self.subject.sites
        for trial, change, scores in zip(self.trials, tried.changes, tried.scores, strict=True):
            if change.stands:
                continue
            with Gates(sites, silenced(sites, (*tried.recording.base, *change.heads))):
                right = self.subject.decode(tried.block.rows[rows])
            if (apart := right != (scores[rows] > 0.5)).any():
                raise CheckFailed(
                    f"without {trial.heads[0]}, one forward pass and real decoding disagree on example "
                    f"{int(tried.block.rows[rows][apart.argmax()])}",
                    "fed the right answer, the first wrong token is the one that it says running freely: is the model "
                    "fed as it was trained, start token included, are labels of padding -100, and does `generate` stop "
                    "where the labels do?",
                )
            self.decoded += len(rows)
            self.decoded_kinds = tuple(dict.fromkeys((*self.decoded_kinds, trial.kind)))

    def _collect(self, tried: Tried) -> None:
        picks: Picks = []
        for trial in (i for i, each in enumerate(self.trials) if each.draw == 0):  # of several donors, the first
            rows = np.flatnonzero((tried.clean > 0.5) & (tried.scores[trial] <= 0.5))
            self._counted[trial] += tried.block.rows[rows].tolist()
            room = EXPLAINED - len(self._broken[trial]) - sum(pick[0] == trial for pick in picks)
            picks += [(trial, int(row)) for row in rows[: max(0, room)]]
        if not picks:
            return
        said = self._say(tried, picks) if self.decodes else None
        for i, (trial, row) in enumerate(picks):
            self._broken[trial].append(Broken(int(tried.block.rows[row]), None if said is None else said[i]))

    def _say(self, tried: Tried, picks: Picks) -> Tokens:
        """Whole answers, decoded one token at a time with the heads of each pick's trial silent."""
        model, task = cast(EncoderDecoder, self.subject.model), cast(SequenceTask, self.subject.task)
        rows = torch.tensor([row for _, row in picks])
        start = task.generation
        sites = self.subject.sites
        base = Gates(sites, silenced(sites, tried.recording.base))
        with base, Gates(sites, *_interventions(self.subject, tried, picks), growing=True):
            memory = model.encode(tried.block.inputs[0][rows])
            said = greedy(model, memory, start.first, start.n_tokens, use_cache=False).cpu().numpy()
        given = np.broadcast_to(np.array(start.given, dtype=np.int64), (len(said), len(start.given)))
        return np.concatenate([given, said], axis=1)

    def _answers(self, tried: Tried, picks: Picks) -> Tokens:
        task, examples = cast(SequenceTask, self.subject.task), cast(NDArray[np.int64], self.subject.examples)
        return task.encode(examples[tried.block.rows[[row for _, row in picks]]]).answer

    def _show(self, tried: Tried, row: int) -> str:
        task, examples = cast(SequenceTask, self.subject.task), cast(NDArray[np.int64], self.subject.examples)
        return task.show(examples[tried.block.rows[row]])


def _interventions(
    subject: Subject, tried: Tried, picks: Picks
) -> tuple[dict[HeadSite, Tensor], dict[HeadSite, Tensor]]:
    """Gates and stand-ins with one row per pick."""
    gates: dict[HeadSite, Tensor] = {}
    stands: dict[HeadSite, Tensor] = {}
    for i, (trial, row) in enumerate(picks):
        change = tried.changes[trial]
        for site, places in subject.sites.by_site(change.heads).items():
            z = tried.recording.z(site)
            gate = gates.setdefault(site, torch.ones(len(picks), z.shape[2]))
            gate[i, list(places)] = 0.0
            if site in change.stands:
                stand = stands.setdefault(site, z.new_zeros(len(picks), *z.shape[1:]))
                stand[i] = change.stands[site].expand(z.shape)[row]
    return gates, stands
