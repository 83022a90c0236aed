"""How soon is a live model ready in the page, how fast does it answer a click, and does its memory grow?

    make browser
    python -m benchmarks live_page             # the lab's report, if `make lab` has run; else the packaged models

Times of clicks are the processor time of the page, as Chromium counts it (TaskDuration): the clock of a busy machine
says little. A click switches a random head on or off; its time ends when the answer has changed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Ratio
from headcount import api

LAB = Path("runs/lab/report.html")
MEGABYTES, PAINT, READY, CLICK = 6.0, 0.5, 2.0, 0.1
"""Largest size, and most seconds to the first paint, to the first live model, and from a click to the answer."""
CLICKS, MINUTE = 100, 180
"""Clicks that are timed, and clicks of a minute at three a second."""
GROWTH = 1.2
"""Largest growth of the page's memory over that minute, after a collection of garbage before and after."""
WORDS, SCREENS = 900, 8
"""Most words outside of pictures and closed lists, and most screens of 1280 x 900, of the report's first level."""
FIRST = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
IS_READY = "() => 'isReady' in document.querySelector('.live').dataset"
NOTE_READY = """
const wait = () => ("isReady" in (document.querySelector(".live")?.dataset ?? {}))
  ? (window.readyAt = performance.now()) : requestAnimationFrame(wait);
requestAnimationFrame(wait);
"""
TOGGLE = "(short) => document.querySelector('figure.live-figure').live.toggle(short)"
STOP_COUNTING = "() => clearTimeout(document.querySelector('figure.live-figure').live.counting)"


def measure() -> Iterator[Ratio]:
    """Open the page, click on heads, and click for a minute."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("  no chromium (apt install chromium): the live page is left out", file=sys.stderr, flush=True)
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        file, what = LAB, "the lab's report"
        if not LAB.exists():
            file, what = Path(folder) / "live.html", "the packaged models' report"
            api.report("sample:addition", "sample:sortedness", out=file, stored=True, quiet=True)
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        page.add_init_script(NOTE_READY)
        page.goto(file.resolve().as_uri())
        page.wait_for_function(IS_READY, timeout=60_000)
        size = file.stat().st_size / 1e6
        yield Ratio.at_most(f"size of {what}, against 6 MB", f"{size:.2f} MB", "6 MB", size / MEGABYTES, 1)
        for words, code, limit in (("first paint", FIRST, PAINT), ("live model ready", "() => window.readyAt", READY)):
            seconds = page.evaluate(code) / 1000
            yield Ratio.at_most(f"{words} of {what}", f"{seconds:.2f} s", f"{limit} s", seconds / limit, 1)
        yield from _first_level(page, what)
        yield from _clicks(page)
        browser.close()


def _first_level(page: Any, what: str) -> Iterator[Ratio]:
    screens = page.evaluate("() => document.documentElement.scrollHeight / innerHeight")
    count = "() => { return document.body.innerText.split(/\\s+/).length - "
    count += "[...document.querySelectorAll('svg, option:not(:checked)')].filter((e) => e.checkVisibility())"
    count += ".reduce((n, e) => n + e.textContent.split(/\\s+/).filter(Boolean).length, 0); }"
    words = page.evaluate(count)
    yield Ratio.at_most(f"words of {what}, first level, without pictures", f"{words}", f"{WORDS}", words / WORDS, 1)
    yield Ratio.at_most(f"screens of {what}, first level", f"{screens:.1f}", f"{SCREENS}", screens / SCREENS, 1)


def _clicks(page: Any) -> Iterator[Ratio]:
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    heads = page.evaluate(
        "() => document.querySelector('figure.live-figure').live.board.tiles.map((each) => each.short)"
    )
    random = np.random.default_rng(0)
    times = []
    for head in random.choice(heads, CLICKS):
        page.evaluate(STOP_COUNTING)
        before = _metric(client, "TaskDuration")
        page.evaluate(TOGGLE, str(head))
        times.append(_metric(client, "TaskDuration") - before)
    late = float(np.quantile(times, 0.95))
    question = f"click to changed answer, 95th percentile of {CLICKS} clicks"
    yield Ratio.at_most(question, f"{1000 * late:.0f} ms", f"{1000 * CLICK:.0f} ms", late / CLICK, 1)
    start = _memory(client)
    for head in random.choice(heads, MINUTE):
        page.evaluate(TOGGLE, str(head))
        page.wait_for_timeout(333)
    end = _memory(client)
    question = f"memory of the page after {MINUTE} clicks in a minute"
    yield Ratio.at_most(question, f"{end / 1e6:.0f} MB", f"{start / 1e6:.0f} MB", end / start, GROWTH)


def _memory(client: Any) -> float:
    client.send("HeapProfiler.collectGarbage")
    return _metric(client, "JSHeapUsedSize")


def _metric(client: Any, name: str) -> float:
    metrics = client.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == name))
