"""What holds over seeds? Summaries of tidy rows: means, paired differences, counts, and rankings of heads.

Runs with the same labels are one variant; they differ in their seeds. A mean over the runs of a variant has Student's
t interval, from three runs on. Variants are compared on the seeds that they share, by a sign-flip test. Rankings of
heads are compared over seeds by Kendall's W, for single heads, attention blocks (sites), layers, and the index of a
head within its block, which training assigns at random.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.results import ROUNDING, Contradiction, Count, Positive, Result, Share, outside, unequal
from headcount.stats import AT_ONCE, N_RESAMPLES, Proportion, Values, holm, mcnemar, mean_ranks
from headcount.studies.rows import ABOUT, COLUMNS, Row, label_column
from headcount.suggestions import suggestion

FEWEST = 3
"""Smallest number of runs for which a mean gets a confidence interval."""
MOST_EXACT = 12
"""Largest number of pairs for which all sign flips are enumerated: 4,096 of them."""
MOST_PAIRS = 6
"""Up to this many variants, all pairs are compared; of more variants, each one is compared with the first one."""
ALL_RUNS = "all runs"
"""Name of the variant if nothing differs between the runs but the seed."""
Method = Literal["t", "fewer than 3 runs", "all values are equal"]
Level = Literal["head", "site", "layer", "index"]
LEVELS: tuple[Level, ...] = ("head", "site", "layer", "index")


@dataclass(frozen=True)
class VerdictCount:
    """The number of runs with one verdict, among all runs of a variant with any verdict."""

    verdict: str
    runs: Proportion


@dataclass(frozen=True)
class VariantSummary:
    """Statistics of one measure over the runs of one variant (runs that differ in their seeds)."""

    measure: str
    subject: str
    """What the measure is about, such as `E0H1, zero`; empty if it is about the whole model."""
    about: Mapping[str, str | int]
    """What the measure is about, by column of the table, such as head, replacement and length."""
    unit: str
    variant: str
    n: Positive
    """Number of runs."""
    median: float
    mean: float
    low: float | None
    high: float | None
    """The ends of the 95 % CI of the mean over runs; None without an interval."""
    method: Method
    """How the interval was computed, or why there is none."""
    values: tuple[float, ...]
    seeds: tuple[int | None, ...]
    """The seed of every run, in the order of `values`."""
    verdicts: tuple[VerdictCount, ...] = ()

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for each statistic that does not follow from the values."""
        if not self.values:
            yield "values", "at least one value"
            return
        right = float(np.median(self.values)), float(np.mean(self.values)), len(self.values)
        yield from unequal(self, median=right[0], mean=right[1], n=right[2])
        if len(self.seeds) != len(self.values):
            yield "seeds", f"{len(self.values)} seeds"
        if self.low is not None and self.high is not None:
            yield from outside(self, "mean")


@dataclass(frozen=True)
class PairedVariants:
    """The difference between two variants on the seeds that they share."""

    measure: str
    subject: str
    unit: str
    first: str
    second: str
    n: Positive
    """Number of pairs: runs that differ in the variant only."""
    difference: float
    """The mean difference: second variant minus first variant."""
    low: float | None
    high: float | None
    """The ends of the 95 % CI of the mean difference (Student's t); None without an interval."""
    method: Method
    p: Share
    """Two-sided p-value of the sign-flip test."""
    p_holm: Share
    """The p-value, Holm-corrected for all comparisons of this measure."""
    is_exact: bool
    """Whether all sign flips were enumerated, not drawn."""
    higher: Count
    """Number of pairs in which the second variant has the higher value."""
    lower: Count
    """Number of pairs in which the second variant has the lower value."""

    @property
    def least_p(self) -> float:
        """The smallest p-value that this number of pairs allows."""
        return min(1.0, 2.0 ** (1 - self.n))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for p-values and counts that cannot be true together."""
        if self.p_holm < self.p - ROUNDING:
            yield "p_holm", f"at least p, {self.p}"
        if self.higher + self.lower > self.n:
            yield "higher", f"at most n - lower, {self.n - self.lower}"


@dataclass(frozen=True)
class Concordance:
    """The agreement of several rankings: Kendall's W, corrected for ties."""

    level: Level
    """What is ranked: heads, sites, layers, or the heads within each site (`index`)."""
    n_items: Positive
    n_runs: Positive
    w: Share
    """0 if the rankings have nothing in common, 1 if they are the same."""
    p: Share
    """p-value of a permutation test: each run's ranking is shuffled."""
    leaders: tuple[VerdictCount, ...]
    """For each item, the number of runs in which it ranks first; runs with a tie for the first rank are left out."""


