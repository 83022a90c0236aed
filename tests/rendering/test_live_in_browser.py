"""Live models in a real browser: the engine answers as PyTorch does, and the page does what people ask of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from browsing import WIDE, grave_faults, pointed, tab_to, watched
from live_pages import in_page, in_torch, worst

import headcount
from headcount.api.live import held_out, live_model
from headcount.api.opening import open_run
from headcount.describing.blocks import LiveEntry, LiveModels, Section
from headcount.describing.report import Report
from headcount.encodings import ENCODINGS
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.models.config import POOLINGS, ClassifierConfig, EncoderDecoderConfig
from headcount.models.exporting import ENGINE_POOLINGS, export, in_half_precision
from headcount.models.transformer import Classifier, EncoderDecoder
from headcount.rendering.page import html_page
from headcount.runs.run import Run, load

pytestmark = pytest.mark.slow

EVIL = "</script><img src=x onerror=alert(1)>"
N_SHOWN = 40
"""Examples in the page; counting over them takes half a second."""
CLOSE = 1e-3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with both packaged models, and a title that would be markup."""
    adder, sorter = (
        live_model(RunModel.of(open_run(f"sample:{name}", "")), n_examples=N_SHOWN)
        for name in ("addition", "sortedness")
    )
    route = {
        "title": "from the 1s into the 10s",
        "heads": [{"short": "E0H2", "share": 0.9}, {"short": "E1H0", "share": 0.4}],
    }
    entry = LiveEntry(
        EVIL, adder, {"E0H2": "−14.7 points"}, ("D0H0", "D1H1"), (route,), ("374+814", "342+125"), ("999+999",), EVIL
    )
    rows = LiveEntry("the sorter", sorter, proof="proved right at every length", wrong=("3 2 1",))
    twin = LiveEntry("its twin", sorter)
    stranger = replace(adder, task=replace(adder.task, name="other", script=""))
    blocks = (
        LiveModels("live-addition", "adders", (entry, LiveEntry("plain", adder)), "headcount report sample:addition"),
        LiveModels("live-sortedness", "sorters", (rows, twin)),
        LiveModels("live-other", "a task without a script", (LiveEntry("other", stranger),)),
    )
    page = tmp_path_factory.mktemp("live") / "try.html"
    page.write_text(html_page(Report("Try", EVIL, (Section("live", "Try it", blocks),), "")))
    return page


@pytest.fixture(scope="module")
def opened(browser: Any, file: Path) -> Iterator[tuple[Any, list[str]]]:
    """One page for the whole file; tests begin with a fresh visit where they change it."""
    faults: list[str] = []
    context = browser.new_context(viewport=WIDE)
    page = watched(context, faults)
    visit_live(page, file)
    yield page, faults
    context.close()


@pytest.fixture
def page(opened: tuple[Any, list[str]], file: Path) -> Any:
    return visit_live(opened[0], file)


@pytest.fixture
def engine(opened: tuple[Any, list[str]]) -> Any:
    """The page, whatever other tests did to it: only its engine is used."""
    return opened[0]


def visit_live(page: Any, file: Path, address: str = "") -> Any:
    page.goto("about:blank")
    page.goto(file.as_uri() + address)
    page.wait_for_function("() => [...document.querySelectorAll('.live')].every((each) => 'isReady' in each.dataset)")
    return page


def said(page: Any, task: str = "addition") -> str:
    return page.locator(f"#live-{task} .said").inner_text()


# --- the engine -------------------------------------------------------------------------------------------------------


