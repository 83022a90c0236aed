"""Every result in a notebook: a frame that holds a whole page, and nothing that could leave it."""

from __future__ import annotations

import html
import re

import pytest
from tests.test_result_tables import MADE

from headcount import api
from headcount.reporting.notebook import TOLD


def framed(result) -> str:
    found = re.fullmatch(
        r'<iframe srcdoc="([^"]*)" title="[^"]*" width="100%" height="\d+"></iframe>', result._repr_html_()
    )
    assert found is not None, "one frame, and no quote ends it"
    return html.unescape(found.group(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_every_result_is_shown_in_a_frame(name: str) -> None:
    page = framed(MADE[name]())
    assert page.startswith("<!doctype html>")
    assert "Content-Security-Policy" in page
    assert "<svg" in page or "<table" in page or 'class="patterns"' in page
    if name in TOLD:
        assert f'<section id="{TOLD[name][1]}"' in page, "as the report has it"


def test_an_evaluation_has_the_words_of_the_report() -> None:
    found = api.evaluate("sample:sortedness")
    assert "On the test set" in framed(found)
