"""Pages in a real browser, for tests: opened from disk without a network, with whatever is wrong with them noted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

LOCAL = ("file:", "data:", "about:")
WIDE = {"width": 1280, "height": 900}
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
"""Paper, by theme."""
GRAVE = ("serious", "critical")


def watched(context: Any, faults: list[str]) -> Any:
    """A page without a network; `faults` get whatever is wrong with it."""

    def note(message: Any) -> None:
        if message.type == "error":
            faults.append(message.text)

    def refuse(dialog: Any) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    context.set_offline(True)
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.on("console", note)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", refuse)
    page.on("request", lambda asked: None if asked.url.startswith(LOCAL) else faults.append(asked.url))
    return page


def visit(page: Any, file: Path) -> Any:
    """Until every head can be asked for."""
    page.goto("about:blank")  # or a hash would only be scrolled to
    page.goto(file.as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('.patterns .large h3')].every((each) => each.textContent)"
        " && [...document.querySelectorAll('.live')].every((each) => 'isReady' in each.dataset)"
    )
    return page


def pointed(page: Any, figure: str, row: int, column: int, shape: tuple[int, int]) -> None:
    """Puts the pointer on a cell of the large view."""
    cells = page.locator(f"#{figure} .cells")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    page.mouse.move(
        box["x"] + (column + 0.5) * box["width"] / shape[1], box["y"] + (row + 0.5) * box["height"] / shape[0]
    )


def tab_to(page: Any, selector: str, most: int = 60) -> None:
    """By the Tab key alone."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{most} times Tab do not lead to {selector}")


def background(page: Any) -> str:
    return page.evaluate("() => getComputedStyle(document.body).backgroundColor")


def grave_faults(page: Any, *themes: str) -> list[tuple[str, list[str]]]:
    """What axe calls serious or critical; colours, which take longest, in these themes."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    run = partial(
        axe.Axe().run, page, context={"exclude": [["svg"]]}
    )  # ten thousand elements, and a picture is one thing
    found = run(options={"rules": {"color-contrast": {"enabled": False}}}).response["violations"]
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        found += run(options={"runOnly": ["color-contrast"]}).response["violations"]
    page.emulate_media(color_scheme="light")
    nameless = page.locator("svg:not([role=img][aria-label])").count()
    assert nameless == 0, "every picture says what is to be seen"
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found if each["impact"] in GRAVE]


@pytest.fixture(scope="module")  # its event loop would be in the way of others
def browser() -> Iterator[Any]:
    """Start chromium for the tests of one file; skip them where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on the path: apt install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