def sorter(seed: int = 0, **settings: Any) -> Classifier:
    torch.manual_seed(seed)
    config = ClassifierConfig(**{"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2, **settings})
    model = Classifier(config, n_tokens=21, n_classes=2, pad_id=20).eval()
    for parameter in model.parameters():  # biases and scales that are not 0 or 1 either
        torch.nn.init.normal_(parameter, std=0.4) if parameter.ndim < 2 else None
    return model


ROWS = [[5], [3, 7], [9, 1, 4], [*range(12)], [(7 * i) % 20 for i in range(30)]]
SORTERS: dict[str, dict[str, Any]] = {
    **{f"encoding {name}": {"encoding": name} for name in ENCODINGS.names()},
    **{f"pooling {name}": {"pooling": name, "encoding": "t5"} for name in POOLINGS.names()},
    "causal, log-length": {"causal": True, "softmax": "log-length", "encoding": "relative"},
    "window, log-length": {"window": 2, "softmax": "log-length", "encoding": "fire"},
    "random ids, rotary": {"encoding": "rotary", "random_positions": 64},
    "random ids, causal bias": {"encoding": "alibi", "random_positions": 64},
    "random ids, table": {"encoding": "learned", "random_positions": 40, "n_positions": 40},
    "post-norm, number table": {"norm": "post", "numbers": "table"},
    "clamped table": {"encoding": "learned", "n_positions": 4, "past_table": "clamp"},
    "heads cut out": {"encoding": "alibi", "pruned": "L0H0"},
    "a block without heads": {"pruned": "L0H0,L0H1"},
    "three wide heads": {"d_model": 15, "n_heads": 3, "encoding": "rotary"},
}


def test_the_engine_computes_what_torch_computes_for_every_encoding_and_pooling(engine: Any) -> None:
    for name, settings in SORTERS.items():
        model = sorter(**settings)
        exported = export(model, 32)
        difference = worst(in_page(engine, exported, ROWS), in_torch(in_half_precision(model), ROWS))
        assert difference < CLOSE, name


@pytest.mark.parametrize(
    "settings",
    [
        {"encoding": "sinusoidal"},
        {"encoding": "rotary", "norm": "post"},
        {"encoding": "t5", "window": 2, "softmax": "log-length"},
        {"encoding": "learned", "n_positions": 8, "pruned": "E0H1,X1H0,D0H0,D0H1"},
    ],
    ids=str,
)
def test_an_encoder_decoder_is_decoded_as_torch_decodes_it(engine: Any, settings: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = EncoderDecoder(EncoderDecoderConfig(d_model=16, n_heads=2, d_ff=32, **settings), 13, 12).eval()
    sources, forced = [[3, 7, 4, 10, 8, 1, 4], [9, 9, 9, 10, 0, 0, 1]], [[11, 1, 1, 8], [11, 1, 0, 0]]
    found = in_page(engine, export(model, 8), sources, forced)
    assert worst(found, in_torch(in_half_precision(model), sources, forced)) < CLOSE


def test_replaced_heads_act_as_hooks_on_the_projection_do(engine: Any) -> None:
    model = sorter(encoding="alibi-symmetric")
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32).tolist()
    replaced = {"L0H1": None, "L1H0": rows}
    found = in_page(engine, export(model, 32), ROWS, replaced=replaced)
    assert worst(found, in_torch(in_half_precision(model), ROWS, replaced=replaced)) < CLOSE
    assert worst(found, in_torch(in_half_precision(model), ROWS)) > 0.01, "the heads matter"


@pytest.mark.parametrize("name", ["addition", "sortedness"])
def test_packaged_models_give_the_same_answers_and_logits(
    engine: Any, name: str, request: pytest.FixtureRequest
) -> None:
    run = load(f"sample:{name}")
    is_long = request.config.getoption("--long")
    n, n_ablated = (500, 500) if is_long else (60, 10)
    examples = run.task.split("test")[:n]
    batch = cast(Any, run.task).encode(examples)
    rounded, exported = in_half_precision(run.model), export(run.model, 64)
    if name == "addition":
        sources, forced = batch.source.tolist(), batch.decoder_input.tolist()
        heads, other = ("E0H2", "X1H1"), "D0H0"
    else:
        sources = [[token for token in row if token != run.task.pad_id] for row in batch.source.tolist()]
        forced, (heads, other) = None, (("L0H2", "L0H0"), "L0H1")
    exact = in_torch(run.model, sources, forced)
    found = in_page(engine, exported, sources, forced)
    assert worst(found, in_torch(rounded, sources, forced)) < CLOSE
    answers = [np.array(each).argmax(axis=-1).tolist() for each in found]
    assert answers == [np.array(each).argmax(axis=-1).tolist() for each in exact], "half precision changes no answer"
    width = run.model.config.d_model // run.model.config.n_heads
    mean = np.random.default_rng(0).normal(size=(16, width)).astype(np.float32).tolist()
    part = slice(n_ablated)
    for replaced in ({heads[0]: None}, {heads[0]: mean, heads[1]: None}, {other: mean, heads[1]: mean}):
        found = in_page(engine, exported, sources[part], forced and forced[part], replaced)
        assert worst(found, in_torch(rounded, sources[part], forced and forced[part], replaced)) < CLOSE, replaced


def test_a_model_whose_answers_half_precision_would_change_keeps_single_precision() -> None:
    run = load("sample:sortedness")
    with torch.no_grad():  # half precision has no number between 1 and 1.0009
        run.model.to_logits.weight.zero_()
        run.model.to_logits.bias.copy_(torch.tensor([1.0, 1.0001]))
    live = live_model(RunModel.of(run), n_examples=200)
    assert "float16" not in {str(each.dtype) for each in live.arrays.values()}
    assert live.precision == "single"


# --- what people do ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_complaint(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "opened" in request.fixturenames:
        _, faults = request.getfixturevalue("opened")
        seen, faults[:] = list(faults), []
        assert seen == [], "no error, no request, no dialog"


def test_nothing_is_wrong_with_the_page(opened: tuple[Any, list[str]], file: Path) -> None:
    page, _ = opened
    visit_live(page, file)
    assert grave_faults(page, "light", "dark") == []
    assert page.locator("img").count() == 0, "hostile strings stay text"
    assert EVIL in page.locator("#live-addition .chips").inner_text()


def test_a_sum_is_typed_and_a_head_switched_off(page: Any) -> None:
    page.fill("#live-addition-on", "348+125")
    assert said(page) == "All heads on: 348+125 = 0473, right."
    page.fill("#live-addition-on", "34x")
    assert "Write two numbers" in page.locator("#live-addition .error").inner_text()
    page.fill("#live-addition-on", "999+100")
    page.click("#live-addition .live-tile:has-text('E0H2')")
    run = load("sample:addition")
    assert run.predict("999+100") == "1099"
    assert said(page) == "Without E0H2: 999+100 = 1199, wrong: it should be 1099.", "as `predict --without E0H2` says"
    assert page.locator("#live-addition .digit.changed").all_inner_texts()[0].startswith("1")
    assert page.locator("#live-addition .live-tile.changed").count() > 0, "other heads' patterns change too"
    page.click("#live-addition >> text=Undo")
    assert said(page).startswith("All heads on: 999+100 = 1099")


def test_a_donor_brings_its_carry_and_a_mean_is_the_mean(page: Any) -> None:
    page.fill("#live-addition-on", "348+125")
    page.fill("#live-addition-other", "342+125")
    page.keyboard.press("Enter")
    page.click("#live-addition .live-tile:has-text('E0H2')")
    assert said(page) == "With E0H2 from 342+125: 348+125 = 0463, wrong: it should be 0473.", "the carry is gone"
    page.check("#live-addition-mean")
    assert said(page).startswith("With the mean of E0H2: 348+125 = ")
    tiles = page.locator("#live-addition .live-tile[aria-pressed=true]").all_inner_texts()
    assert tiles == ["E0H2 mean\n−14.7 points"]


def test_counting_over_held_out_sums_agrees_with_torch(page: Any) -> None:
    run = load("sample:addition")
    batch = cast(Any, run.task).encode(held_out(run.task, N_SHOWN))
    logits = in_torch(
        in_half_precision(run.model), batch.source.tolist(), batch.decoder_input.tolist(), {"E0H2": None, "E1H3": None}
    )
    right = int((np.array(logits).argmax(axis=-1) == batch.labels).all(axis=1).sum())
    assert right < N_SHOWN
    for head in ("E0H2", "E1H3"):
        page.click(f"#live-addition .live-tile:has-text('{head}')")
    page.wait_for_selector("#live-addition .tally[data-is-done]")
    words = page.locator("#live-addition .tally strong").inner_text().replace("\u00a0", " ")
    assert words.startswith(f"Without E0H2 and E1H3: {100 * right / N_SHOWN:.1f} % [")
    assert f"of {N_SHOWN} (95 % CI)." in words


def test_a_link_holds_the_state_and_rubbish_in_it_does_nothing(page: Any, file: Path) -> None:
    page.fill("#live-addition-on", "999+100")
    page.click("#live-addition .live-tile:has-text('E0H2')")
    address = page.evaluate("() => location.hash")
    fresh = visit_live(page, file, address)
    assert said(fresh) == "Without E0H2: 999+100 = 1199, wrong: it should be 1099."
    odd = visit_live(page, file, "#live-addition?on=%3Cb%3E&heads=Q9H9,constructor&by=constructor&model=77&donor=1")
    assert said(odd) == "All heads on: 374+814 = 1188, right."
    back = visit_live(page, file, address)
    back.click("#live-addition .live-tile:has-text('E1H3')")
    back.click("#live-addition >> text=Undo")
    assert back.evaluate("() => location.hash") == address, "undo also goes back in the address"


def test_harmless_heads_a_route_and_a_step(page: Any) -> None:
    page.click("text=Switch off all 2 heads that are harmless alone")
    assert page.locator("#live-addition .live-tile[aria-pressed=true]").count() == 2
    page.select_option("#live-addition-route", "1")
    assert page.locator("#live-addition .arrows path").count() == 1
    assert "moves 90 %" in page.locator("#live-addition .live-tile.mover").first.inner_text()
    page.click("#live-addition tbody tr:last-child .digit >> nth=2")
    choices = page.locator("#live-addition .choices").inner_text()
    assert choices.startswith("Most probable tokens at the 10s, after <s> 1 1: 8 (")


def test_every_part_is_reached_by_keys(page: Any) -> None:
    tab_to(page, "#live-addition-on")
    page.keyboard.press("Control+A")
    page.keyboard.type("111+222")
    assert "0333, right" in said(page)
    tab_to(page, "#live-addition .live-tile")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    pressed = page.locator("#live-addition .live-tile[aria-pressed=true]").all_inner_texts()
    assert [each.split()[0] for each in pressed] == ["E1H1"]


def test_a_row_is_lengthened_broken_and_dragged(page: Any) -> None:
    assert said(page, "sortedness") == "The row is sorted: 2 of 2 models are right."
    page.click("text=Break one pair")
    assert said(page, "sortedness") == "The row is unsorted: 2 of 2 models are right."
    page.click("#live-sortedness .live-buttons >> text=Sort")
    page.locator("#live-sortedness-length").evaluate("(e) => { e.value = 200; e.dispatchEvent(new Event('input')); }")
    assert said(page, "sortedness") == "The row is sorted: 2 of 2 models are right."
    numbers = json.loads(
        page.evaluate("() => JSON.stringify(document.querySelector('#live-sortedness').live.example.source)")
    )
    assert len(numbers) == 200
    assert numbers == sorted(numbers)
    page.locator(".row-chart").scroll_into_view_if_needed()
    box = page.locator(".row-chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2)
    page.mouse.down()
    page.mouse.up()
    assert said(page, "sortedness") == "The row is unsorted: 2 of 2 models are right."
    page.click("#live-sortedness >> text=mistake 1")
    assert page.input_value("#live-sortedness-on") == "3 2 1"


def test_a_head_of_one_of_several_models_is_switched_off(page: Any) -> None:
    page.click("#live-sortedness .rivals button >> text=its twin")
    assert page.locator("#live-sortedness .board-title").inner_text() == "The heads of its twin: switch them off"
    page.click("#live-sortedness .row-heads > summary")
    for i in range(4):
        page.click(f"#live-sortedness .live-tile:has-text('L0H{i}')")
    names = page.locator("#live-sortedness .rivals tbody button").all_inner_texts()
    assert "its twin without L0H0, L0H1, L0H2 and L0H3" in names
    assert "the sorter" in names


def test_examples_of_a_task_without_a_script_are_chosen_from_a_list(page: Any) -> None:
    first, second = page.locator("#live-other-some option").evaluate_all("(all) => all.slice(0, 2).map((e) => e.value)")
    assert said(page, "other").startswith(f"All heads on: {first} = ")
    page.fill("#live-other-on", second)
    assert said(page, "other").startswith(f"All heads on: {second} = ")
    page.fill("#live-other-on", "1+1")
    assert page.locator("#live-other .error").inner_text() == "Choose one of the listed examples."


def test_a_link_and_undo_keep_the_model(page: Any, file: Path) -> None:
    page.select_option("#live-addition-route", "1")
    page.select_option("#live-addition-model", "1")
    page.wait_for_function("() => document.querySelector('#live-addition').live.state.model === 1")
    assert page.locator("#live-addition .arrows path").count() == 0, "the route of another model is gone"
    page.click("#live-addition .live-tile:has-text('E0H2')")
    fresh = visit_live(page, file, page.evaluate("() => location.hash"))
    assert fresh.input_value("#live-addition-model") == "1"
    assert fresh.locator("#live-addition .live-tile[aria-pressed=true]").count() == 1
    page.select_option("#live-addition-model", "0")
    page.wait_for_function("() => document.querySelector('#live-addition').live.state.model === 0")
    page.click("#live-addition >> text=Undo")
    page.wait_for_function("() => document.querySelector('#live-addition').live.state.model === 1")
    assert page.input_value("#live-addition-model") == "1"
    assert page.locator("#live-addition .live-tile[aria-pressed=true]").count() == 1


def test_undo_goes_back_over_harmless_heads_and_over_a_slider(page: Any) -> None:
    page.check("#live-addition-mean")
    page.click("#live-addition .live-tile:has-text('E0H2')")
    page.click("text=Switch off all 2 heads that are harmless alone")
    page.click("#live-addition >> text=Undo")
    assert said(page).startswith("With the mean of E0H2: ")
    slide = "(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }"
    before = page.input_value("#live-sortedness-on")
    for length in range(20, 140, 10):
        page.locator("#live-sortedness-length").evaluate(slide, length)
    page.evaluate("() => document.querySelector('#live-sortedness').live.undo()")
    assert page.input_value("#live-sortedness-on") == before, "one undo for all steps of the slider"


def test_the_large_map_reads_its_weights(page: Any) -> None:
    page.hover("#live-addition .live-tile:has-text('X0H1')")
    pointed(page, "live-addition", 1, 2, (4, 7))
    read = page.locator("#live-addition .readout").inner_text()
    weight = page.evaluate("() => document.querySelector('#live-addition').live.now.heads().X0H1.weights[1 * 7 + 2]")
    assert read == f"query ‘100s’ attends to key ‘4’: {weight:.2f}"


def test_examples_have_both_classes_and_evidence_adds_up_to_the_lead(page: Any) -> None:
    live = "document.querySelector('#live-sortedness').live"
    assert set(page.evaluate(f"() => {live}.header.examples.map((each) => each[2][0])")) == {0, 1}
    lead, evidence, bias = page.evaluate(
        f"() => {{ const run = {live}.clean[0]; const {{ data }} = {live}.engine.part('to_logits.bias');"
        " return [run.logits[0] - run.logits[1], run.evidence.reduce((sum, i) => sum + i, 0), data[0] - data[1]]; }"
    )
    assert lead == pytest.approx(evidence + bias, abs=1e-4)


def test_poolings_of_the_exporter_are_those_of_the_engine() -> None:
    text = files("headcount.rendering").joinpath("static", "engine.js").read_text()
    table = text[text.index("const POOLINGS") :]
    assert set(re.findall(r'^  "?([a-z-]+)"?: \(x', table, flags=re.MULTILINE)) == set(ENGINE_POOLINGS)


# --- files and notebooks ----------------------------------------------------------------------------------------------


def test_the_small_page_alone(in_tmp: Path, tiny_run: Run) -> None:
    (page,) = headcount.report(tiny_run, out="try.html", live_only=True, on=["3+4"])
    text = page.read_text()
    assert text.count('class="live-figure"') == 1
    assert 'class="folded"' not in text
    assert '"named":["3+4"]' in text
    with pytest.raises(InputError, match="--live-only writes one HTML page"):
        headcount.report(tiny_run, out="try.html", live_only=True, markdown=True)
    module: Any = torch.nn.Linear(2, 2)
    with pytest.raises(InputError):
        headcount.report(module, out="other.html", live_only=True)
    assert not Path("other.html").exists()


def test_a_notebook_shows_the_live_model(tiny_run: Run) -> None:
    html = tiny_run.live()._repr_html_()
    assert html.startswith("<iframe srcdoc=")
    assert "live-figure" in html
