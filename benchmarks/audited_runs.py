"""How often does the audit warn of sound trained runs, and does it name the fault of runs trained with a known fault?

    python -m benchmarks audited_runs                       # all runs
    python -m benchmarks audited_runs addition-             # runs whose names begin with addition-
    python -m benchmarks audited_runs sortedness- faulty-    # (`sortedness` without the hyphen is another benchmark)

Runs are trained once and stay in runs/audited, so that they can be audited again after a check was changed. Three
warnings are measured again: that the model gives one answer to everything beyond the training lengths and that it does
not distinguish minimal pairs (by `stretch`, on other sequences), and that wrong answers are easily found (by a search
with another seed). A warning that this does not confirm is false, and so is every other warning. Runs that did not
learn their task are left out: they are not sound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import Ratio
from headcount import api
from headcount.analysis.counterexamples import search
from headcount.analysis.length_generalisation import Stretch
from headcount.auditing.audit import Audit
from headcount.auditing.check import FAIL, WARN
from headcount.stats import Proportion

Settings = Mapping[str, Any]
FOLDER = Path("runs/audited")
MOST_WARNINGS = 1 / 20
LONGEST, BEYOND, N, WELL = 16, (32, 64, 128), 400, 0.9
"""The longest training length, lengths beyond it, sequences per length, and the smallest accuracy of a sound model."""
N_TRIED = 20_000
"""Number of examples that a search tries."""
SMALL_ADDER: Settings = {"digits": 2, "d_model": 64, "d_ff": 256, "n_test": 1000, "n_validation": 500, "steps": 1000}
SMALL_SORTER: Settings = {"d_model": 32, "d_ff": 128, "n_test": 1000, "n_validation": 500, "steps": 1500}

WHOLE: Settings = {"d_model": 64, "d_ff": 256, "steps": 3000}
"""The default size: smaller models with absolute positions do not learn to distinguish minimal pairs."""

SOUND: dict[str, Settings] = {
    **{f"addition-seed-{seed}": {"seed": seed} for seed in range(4)},
    **{f"addition-{name}": {"encoding": name} for name in ("sinusoidal", "rotary", "relative", "t5", "alibi")},
    "addition-3-digits": {"digits": 3, "steps": 1500},
    "addition-from-0": {"low": 0, "steps": 1500},
    "addition-least-first": {"least_first": True},
    "addition-post-norm": {"norm": "post"},
    "addition-1-layer": {"n_encoder_layers": 1, "n_decoder_layers": 1},
    "addition-8-heads": {"n_heads": 8},
    "addition-fixed-set": {"digits": 3, "n_train": 10_000, "dropout": 0.1, "steps": 2000},
    **{f"sortedness-seed-{seed}": {**WHOLE, "seed": seed} for seed in range(2)},
    "sortedness-learned": {**WHOLE, "encoding": "learned", "past_table": "error"},
    **{f"sortedness-{name}": {"encoding": name} for name in ("rotary", "relative", "t5", "fire")},
    "sortedness-causal-without-positions": {"encoding": "none", "causal": True},
    "sortedness-far": {"preset": "far"},
    "sortedness-far-generic": {"preset": "far-generic"},
    **{f"sortedness-{name}": {"encoding": "relative", "pooling": name} for name in ("mean", "attention")},
    "sortedness-number-table": {"encoding": "relative", "numbers": "table"},
    "sortedness-1-head": {"encoding": "relative", "n_heads": 1},
    "sortedness-coin": {"encoding": "relative", "balance": "coin", "distinct": True},
    "sortedness-paired": {"encoding": "relative", "paired": True},
}
"""The settings of sound runs, by name."""
FAULTY: dict[str, tuple[str, Settings]] = {
    "faulty-addition-start-token": ("HC101", {"start_token": False}),
    "faulty-addition-ignored-zero": ("HC102", {"loss_ignores_zero": True}),
    "faulty-addition-both": ("HC101", {"start_token": False, "loss_ignores_zero": True}),
    "faulty-addition-overlap": ("HC401", {"digits": 3, "splits_may_overlap": True, "n_train": 10_000}),
    "faulty-addition-untrained": ("HC304", {"steps": 1}),
    "faulty-sortedness-length-normalised": ("HC504", {"encoding": "length-normalised", "negatives": "shuffle"}),
    "faulty-sortedness-padding": ("HC203", {"padding_is_zero": True}),
    "faulty-sortedness-pooling": ("HC506", {"pooling": "neighbour-difference", "encoding": "none"}),
    "faulty-sortedness-no-order": ("HC505", {"encoding": "none"}),
    "faulty-sortedness-untrained-rows": ("HC501", {"encoding": "learned", "n_positions": 300}),
    "faulty-sortedness-untrained": ("HC304", {"steps": 1}),
}
"""The faults of the exercise's reports: the check that must name the fault in the audit's first line, and settings."""


def measure(*names: str) -> Iterator[Ratio]:
    """Train and audit the runs whose names begin with one of these names, and count the audits' mistakes."""
    chosen = [name for name in (*SOUND, *FAULTY) if not names or name.startswith(tuple(names))]
    audits = {name: _audited(name, SOUND[name]) for name in chosen if name in SOUND}
    sound = {name: audit for name, audit in audits.items() if _has_learned(name, audit)}
    if sound:
        n_failed = sum(bool(audit.of(FAIL)) for audit in sound.values())
        yield _row("sound trained runs that a check fails", n_failed, len(sound), "none", n_failed == 0)
        n_false = sum(bool(_false_warnings(name, audit)) for name, audit in sound.items())
        kept, question = n_false <= MOST_WARNINGS * len(sound), "sound trained runs that a check warns of for no reason"
        yield _row(question, n_false, len(sound), "at most 1 in 20", kept)
    faulty = {name: _audited(name, FAULTY[name][1]) for name in chosen if name in FAULTY}
    if faulty:
        n_named = sum(_is_named(audit, FAULTY[name][0]) for name, audit in faulty.items())
        yield _row("runs trained with a fault, which is named", n_named, len(faulty), "all", n_named == len(faulty))


