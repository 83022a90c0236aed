"""The lab's own report in a real browser: small models, trained and measured as `make lab` does it.

What every kind of block does is tested on a page made by hand (test_page_in_browser.py); here it is what the lab wrote
that is read off the page, and held against the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from browsing import WIDE, background, grave_faults, tab_to, visit, watched

from headcount.analysis.ablation import Ablation
from headcount.analysis.attention import patterns_on
from headcount.describing.cards import MOST_CARDS
from headcount.describing.report import LAST, ORDER
from headcount.exercise.lab import SORTEDNESS, Lab
from headcount.runs.run import Run
from headcount.tasks.base import SequenceTask

pytestmark = pytest.mark.slow

PAPER = 672
"""Pixels between the margins of a sheet of A4."""
EDGES = """all => all.map((each) => {
  const words = document.createRange();
  words.selectNodeContents(each);
  const [cell, text] = [each.getBoundingClientRect(), words.getBoundingClientRect()];
  return [Math.min(cell.left, text.left), Math.max(cell.right, text.right)];
})"""
"""The left and the right end of every cell and of the words in it."""
AT_THE_TOP = "id => Math.abs(document.getElementById(id).getBoundingClientRect().top) < 60"


@dataclass(frozen=True)
class Opened:
    """A lab, its report in a window, and what the browser complains of."""

    lab: Lab
    page: Any
    faults: list[str]

    @property
    def adder(self) -> Run:
        assert self.lab.addition is not None
        return self.lab.addition.run


@pytest.fixture(scope="module")
def opened(browser: Any, lab_results: Lab) -> Iterator[Opened]:
    context, faults = browser.new_context(viewport=WIDE, reduced_motion="reduce"), list[str]()
    page = visit(watched(context, faults), lab_results.report)
    page.click("#open-all")
    yield Opened(lab_results, page, faults)
    context.close()


@pytest.fixture(autouse=True)
def _no_complaint(opened: Opened) -> Iterator[None]:
    yield
    told, opened.faults[:] = list(opened.faults), []
    assert told == [], "no error, no request, no dialog"


def rows_of(page: Any, table: str) -> list[list[str]]:
    """The texts of a table's cells, row by row."""
    return page.locator(f"#{table} tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )


def test_every_section_is_there_and_every_link_leads_somewhere(opened: Opened) -> None:
    page = opened.page
    assert page.locator("main > section").evaluate_all("all => all.map((each) => each.id)") == [
        *("summary", *ORDER, "published", *LAST)
    ]
    lost = "all => all.filter((each) => !document.getElementById(each.hash.slice(1))).map((each) => each.hash)"
    links = page.locator("a[href^='#']")
    assert links.count() > 40
    assert links.evaluate_all(lost) == []
    assert page.locator("img").count() == 0, "a folder's name is text"
    assert opened.lab.report.parent.name in page.locator("#reproduce").inner_text()


def test_answers_come_first_and_lead_to_their_sections(opened: Opened) -> None:
    page = opened.page
    page.click("#open-all")  # closes all
    cards = page.locator("#summary .card")
    assert 4 <= cards.count() <= MOST_CARDS
    assert page.locator("details.folded[open]").count() == 0
    for i in range(cards.count()):
        cards.nth(i).locator("a").click()
        target = page.evaluate("location.hash").removeprefix("#")
        page.wait_for_function(AT_THE_TOP, arg=target)
        assert page.locator(f"#{target} > details[open]").count() == 1
    page.evaluate("scrollTo(0, 0)")
    page.click("#open-all")


def test_the_lab_runs_its_models_in_the_page(opened: Opened) -> None:
    page = opened.page
    figures = page.locator("figure.live-figure").evaluate_all("all => all.map((e) => [e.id, e.live.models.length])")
    assert figures == [["live-addition", 1], ["live-sortedness", len(SORTEDNESS)]]
    example = page.input_value("#live-addition-on")
    n = len(cast(SequenceTask, opened.adder.task).answer_positions)
    told = page.locator("#live-addition .said").inner_text()
    assert f"{example} = {opened.adder.predict(example).zfill(n)}," in told


def test_paper_shows_what_is_folded(opened: Opened) -> None:
    page = opened.page
    page.click("#open-all")
    count = "() => document.querySelectorAll('main details:not([open])').length"
    closed = page.evaluate(count)
    assert closed > 20
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(count) == 0
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(count) == closed
    page.click("#open-all")


def test_the_ranking_is_that_of_the_ablation(opened: Opened) -> None:
    found = opened.adder.folder.read_result("ablation-examples", Ablation)
    effects = {(each.short, each.replacement): each for each in found.heads}
    rows = rows_of(opened.page, "ablation-addition-0-ranking")
    assert len(rows) == len(effects) / 3
    n_columns = 3 + len(found.replacements)
    for head, _, _, *cells in (row[:n_columns] for row in rows):  # between rank and gradient, and the number of sums
        for replacement, cell in zip(found.replacements, cells, strict=True):
            each = effects[head, replacement]
            drop = f"{100 * each.drop:.2f} [{100 * each.low:.2f}, {100 * each.high:.2f}]"
            assert cell == f"{drop} {each.band or ''}".strip()
    drops = [effects[row[0], found.ranked_by].drop for row in rows]
    assert drops == sorted(drops, reverse=True)


def test_accuracies_are_those_of_the_evaluation(opened: Opened) -> None:
    assert opened.lab.addition is not None
    rows = {row[0]: row[1:] for row in rows_of(opened.page, "training-addition")}
    for scores in opened.lab.addition.evaluation.rows:
        n, *cells = rows[f"{scores.facet}: {scores.group.strip()}"]
        shares = [scores.teacher_forced, scores.free_running]
        assert int(n) == max(each.n for each in shares if each)
        for share, cell in zip(shares, cells, strict=True):
            numbers = [float(each) for each in re.findall(r"[\d.]+", cell)]
            assert numbers == [round(100 * each, 2) for each in (share.rate, share.low, share.high)]


def test_lengths_are_those_that_were_measured(opened: Opened) -> None:
    assert opened.lab.sortedness is not None
    rows = {row[0]: row[2:] for row in rows_of(opened.page, "reach-adjacent")}
    assert list(rows) == [f"sortedness-{name}" for name in SORTEDNESS]
    for name, result in opened.lab.sortedness.stretches.items():
        cells = sorted((each for each in result.cells if each.negative == "adjacent"), key=lambda each: each.length)
        told = [
            f"one answer: {each.constant_class}"
            if each.constant
            else f"{100 * each.accuracy:.1f} [{100 * each.low:.1f}, {100 * each.high:.1f}]"
            for each in cells
        ]
        assert rows[f"sortedness-{name}"] == told


@pytest.mark.parametrize(("width", "media"), [(1280, "screen"), (390, "screen"), (PAPER, "print")])
@pytest.mark.parametrize("table", ["reach-lengths", "poolings-adjacent"])
def test_every_column_of_the_exercises_lengths_is_visible(opened: Opened, table: str, width: int, media: str) -> None:
    page = opened.page
    page.set_viewport_size(WIDE | {"width": width})
    page.emulate_media(media=media)
    try:
        columns = page.locator(f"#{table} thead th").evaluate_all("all => all.map((each) => each.textContent)")
        assert columns[-5:] == ["8-16", "32", "64", "128", "256"]
        boxes = page.locator(f"#{table} :is(th, td)").evaluate_all(EDGES)
        assert len(boxes) > 2 * len(columns)
        assert min(left for left, _ in boxes) >= 0
        assert max(right for _, right in boxes) <= width
        box = page.locator(f"#{table} .scroll")
        assert box.evaluate("each => each.scrollWidth - each.clientWidth") == 0, "nothing is to be scrolled"
    finally:
        page.set_viewport_size(WIDE)
        page.emulate_media(media="screen")


def test_weights_are_those_of_the_model_and_tokens_have_places(opened: Opened) -> None:
    """On the first example, by keys, every weight of a head that attends across."""
    page, figure = opened.page, "patterns-addition-0"
    example = page.locator(f"#{figure} option").nth(1).inner_text().split(" = ")[0]
    page.locator(f"#{figure} select").select_option(index=1)
    page.locator(f"#{figure} .thumb", has_text="X0H1").click()
    page.locator(f"#{figure} .cells").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")  # only shows the cursor
    site, head = patterns_on(opened.adder, example).find("X0H1")
    for query, row in zip(site.queries, head.weights, strict=True):
        for key, weight in zip(site.keys, row, strict=True):
            told = page.locator(f"#{figure} .readout").inner_text()
            assert re.sub(r" \([^)]*\)", "", told) == f"query ‘{query}’ attends to key ‘{key}’: {weight:.2f}"
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
    assert re.search(r"query ‘.*’ \(→ 1s\) attends to key ‘\d’ \(a 1s\)", told.replace("b 1s", "a 1s"))
    page.locator(f"#{figure} .large .cells").hover()
    assert page.locator("#tip").inner_text() in page.locator(f"#{figure} .readout").inner_text()


def test_tables_sort_and_the_theme_turns(opened: Opened) -> None:
    page, table = opened.page, "ablation-addition-0-ranking"
    before = rows_of(page, table)
    page.locator(f"#{table} th button").first.click()
    assert [row[0] for row in rows_of(page, table)] == sorted(row[0] for row in before)
    was = background(page)
    page.locator("#theme").click()
    assert background(page) != was
    page.locator("#theme").click()
    assert background(page) == was


def test_keys_alone_reach_every_part(opened: Opened) -> None:
    page = visit(
        opened.page, opened.lab.report
    )  # the focus begins at the top; a part that is not unpacked has no stops
    tab_to(page, "#open-all", 5)
    page.keyboard.press("Enter")
    tab_to(page, "#summary .card a", 30)
    tab_to(page, "#live-addition-on", 20)
    tab_to(page, "#live-addition .live-tile", 30)
    tab_to(page, "#training-addition th button", 90)
    tab_to(page, "#patterns-addition-0 select", 400)
    tab_to(page, "#patterns-addition-0 .thumb", 10)
    tab_to(page, "#patterns-addition-0 .cells", 10)
    tab_to(page, "#ablation-addition-0 .copy", 200)


@pytest.mark.long
def test_axe_finds_no_serious_fault(opened: Opened) -> None:
    """Look at every part in one theme: the page made by hand has every kind of block, in both themes and widths."""
    assert grave_faults(opened.page, "light") == []


def test_nothing_is_wider_than_the_page(opened: Opened) -> None:
    page = opened.page
    page.set_viewport_size(WIDE | {"width": 390})
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.set_viewport_size(WIDE)
