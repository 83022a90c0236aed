"""When in training do heads begin to matter? Drops from ablating single heads at snapshots of the weights, over seeds.

A head counts (matters) at a snapshot if the drop from ablating it has a 95 % CI above 1 point. A model that is hardly
better than a constant answer has nothing to lose: at such a snapshot, no head can count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headcount.heads import HeadId
from headcount.results import Contradiction, Count, HeadName, Positive, Result
from headcount.stats import Proportion
from headcount.studies.head_findings import by_run, counts, one_ablation
from headcount.studies.summary import variant_rows

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SnapshotHeads:
    """The effects of ablating single heads of one model at one training step."""

    step: Count
    accuracy: float
    """The accuracy (or other score) with all heads."""
    low: float | None
    high: float | None
    n: Positive
    """Number of examples on which the heads were ablated."""
    largest: HeadName
    """The head whose ablation costs most."""
    drop: float
    """The drop in accuracy from ablating the head `largest`."""
    can_lose: bool
    """Whether the model is so much better than a constant answer that ablating a head can cost accuracy."""
    n_critical: Count
    """Number of heads whose drop has a 95 % CI above 10 points."""
    by_site: Mapping[str, int]
    """For each attention block, in the order of the model, the number of heads whose drop has a 95 % CI above 1 point.
    """

    @property
    def n_counting(self) -> int:
        """Number of heads whose drop from ablation has a 95 % CI above 1 point."""
        return sum(self.by_site.values())

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for numbers of heads that cannot be true together."""
        if self.n_critical > self.n_counting:
            yield "n_critical", f"at most {self.n_counting}, the number of heads that count"


@dataclass(frozen=True)
class TrainingHistory:
    """The snapshots of one run, in the order of training; the trained model is the last one."""

    run: str
    seed: int | None
    variant: str
    snapshots: tuple[SnapshotHeads, ...]

    @property
    def first(self) -> SnapshotHeads | None:
        """The first snapshot at which a head counts (ablating it costs over 1 point); None if there is none."""
        return next((each for each in self.snapshots if each.n_counting), None)

    @property
    def before(self) -> SnapshotHeads | None:
        """The last snapshot before any head counts (costs over 1 point); None if one counts at the first, or none."""
        places = [i for i, each in enumerate(self.snapshots) if each.n_counting][:1]
        return self.snapshots[places[0] - 1] if places and places[0] else None

    def first_of(self, site: str) -> SnapshotHeads | None:
        """Return the first snapshot at which a head of this attention block counts (costs over 1 point), or None."""
        return next((each for each in self.snapshots if each.by_site.get(site)), None)

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the snapshots are not in the order of training."""
        steps = [each.step for each in self.snapshots]
        if not steps or steps != sorted(set(steps)):
            yield "snapshots", "at least one snapshot, with increasing steps"


@dataclass(frozen=True)
class Emergence(Result):
    """For every run of a study, when in training heads begin to count (ablating them costs over 1 point)."""

    ROWS: ClassVar[tuple[str, ...]] = ("runs.snapshots",)
    replacement: str
    metric: str
    runs: tuple[TrainingHistory, ...]

    @property
    def variants(self) -> list[str]:
        """The names of the variants (sets of settings), in the order of the runs."""
        return list(dict.fromkeys(each.variant for each in self.runs))

    @property
    def sites(self) -> list[str]:
        """The attention blocks, in the order of the model."""
        return list(dict.fromkeys(site for run in self.runs for each in run.snapshots for site in each.by_site))

    def of(self, variant: str) -> list[TrainingHistory]:
        """Return the runs of one variant."""
        return [each for each in self.runs if each.variant == variant]

    def begun(self, variant: str) -> Proportion:
        """Return in how many runs of a variant some head counts (ablating it costs over 1 point) at some snapshot."""
        runs = self.of(variant)
        return Proportion.of(sum(each.first is not None for each in runs), len(runs))


def emergence(rows: Rows, by: Sequence[str] = ()) -> Emergence | None:
    """Return when in training heads begin to count, from tidy rows (one per run and measure); None without snapshots.

    `by` names the labels that define a variant. A head counts if ablating it costs over 1 point. The trained model is
    the last snapshot.
    """
    drops = [row for row in rows if row["measure"] == "drop"]
    if not any(row["step"] is not None for row in drops):
        return None
    judged = one_ablation(drops) or drops
    kind = tuple(judged[0][name] for name in ("replacement", "length", "metric"))
    alike = [row for row in drops if tuple(row[name] for name in ("replacement", "length", "metric")) == kind]
    last = {row["run"]: int(row["value"]) for row in rows if row["measure"] == "steps"}
    clean = {
        (row["run"], row["step"], row["file"]): row
        for row in rows
        if row["measure"] == "score with all heads" and row["length"] == kind[1] and row["verb"] == "ablate"
    }
    histories = []
    for variant, chosen in variant_rows(alike, by).items():
        for (run, seed), own in by_run(chosen).items():
            snapshots = _snapshots(own, last.get(run), clean)
            if snapshots:
                histories.append(TrainingHistory(str(run), seed, variant, snapshots))
    return Emergence(str(kind[0]), str(kind[2]), tuple(histories)) if histories else None


def _snapshots(rows: Rows, last: int | None, clean: Mapping[Any, Mapping[str, Any]]) -> tuple[SnapshotHeads, ...]:
    """Return the snapshots of one run; if several files have results of one step, that with most examples is used."""
    steps = dict[int, list[Mapping[str, Any]]]()
    for step in dict.fromkeys(row["step"] for row in rows):
        at = last if step is None else step
        if at is None or (step is None and at in {row["step"] for row in rows}):
            continue  # the last snapshot is the trained model
        files = dict[str, list[Mapping[str, Any]]]()
        for row in rows:
            if row["step"] == step:
                files.setdefault(row["file"], []).append(row)
        measured = {name: heads for name, heads in files.items() if (heads[0]["run"], step, name) in clean}
        if measured:
            steps[at] = max(measured.values(), key=lambda heads: heads[0]["n"] or 0)
    return tuple(_snapshot(step, heads, clean) for step, heads in sorted(steps.items()))


def _snapshot(step: int, heads: Rows, clean: Mapping[Any, Mapping[str, Any]]) -> SnapshotHeads:
    score = clean[heads[0]["run"], heads[0]["step"], heads[0]["file"]]
    largest = max(heads, key=lambda row: row["value"])
    n_counting = Counter(row["site"] for row in heads if counts(row))
    return SnapshotHeads(
        step=step,
        accuracy=score["value"],
        low=score["low"],
        high=score["high"],
        n=score["n"],
        largest=str(HeadId.parse(largest["head"])),
        drop=largest["value"],
        can_lose=any(row["verdict"] is not None for row in heads),
        n_critical=sum(row["verdict"] == "critical" for row in heads),
        by_site={site: n_counting[site] for site in dict.fromkeys(row["site"] for row in heads)},
    )
