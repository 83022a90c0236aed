"""Take screenshots of a report in two widths, light and dark: its beginning, and its attention patterns.

    python -m tools.screenshots runs/lab/report.html docs/images

This needs chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

WIDTHS: tuple[int, ...] = (1280, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HEIGHT = {1280: 900, 390: 844}
SHOWN = {"": "header", "-patterns": "#patterns"}
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
        browser.close()
    return 0


def _screenshot(page: Page, part: str, file: Path) -> Path:
    page.locator(part).first.evaluate("element => element.scrollIntoView()")
    page.wait_for_timeout(1000)  # until the part in view is drawn
    page.screenshot(path=file)
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