@dataclass(frozen=True)
class Order:
    """Whether one attention block (site) or layer ranks above another one in most runs."""

    level: Level
    first: str
    second: str
    runs: Proportion
    """Number of runs in which `first` has the larger mean over its heads, among runs in which they differ."""
    p: Share
    """Two-sided p-value of the sign test."""
    p_holm: Share
    """The p-value, Holm-corrected for all pairs of this ranking."""


@dataclass(frozen=True)
class RankingSummary:
    """Rankings of heads by one measure over the runs of one variant."""

    measure: str
    subject: str
    variant: str
    concordances: tuple[Concordance, ...]
    orders: tuple[Order, ...]

    def at(self, level: Level) -> Concordance | None:
        """Return the agreement of the rankings at one level, such as `site` (attention blocks), or None without any."""
        return next((each for each in self.concordances if each.level == level), None)


@dataclass(frozen=True)
class SeedSummary(Result):
    """Measures of many runs: by variant, between variants, and rankings of heads over seeds."""

    ROWS: ClassVar[tuple[str, ...]] = ("variants",)
    task: str
    n_runs: Positive
    by: tuple[str, ...]
    """The settings or labels that define a variant; empty if only seeds differ."""
    others: tuple[str, ...]
    """Settings that differ between runs of the same variant; runs are paired by these, too."""
    names: tuple[str, ...]
    """The variants, in the order of the rows."""
    variants: tuple[VariantSummary, ...]
    pairs: tuple[PairedVariants, ...]
    rankings: tuple[RankingSummary, ...]
    are_all_pairs: bool = True
    """Whether all pairs of variants were compared; otherwise each one was compared with the first one."""
    labels: tuple[Mapping[str, str], ...] = ()
    """The labels of each variant, in the order of `names`."""
    n_planned: Count = 0
    """Number of runs that the compared studies plan; 0 if runs were named."""

    def of(self, measure: str, subject: str = "") -> list[VariantSummary]:
        """Return one measure of one subject for each variant."""
        return [each for each in self.variants if (each.measure, each.subject) == (measure, subject)]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for results about variants that are not in the list of names."""
        if {each.variant for each in self.variants} - set(self.names):
            yield "variants", f"variants among {', '.join(self.names)}"


# --- runs and variants ------------------------------------------------------------------------------------------------


def varying_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the labels (settings) whose values differ between the rows."""
    first: dict[str, Any] = {}
    differing = dict[str, None]()
    labels = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name not in COLUMNS]
    for row in rows:
        for name in labels:
            value = row.get(name)
            if first.setdefault(name, value) != value:
                differing[name] = None
    return [name for name in labels if name in differing]


def variant_name(row: Mapping[str, Any], by: Sequence[str]) -> str:
    """Return the name of a row's variant: the value of the only label, or each label with its value.

    >>> variant_name({"encoding": "none", "n_heads": 2}, ["encoding"])
    'none'
    >>> variant_name({"encoding": "none", "n_heads": 2}, ["encoding", "n_heads"]), variant_name({}, [])
    ('encoding none, n_heads 2', 'all runs')
    """
    pairs = [(name, _label(row, name)) for name in by]
    return pairs[0][1] if len(pairs) == 1 else ", ".join(f"{name} {text}" for name, text in pairs) or ALL_RUNS


def _label(row: Mapping[str, Any], name: str) -> str:
    return "none" if (value := row.get(name)) is None else str(value)


