"""What is left if all heads are removed that cost next to nothing alone?

Reports 001, 003 and 004 called 41.67, 62.5 and 58.3 % of heads prunable, for each of them cost under a point alone.
Nobody removed them together: of report 004's own model, its 14 leave 0.0 %. Heads stand in for each other.
"""

from __future__ import annotations

from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, passed, warned
from headcount.auditing.observed import Observed
from headcount.experiments.models import RunModel

ALONE = 0.01
"""What a head that is called prunable costs at most."""
TOGETHER = 0.2
"""What they may cost together."""


def run(observed: Observed) -> Finding:
    """By zero, alone and together, on the same examples."""
    sweep = observed.head_sweep
    drops, clean, n = sweep.drops(sweep.zero), float(sweep.clean.mean()), sweep.n
    cheap = [head for head, drop in zip(sweep.heads, drops, strict=True) if drop < ALONE]
    told = f"{len(cheap)} of {len(sweep.heads)} heads each cost under 1 point alone"
    evidence: Evidence = {"cheap": len(cheap), "heads": len(sweep.heads), "clean": clean, "n": n}
    if len(cheap) < 2:
        return passed(f"{told}, on {n} examples", **evidence)
    left = sweep.together(cheap)
    told = f"{told}; removed together, {100 * left:.1f} % of {n} examples are right, with them {100 * clean:.1f} %"
    if clean - left <= TOGETHER:
        return passed(told, left=left, **evidence)
    if not _were_ablated_alone(observed):  # it is so with most models, and a fault only where somebody counted heads
        return passed(f"{told}; no result counts heads that were ablated one by one", left=left, **evidence)
    return warned(
        f"heads were ablated one by one and never removed together: {told}: do not publish "
        f"{100 * len(cheap) / len(sweep.heads):.1f} % as prunable",
        cause="heads stand in for each other, so that each can be spared and all cannot",
        fix="remove heads together, one after the other, and measure what is left each time: headcount prune",
        left=left,
        **evidence,
    )


def _were_ablated_alone(observed: Observed) -> bool:
    """Whether a run has results of ablations, and none of heads that were removed together."""
    run = observed.model.run if isinstance(observed.model, RunModel) else None
    results = [] if run is None else [file.name for file in (run.folder.path / "results").glob("*.json")]
    return any(name.startswith("ablation") for name in results) and not any(
        name.startswith("pruning") for name in results
    )


PART = Check("HC704", "What is left without all heads that cost next to nothing alone?", run, affects=CONCLUSIONS)
