"""Measures of every head on one text, compared with loops over the weights that the models return."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import log
from typing import Any

import hub_models as hub
import numpy as np
import pytest
import torch
from hub_by_hand import shown
from torch import Tensor

from headcount.analysis import attention_summary as module
from headcount.analysis.attention import MEASURES
from headcount.analysis.attention_summary import (
    MOST_BINS,
    MOST_CELLS,
    AttentionSummary,
    attention_summary,
    head_pattern,
)
from headcount.analysis.role_measures import stacks_of
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.experiments.task_attention import visible_in
from headcount.figures.attention import draw_pages
from headcount.figures.style import png
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import read_attention
from headcount.hooks.wrapping import wrap

pytestmark = pytest.mark.slow  # models of others, or many processes

BESIDE = {"previous": 1, "itself": 0, "next": -1}
WINDOWS = {"mistral": lambda layer: 4, "gpt_neo": lambda layer: 3 if layer % 2 else 99}
CAUSAL = ("gpt2", "llama", "mistral", "gpt_neo")
LENGTHS = {"layer": hub.LENGTH, "encoder": hub.LENGTH, "decoder": hub.FED}
LETTERS = {"E": "encoder", "D": "decoder", "X": "decoder", "L": "layer"}

every_kind = pytest.mark.parametrize("name", ["bert", "distilbert", *CAUSAL, "t5", "bart"])


def stacks(name: str) -> tuple[str, ...]:
    return ("encoder", "decoder") if name in hub.SEQUENCE_TO_SEQUENCE else ("layer",)


def tokens_of(name: str) -> dict[str, list[str]]:
    return {stack: [f"{stack}{i}" for i in range(LENGTHS[stack])] for stack in stacks(name)}


def special_of(name: str) -> dict[str, list[bool]]:
    """Mark the first token and the last but one as special."""
    return {stack: [i in (0, LENGTHS[stack] - 2) for i in range(LENGTHS[stack])] for stack in stacks(name)}


def row(inputs: tuple[Tensor, ...], i: int = 0) -> tuple[Tensor, ...]:
    return tuple(each[i : i + 1] for each in inputs)


def looked(name: str, text: str | None = None, **more: Any) -> tuple[AttentionSummary, tuple[Tensor, ...]]:
    """Return the summary in double precision, on a text without padding."""
    wrapped, inputs = wrap(hub.build(name)), row(hub.inputs_of(name))
    row_of_text = TokenizedText(inputs, tokens_of(name), **more)
    return attention_summary(name, "digest", wrapped, wrapped.head_sites, row_of_text, text), inputs


def weights_of(name: str, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return the weights of each head as the model itself returns them, without headcount's code."""
    return {
        f"{LETTERS[letter]}.{layer}.{'cross' if letter == 'X' else 'self'}.{index}": weights
        for letter, layers in shown(name, inputs).items()
        for layer, site in enumerate(layers)
        for index, weights in enumerate(site[0])
    }


# --- by hand --------------------------------------------------------------------------------------------------------


def seen_by_hand(name: str, site: HeadSite) -> Callable[[int, int], bool]:
    """Return the visible keys by the definition of the model, not by its weights."""
    if site.kind == "cross" or site.stack == "encoder" or name in ("bert", "distilbert"):
        return lambda query, key: True
    window = WINDOWS[name](site.layer) if name in WINDOWS else 99
    return lambda query, key: query - window < key <= query


def by_hand(weights: list[list[float]], sees: Callable[[int, int], bool], special: set[int], kind: str) -> Any:
    """Return means and numbers of queries, computed one query and key at a time."""
    by_measure: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    farthest: set[int] = set()
    for query, values in enumerate(weights):
        keys = [key for key in range(len(values)) if sees(query, key)]
        if len(keys) < 2:
            continue
        meant = {"first": {0}, "special": special}
        if kind == "self":
            meant |= {measure: {query - lag} for measure, lag in BESIDE.items()}
            meant["farthest"] = {key for key in keys if abs(query - key) == max(abs(query - each) for each in keys)}
            farthest |= meant["farthest"]
            by_measure["distance"].append(sum(values[key] * abs(query - key) for key in keys))
        for measure, targets in meant.items():
            hits = [key for key in keys if key in targets]
            if hits and len(hits) < len(keys):
                by_measure[measure].append(sum(values[key] for key in hits))
        entropy = -sum(values[key] * log(values[key]) for key in keys if values[key] > 0)
        by_measure["entropy_share"].append(entropy / log(len(keys)))
    if farthest == {0}:
        by_measure["farthest"].clear()  # it is `first`
    return {measure: (sum(each) / len(each) if each else None, len(each)) for measure, each in by_measure.items()}


