"""The report in a real browser: opened from disk, without a network, by pointer and by keys, in both themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import DARK, LIGHT, WIDE, background, grave_faults, pointed, tab_to, visit, watched
from matplotlib.figure import Figure

from headcount.describing.blocks import (
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Formula,
    HeadPatterns,
    Notice,
    Paragraph,
    Picture,
    Section,
    Sentence,
)
from headcount.describing.patterns import PatternBook, PatternPage, SiteHeads, in_hundredths
from headcount.describing.report import Report
from headcount.rendering.page import html_page

pytestmark = pytest.mark.slow

EVIL = "</script><img src=x onerror=alert(1)> \"'&amp;"
TURNED = "abc\u202edcb\u2028"
"""Letters that would turn the text around and end a line of a script."""
LONG = tuple(f"token-{i}" for i in range(40))
AXES = (("3", "7", EVIL), ("<s>", "1", " ", TURNED))
"""Of an encoder and of a decoder."""
SITES = (
    SiteHeads("encoder.0.self", "encoder", "self", 0, ("E0H0", "E0H1")),
    SiteHeads("decoder.0.self", "decoder", "self", 0, ("D0H0", "D0H1")),
    SiteHeads("decoder.0.cross", "decoder", "cross", 0, ("X0H0", "X0H1")),
)
SITE_AXES = ((0, 0), (1, 1), (1, 0))
N_PAGES = 12


# --- a whole_report that has one of everything ------------------------------------------------------------------------


def weights_of(seed: int) -> list[np.ndarray]:
    """Of each site [head, query, key], as a result has them."""
    random = np.random.default_rng(seed)
    shapes = [(2, len(AXES[queries]), len(AXES[keys])) for queries, keys in SITE_AXES]
    return [random.dirichlet(np.full(keys, 0.5), (heads, queries)).round(4) for heads, queries, keys in shapes]


def book() -> PatternBook:
    pages = [
        PatternPage(
            EVIL if i == 1 else f"page {i}: {i}00+{i}1",
            "it is wrong" if i % 5 == 4 else "it is right",
            AXES,
            SITE_AXES,
            tuple(map(in_hundredths, weights_of(i))),
        )
        for i in range(N_PAGES)
    ]
    return PatternBook(SITES, tuple(pages))


def book_of_noise(n_layers: int, n_heads: int, tokens: tuple[str, ...]) -> PatternBook:
    """Every hundredth is as likely as any other: nothing deflates less."""
    random, n = np.random.default_rng(0), len(tokens)
    sites = [
        SiteHeads(f"layer.{i}.self", "layer", "self", i, tuple(f"L{i}H{j}" for j in range(n_heads)))
        for i in range(n_layers)
    ]
    weights = [random.integers(0, 101, (n_heads, n, n), dtype=np.uint8) for _ in sites]
    return PatternBook(tuple(sites), (PatternPage("noise", "", (tokens,), ((0, 0),) * n_layers, tuple(weights)),))


def drawn() -> Figure:
    figure = Figure(figsize=(9, 3))
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [1, 0], color="#0072B2", label=EVIL)
    left.set_title(EVIL)
    left.legend()
    right.imshow([[0.0, 1.0]], cmap="Blues")
    right.text(0, 0, "light", color="black")
    right.text(1, 0, "dark", color="white")
    return figure


TABLE = DataTable(
    "numbers",
    f"Numbers of {EVIL}",
    ("head", "drop", "words", *(f"column {i}" for i in range(8))),
    tuple(
        (name, Cell(text, value), words, *(Cell(f"{i}.25 [0.00, 9.99]", i) for i in range(8)))
        for name, text, value, words in (
            ("E0H10", "−2.50", -2.5, "b"),
            ("E0H9", "10.00", 10.0, "a"),
            (EVIL, "not measured", None, "b"),
            ("E0H2", "9.25", 9.25, "a"),
        )
    ),
    "A note with `code`.",
    "headcount ablate 'runs/a run' --n 300",
)
FILLING = Paragraph("Words that take room. " * 120)


def whole_report() -> Report:
    first = Conclusions((Sentence(f"{EVIL} is right.", "numbers"), Sentence("This is open.", "drawn", False)))
    heads = HeadPatterns("heads", f"All heads of {EVIL}", book(), {"E0H0": "−37.2 points"}, "headcount heads run")
    text = HeadPatterns("text", "Heads on a longer text", book_of_noise(2, 3, LONG))
    picture = Picture("drawn", f"A picture of {EVIL}", f"A line and a map of {EVIL}", drawn, "headcount plot")
    notices = [Notice(verdict, f"Of {EVIL}.", "a-check") for verdict in ("fail", "warn", "pass")]
    sections = (
        Section("summary", "Summary", (*notices, FILLING, first)),
        Section("heads-section", f"Where do heads look? {EVIL}", (heads, text)),
        Section("results", "What was found", (TABLE, picture, FILLING)),
        Section("math", "Why", (Formula("f", "In words:", "f(P X) = 0", "error 1e-7"), Commands(("a", "b")))),
    )
    return Report(EVIL, f"runs/{EVIL}, {TURNED}", sections, f"made of {EVIL}")


# --- browsers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(html_page(whole_report()), encoding="utf-8")
    return file


Open = Callable[..., Any]


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[tuple[Any, list[str]]]:
    """One for most tests, as opening one takes longer than they do; and what its browser complains of."""
    context, faults = browser.new_context(viewport=WIDE, color_scheme="light"), list[str]()
    yield watched(context, faults), faults
    context.close()


@pytest.fixture
def page(window: tuple[Any, list[str]], report: Path) -> Iterator[Any]:
    """The report as it is first opened, light, on a wide window."""
    page, faults = window
    page.emulate_media(color_scheme="light", media="screen")
    yield visit(page, report)
    page.evaluate("() => localStorage.clear()")
    told, faults[:] = list(faults), []
    assert told == []


@pytest.fixture
def open_report(browser: Any, report: Path) -> Iterator[Open]:
    """The report in a window of its own."""
    contexts, faults = list[Any](), list[str]()

    def opened(width: int = 1280, theme: str = "light", file: Path = report, before: str = "") -> Any:
        contexts.append(browser.new_context(viewport=WIDE | {"width": width}, color_scheme=theme))
        page = watched(contexts[-1], faults)
        if before:
            page.add_init_script(before)
        return visit(page, file)

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def shown(text: str) -> str:
    return text.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028").replace(" ", "␣" if text == " " else " ")


def sentence(seed: int, site: int, head: int, row: int, column: int) -> str:
    """What the page is to say of a weight, from the result itself."""
    queries, keys = (AXES[axis] for axis in SITE_AXES[site])
    query, key = (f"{text[:39]}…" if len(text) > 40 else text for text in (shown(queries[row]), shown(keys[column])))
    return f"query ‘{query}’ attends to key ‘{key}’: {weights_of(seed)[site][head, row, column]:.2f}"


def column_of(page: Any, index: int) -> list[str]:
    return page.locator(f"#numbers tbody tr > :nth-child({index})").all_inner_texts()


REDS = """canvas => {
    const { width, height } = canvas;
    return [...canvas.getContext("2d").getImageData(0, 0, width, height).data].filter((_, i) => i % 4 === 0);
}"""
"""Of all pixels of a canvas."""


# --- the file ---------------------------------------------------------------------------------------------------------


def test_nothing_from_outside_becomes_markup(page: Any, report: Path) -> None:
    assert page.title() == EVIL
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2 + 2 * 2  # the page's own, and what it knows of two books of heads
    assert page.locator("#heads option").nth(1).inner_text() == EVIL
    assert page.locator("#heads .strip").first.inner_text().split("\n")[1:] == list(AXES[0])
    assert "\\u202e" in page.locator(".subtitle").inner_text()
    assert TURNED not in page.locator("body").inner_text()
    assert "onerror" not in re.sub(r"&lt;img src=x onerror|u003cimg src=x onerror", "", report.read_text("utf-8"))


def test_the_policy_has_no_holes(report: Path) -> None:
    text = report.read_text("utf-8")
    assert "unsafe" not in re.search(r"Content-Security-Policy\" content=\"([^\"]*)", text)[1]
    assert " style=" not in text


def test_the_policy_stops_a_script_that_got_in(browser: Any, report: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.html"
    file.write_text(report.read_text("utf-8").replace("<h1>", "<script>window.ran = true</script><h1>", 1), "utf-8")
    context, faults = browser.new_context(), list[str]()
    page = visit(watched(context, faults), file)
    assert page.evaluate("() => window.ran") is None
    context.close()
    assert [fault for fault in faults if "Content Security Policy" in fault] == faults != []


def test_a_picture_follows_the_theme_but_for_what_stands_on_its_cells(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    text = page.locator("#drawn svg text")
    fills = {each.text_content(): each.evaluate("text => getComputedStyle(text).fill") for each in text.all()}
    assert fills[EVIL] == page.evaluate("getComputedStyle(document.body).color") != "rgb(0, 0, 0)"
    assert (fills["light"], fills["dark"]) == ("rgb(1, 1, 1)", "rgb(254, 254, 254)")
    assert page.locator("#drawn svg").get_attribute("aria-label") == f"A line and a map of {EVIL}"


def test_a_large_model_stays_small(open_report: Open, tmp_path: Path) -> None:
    """144 heads at 256 tokens, whatever their weights; heads are painted as they come into view."""
    tokens = tuple(f"token-{i}" for i in range(256))
    heads = HeadPatterns("heads", "All heads", book_of_noise(12, 12, tokens))
    file = tmp_path / "large.html"
    file.write_text(html_page(Report("Large", "", (Section("s", "Heads", (heads,)),), "")), encoding="utf-8")
    assert file.stat().st_size < 20e6
    page = open_report(file=file)
    painted = "() => [...document.querySelectorAll('.thumb canvas')].filter((each) => each.width !== 300).length"
    page.wait_for_function(f"() => ({painted})() > 0")
    assert page.evaluate(painted) < 144
    page.locator(".thumb").last.scroll_into_view_if_needed()
    page.wait_for_function("() => [...document.querySelectorAll('.thumb canvas')].at(-1).width !== 300")


# --- heads ------------------------------------------------------------------------------------------------------------


def test_pointing_at_a_cell_tells_its_weight(page: Any) -> None:
    pointed(page, "heads", 1, 2, (3, 3))
    expected = sentence(0, 0, 0, 1, 2)
    assert page.locator("#tip").inner_text() == expected
    assert page.locator("#heads .readout").inner_text() == expected
    assert page.locator("#heads .here").all_inner_texts() == [AXES[0][1], AXES[0][2]]
    assert page.locator("#heads .tokens .on").all_inner_texts() == [AXES[0][1], AXES[0][2]]
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()
    assert page.locator("#heads .readout").inner_text() == expected, "what was read stays"


def test_keys_read_every_weight_as_the_result_has_it(page: Any) -> None:
    page.locator("#heads .thumb", has_text="X0H1").click()
    page.locator("#heads .cells").focus()
    page.keyboard.press("Escape")  # the pointer may have left a cursor
    page.keyboard.press("ArrowRight")  # only shows it again
    told = list[str]()
    for _ in AXES[1]:
        for _ in AXES[0]:
            told.append(page.locator("#heads .readout").inner_text())
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
    assert told == [sentence(0, 2, 1, row, column) for row in range(4) for column in range(3)]
    page.keyboard.press("Escape")
    assert "arrow keys" in page.locator("#heads .readout").inner_text()


def test_a_query_and_a_key_are_marked_in_all_heads_that_have_them(page: Any) -> None:
    page.locator("#heads .thumb", has_text="X0H0").click()
    pointed(page, "heads", 3, 0, (4, 3))
    sites = page.locator("#heads .site")
    marks = [sites.nth(i).evaluate("each => [each.matches('.has-row'), each.matches('.has-column')]") for i in range(3)]
    assert marks == [[False, True], [True, False], [True, True]]
    assert sites.nth(2).evaluate("each => each.style.getPropertyValue('--row')") == "87.5%"
    page.locator("#heads .thumb", has_text="D0H1").locator(".pixels").hover(position={"x": 2, "y": 2})
    assert page.locator("#tip").inner_text() == f"D0H1: {sentence(0, 1, 1, 0, 0)}"
    assert page.locator("#heads .row-mark").is_visible(), "the large view has the same queries, ..."
    assert page.locator("#heads .column-mark").is_hidden(), "... and other keys"


def test_tokens_in_the_text_move_the_cursor(page: Any) -> None:
    weights = weights_of(0)[0][0]
    page.locator("#heads .strip").nth(0).locator(".tokens span").nth(2).hover()
    column = int(in_hundredths(weights)[2].argmax())
    assert page.locator("#heads .readout").inner_text() == sentence(0, 0, 0, 2, column)
    page.locator("#heads .strip").nth(1).locator(".tokens span").nth(1).hover()
    assert page.locator("#heads .readout").inner_text() == sentence(0, 0, 0, 2, 1)


def test_examples_are_picked_stepped_through_and_found(page: Any) -> None:
    title, count = page.locator("#heads .page-title"), page.locator("#heads .count")
    pointed(page, "heads", 0, 1, (3, 3))
    page.locator("#heads select").select_option("page 3: 300+31")
    assert title.inner_text() == "page 3: 300+31 it is right"
    assert page.locator("#heads .readout").inner_text() == sentence(3, 0, 0, 0, 1), "the cursor stays"
    page.get_by_role("button", name="Next example").click()
    assert (title.inner_text(), count.inner_text()) == ("page 4: 400+41 it is wrong", f"5 of {N_PAGES}")
    page.get_by_label("Find").fill("WRONG")
    assert count.inner_text() == f"2 of {N_PAGES} found"
    assert page.locator("#heads option").all_inner_texts() == ["page 4: 400+41", "page 9: 900+91"]
    page.get_by_role("button", name="Next example").click()
    assert title.inner_text() == "page 9: 900+91 it is wrong"
    page.keyboard.press("Enter")
    assert title.inner_text() == "page 9: 900+91 it is wrong", "there is no other"
    page.get_by_label("Find").fill("nothing has this")
    assert count.inner_text() == f"0 of {N_PAGES} found"
    page.get_by_label("Find").fill("")
    assert page.locator("#heads select").input_value() == "9"


def test_a_head_is_chosen_and_enlarged(page: Any) -> None:
    thumb = page.locator("#heads .thumb", has_text="E0H0")
    assert thumb.inner_text().split() == ["E0H0", "−37.2", "points"]
    assert thumb.get_attribute("aria-pressed") == "true"
    page.locator("#heads .thumb", has_text="D0H1").click()
    assert thumb.get_attribute("aria-pressed") == "false"
    assert page.locator("#heads .large h3").inner_text() == "D0H1"
    assert page.locator("#heads .about").inner_text() == "Decoder self-attention, layer 0"
    assert page.locator("#heads .board > .large").count() == 1, "beside the others"
    enlarge = page.locator("#heads .enlarge")
    enlarge.click()
    assert page.locator("#heads .site").nth(1).locator(".large").count() == 1, "below its row"
    assert enlarge.get_attribute("aria-pressed") == "true"
    assert enlarge.evaluate("each => each === document.activeElement")


def test_a_map_is_painted_by_its_weights(page: Any) -> None:
    """From paper to the darkest in the light, and to the lightest in the dark."""
    weights = in_hundredths(weights_of(0)[0][0]).ravel()
    order = np.argsort(weights, kind="stable")
    for theme, sign in (("light", -1), ("dark", 1)):
        page.emulate_media(color_scheme=theme)
        reds = page.locator("#heads .cells canvas").first.evaluate(REDS)
        assert len(reds) == weights.size
        luminance = sign * np.array(reds)[order]
        assert luminance[-1] > luminance[0]
        if theme == "light":
            assert (np.diff(luminance) >= 0).all()


def test_labels_of_many_tokens_do_not_overlap(page: Any) -> None:
    tops = page.locator("#text .labels.rows span:not(.here)").evaluate_all(
        "all => all.map((each) => each.getBoundingClientRect().top)"
    )
    assert 10 < len(tops) < len(LONG)
    assert min(np.diff(tops)) >= 12


# --- tables, themes, links, commands ----------------------------------------------------------------------------------


def test_tables_are_sorted_by_their_values_and_back(page: Any) -> None:
    drop, words = (page.get_by_role("button", name=name, exact=True) for name in ("drop", "words"))
    before = column_of(page, 2)
    assert before == ["−2.50", "10.00", "not measured", "9.25"]
    drop.click()
    assert column_of(page, 2) == ["−2.50", "9.25", "10.00", "not measured"]
    assert page.locator("#numbers th[aria-sort=ascending]").inner_text() == "drop"
    drop.click()
    assert column_of(page, 2) == ["10.00", "9.25", "−2.50", "not measured"]
    assert page.locator("#status").inner_text() == "sorted by drop, descending"
    words.click()
    assert column_of(page, 2) == ["10.00", "9.25", "−2.50", "not measured"], "equal words keep the order of the report"
    assert page.locator("#numbers [aria-sort]").count() == 1
    words.click()
    words.click()
    assert column_of(page, 2) == before
    page.get_by_role("button", name="head", exact=True).click()
    assert column_of(page, 1)[-3:] == ["E0H2", "E0H9", "E0H10"], "numbers in names count as numbers"


def test_the_theme_is_the_systems_until_a_reader_presses(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    button = page.locator("#theme")
    page.wait_for_function("() => document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    assert background(page) == DARK
    button.click()
    assert (background(page), button.get_attribute("aria-pressed")) == (LIGHT, "false")
    page.reload()
    assert background(page) == LIGHT, "it is remembered"
    page.locator("#theme").click()
    assert background(page) == DARK
    page.emulate_media(color_scheme="light")
    assert background(page) == LIGHT, "and follows the system again"


def test_a_browser_that_remembers_nothing_is_no_fault(open_report: Open) -> None:
    forbid = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    page = open_report(before=forbid)
    page.locator("#theme").click()
    assert background(page) == DARK


def test_links_lead_to_what_they_name(page: Any) -> None:
    inside = "id => Math.abs(document.getElementById(id).getBoundingClientRect().top) < 50"
    current = "hash => document.querySelector('nav [aria-current]').hash === hash"
    page.locator(".rests-on").first.click()
    page.wait_for_function(inside, arg="numbers")
    page.wait_for_function(current, arg="#results")
    page.locator("nav a").nth(1).click()
    page.wait_for_function(inside, arg="heads-section")
    page.wait_for_function(current, arg="#heads-section")
    assert page.locator("nav [aria-current]").count() == 1


NO_CLIPBOARD = """
Object.defineProperty(navigator, "clipboard", { value: undefined });
document.addEventListener("copy", () => { window.copied = getSelection().toString(); });
"""


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_commands_are_copied(open_report: Open, has_clipboard: bool) -> None:
    page = open_report(before="" if has_clipboard else NO_CLIPBOARD)
    if has_clipboard:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#numbers .copy").click()
    page.wait_for_function("() => document.getElementById('status').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()" if has_clipboard else "window.copied")
    assert copied == TABLE.command


# --- everybody --------------------------------------------------------------------------------------------------------


def test_keys_alone_are_enough(page: Any, report: Path) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#report", "past what is on every page"
    visit(page, report)  # the focus begins at the top
    tab_to(page, "#theme")
    page.keyboard.press("Enter")
    assert background(page) == DARK
    tab_to(page, "#heads select")
    page.keyboard.press("ArrowDown")
    assert page.locator("#heads .count").inner_text() == f"2 of {N_PAGES}"
    tab_to(page, "#heads .thumb")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#heads .large h3").inner_text() == "X0H1"
    tab_to(page, "#heads .cells", most=4)
    for key in ("ArrowDown", "End", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#heads .readout").inner_text() == sentence(1, 2, 1, 1, 2)
    tab_to(page, "#numbers th:nth-child(2) button")
    page.keyboard.press("Space")
    assert column_of(page, 2)[0] == "−2.50"
    tab_to(page, "#numbers .copy")


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_no_serious_fault(page: Any, width: int) -> None:
    page.set_viewport_size(WIDE | {"width": width})
    pointed(page, "heads", 1, 1, (3, 3))
    page.mouse.move(5, 5)
    assert grave_faults(page, "light", "dark") == []
    page.set_viewport_size(WIDE)


def test_a_phone_scrolls_down_only(open_report: Open) -> None:
    page, across = open_report(320), "() => document.documentElement.scrollWidth"
    assert page.evaluate(across) == 320
    page.set_viewport_size(WIDE | {"width": (width := 390)})
    assert page.evaluate(across) == width
    box = page.locator("#numbers .scroll")
    assert box.evaluate("each => each.scrollWidth > each.clientWidth && each.tabIndex === 0"), "a wide table has a box"
    assert page.locator("nav ol").is_hidden()
    page.locator("#heads .thumb", has_text="X0H1").click()
    assert page.locator("#heads .site").nth(2).locator(".large").count() == 1, "a large view is below its row"
    pointed(page, "heads", 3, 2, (4, 3))
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= width


def test_only_what_scrolls_is_a_stop_for_tab(page: Any) -> None:
    assert page.locator("#drawn .scroll").get_attribute("tabindex") is None
    assert page.locator("#numbers .scroll").get_attribute("tabindex") == "0"


def test_paper_is_white_and_has_every_head(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == LIGHT
    assert page.locator("nav").is_hidden()
    assert page.locator("#heads .choose").is_hidden()
    assert page.locator("#text .thumb").last.is_visible()
    lightest = [max(each.evaluate(REDS)) for each in page.locator("#text .thumb canvas").all()]
    assert len(lightest) == 6
    assert min(lightest) > 240, "painted for paper: nothing is as light as that on a dark screen"
    page.emulate_media(media="screen", color_scheme="dark")
    assert page.pdf(format="A4", prefer_css_page_size=True).startswith(b"%PDF")
