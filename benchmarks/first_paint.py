"""Measure how long chromium takes to show a page from disk: its first content, and its first attention patterns."""

from __future__ import annotations

import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

OPENINGS = 5
FIRST = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
HEADS = "() => window.headsPainted"
WATCH = """
const isPainted = (canvas) => canvas.width !== 300; // an unpainted canvas is 300 pixels wide
const look = () => {
  if (![...document.querySelectorAll(".thumb canvas")].some(isPainted)) requestAnimationFrame(look);
  else setTimeout(() => { window.headsPainted = performance.now(); }); // after this frame is on the screen
};
requestAnimationFrame(look);
"""


@dataclass(frozen=True)
class PaintTimes:
    """Seconds since the navigation began."""

    first: float
    """The browser's own first-contentful-paint."""
    heads: float
    """The time at which the first heads are painted."""


def paint_times(file: Path, part: str) -> PaintTimes | None:
    """Return medians over a few openings of the page at `part`; None without a browser.

    The part must show heads, because the page paints heads only when they are in view.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        print("  no chromium (apt install chromium): first paints are left out", file=sys.stderr, flush=True)
        return None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        openings = [_opened(browser, f"{file.as_uri()}#{part}") for _ in range(OPENINGS)]
        browser.close()
    return PaintTimes(*(statistics.median(seconds) for seconds in zip(*openings, strict=True)))


def _opened(browser: Browser, address: str) -> tuple[float, float]:
    """Open a page once, and return the seconds until its first content and until its first heads."""
    # Reduced motion, because a smooth scroll down to the part would count as well.
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", offline=True)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(address)
    times = _seconds(page, FIRST), _seconds(page, HEADS)
    context.close()
    return times


def _seconds(page: Page, script: str) -> float:
    """Wait until a script returns a time in milliseconds, and return the time in seconds."""
    milliseconds: float = page.wait_for_function(script).json_value()
    return milliseconds / 1000
