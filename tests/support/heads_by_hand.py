"""Results of heads by hand, for sections of a report: what those say should follow from these numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.analysis.ablation import Ablation, AblationCondition, Effect
from headcount.analysis.attention_contrasts import MOVED, ContrastShift
from headcount.analysis.exhaustive_check import Certificate
from headcount.analysis.head_labels import THRESHOLDS, Calibration, MeasureMean
from headcount.analysis.pruning import Point, Pruning, PruningCurve, RandomBaseline
from headcount.analysis.specialisation import HeadStats, Named, Specialisation
from headcount.bands import band_of
from headcount.describing.blocks import Conclusions, DataTable, Picture, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults
from headcount.experiments.decoding_check import FailureProfile, Group
from headcount.heads import HeadId
from headcount.stats import PairedDifference, Proportion
from headcount.training.evaluation import Classification, ClassScores, Evaluation, Scores, WrongAnswer

SETTINGS = {
    "seed": 0,
    "digits": 3,
    "steps": 2000,
    "batch_size": 64,
    "n_heads": 4,
    "d_model": 128,
    "encoding": "learned",
}
Share = tuple[int, int]
"""Right, of how many."""
Shares = Mapping[str, Share] | None
Settings = Mapping[str, Any] | None
CONDITIONS = ("carry in", "no carry in", "difference")


def model_results(
    title: str = "adder", task: str | None = "addition", settings: Settings = None, **known: Any
) -> ModelResults:
    return ModelResults(f"runs/{title}", title, "digest", task, SETTINGS if settings is None else settings, **known)


def report_results(*models: ModelResults) -> ReportResults:
    return ReportResults("Heads", models, "by hand")


def sentences(section: Section) -> list[Sentence]:
    return [each for block in section.blocks if isinstance(block, Conclusions) for each in block.sentences]


def texts(section: Section) -> str:
    return " ".join(each.text for each in sentences(section))


def require_sound(section: Section) -> None:
    """What every section owes: sentences rest on blocks that are there, ids are unique, pictures can be drawn."""
    ids = [block.id for block in section.blocks if hasattr(block, "id")]
    assert len(set(ids)) == len(ids)
    told = [*sentences(section), *([section.answer] if section.answer else [])]
    assert {each.rests_on for each in told} <= set(ids)
    for each in told:
        assert each.text == each.text.strip()
        assert each.text.endswith(".")
        assert "  " not in each.text
        assert each.is_decided or any(word in each.text for word in ("undecided", "depends", "agree on no head"))
    for block in section.blocks:
        if isinstance(block, DataTable):
            assert {len(row) for row in block.rows} <= {len(block.columns)}
        if isinstance(block, Picture):
            assert block.alt
            assert block.draw().axes


# --- evaluations ------------------------------------------------------------------------------------------------------


def evaluation(
    free: Share = (1998, 2000),
    forced: Share | None = None,
    digits: Shares = None,
    chains: Shares = None,
    **changes: Any,
) -> Evaluation:

    def scores(facet: str, group: str, share: Share) -> Scores:
        return Scores(facet, group, Proportion.of(*share), Proportion.of(*share))

    found: dict[str, Any] = {
        "split": "test",
        "weights_sha256": "digest",
        "exact": Scores("exact match", "all", Proportion.of(*(forced or free)), Proportion.of(*free)),
        "digits": tuple(scores("digit", name, share) for name, share in (digits or {}).items()),
        "groups": tuple(scores("longest chain", name, share) for name, share in (chains or {}).items()),
        "wrong": (),
    }
    return Evaluation(**found | changes)


def classification(right: Share = (990, 1000), classes: Shares = None, constant: str | None = None) -> Classification:
    classes = classes or {"unsorted": (490, 500), "sorted": (500, 500)}
    return Classification(
        split="test",
        weights_sha256="digest",
        accuracy=ClassScores("accuracy", "all", Proportion.of(*right)),
        groups=tuple(ClassScores("class", name, Proportion.of(*share)) for name, share in classes.items()),
        answer_shares=tuple(ClassScores("says", name, Proportion.of(500, 1000)) for name in classes),
        constant=constant,
        wrong=(),
    )


def certificate(errors: int = 0, **changes: Any) -> Certificate:
    wrong = [WrongAnswer(f"{i}+1", str(i + 1), str(i), "off by one") for i in range(min(errors, 60))]
    found: dict[str, Any] = {
        "name": "runs/adder",
        "weights_sha256": "digest",
        "total": 810_000,
        "errors": errors,
        "wrong": tuple(wrong),
        "least_margin": None if errors else 9.52,
        "tightest": "591+404",
        "decoded": 2000,
        "distinct": 810_000,
        "float_error": 2.7e-5,
        "n_recomputed": 3000,
        "undecided": 0,
        "environment": {"hardware": "a processor", "device": "cpu", "dtype": "float32", "threads": "2", "torch": "2"},
    }
    return Certificate(**found | changes)


# --- heads ------------------------------------------------------------------------------------------------------------


def effect(
    name: str, drop: float, half: float = 0.005, replacement: str = "zero", n: int = 2000, unit: str = "points"
) -> Effect:
    """Without this head so much is lost, give or take."""
    paired, head = PairedDifference(drop, drop - half, drop + half, 0.001), HeadId.parse(name)
    return Effect(
        head=str(head),
        short=head.short,
        replacement=replacement,
        metric="free-running",
        clean=0.99,
        ablated=0.99 - drop,
        drop=drop,
        low=paired.low,
        high=paired.high,
        p=0.001,
        band=band_of(paired) if unit == "points" else None,
        examples_needed=None,
        examples_needed_most=None,
        worse=1,
        better=0,
        n=n,
        rank_low=1,
        rank_high=1,
        carried=0.0,
    )


def ablation(
    *effects: Effect, failures: Sequence[FailureProfile] = (), unit: str = "points", clean: float = 0.99
) -> Ablation:
    condition = AblationCondition(
        length=None,
        data="the test set",
        n=2000,
        clean=clean,
        majority_baseline=0.0,
        decoded=0,
        decoded_replacements=(),
        importances=(),
        agreements=(),
        clean_interval=(0.98, 1.0),
        n_mean=0,
        donors=0,
        failures=tuple(failures),
    )
    replacements = tuple(dict.fromkeys(each.replacement for each in effects))
    named = ("runs/adder", "digest", "free-running", unit, unit == "points")
    return Ablation(*named, replacements, tuple(effects), (condition,), ())


def failures(head: str, carry: Share, no_carry: Share, faults: int = 0) -> FailureProfile:
    """Broken of how many: sums with a carry, and sums without one."""
    groups = (Group("carries", "0", *no_carry), Group("carries", "1", *carry), Group("sum", "below 1000", 1, 5))
    broken = carry[0] + no_carry[0]
    told = (Group("fault", "lost the carry from the 1s", faults, broken),) if broken else ()
    n = carry[1] + no_carry[1]
    return FailureProfile(str(HeadId.parse(head)), "zero", broken, n, (), told, groups, (), faults if broken else None)


def head_stats(
    name: str, label: str = "", moved: float = 0.0, carry: tuple[float, float] = (0.5, 0.5), columns: Sequence[str] = ()
) -> HeadStats:
    """Its label, how far a carry moves it, and its attention to the aligned column with a carry and without."""
    head, n, se = HeadId.parse(name), 400, 0.01
    shares = [carry[0], carry[1], carry[0] - carry[1]]
    measures = [MeasureMean("aligned column", "all", "all", sum(carry) / 2, se, n, 0.25)]
    for condition, share in zip(CONDITIONS, shares, strict=True):
        measures.append(MeasureMean("aligned column", "all", condition, share, se, n, 0.0))
    measures += [MeasureMean("aligned column", column, "all", 0.9, se, n, 0.25) for column in columns]
    measures += [MeasureMean(name, "all", "all", 0.4, se, n) for name in ("entropy", "entropy share", "sparsity")]
    shifts = (ContrastShift(MOVED, "all", 0.05, 0.05 + moved, moved, se, n),)
    site = head.site
    return HeadStats(str(head), head.short, site.stack, site.layer, site.kind, label, tuple(measures), shifts)


def stats(*heads: HeadStats) -> Specialisation:
    calibration = Calibration(("untrained", "shuffled"), 59, 60, 0.05, ())
    named = Named("carry sensitivity", "attention moved by a carry")
    given = ("runs/adder", "digest", 2000, "the test set", "attention weight", THRESHOLDS, calibration)
    return Specialisation(*given, heads, named)


def point(n_removed: int, score: float, drop: float, half: float = 0.004) -> Point:
    lost = PairedDifference(drop, drop - half, drop + half, 0.01)
    return Point(n_removed, "encoder.0.self.0", score, score - 0.01, min(score + 0.01, 1.0), lost)


def pruning(**changes: Any) -> Pruning:
    """Of 8 heads: 3 can go together, and 5 that are harmless alone leave nearly nothing."""
    heads = tuple(f"encoder.{i // 4}.self.{i % 4}" for i in range(8))
    whole = Point(0, None, 0.99, 0.98, 1.0, PairedDifference(0.0, 0.0, 0.0, 1.0))
    curve = (whole, *(Point(k, heads[k - 1], 0.99 - k / 9, 0.9 - k / 10, 1.0 - k / 9) for k in range(1, 9)))
    found: dict[str, Any] = {
        "name": "runs/adder",
        "weights_sha256": "digest",
        "metric": "free-running",
        "unit": "points",
        "chosen_on": "the validation set",
        "measured_on": "the test set",
        "n": 2000,
        "n_heads": 8,
        "replacements": ("zero", "mean"),
        "loss": 0.01,
        "clean": 0.99,
        "harmless": heads[:4],
        "harmless_left": point(4, 0.985, 0.005),
        "harmless_means": point(4, 0.985, 0.005),
        "by_zero": heads[:5],
        "by_zero_left": point(5, 0.046, 0.944),
        "n_under_1_point": 5,
        "chosen": heads[:3],
        "kept": point(3, 0.988, 0.002),
        "n_tried": 21,
        "n_random": 21,
        "best_random": point(3, 0.7, 0.29),
        "curves": (PruningCurve("alone", curve), PruningCurve("together", curve), PruningCurve("greedy", curve)),
        "chance": (RandomBaseline(2, 0.1, 0.5, 0.9),),
        "n_orders": 10,
        "n_chance": 100,
    }
    return Pruning(**found | changes)
