"""Which statements about heads hold over seeds: by attention block, by layer, by route and by function?

A head's index means nothing: training assigns it at random. Therefore runs are compared by what any head of a block
does. A block counts (matters) in a run if the drop from ablating at least one of its heads has a 95 % CI above 1 point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Literal

from headcount.bands import CARRIER, IMPORTANT, PART, ranked_by
from headcount.heads import HeadId
from headcount.results import Contradiction, Positive, Result
from headcount.stats import Proportion
from headcount.studies.summary import Method, mean_interval, variant_rows

BLOCK_SUFFIX = ", all heads of a block"
"""End of the names of measures for which all heads of an attention block are patched together."""
SHARE = "share of the "
"""Beginning of the names of measures that give the share of an event, such as the carry, that patched heads move."""
LABEL = "attention: "
"""Beginning of the names of measures whose verdict is the label of a head."""
MORE = "more than the "
"""Beginning of the verdict about a head that also moves the answer in a placebo patch, which changes no event."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class PlaceFinding:
    """In how many runs of a variant an attention block or layer has a head that counts (ablating it costs accuracy)."""

    level: Literal["site", "layer"]
    place: str
    """The block's short name, such as `X0`, or `layer 0`."""
    counts: Proportion
    """Runs in which ablating some head of the block or layer costs accuracy: the whole 95 % CI lies above 1 point."""
    idle: Proportion
    """Runs in which ablating any single head of the block or layer costs little: the whole 95 % CI lies below 1 point.
    """
    drops: tuple[float, ...]
    """For each run, the largest drop in accuracy from ablating one head of the block or layer."""
    seeds: tuple[int | None, ...]
    median: float
    mean: float
    low: float | None
    high: float | None
    """The ends of the 95 % CI of the mean over runs; None without an interval."""
    method: Method

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for numbers of runs that cannot be true together."""
        if not len(self.drops) == len(self.seeds) == self.counts.n == self.idle.n:
            yield "drops", f"{self.counts.n} values"
        elif self.counts.correct + self.idle.correct > self.counts.n:
            yield "idle", f"at most {self.counts.n - self.counts.correct} runs"


@dataclass(frozen=True)
class RouteFinding:
    """How much one attention block moves the task's event (such as the carry) on one way, over a variant's runs."""

    event: str
    way: str
    site: str
    leads: Proportion
    """Runs in which the heads of this block together move a larger share of the event than those of any other block."""
    takes_part: Proportion
    """Runs in which this block moves at least a tenth of the event: the whole 95 % CI of the share lies above 0.1."""
    shares: tuple[float, ...]
    seeds: tuple[int | None, ...]
    median: float


@dataclass(frozen=True)
class FunctionFinding:
    """A function that some head of an attention block has in some runs, whichever head of the block it is."""

    function: str
    """The function in words, such as `carries the carry from 1s to 10s`, or `is labelled operator`."""
    kind: Literal["carries", "moves", "label"]
    site: str
    runs: Proportion
    """Runs in which at least one head of the block has this function."""
    heads: tuple[str, ...]
    """For each run in which a head of the block has this function, the head that has it most."""

    @property
    def n_indices(self) -> int:
        """Number of different heads that have this function in some run."""
        return len(set(self.heads))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if there is not one head for each run."""
        if len(self.heads) != self.runs.correct:
            yield "heads", f"{self.runs.correct} heads"


@dataclass(frozen=True)
class VariantFindings:
    """Statements about heads that hold over the runs of one variant (runs that differ in their seeds only)."""

    variant: str
    n_runs: Positive
    replacement: str | None
    """The kind of ablation by which heads are judged, such as zero; None if no ablation with verdicts is stored."""
    n_examples: int | None
    """Smallest number of examples on which a run was ablated."""
    places: tuple[PlaceFinding, ...]
    routes: tuple[RouteFinding, ...]
    functions: tuple[FunctionFinding, ...]

    def at(self, level: str) -> list[PlaceFinding]:
        """Return the findings about blocks (`site`) or layers (`layer`)."""
        return [each for each in self.places if each.level == level]