@every_kind
def test_measures_are_what_loops_find(name: str) -> None:
    result, inputs = looked(name, special=special_of(name))
    weights = weights_of(name, inputs)
    assert [head.head for site in result.sites for head in site.heads] == list(map(str, wrap(hub.build(name)).heads))
    for site in result.sites:
        special = {i for i, is_special in enumerate(special_of(name)[site.keys]) if is_special}
        sees = seen_by_hand(name, HeadSite(site.stack, site.layer, site.kind))
        for head in site.heads:
            expected = by_hand(weights[head.head].tolist(), sees, special, site.kind)
            given = {measure: getattr(head, measure) for measure in MEASURES}
            assert given == {key: mean and pytest.approx(mean, rel=6e-4) for key, (mean, _) in expected.items()}
            assert {key: site.n_queries.get(key, 0) for key in MEASURES} == {key: n for key, (_, n) in expected.items()}
            assert head.short == HeadId.parse(head.head).short


@every_kind
def test_what_has_no_meaning_is_none(name: str) -> None:
    result, _ = looked(name)
    assert all(site.heads for site in result.sites) and result.sites  # noqa: PT018
    for site in result.sites:
        for head in site.heads:
            assert head.special is None, "which are special was not given"
            is_cross, is_causal = site.kind == "cross", name in CAUSAL or site.stack == "decoder"
            assert (head.next is None) == (is_cross or is_causal), "not visible"
            assert {getattr(head, key) is None for key in ("previous", "itself", "distance")} == {is_cross}
            assert head.entropy_share is not None


@every_kind
def test_a_short_text_is_shown_as_it_is(name: str) -> None:
    result, inputs = looked(name)
    assert set(weights_of(name, inputs)) == {head.head for site in result.sites for head in site.heads} != set()
    for head, weights in weights_of(name, inputs).items():
        (measured_head,) = (each for site in result.sites for each in site.heads if each.head == head)
        assert measured_head.array == pytest.approx(weights.double().numpy(), abs=6e-5)
    for site in result.sites:
        queries, keys = result.axes_of(site)
        assert (queries.stack, keys.stack) == stacks_of(HeadSite(site.stack, site.layer, site.kind))
        assert keys.stack == ("encoder" if site.kind == "cross" else site.stack)
        assert queries.tokens == tuple(tokens_of(name)[site.stack])
        assert queries.edges == tuple(range(len(queries.tokens) + 1))


def test_sharp_heads_do_not_narrow_what_is_visible() -> None:
    """Keys whose weights round to 0 are visible; keys that no query ever attends to are not."""
    sharp = torch.zeros(2, 6, 6)
    sharp[0, range(6), [0, 1, 0, 3, 1, 0]] = 1
    sharp[1] = sharp[0]
    assert visible_in(sharp, "self").tolist() == [[k <= q and k in (0, 1, 3) for k in range(6)] for q in range(6)]
    assert visible_in(sharp, "cross").tolist() == [[k in (0, 1, 3) for k in range(6)]] * 6


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_single_token_has_no_measures(name: str) -> None:
    wrapped, inputs = wrap(hub.build(name)), tuple(each[:, :1] for each in row(hub.inputs_of(name)))
    text = TokenizedText(inputs, {"layer": ["a"]}, {"layer": [True]})
    result = attention_summary(name, "digest", wrapped, wrapped.head_sites, text)
    heads = [head for site in result.sites for head in site.heads]
    assert len(heads) == len(wrapped.heads) > 0
    for head in heads:
        assert {getattr(head, measure) for measure in MEASURES} == {None}
        assert head.pooled == ((10_000,),)


# --- long texts -----------------------------------------------------------------------------------------------------


def bert(n_layers: int, n_heads: int, length: int) -> Any:
    changes = {"num_hidden_layers": n_layers, "num_attention_heads": n_heads, "hidden_size": 2 * n_heads}
    return wrap(hub.build("bert alone", torch.float32, max_position_embeddings=length, **changes))


def on_long(wrapped: Any, length: int) -> tuple[AttentionSummary, tuple[Tensor, ...]]:
    inputs = (torch.randint(2, hub.WORDS, (1, length), generator=torch.Generator().manual_seed(0)),)
    tokens = {"layer": [f"token{i}" for i in range(length)]}
    return attention_summary("long", "digest", wrapped, wrapped.head_sites, TokenizedText(inputs, tokens)), inputs


