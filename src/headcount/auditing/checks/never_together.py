"""What accuracy is left if all heads that cost next to nothing alone are removed together?

The published reports 001, 003 and 004 called 41.67, 62.5 and 58.3 % of heads prunable, because each of these heads
costs less than one point if it alone is removed. Nobody removed them together: without its 14 such heads, the model of
report 004 is right on 0.0 % of examples. Heads can replace each other.
"""

from __future__ import annotations

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, passed, warned
from headcount.experiments.models import RunModel
from headcount.formatting import percent

MAX_DROP_ALONE = 0.01
"""A head counts as "prunable" if removing it alone costs less than this fraction of accuracy, as in the reports."""
MAX_DROP_TOGETHER = 0.2
"""If removing all of these heads together costs more than this fraction, it is misleading to call them prunable."""


def run(model: AuditedModel) -> Finding:
    """Find the heads that each cost under one point alone, and measure accuracy with all of them removed together."""
    sweep = model.head_sweep
    drops, clean, n = sweep.drops(sweep.zero), float(sweep.clean.mean()), sweep.n
    cheap = [head for head, drop in zip(sweep.heads, drops, strict=True) if drop < MAX_DROP_ALONE]
    counted = f"{len(cheap)} of {len(sweep.heads)} heads each cost under 1 point alone"
    evidence: Evidence = {"cheap": len(cheap), "heads": len(sweep.heads), "clean": clean, "n": n}
    if len(cheap) < 2:
        return passed(f"{counted}, on {n} examples", **evidence)
    left = sweep.together(cheap)
    finding = f"{counted}; if all of these are removed, {percent(left)} of {n} examples are right (with all heads: "
    finding += f"{percent(clean)})"
    if clean - left <= MAX_DROP_TOGETHER:
        return passed(finding, left=left, **evidence)
    if not _were_ablated_alone(model):  # most models drop that far: a fault only if results count heads one by one
        return passed(f"{finding}; no stored result calls heads prunable from single ablations", left=left, **evidence)
    return warned(
        f"{finding}: the model's stored results ablate heads only one at a time, so they do not show that "
        f"{percent(len(cheap) / len(sweep.heads))} of its heads can be pruned",
        cause="heads can stand in for each other, so each of them can be removed alone, but not all of them together",
        fix="remove heads together, one after the other, and measure accuracy each time: headcount prune",
        left=left,
        **evidence,
    )


def _were_ablated_alone(model: AuditedModel) -> bool:
    """Return whether a run's folder has results of heads ablated alone, but none of heads removed together."""
    if not isinstance(model.opened, RunModel):
        return False
    results = model.opened.run.folder.path / "results"
    return any(results.glob("ablation*.json")) and not any(results.glob("pruning*.json"))


PART = Check(
    "HC704",
    "What accuracy is left if all heads that cost next to nothing alone are removed together?",
    sequences=run,
    classes=run,
    affects=CONCLUSIONS,
)
