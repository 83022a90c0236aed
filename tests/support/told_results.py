"""Results made by hand, of which sections of a report tell, and what every section has to keep to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headcount.analysis.ablation import Ablation, AblationCondition, Effect
from headcount.analysis.length_generalisation import LengthResult, Stretch
from headcount.analysis.pruning import Point, Pruning, PruningCurve
from headcount.auditing.audit import Audit, Verdict
from headcount.describing.blocks import Conclusions, DataTable, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults
from headcount.stats import PairedDifference, Proportion
from headcount.training.evaluation import Evaluation, Scores

LENGTHS = (8, 16, 32, 64, 256)


def report_results(*models: ModelResults) -> ReportResults:
    return ReportResults("A report", models, "Made by hand.")


def model_results(title: str, task: str | None = "sortedness", **known: Any) -> ModelResults:
    return ModelResults(f"runs/{title}", title, "digest", task, **known)


# --- length generalisation --------------------------------------------------------------------------------------------


def cell(length: int, kind: str, share: float, n: int = 200, constant: str | None = None) -> LengthResult:
    """Half of the examples sorted, both classes right alike; or one answer to everything."""
    half = n // 2
    recalls = {"sorted": (0, half), "unsorted": (half, 0)}.get(constant or "", (round(share * half),) * 2)
    right, says = Proportion.of(sum(recalls), n), half - recalls[0] + recalls[1]
    return LengthResult(
        length=length,
        negative=kind,
        accuracy=right.rate,
        low=right.low,
        high=right.high,
        n=n,
        constant=constant is not None,
        constant_class=constant,
        recall=(Proportion.of(recalls[0], half), Proportion.of(recalls[1], half)),
        answers=(Proportion.of(n - says, n), Proportion.of(says, n)),
        margin=(1.0, 1.0),
    )


def stretch(encoding: str = "sinusoidal", up_to: int = 16, *, n: int = 200, easy: int = 256, **changes: Any) -> Stretch:
    """Right on adjacent swaps up to a length, beyond it 60 %; on shuffles up to another."""
    kinds = {"shuffle": easy, "adjacent": up_to}
    cells = tuple(cell(x, kind, 1.0 if x <= far else 0.6, n) for x in LENGTHS for kind, far in kinds.items())
    known: dict[str, Any] = {
        "name": f"runs/{encoding}",
        "weights_sha256": "digest",
        "encoding": encoding,
        "pooling": "max",
        "hard_codes": (),
        "label": f"{encoding}, max",
        "seed": 0,
        "trained": (8, 16),
        "classes": ("unsorted", "sorted"),
        "cells": cells,
        "cropped_results": (),
        "ids": (),
        "attention_shares": (),
        "recipe": encoding,
    }
    return Stretch(**known | changes)


# --- adders -----------------------------------------------------------------------------------------------------------


def evaluation(correct: int = 2000, n: int = 2000) -> Evaluation:
    share = Proportion.of(correct, n)
    return Evaluation("test", "digest", Scores("exact match", "all", share, share), (), (), ())


def effect(head: str, drop: float, *, half: float = 0.01, rank_low: int = 1, replacement: str = "zero") -> Effect:
    return Effect(
        head=head,
        short=short(head),
        replacement=replacement,
        metric="free-running",
        clean=1.0,
        ablated=1 - drop,
        drop=drop,
        low=drop - half,
        high=drop + half,
        p=0.001,
        band="critical",
        examples_needed=None,
        examples_needed_most=None,
        worse=10,
        better=0,
        n=2000,
        rank_low=rank_low,
        rank_high=24,
        carried=0.1,
    )


def short(head: str) -> str:
    from headcount.heads import HeadId

    return HeadId.parse(head).short


def ablation(*effects: Effect, n: int = 2000) -> Ablation:
    condition = AblationCondition(None, "the test set", n, 1.0, 0.01, 0, (), (), (), (0.99, 1.0), 0, 0)
    return Ablation(
        name="runs/a",
        weights_sha256="digest",
        metric="free-running",
        unit="points",
        is_accuracy=True,
        replacements=("zero", "mean", "resample"),
        heads=effects,
        conditions=(condition,),
        proof=(),
    )


def pruning(left: float = 0.03, *, half: float = 0.005, by_zero: int = 18, **changes: Any) -> Pruning:
    """`by_zero` of 24 heads are harmless alone; without them so much is left."""
    lost = PairedDifference(1 - left, 1 - left - half, 1 - left + half, 0.001)
    point, whole = Point(by_zero, None, left, left - half, left + half, lost), Point(0, None, 1.0, 0.99, 1.0)
    heads = tuple(f"{stack}.{layer}.{kind}.{i}" for stack, kind in STACKS for layer in (0, 1) for i in range(4))
    known: dict[str, Any] = {
        "name": "runs/a",
        "weights_sha256": "digest",
        "metric": "free-running",
        "unit": "points",
        "chosen_on": "validation",
        "measured_on": "test",
        "n": 2000,
        "n_heads": 24,
        "replacements": ("zero", "mean", "resample"),
        "loss": 0.01,
        "clean": 1.0,
        "harmless": heads[:5],
        "harmless_left": whole,
        "harmless_means": whole,
        "by_zero": heads[:by_zero],
        "by_zero_left": point,
        "n_under_1_point": by_zero,
        "chosen": (),
        "kept": whole,
        "n_tried": 0,
        "n_random": 0,
        "best_random": whole,
        "curves": (PruningCurve("greedy", (whole,)),),
        "chance": (),
        "n_orders": 0,
        "n_chance": 0,
    }
    return Pruning(**known | changes)


STACKS = (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))


# --- audits -----------------------------------------------------------------------------------------------------------


def audit(verdicts: Mapping[str, str], summary: str = "nothing found", **changes: Any) -> Audit:
    """By the ids of checks, what they said."""
    found = tuple(
        Verdict(id, f"check-{id[2:]}", verdict, f"found by {id}", f"cause of {id}", f"fix of {id}", {})
        for id, verdict in verdicts.items()
    )
    known: dict[str, Any] = {"name": "a", "weights_sha256": "digest", "task": "addition", "n": 500, "is_quick": False}
    known |= {"summary": summary, "predicted": None, "measured": 0.9, "verdicts": found}
    return Audit(**known | changes)


# --- sections ---------------------------------------------------------------------------------------------------------


def sentences(section: Section) -> list[Sentence]:
    return [each for block in section.blocks if isinstance(block, Conclusions) for each in block.sentences]


def texts(section: Section) -> str:
    return "\n".join(each.text for each in sentences(section))


def table(section: Section, name: str) -> DataTable:
    (found,) = (block for block in section.blocks if isinstance(block, DataTable) and block.id == name)
    return found


def cells(section: Section, name: str) -> list[list[str]]:
    """As they are read."""
    return [[each if isinstance(each, str) else each.text for each in row] for row in table(section, name).rows]


def require_sound(section: Section) -> None:
    """Ids are there once; sentences rest on blocks of the section, end in a full stop, and say if they are open."""
    ids = [name for block in section.blocks if (name := getattr(block, "id", ""))]
    assert len(set(ids)) == len(ids)
    told = [*sentences(section), *([section.answer] if section.answer else [])]
    for each in told:
        assert each.rests_on in ids, each
        assert each.text.endswith("."), each.text
        assert "  " not in each.text, each.text
        assert each.is_decided or any(word in each.text for word in OPEN), each.text
    for block in section.blocks:
        if isinstance(block, DataTable):
            assert block.rows
            assert {len(row) for row in block.rows} == {len(block.columns)}


OPEN = ("undecided", "not known", "may", "open", "is for the reader", "shown to be")