def _audited(name: str, settings: Settings) -> Audit:
    """Train a run, unless it is trained already, and audit it."""
    task = "addition" if "addition" in name else "sortedness"
    small = SMALL_ADDER if task == "addition" else SMALL_SORTER
    run = api.train(task, out=FOLDER / name, resume=True, quiet=True, threads=1, **{**small, **settings})
    audit = api.audit(run, quiet=True).result
    verdicts = [f"{verdict.verdict} {verdict.id}" for verdict in audit.verdicts if verdict.verdict in (FAIL, WARN)]
    print(f"  {name}: {', '.join(verdicts) or 'silent'}: {audit.summary}", file=sys.stderr, flush=True)
    return audit


@cache
def _stretched(name: str) -> Stretch:
    """Measure a run at several lengths, on sequences that no check uses."""
    (result,) = api.stretch(str(FOLDER / name), lengths=(LONGEST, *BEYOND), n=N, draw=2, quiet=True).result
    assert isinstance(result, Stretch), "the runs are classifiers"
    return result


def _minimal_pairs(name: str) -> Proportion:
    """Return the share of sequences with one adjacent swap that are called unsorted, at the longest training length."""
    result = _stretched(name)
    cell = next(cell for cell in result.cells if (cell.length, cell.negative) == (LONGEST, "adjacent"))
    return cell.recall[result.classes.index("unsorted")]


def _has_learned(name: str, audit: Audit) -> bool:
    """Return whether a model has learned its task, for sortedness by its accuracy on minimal pairs."""
    share = _minimal_pairs(name).rate if name.startswith("sortedness") else audit.measured
    if share < WELL:
        print(f"  {name} has not learned its task, {100 * share:.1f} %: left out", file=sys.stderr, flush=True)
    return share >= WELL


def _false_warnings(name: str, audit: Audit) -> list[str]:
    """Return the ids of checks whose warning `stretch` does not confirm."""
    ids, confirmed = [verdict.id for verdict in audit.of(WARN)], list[str]()
    if "HC302" in ids and any(cell.constant for cell in _stretched(name).cells if cell.length in BEYOND):
        confirmed.append("HC302")
    if "HC601" in ids and _minimal_pairs(name).high < 1 - MOST_WARNINGS:
        confirmed.append("HC601")
    if "HC603" in ids and _is_refuted(name):
        confirmed.append("HC603")
    false = [check for check in ids if check not in confirmed]
    print(f"  {name}: {len(ids)} warnings, false: {', '.join(false) or 'none'}", file=sys.stderr, flush=True)
    return false


def _is_refuted(name: str) -> bool:
    """Return whether a search with another seed finds an example that `predict` answers wrong."""
    model = api.open_model(str(FOLDER / name))
    wrong = search(model, most_tried=N_TRIED, seed=1).wrong
    return any(model.predict(answer.example).predicted != answer.right for answer in wrong)


def _is_named(audit: Audit, check: str) -> bool:
    """Return whether the first line of an audit contains the finding of this check."""
    return any(verdict.finding in audit.summary for verdict in audit.verdicts if verdict.id == check)


def _row(question: str, count: int, n: int, promise: str, kept: bool) -> Ratio:
    return Ratio(question, f"{count}", f"of {n}", count / n, promise, kept)
