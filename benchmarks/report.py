"""How large a report is, how long it takes to write one from stored results, and how soon a browser shows it.

    python -m benchmarks report                # of the lab in runs/lab, after make lab; else of the packaged models
    make .venv-lens/.ready browser             # before, for what is measured beside BertViz and in chromium

And a page of 12 x 12 heads on 256 tokens, beside BertViz's views of the same weights. Ours has them in hundredths and
deflated; BertViz writes all digits, and all of them twice: a comment of its script has the word that they replace, too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.first_paint import paint_times
from benchmarks.sweeps import LENS, run_race
from headcount import api
from headcount.describing.blocks import HeadPatterns, Section
from headcount.describing.patterns import PatternBook, PatternPage, SiteHeads, in_hundredths
from headcount.describing.report import Report
from headcount.rendering.page import html_page

LAB = Path("runs/lab")
MEGABYTES, SECONDS = 5.0, 20.0
"""Of the lab's report, at most."""
SHARE = 1 / 20
"""Of BertViz's smaller view, at most."""
PAINT_SECONDS = 2.0
"""Until a browser shows something, and until it shows heads, at most."""
LAYERS, HEADS, TOKENS = 12, 12, 256


def measure() -> Iterator[dict[str, Any]]:
    """The report of stored results, then the large page."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _stored(Path(folder) / "report.html")
        yield from _large(Path(folder) / "large.html")


def _stored(out: Path) -> Iterator[dict[str, Any]]:
    """The second time, for the first one finds out what is not stored yet."""
    runs = sorted(str(path) for path in LAB.glob("*") if (path / "manifest.json").exists())
    models = runs or ["sample:addition", "sample:sortedness"]
    api.report(*models, out=out, stored=True, quiet=True)
    started = time.perf_counter()
    api.report(*models, out=out, stored=True, quiet=True)
    took, size = time.perf_counter() - started, out.stat().st_size / 1e6
    what = f"the lab's report ({len(runs)} runs)" if runs else "the packaged models' report"
    yield _row(f"{what} from stored results, against 20 s", f"{took:.1f} s", "20 s", took / SECONDS, 1)
    yield _row(f"size of {what}, against 5 MB", f"{size:.2f} MB", "5 MB", size / MEGABYTES, 1)
    yield from _paints(what, out)


def _large(out: Path) -> Iterator[dict[str, Any]]:
    """Rows of weights that add up to 1, drawn at random: 0.1 leaves a few large ones in each."""
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


def _beside_bertviz(what: str, page: Path, weights: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    """Against the smaller of its views."""
    if not LENS.exists():
        print(f"  {LENS} is missing: make bench makes it; BertViz is left out", file=sys.stderr, flush=True)
        return
    file = page.with_suffix(".npy")
    np.save(file, weights)
    views = run_race("benchmarks.bertviz_views", str(file))
    smaller = min(views, key=lambda name: views[name])
    ours, theirs = page.stat().st_size / 1e6, views[smaller] / 1e6
    yield _row(f"{what}, of BertViz's {smaller}", f"{ours:.1f} MB", f"{theirs:.0f} MB", ours / theirs, SHARE)


def _paints(what: str, file: Path) -> Iterator[dict[str, Any]]:
    """Opened at the section of patterns."""
    times = paint_times(file, "patterns")
    if times is None:
        return
    for event, took in (("first paint", times.first), ("first heads painted", times.heads)):
        question = f"{event} of {what} in chromium, against 2 s"
        yield _row(question, f"{1000 * took:.0f} ms", "2 s", took / PAINT_SECONDS, 1)


def _row(question: str, ours: str, other: str, ratio: float, most: float) -> dict[str, Any]:
    promise, kept = f"at most {most:g}", ratio <= most
    return {"question": question, "ours": ours, "other": other, "ratio": ratio, "promise": promise, "kept": kept}
