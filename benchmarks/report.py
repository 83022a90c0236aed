"""How large is a report, how long does it take to write from stored results, and how soon does a browser show it?

    make .venv-lens/.ready browser             # install BertViz and chromium first, to compare with them
    python -m benchmarks report                # the lab's report, if `make lab` has run; else that of the samples

A page of 12 x 12 heads on 256 tokens is compared with BertViz's views of the same weights. headcount stores weights as
compressed hundredths. BertViz writes all digits of every weight, and writes them twice: its template replaces a word
that also stands in a comment.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import Ratio
from benchmarks.first_paint import paint_times
from benchmarks.sweeps import LENS, run_race
from headcount import api
from headcount.describing.blocks import HeadPatterns, Section
from headcount.describing.patterns import PatternBook, PatternPage, SiteHeads, in_hundredths
from headcount.describing.report import Report
from headcount.rendering.page import html_page

LAB = Path("runs/lab")
MEGABYTES, SECONDS = 6.0, 30.0
"""Largest size and time of the lab's report."""
SHARE = 1 / 20
"""Largest share of the size of BertViz's smaller view."""
PAINT_SECONDS = 2.0
"""Largest time until a browser shows the first content, and until it shows the first heads."""
LAYERS, HEADS, TOKENS = 12, 12, 256


def measure() -> Iterator[Ratio]:
    """Measure the report of stored results, then a page with many heads."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _stored(Path(folder) / "report.html")
        yield from _large(Path(folder) / "large.html")


def _stored(out: Path) -> Iterator[Ratio]:
    """Write the report twice and time the second writing, because the first one measures what is not stored yet."""
    runs = sorted(str(path) for path in LAB.glob("*") if (path / "manifest.json").exists())
    models = runs or ["sample:addition", "sample:sortedness"]
    api.report(*models, out=out, stored=True, quiet=True)
    started = time.perf_counter()
    api.report(*models, out=out, stored=True, quiet=True)
    seconds, size = time.perf_counter() - started, out.stat().st_size / 1e6
    what = f"the lab's report ({len(runs)} runs)" if runs else "the packaged models' report"
    question = f"{what} from stored results, against 30 s"
    yield Ratio.at_most(question, f"{seconds:.1f} s", "30 s", seconds / SECONDS, 1)
    yield Ratio.at_most(f"size of {what}, against 6 MB", f"{size:.2f} MB", "6 MB", size / MEGABYTES, 1)
    yield from _paints(what, out)


def _large(out: Path) -> Iterator[Ratio]:
    """Measure a page of random attention weights; the parameter 0.1 gives each query a few large weights."""
    weights = np.random.default_rng(0).dirichlet(np.full(TOKENS, 0.1), (LAYERS, HEADS, TOKENS))
    out.write_text(html_page(_report(weights)), encoding="utf-8")
    what = f"page of {LAYERS} x {HEADS} heads on {TOKENS} tokens"
    yield from _paints(f"a {what}", out)
    yield from _beside_bertviz(what, out, weights)


def _report(weights: NDArray[np.float64]) -> Report:
    names = [tuple(f"L{i}H{j}" for j in range(HEADS)) for i in range(LAYERS)]
    sites = tuple(SiteHeads(f"layer.{i}", "layer", "self", i, heads) for i, heads in enumerate(names))
    tokens = tuple(f"token{i}" for i in range(TOKENS))
    page = PatternPage("a text", "", (tokens,), ((0, 0),) * LAYERS, tuple(map(in_hundredths, weights)))
    block = HeadPatterns("heads", "all heads", PatternBook(sites, (page,)))
    return Report("large", "", (Section("patterns", "patterns", (block,)),), "")


def _beside_bertviz(what: str, page: Path, weights: NDArray[np.float64]) -> Iterator[Ratio]:
    """Compare the size of the page with that of BertViz's smaller view."""
    if not LENS.exists():
        print(f"  {LENS} is missing: make bench makes it; BertViz is left out", file=sys.stderr, flush=True)
        return
    file = page.with_suffix(".npy")
    np.save(file, weights)
    views = run_race("benchmarks.bertviz_views", str(file))
    smaller = min(views, key=lambda name: views[name])
    ours, theirs = page.stat().st_size / 1e6, views[smaller] / 1e6
    question = f"{what}, of BertViz's {smaller}"
    yield Ratio.at_most(question, f"{ours:.1f} MB", f"{theirs:.0f} MB", ours / theirs, SHARE)


def _paints(what: str, file: Path) -> Iterator[Ratio]:
    """Time how soon chromium shows the page, opened at its section of patterns."""
    times = paint_times(file, "patterns")
    if times is None:
        return
    for event, seconds in (("first paint", times.first), ("first heads painted", times.heads)):
        question = f"{event} of {what} in chromium, against 2 s"
        yield Ratio.at_most(question, f"{1000 * seconds:.0f} ms", "2 s", seconds / PAINT_SECONDS, 1)