@pytest.mark.parametrize("length", [33, 70, 128])
def test_bins_are_means_over_queries_of_sums_over_keys(length: int) -> None:
    wrapped = bert(2, 3, length)
    result, inputs = on_long(wrapped, length)
    (axis,) = result.axes
    assert (axis.edges[0], axis.edges[-1], len(axis.edges)) == (0, length, MOST_BINS + 1)
    assert len(set(np.diff(axis.edges).tolist())) == (1 if length == 128 else 2)
    for site in result.sites:
        for head in site.heads:
            weights = head_pattern(wrapped, wrapped.head_sites, inputs, HeadId.parse(head.head))
            parts = [range(*pair) for pair in zip(axis.edges, axis.edges[1:], strict=False)]
            expected = [
                [sum(weights[q, k] for q in rows for k in part) / len(rows) for part in parts] for rows in parts
            ]
            assert head.array == pytest.approx(np.array(expected), abs=6e-5)
            assert head.array.sum(axis=1) == pytest.approx(np.ones(MOST_BINS), abs=MOST_BINS * 5e-5)


@pytest.mark.slow
def test_144_heads_on_512_tokens_take_less_than_a_megabyte() -> None:
    """Nothing is masked, as the zeros of a causal model would make the file shorter."""
    result, _ = on_long(bert(12, 12, 512), 512)
    data = result.to_json()
    assert AttentionSummary.from_json(data) == result
    pictures = {name: png(figure) for name, figure in draw_pages(result).items()}
    assert len(data) + sum(map(len, pictures.values())) < 1_000_000
    assert (list(pictures), len(result.sites), len(result.axes[0].edges)) == (["layer-self"], 12, 33)
    assert result.title.startswith("token0 token1 ")
    assert len(result.title) <= 60


def test_very_many_heads_get_wider_bins() -> None:
    result, _ = on_long(bert(20, 20, 40), 40)
    n_bins = len(result.axes[0].edges) - 1
    assert n_bins == 19
    assert 400 * n_bins**2 <= MOST_CELLS < 400 * (n_bins + 1) ** 2


def test_weights_of_one_site_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []

    def counted_reading(model: Any, sites: Any, inputs: Any, show: Any) -> Any:
        def see(site: HeadSite, weights: Tensor) -> None:
            assert all(each() is None for each in held)
            array = weights.numpy().copy()
            held.append(weakref.ref(array))  # as long as any tensor shares its memory
            show(site, torch.from_numpy(array))

        return read_attention(model, sites, inputs, see)

    monkeypatch.setattr(module, "read_attention", counted_reading)
    looked("t5")
    assert len(held) == 6


# --- results and errors ---------------------------------------------------------------------------------------------


@every_kind
def test_results_round_trip(name: str) -> None:
    result, _ = looked(name, special=special_of(name), text="a  text\nof two lines")
    assert AttentionSummary.from_json(result.to_json()) == result
    assert result.to_json().count("\n") == 1
    assert result.title == "a text of two lines"
    assert result.n_tokens == sum(LENGTHS[stack] for stack in stacks(name))
    assert [axis.special for axis in result.axes] == [(0, LENGTHS[stack] - 2) for stack in stacks(name)]


def test_the_pattern_of_a_head_is_what_the_model_returns() -> None:
    wrapped, inputs = wrap(hub.build("t5")), row(hub.inputs_of("t5"))
    weights_by_head = weights_of("t5", inputs)
    assert list(weights_by_head) == list(map(str, wrapped.heads))
    for head, weights in weights_by_head.items():
        pattern = head_pattern(wrapped, wrapped.head_sites, inputs, HeadId.parse(head))
        np.testing.assert_allclose(pattern, weights.double().numpy(), atol=1e-6)


def test_faults_are_told() -> None:
    wrapped, inputs = wrap(hub.build("t5")), row(hub.inputs_of("t5"))

    def look(inputs: tuple[Tensor, ...] = inputs, **changes: Any) -> AttentionSummary:
        text = TokenizedText(inputs, **({"tokens": tokens_of("t5")} | changes))
        return attention_summary("t5", "digest", wrapped, wrapped.head_sites, text)

    with pytest.raises(InputError, match="got a batch of 3 rows"):
        look(hub.inputs_of("t5"))
    with pytest.raises(InputError, match=r"encoder.0.self has 7 queries and 7 keys.*\{'decoder': 5\}"):
        look(tokens={"decoder": ["a"] * hub.FED})
    with pytest.raises(InputError, match=r"decoder.0.self has 5 queries and 5 keys.*'decoder': 4"):
        look(tokens={"encoder": ["a"] * hub.LENGTH, "decoder": ["a"] * 4})
    with pytest.raises(InputError, match="of the decoder has 2 values, but the text has 5 tokens"):
        look(special={"decoder": [True, False]})
    with pytest.raises(InputError, match=r"no head 'encoder.7.self.0'"):
        head_pattern(wrapped, wrapped.head_sites, inputs, HeadId.parse("E7H0"))
