"""How large a report is, and how long it takes to write one from stored results.

    python -m benchmarks report                # of the lab in runs/lab, after make lab; else of the packaged models

And a page of 12 x 12 heads on 256 tokens, of weights that no compression makes smaller; BertViz writes 425 MB for that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headcount import api
from headcount.reporting.blocks import HeadPatterns, Section
from headcount.reporting.page import html_page
from headcount.reporting.patterns import PatternBook, PatternPage, SiteHeads, in_hundredths
from headcount.reporting.story import Story

LAB = Path("runs/lab")
MEGABYTES, SECONDS = 5.0, 20.0
"""Of the lab's report, at most."""
BERTVIZ, SHARE = 425.0, 1 / 20
"""Megabytes, and of them at most."""


def measure() -> Iterator[dict[str, Any]]:
    """The second time, for the first one finds out what is not stored yet."""
    runs = sorted(str(path) for path in LAB.glob("*") if (path / "manifest.json").exists())
    models = runs or ["sample:addition", "sample:sortedness"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        api.report(*models, out=out, stored=True, quiet=True)
        started = time.perf_counter()
        api.report(*models, out=out, stored=True, quiet=True)
        took, size = time.perf_counter() - started, out.stat().st_size / 1e6
    what = f"the lab's report ({len(runs)} runs)" if runs else "the packaged models' report"
    yield _row(f"{what} from stored results, against 20 s", f"{took:.1f} s", "20 s", took / SECONDS, 1)
    yield _row(f"size of {what}, against 5 MB", f"{size:.2f} MB", "5 MB", size / MEGABYTES, 1)
    large = len(html_page(_large()).encode()) / 1e6
    question = "page of 12 x 12 heads on 256 tokens, of BertViz's file"
    yield _row(question, f"{large:.1f} MB", f"{BERTVIZ:.0f} MB", large / BERTVIZ, SHARE)


def _large() -> Story:
    rng = np.random.default_rng(0)
    sites = tuple(SiteHeads(f"layer.{i}", "layer", "self", i, tuple(f"L{i}H{j}" for j in range(12))) for i in range(12))
    tokens = tuple(f"token{i}" for i in range(256))
    weights = tuple(in_hundredths(rng.dirichlet(np.full(256, 0.1), (12, 256))) for _ in sites)
    page = PatternPage("a text", "", (tokens,), ((0, 0),) * 12, weights)
    block = HeadPatterns("patterns", "all heads", PatternBook(sites, (page,)))
    return Story("large", "", (Section("patterns", "patterns", (block,)),), "")


def _row(question: str, ours: str, other: str, ratio: float, most: float) -> dict[str, Any]:
    promise, kept = f"at most {most:g}", ratio <= most
    return {"question": question, "ours": ours, "other": other, "ratio": ratio, "promise": promise, "kept": kept}