def variant_rows(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each variant by its name; `by` names the labels that define a variant."""
    variants = dict[str, list[Mapping[str, Any]]]()
    for row in rows:
        variants.setdefault(variant_name(row, by), []).append(row)
    return variants


def summarise(
    rows: Sequence[Row], by: str | Sequence[str] = (), measures: Sequence[str] = (), seed: int = 0
) -> SeedSummary:
    """Summarise rows over seeds, for each variant; `by` names the labels that define one (default: all that differ).

    `measures` chooses measures by name. `seed` is the seed of random sign flips and rankings.
    """
    if not rows:
        raise InputError(
            "there are no stored measurements of these runs to summarise",
            "measure the runs first, such as: headcount evaluate RUN",
        )
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    if len(tasks) > 1:
        raise InputError(f"the runs have different tasks: {', '.join(map(str, tasks))}", "compare runs of one task")
    varying = varying_labels(rows)
    chosen = [label_column(name) for name in ([by] if isinstance(by, str) else by)] or varying
    known = [name for name in dict.fromkeys(itertools.chain.from_iterable(rows)) if name not in COLUMNS]
    for name in chosen:
        if name == "seed":
            raise InputError(
                "runs cannot be compared by seed", "results are averaged over seeds: name a setting, such as encoding"
            )
        if name not in known:
            raise InputError(f"these runs have no setting {name!r}", suggestion(name, varying or known))
    _require_measures(rows, measures)
    table = _Table(rows, chosen, [name for name in varying if name not in chosen], set(measures))
    rng = np.random.default_rng(seed)
    return SeedSummary(
        task=str(tasks[0]),
        n_runs=len({(row["run"], row["step"]) for row in rows}),
        by=tuple(name for name in chosen if name in varying),
        others=tuple(name for name in varying if name not in chosen),
        names=tuple(table.names),
        labels=tuple(table.labels),
        variants=tuple(table.variants()),
        pairs=tuple(table.pairs(rng)),
        rankings=tuple(_rankings(table, rng)),
        are_all_pairs=len(table.names) <= MOST_PAIRS,
    )


def _require_measures(rows: Sequence[Row], measures: Sequence[str]) -> None:
    known = dict.fromkeys(row["measure"] for row in rows)
    for name in measures:
        if name not in known:
            raise InputError(f"no values of the measure {name!r} are stored in these runs", suggestion(name, known))


Key = tuple[Any, ...]
"""A measure, its file, its step and what it is about."""


class _Table:
    """The values of rows, found by measure and subject, then by variant, then by pair (seed and other settings)."""

    def __init__(self, rows: Sequence[Row], by: Sequence[str], others: Sequence[str], measures: set[str]) -> None:
        self.names: list[str] = []
        self.labels: list[dict[str, str]] = []
        self.cells: dict[Key, dict[str, dict[Key, Row]]] = {}
        names: dict[Key, str] = {}
        for row in rows:
            labels = tuple(row.get(name) for name in by)
            if (variant := names.get(labels)) is None:
                variant = names[labels] = variant_name(row, by)
                self.names.append(variant)
                self.labels.append({name: _label(row, name) for name in by})
            if measures and row["measure"] not in measures:
                continue
            key = (row["measure"], row["file"], row["step"], *(row[name] for name in ABOUT))
            pair = (row["seed"], *(row.get(name) for name in others))
            runs = self.cells.setdefault(key, {}).setdefault(variant, {})
            if pair in runs:
                what = f"{runs[pair]['run']} and {row['run']} have the same settings and the same seed"
                raise InputError(what, "leave one of them out, or compare by a setting in which they differ")
            runs[pair] = row
        files = defaultdict[Key, set[str]](set)
        for key in self.cells:
            files[key[0], *key[2:]].add(key[1])
        self.ambiguous = {key for key, several in files.items() if len(several) > 1}

    def about(self, key: Key) -> tuple[dict[str, str | int], str]:
        """Return what a measure is about, by column and as text, with its file if several files hold the measure."""
        measure, file, step, *values = key
        about = {name: value for name, value in zip(ABOUT, values, strict=True) if value is not None}
        shown = [str(about[name]) for name in ABOUT if name in about and name not in ("site", "layer", "metric")]
        if "head" not in about and "site" in about:
            shown.insert(0, str(about["site"]))
        if step is not None:
            shown.append(f"step {step}")
        if (measure, step, *values) in self.ambiguous:
            shown.append(file)
        return about, ", ".join(shown)

    def variants(self) -> Iterator[VariantSummary]:
        """Yield the summary of each measure, subject and variant."""
        for key, by_variant in self.cells.items():
            about, subject = self.about(key)
            for variant, runs in by_variant.items():
                rows = [row for row in runs.values() if row["value"] is not None]
                if rows:
                    yield _variant_summary(rows, key[0], subject, about, variant, list(runs.values()))

    def pairs(self, rng: np.random.Generator) -> Iterator[PairedVariants]:
        """Yield the paired differences of each measure, Holm-corrected within the measure."""
        families = defaultdict[str, list[tuple[Key, str, str, list[float]]]](list)
        for key, by_variant in self.cells.items():
            present = [name for name in self.names if name in by_variant]
            if len(self.names) <= MOST_PAIRS:
                compared = list(itertools.combinations(present, 2))
            else:
                compared = [(self.names[0], name) for name in present[1:] if self.names[0] in by_variant]
            for first, second in compared:
                ours, theirs = by_variant[first], by_variant[second]
                both = [(ours[pair]["value"], theirs[pair]["value"]) for pair in ours if pair in theirs]
                differences = [after - before for before, after in both if None not in (before, after)]
                if differences:
                    families[key[0]].append((key, first, second, differences))
        for family in families.values():
            p_values = sign_flip_tests([differences for *_, differences in family], rng)
            for (key, first, second, differences), p, corrected in zip(family, p_values, holm(p_values), strict=True):
                unit = next(iter(self.cells[key][first].values()))["unit"] or ""
                mean, low, high, method = mean_interval(differences)
                yield PairedVariants(
                    *(key[0], self.about(key)[1], unit, first, second, len(differences), mean, low, high, method),
                    *(p, corrected, len(differences) <= MOST_EXACT),
                    *(sum(each > 0 for each in differences), sum(each < 0 for each in differences)),
                )


def _variant_summary(
    rows: list[Row], measure: str, subject: str, about: dict[str, str | int], variant: str, judged: list[Row]
) -> VariantSummary:
    values, unit = [float(row["value"]) for row in rows], rows[0]["unit"] or ""
    mean, low, high, method = mean_interval(values, is_share=unit == "share")
    counts = Counter(row["verdict"] for row in judged if row["verdict"] is not None)
    verdicts = tuple(VerdictCount(name, Proportion.of(n, counts.total())) for name, n in counts.most_common())
    seeds = tuple(row["seed"] for row in rows)
    middle = _median(values)
    numbers = (len(values), middle, mean, low, high, method, tuple(values), seeds, verdicts)
    return VariantSummary(measure, subject, about, unit, variant, *numbers)


def _median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean_interval(
    values: Sequence[float], *, is_share: bool = False
) -> tuple[float, float | None, float | None, Method]:
    """Return the mean, its 95 % CI (Student's t) and the method; the interval of a share is cut to [0, 1].

    >>> mean_interval([1.0, 2.0, 6.0])
    (3.0, -3.572..., 9.572..., 't')
    >>> mean_interval([0.5, 0.7]), mean_interval([1.0, 1.0, 1.0])
    ((0.6, None, None, 'fewer than 3 runs'), (1.0, None, None, 'all values are equal'))
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < FEWEST:
        return mean, None, None, "fewer than 3 runs"
    if max(values) == min(values):
        return values[0], None, None, "all values are equal"
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = _quantile(n - 1) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    return (mean, max(low, 0.0), min(high, 1.0), "t") if is_share else (mean, low, high, "t")


_QUANTILES: dict[int, float] = {}


def _quantile(df: int) -> float:
    if df not in _QUANTILES:
        _QUANTILES[df] = float(scipy.special.stdtrit(df, 0.975))
    return _QUANTILES[df]


# --- tests over seeds -------------------------------------------------------------------------------------------------


def sign_flip_tests(samples: Sequence[Sequence[float]], rng: np.random.Generator) -> list[float]:
    """Return the two-sided p-value of each sample of paired differences, by flipping their signs.

    All flips of up to 12 differences are enumerated; of more, 1,999 random ones are drawn, and the observed one is
    added.

    >>> sign_flip_tests([[1.0, 2.0, 3.0], [1.0, -1.0]], np.random.default_rng(0))
    [0.25, 1.0]
    """
    p_values = [1.0] * len(samples)
    sizes = defaultdict[int, list[int]](list)
    for i, sample in enumerate(samples):
        sizes[len(sample)].append(i)
    for n, indices in sizes.items():
        differences = np.array([samples[i] for i in indices], dtype=float)
        limit = np.abs(differences.sum(axis=1)) - 1e-9 * np.abs(differences).sum(axis=1)
        beyond, n_flips = np.zeros(len(indices), dtype=np.int64), 0
        for signs in _flips(n, rng):
            at_once = max(1, AT_ONCE // len(signs))
            for begin in range(0, len(indices), at_once):
                part = slice(begin, begin + at_once)
                beyond[part] += (np.abs(differences[part] @ signs.T) >= limit[part, None]).sum(axis=1)
            n_flips += len(signs)
        observed = 0 if n <= MOST_EXACT else 1
        for i, count in zip(indices, beyond.tolist(), strict=True):
            p_values[i] = (count + observed) / (n_flips + observed)
    return p_values


def _flips(n: int, rng: np.random.Generator) -> Iterator[Values]:
    """Yield rows of signs: all of them for few values, else random ones in parts."""
    if n <= MOST_EXACT:
        yield 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(float)
        return
    at_once = max(1, min(N_RESAMPLES, AT_ONCE // n))
    for begin in range(0, N_RESAMPLES, at_once):
        yield 1.0 - 2.0 * rng.integers(2, size=(min(at_once, N_RESAMPLES - begin), n)).astype(float)


def kendall_w(ranks_RI: Values) -> Values:
    """Return Kendall's W of rankings [..., run, item], corrected for ties; 0 if every ranking is one tie.

    >>> float(kendall_w(np.array([[1.0, 2, 3], [1, 2, 3]]))), float(kendall_w(np.array([[1.0, 2, 3], [3, 2, 1]])))
    (1.0, 0.0)
    """
    n_runs, n_items = ranks_RI.shape[-2:]
    spread = ((ranks_RI.sum(axis=-2) - n_runs * (n_items + 1) / 2) ** 2).sum(axis=-1)
    # The sum of squares of a ranking without ties is (n^3 - n) / 12; ties make it smaller.
    squares = ((ranks_RI - (n_items + 1) / 2) ** 2).sum(axis=(-2, -1))
    total = n_runs * squares
    return np.asarray(np.divide(spread, total, out=np.zeros_like(spread), where=total > 0))


def concordance_test(blocks: Sequence[Values], rng: np.random.Generator) -> tuple[float, float]:
    """Return the mean of Kendall's W over blocks of values [run, item], and its p-value by a permutation test.

    Each run's values are shuffled within each block. Blocks with one item have nothing to rank and are left out.
    """
    ranked = [mean_ranks(block) for block in blocks if block.shape[1] > 1]
    observed = float(np.mean([kendall_w(ranks) for ranks in ranked]))
    n_values = sum(ranks.size for ranks in ranked)
    at_once, n_beyond = max(1, AT_ONCE // n_values), 0
    for begin in range(0, N_RESAMPLES, at_once):
        n = min(at_once, N_RESAMPLES - begin)
        shuffled = [rng.permuted(np.broadcast_to(ranks, (n, *ranks.shape)), axis=-1) for ranks in ranked]
        n_beyond += int((np.mean([kendall_w(each) for each in shuffled], axis=0) >= observed - 1e-12).sum())
    return observed, (n_beyond + 1) / (N_RESAMPLES + 1)


# --- rankings of heads ------------------------------------------------------------------------------------------------


def _rankings(table: _Table, rng: np.random.Generator) -> Iterator[RankingSummary]:
    """Yield the agreement of the rankings of heads over the runs of each variant, for measures that rank heads."""
    families = defaultdict[Key, dict[str, Key]](dict)
    place = 3 + ABOUT.index("head")
    blanked = [3 + ABOUT.index(name) for name in ("head", "site", "layer")]
    for key in table.cells:
        if key[place] is not None and key[0].startswith(("drop", "share of")):
            family = tuple(None if i in blanked else part for i, part in enumerate(key))
            families[family][key[place]] = key
    for family, keys in families.items():
        for variant in table.names:
            values = _head_values(table, keys, variant)
            if values is None:
                continue
            heads, values_RH = values
            concordances, orders = _agreement(heads, values_RH, rng)
            yield RankingSummary(family[0], table.about(family)[1], variant, concordances, orders)


def _head_values(table: _Table, keys: Mapping[str, Key], variant: str) -> tuple[list[HeadId], Values] | None:
    """Return the heads that all runs of a variant have, and their values [run, head]; None if either is under two."""
    by_head = {head: table.cells[key].get(variant, {}) for head, key in keys.items()}
    runs = dict.fromkeys(pair for cells in by_head.values() for pair in cells)
    complete = {head: cells for head, cells in by_head.items() if len(cells) == len(runs)}
    if len(runs) < 2 or len(complete) < 2:
        return None
    values = np.array([[cells[pair]["value"] for cells in complete.values()] for pair in runs], dtype=float)
    return [HeadId.parse(head) for head in complete], values


def _agreement(
    heads: Sequence[HeadId], values_RH: Values, rng: np.random.Generator
) -> tuple[tuple[Concordance, ...], tuple[Order, ...]]:
    concordances, orders = [], list[Order]()
    groupings: dict[Level, list[str]] = {
        "head": [head.short for head in heads],
        "site": [head.site.short for head in heads],
        "layer": [f"layer {head.site.layer}" for head in heads],
    }
    for level, names in groupings.items():
        items = list(dict.fromkeys(names))
        if len(items) < 2:
            continue
        means = np.stack([values_RH[:, _where(names, item)].mean(axis=1) for item in items], axis=1)
        w, p = concordance_test([means], rng)
        concordances.append(Concordance(level, len(items), len(means), w, p, _leaders(items, means)))
        if level != "head":
            orders += _orders(level, items, means)
    sites = groupings["site"]
    blocks = [values_RH[:, _where(sites, site)] for site in dict.fromkeys(sites)]
    n_ranked = sum(block.shape[1] for block in blocks if block.shape[1] > 1)
    if n_ranked:
        w, p = concordance_test(blocks, rng)
        concordances.append(Concordance("index", n_ranked, len(values_RH), w, p, ()))
    return tuple(concordances), tuple(orders)


def _where(names: Sequence[str], name: str) -> NDArray[np.bool_]:
    return np.array([each == name for each in names])


def _leaders(items: Sequence[str], means: Values) -> tuple[VerdictCount, ...]:
    """Count in how many runs each item ranks first; runs with a tie for the first rank are left out."""
    is_first = means == means.max(axis=1, keepdims=True)
    places = is_first[is_first.sum(axis=1) == 1].argmax(axis=1).tolist()
    counts = Counter(items[place] for place in places)
    return tuple(VerdictCount(name, Proportion.of(n, len(places))) for name, n in counts.most_common())


def _orders(level: Level, items: Sequence[str], means: Values) -> list[Order]:
    """Compare each pair of sites or layers over runs by a sign test; the one that wins more often is named first."""
    pairs = []
    for i, j in itertools.combinations(range(len(items)), 2):
        wins, losses = int((means[:, i] > means[:, j]).sum()), int((means[:, i] < means[:, j]).sum())
        if wins + losses:
            first, second = (i, j) if wins >= losses else (j, i)
            pairs.append((items[first], items[second], max(wins, losses), wins + losses))
    p_values = [mcnemar(n - k, k) for *_, k, n in pairs]
    return [
        Order(level, first, second, Proportion.of(k, n), p, corrected)
        for (first, second, k, n), p, corrected in zip(pairs, p_values, holm(p_values), strict=True)
    ]
