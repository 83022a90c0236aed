"""How soon a page shows anything, and how soon its first heads, where Debian's chromium opens it from disk."""

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
const isPainted = (canvas) => canvas.width !== 300; // which is what a canvas has that nothing was painted on
const look = () => {
  if (![...document.querySelectorAll(".thumb canvas")].some(isPainted)) requestAnimationFrame(look);
  else setTimeout(() => { window.headsPainted = performance.now(); }); // after this frame, so they are on the screen
};
requestAnimationFrame(look);
"""


@dataclass(frozen=True)
class PaintTimes:
    """Seconds since the navigation began."""

    first: float
    """The browser's own first-contentful-paint."""
    heads: float
    """Until some heads have their pixels."""


def paint_times(file: Path, part: str) -> PaintTimes | None:
    """Medians of a few openings at a part that has heads, for they are painted in view only; None without a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("  no chromium (apt install chromium): first paints are left out", file=sys.stderr, flush=True)
        return None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = [_opened(browser, f"{file.as_uri()}#{part}") for _ in range(OPENINGS)]
        browser.close()
    return PaintTimes(*(statistics.median(each) for each in zip(*found, strict=True)))


def _opened(browser: Browser, address: str) -> tuple[float, float]:
    # Without motion: else the time would be that of a smooth scroll down to the part.
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", offline=True)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(address)
    times = _seconds(page, FIRST), _seconds(page, HEADS)
    context.close()
    return times


def _seconds(page: Page, milliseconds: str) -> float:
    found: float = page.wait_for_function(milliseconds).json_value()
    return found / 1000
