"""Does the audit keep silent on sound trained runs, and name what is wrong with those trained by the reports' faults?

    python -m benchmarks audited_runs                       # all of them
    python -m benchmarks audited_runs addition-             # those whose names begin so
    python -m benchmarks audited_runs sortedness- faulty-    # (sortedness alone is a benchmark of its own)

Runs are trained once and stay in runs/audited, so that a check can be changed and asked again. A warning is false
unless what it warns of is so: that one answer is given to everything beyond the trained lengths, or that minimal pairs
are not told apart, is measured again by `stretch`, on other sequences; all other warnings count as false. Runs that did
not learn their task are no sound models, and are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from headcount import api
from headcount.analysis.length_generalisation import Stretch
from headcount.auditing.audit import Audit
from headcount.auditing.check import FAIL, WARN
from headcount.stats import Proportion

Settings = Mapping[str, Any]
FOLDER = Path("runs/audited")
MOST_WARNINGS = 1 / 20
LONGEST, BEYOND, N, WELL = 16, (32, 64, 128), 400, 0.9
"""The longest sequences in training and lengths beyond; sequences of each; the share that a sound model has right."""
SMALL_ADDER: Settings = {"digits": 2, "d_model": 64, "d_ff": 256, "n_test": 1000, "n_validation": 500, "steps": 1000}
SMALL_SORTER: Settings = {"d_model": 32, "d_ff": 128, "n_test": 1000, "n_validation": 500, "steps": 1500}

WHOLE: Settings = {"d_model": 64, "d_ff": 256, "steps": 3000}
"""The recipe's own size: smaller models with absolute positions do not learn to tell minimal pairs."""

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
"""Nothing is wrong with their settings."""
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
"""The reports' faults, by setting, with the check that names each in the first line."""


def measure(*names: str) -> Iterator[dict[str, Any]]:
    """Trained, audited and counted."""
    chosen = [name for name in (*SOUND, *FAULTY) if not names or name.startswith(tuple(names))]
    every = {name: _audited(name, SOUND[name]) for name in chosen if name in SOUND}
    sound = {name: each for name, each in every.items() if _has_learned(name, each)}
    if sound:
        fails = sum(bool(each.of(FAIL)) for each in sound.values())
        yield _row("sound trained runs that a check fails", fails, len(sound), "none", fails == 0)
        false = sum(bool(_false_warnings(name, each)) for name, each in sound.items())
        kept = false <= MOST_WARNINGS * len(sound)
        yield _row("sound trained runs that a check warns of for no reason", false, len(sound), "at most 1 in 20", kept)
    faulty = {name: _audited(name, FAULTY[name][1]) for name in chosen if name in FAULTY}
    if faulty:
        named = sum(_is_named(each, FAULTY[name][0]) for name, each in faulty.items())
        yield _row("runs trained with a fault, which is named", named, len(faulty), "all", named == len(faulty))


def _audited(name: str, settings: Settings) -> Audit:
    """Trained if it is not yet."""
    task = "addition" if "addition" in name else "sortedness"
    small = SMALL_ADDER if task == "addition" else SMALL_SORTER
    run = api.train(task, out=FOLDER / name, resume=True, quiet=True, threads=1, **{**small, **settings})
    found = api.audit(run, quiet=True).result
    told = [f"{each.verdict} {each.id}" for each in found.verdicts if each.verdict in (FAIL, WARN)]
    print(f"  {name}: {', '.join(told) or 'silent'}: {found.summary}", file=sys.stderr, flush=True)
    return found


@cache
def _reach(name: str) -> Stretch:
    """On sequences that no check has seen."""
    (found,) = api.stretch(str(FOLDER / name), lengths=(LONGEST, *BEYOND), n=N, draw=2, quiet=True).result
    return found


def _minimal_pairs(name: str) -> Proportion:
    """The share of single adjacent swaps that is found, at the longest trained length."""
    cell = next(each for each in _reach(name).cells if (each.length, each.negative) == (LONGEST, "adjacent"))
    return cell.recall[_reach(name).classes.index("unsorted")]


def _has_learned(name: str, found: Audit) -> bool:
    """Whether there is a sound model: one that does its task, minimal pairs included."""
    share = _minimal_pairs(name).rate if name.startswith("sortedness") else found.measured
    if share < WELL:
        print(f"  {name} has not learned its task, {100 * share:.1f} %: left out", file=sys.stderr, flush=True)
    return share >= WELL


def _false_warnings(name: str, found: Audit) -> list[str]:
    """Ids of checks that warn of what no other measurement shows."""
    ids, shown = [each.id for each in found.of(WARN)], list[str]()
    if "HC302" in ids and any(cell.constant for cell in _reach(name).cells if cell.length in BEYOND):
        shown.append("HC302")
    if "HC601" in ids and _minimal_pairs(name).high < 1 - MOST_WARNINGS:
        shown.append("HC601")
    false = [each for each in ids if each not in shown]
    print(f"  {name}: {len(ids)} warnings, false: {', '.join(false) or 'none'}", file=sys.stderr, flush=True)
    return false


def _is_named(found: Audit, check: str) -> bool:
    """Whether the first line is that check's."""
    told: Sequence[str] = [each.finding for each in found.verdicts if each.id == check]
    return any(each in found.summary for each in told)


def _row(question: str, count: int, n: int, promise: str, kept: bool) -> dict[str, Any]:
    return {
        "question": question,
        "ours": f"{count}",
        "other": f"of {n}",
        "ratio": count / n,
        "promise": promise,
        "kept": kept,
    }
