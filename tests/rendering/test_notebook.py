"""Every result in a notebook: a frame that holds a whole page, and nothing that could leave it."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from tests.test_result_tables import MADE

from headcount import api
from headcount.rendering.notebook import HEIGHT, SECTION_OF

TALLER = "() => { document.querySelector('section').append(document.createElement('hr')); \
document.querySelector('hr').style.height = '333px'; }"
FITS = "() => Math.abs(document.body.getBoundingClientRect().height - innerHeight) < 2"
"""Of a page in a frame: that nothing of it has to be scrolled to, and that there is no room below it."""


def framed(result) -> str:
    attributes = r'title="[^"]*" class="headcount-frame" width="100%" height="\d+"'
    found = re.fullmatch(rf'<iframe srcdoc="([^"]*)" {attributes}></iframe>', result._repr_html_())
    assert found is not None, "one frame, and no quote ends it"
    return html.unescape(found.group(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_every_result_is_shown_in_a_frame(name: str) -> None:
    page = framed(MADE[name]())
    assert page.startswith("<!doctype html>")
    assert "Content-Security-Policy" in page
    assert "<svg" in page or "<table" in page or 'class="patterns"' in page
    title = getattr(MADE[name](), "name", "")
    assert not title or f"<h1>{html.escape(title)}</h1>" in page
    if name in SECTION_OF:
        assert f'<section id="{SECTION_OF[name][1]}"' in page, "as the report has it"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "title"), [("sample:addition", "the adder"), ("sample:sortedness", "the sorter")])
def test_an_evaluation_has_the_words_of_the_report(name: str, title: str) -> None:
    found = api.evaluate(name)
    page = framed(found)
    assert f"On the test set, {title} gets " in page
    assert f"<h1>{title.capitalize()}</h1>" in page
    words = re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert type(found).__name__ not in words, "a class is nothing that readers have met"
    assert f'title="{title}"' in found._repr_html_()
    assert 'aria-label="Copy headcount evaluate RUN"' in page


@pytest.mark.slow
def test_a_frame_is_as_high_as_its_content(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    for name in ("Evaluation", "Ablation", "Matching"):
        page.set_content(f"<!doctype html><p>before</p>{MADE[name]()._repr_html_()}<p>after</p>")
        frame = page.frames[1]
        frame.wait_for_function(FITS)
        height = page.locator("iframe").evaluate("each => each.clientHeight")
        assert height != HEIGHT
        # It grows and shrinks with what is in it.
        frame.evaluate(TALLER)
        frame.wait_for_function(f"() => innerHeight > {height + 300}")
        frame.evaluate("document.querySelector('hr').remove()")
        frame.wait_for_function(f"() => innerHeight === {height}")
    page.close()
