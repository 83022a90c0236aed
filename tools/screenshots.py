"""Take screenshots of a report in two widths, light and dark: its beginning, and its live model.

`live.gif` shows how a head of the packaged adder is switched off: a sum is typed, and E0H2 is replaced by zeros and by
its output on another sum.

    python -m tools.screenshots runs/lab/report.html docs/images

This needs chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from headcount import api

WIDTHS: tuple[int, ...] = (1280, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HEIGHT = {1280: 900, 390: 844}
SHOWN = {"": "header", "-live": "#live"}
"""Parts of the page that are shown, by the ending of the file name."""


def main(words: list[str]) -> int:
    """Write all screenshots, and print their paths."""
    if len(words) != 2 or not Path(words[0]).is_file():
        print(__doc__)
        return 2
    report, folder = Path(words[0]).resolve(), Path(words[1])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in WIDTHS:
            for theme in THEMES:
                page = browser.new_page(
                    viewport={"width": width, "height": HEIGHT[width]}, color_scheme=theme, reduced_motion="reduce"
                )
                page.goto(report.as_uri())
                for ending, part in SHOWN.items():
                    print(_screenshot(page, part, folder / f"report-{width}-{theme}{ending}.png"))
                page.close()
        with tempfile.TemporaryDirectory() as made:
            (page_alone,) = api.report("sample:addition", out=Path(made) / "try-it.html", live_only=True)
            print(_animation(browser, page_alone, folder / "live.gif"))
        browser.close()
    return 0


def _screenshot(page: Page, part: str, file: Path) -> Path:
    page.locator(part).first.evaluate("element => element.scrollIntoView()")
    page.wait_for_timeout(1000)  # until the part in view is drawn
    page.screenshot(path=file)
    return file


STEPS = (
    ("", 1600),
    ("live.type('999+100')", 1600),
    ("live.toggle('E0H2')", 2600),
    ("live.setReplaced(new Set())", 1000),
    ("live.type('348+125')", 1600),
    ("live.setDonor('342+125')", 800),
    ("live.toggle('E0H2')", 2800),
)
"""What the animation shows: a script for the live adder, and the milliseconds for which its outcome is seen."""


def _animation(browser: Browser, report: Path, file: Path) -> Path:
    """Write an animation of one head being switched off, in the page's first live model."""
    page = browser.new_page(viewport={"width": 1000, "height": 760}, reduced_motion="reduce")
    page.goto(report.as_uri())
    page.wait_for_function("() => 'isReady' in document.querySelector('.live').dataset")
    page.evaluate("() => document.querySelector('figure.live-figure').scrollIntoView({ behavior: 'instant' })")
    frames = []
    for script, _ in STEPS:
        page.evaluate(f"() => {{ const {{ live }} = document.querySelector('figure.live-figure'); {script}; }}")
        page.wait_for_timeout(300)
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("P", palette=Image.Palette.ADAPTIVE, colors=64))
    page.close()
    durations = [milliseconds for _, milliseconds in STEPS]
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