@dataclass(frozen=True)
class HeadFindings(Result):
    """Statements about heads over the seeds of a study, for each variant."""

    ROWS: ClassVar[tuple[str, ...]] = ("variants.places",)
    variants: tuple[VariantFindings, ...]


def find_over_seeds(rows: Rows, by: Sequence[str] = ()) -> HeadFindings | None:
    """Return statements about heads, for each variant, from tidy rows (one per run and measure), or None.

    `by` names the labels that define a variant. Rows of snapshots are left out.
    """
    variants = []
    for variant, chosen in variant_rows([row for row in rows if row["step"] is None], by).items():
        places, replacement, n = _places(chosen)
        routes, functions = tuple(_routes(chosen)), (*_movers(chosen), *_labels(chosen))
        if places or routes or functions:
            n_runs = len({row["run"] for row in chosen})
            variants.append(VariantFindings(variant, n_runs, replacement, n, tuple(places), routes, functions))
    return HeadFindings(tuple(variants)) if variants else None


def one_ablation(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the rows with drops of one ablation per run: of the ablation that most runs share, on the most examples.

    Zero ablation is preferred. Of several lengths, the first one is taken. Heads without a band are left out, because
    a model that is hardly better than a constant answer has nothing to lose.
    """
    drops = [row for row in rows if row["measure"] == "drop" and row["verdict"] is not None]
    if not drops:
        return []
    replacement = ranked_by(list(dict.fromkeys(row["replacement"] for row in drops)))
    groups = defaultdict[Any, list[Mapping[str, Any]]](list)
    for row in drops:
        if row["replacement"] == replacement:
            groups[row["file"], row["length"], row["metric"]].append(row)

    def size(group: list[Mapping[str, Any]]) -> tuple[int, int]:
        return len({(row["run"], row["step"]) for row in group}), max(row["n"] or 0 for row in group)

    return max(groups.values(), key=size)


def counts(row: Mapping[str, Any]) -> bool:
    """Return whether the whole 95 % CI of a head's drop in accuracy lies above 1 point."""
    return row["verdict"] is not None and row["low"] is not None and row["low"] > IMPORTANT


def is_idle(row: Mapping[str, Any]) -> bool:
    """Return whether the whole 95 % CI of a head's drop in accuracy lies below 1 point."""
    return row["verdict"] is not None and row["high"] is not None and row["high"] < IMPORTANT


def by_run(rows: Rows) -> dict[tuple[str, int | None], list[Mapping[str, Any]]]:
    """Return the rows of each run by its name and seed."""
    runs = defaultdict[tuple[str, int | None], list[Mapping[str, Any]]](list)
    for row in rows:
        runs[row["run"], row["seed"]].append(row)
    return runs


def _seeds(runs: Mapping[tuple[str, int | None], Any]) -> tuple[int | None, ...]:
    return tuple(seed for _, seed in runs)


# --- blocks and layers ------------------------------------------------------------------------------------------------


def _places(rows: Rows) -> tuple[list[PlaceFinding], str | None, int | None]:
    """Return a finding for each attention block and layer, the kind of ablation and the smallest number of examples."""
    drops = one_ablation(rows)
    if not drops:
        return [], None, None
    findings = []
    sites = list(dict.fromkeys(row["site"] for row in drops))
    layers = sorted({row["layer"] for row in drops})
    for site in sites:
        findings.append(_place("site", site, [row for row in drops if row["site"] == site]))
    for layer in layers if len(layers) > 1 else ():
        findings.append(_place("layer", f"layer {layer}", [row for row in drops if row["layer"] == layer]))
    return findings, drops[0]["replacement"], min((row["n"] or 0 for row in drops), default=None)


def _place(level: Literal["site", "layer"], place: str, rows: Rows) -> PlaceFinding:
    runs = by_run(rows)
    largest = [max(float(row["value"]) for row in heads) for heads in runs.values()]
    n_counts = sum(any(map(counts, heads)) for heads in runs.values())
    n_idle = sum(all(map(is_idle, heads)) for heads in runs.values())
    mean, low, high, method = mean_interval(largest)
    n = len(runs)
    shares = Proportion.of(n_counts, n), Proportion.of(n_idle, n)
    return PlaceFinding(level, place, *shares, tuple(largest), _seeds(runs), median(largest), mean, low, high, method)


# --- routes of an event -----------------------------------------------------------------------------------------------


def _routes(rows: Rows) -> Iterator[RouteFinding]:
    """Yield, for each way of the event, how often each attention block moves the largest share of it."""
    blocks = [row for row in rows if row["measure"].startswith(SHARE) and row["measure"].endswith(BLOCK_SUFFIX)]
    for (measure, way), group in _grouped(blocks, "measure", "way").items():
        runs = by_run(group)
        leaders = [max(some, key=lambda row: row["value"])["site"] for some in runs.values()]
        for site in dict.fromkeys(row["site"] for row in group):
            own = [next((row for row in some if row["site"] == site), None) for some in runs.values()]
            shares = tuple(0.0 if row is None else float(row["value"]) for row in own)
            leads = Proportion.of(leaders.count(site), len(leaders))
            takes_part = Proportion.of(sum(row is not None and row["low"] >= PART for row in own), len(own))
            event = measure.removeprefix(SHARE).removesuffix(BLOCK_SUFFIX)
            yield RouteFinding(event, way, site, leads, takes_part, shares, _seeds(runs), median(shares))


def _grouped(rows: Rows, *columns: str) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    groups = defaultdict[tuple[Any, ...], list[Mapping[str, Any]]](list)
    for row in rows:
        groups[tuple(row[name] for name in columns)].append(row)
    return groups


# --- functions --------------------------------------------------------------------------------------------------------


def _movers(rows: Rows) -> Iterator[FunctionFinding]:
    """Yield the blocks with a head that carries the event, or a part of it, on each way."""
    heads = [
        row for row in rows if row["head"] is not None and row["measure"].startswith(SHARE) and row["low"] is not None
    ]
    for (measure, way), group in _grouped(heads, "measure", "way").items():
        event = measure.removeprefix(SHARE)
        for kind, limit, verb in (("carries", CARRIER, "carries"), ("moves", PART, "moves a part of")):
            moving = [row for row in group if row["low"] >= limit and not str(row["verdict"]).startswith(MORE)]
            yield from _functions(f"{verb} the {event} from {way}", kind, group, moving)


def _labels(rows: Rows) -> Iterator[FunctionFinding]:
    """Yield the blocks with a head of each label; the label says what the head attends to."""
    stats = [row for row in rows if row["measure"].startswith(LABEL) and row["head"] is not None]
    # A head has one row per measure, all with the same label.
    heads = list({(row["run"], row["seed"], row["head"]): row for row in stats}.values())
    for label in dict.fromkeys(row["verdict"] for row in heads if row["verdict"]):
        yield from _functions(
            f"is labelled “{label}”", "label", heads, [row for row in heads if row["verdict"] == label]
        )


def _functions(function: str, kind: Any, measured: Rows, doing: Rows) -> Iterator[FunctionFinding]:
    n = len(by_run(measured))
    for site in dict.fromkeys(row["site"] for row in doing):
        runs = by_run([row for row in doing if row["site"] == site])
        first = [max(some, key=lambda row: row["value"] or 0.0)["head"] for some in runs.values()]
        heads = tuple(HeadId.parse(head).short for head in first)
        yield FunctionFinding(function, kind, site, Proportion.of(len(runs), n), heads)
