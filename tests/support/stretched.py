"""A model at three lengths, made by hand: accurate up to 16, with one answer for every adjacent swap at 64."""

from dataclasses import replace
from typing import Any

from headcount.analysis.length_generalisation import AttentionShare, LengthResult, ShiftedIds, Stretch
from headcount.stats import Proportion

KINDS = ("shuffle", "adjacent")
LENGTHS = (8, 16, 64)


def cell(length: int, kind: str, correct: int, constant_class: str | None = None) -> LengthResult:
    """Return a result of 20 sequences, ten of them sorted, of which so many are classified correctly."""
    share, half = Proportion.of(correct, 20), Proportion.of(correct // 2, 10)
    return LengthResult(
        length=length,
        negative=kind,
        accuracy=share.rate,
        low=share.low,
        high=share.high,
        n=20,
        constant=constant_class is not None,
        constant_class=constant_class,
        recall=(Proportion.of(correct - correct // 2, 10), half),
        answers=(
            Proportion.of(20 * (constant_class == "unsorted"), 20),
            Proportion.of(20 * (constant_class != "unsorted"), 20),
        )
        if constant_class
        else (half, half),
        margin=(1.5, -0.5),
    )


def attention_share(length: int, head: str, right: float = 0.1) -> AttentionShare:
    """Return shares of 9 sequences; the standard errors are all different."""
    return AttentionShare(length, head, 9, 0.3, 0.2, right, 0.25, 0.01, 0.02, 0.03, 0.05, 0.04)


def result(**changes: Any) -> Stretch:
    """Return the result with some fields changed."""
    cells = [cell(length, kind, 20) for length in (8, 16) for kind in KINDS]
    cells += [cell(64, "shuffle", 18), cell(64, "adjacent", 10, "sorted")]
    attention_shares = tuple(attention_share(n, f"layer.0.self.{i}", 0.1 * i) for n in LENGTHS for i in (0, 1))
    ids = ShiftedIds(0, cell(16, "adjacent", 20), 0.0), ShiftedIds(48, cell(16, "adjacent", 12), 7.5)
    whole = Stretch(
        name="runs/a",
        weights_sha256="digest",
        encoding="rotary",
        pooling="max",
        hard_codes=(),
        label="rotary, max",
        seed=0,
        trained=(8, 16),
        classes=("unsorted", "sorted"),
        cells=tuple(cells),
        cropped_results=(cell(64, "adjacent", 16),),
        ids=ids,
        attention_shares=attention_shares,
        recipe="one",
    )
    return replace(whole, **changes)
