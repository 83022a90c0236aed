"""Is every answer right? What a certificate says, in one paragraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headcount.analysis.exhaustive import Certificate


def verdict(certificate: Certificate) -> str:
    """One paragraph: is every answer right, how do we know, and what does the precision of numbers do to it?"""
    found, made = certificate, certificate.environment
    right, narrowest = f"{found.errors:,} wrong", ""
    if not found.errors:
        right, narrowest = "every one right", " The narrowest win of a right digit over its best rival was "
        narrowest += f"{found.least_margin:.2f} logits, on {found.tightest}."
    return (
        f"{found.distinct:,} different sums checked, all there are: {right}. {found.decoded:,} of them were also "
        f"decoded for real, with the same verdict on each.{narrowest} {_rounding(found)} "
        f"Made on {made['hardware']} ({made['device']}, {made['dtype']}, threads: {made['threads']}, "
        f"torch {made['torch']})."
    )


def _rounding(found: Certificate) -> str:
    if found.float_error is None:
        return "It does not compute in double precision, so what rounding does to it is not known."
    rounding = "; no verdict hangs on that"
    if found.undecided:
        rounding = f": on another machine {found.undecided:,} sums, nearer than that, may come out otherwise"
    elif (times := found.times_error) is not None:
        rounding = f"; the narrowest win is about {float(f'{times:.2g}'):,.0f} times that"
    return (
        f"Double precision moved margins by at most {found.float_error:.1e} logits ({found.n_recomputed:,} sums: the "
        f"tightest, and those decoded){rounding}."
    )
