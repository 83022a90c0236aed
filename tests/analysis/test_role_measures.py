"""Role measures, compared with loops over hand-made attention, one query and key at a time."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.analysis.role_measures import (
    CLUSTERS,
    Marks,
    in_clusters,
    marks_of,
    query_measures,
    separator_places,
    site_measures,
)
from headcount.attention_roles import ROLES
from headcount.errors import InputError
from headcount.heads import HeadSite

Rows = list[list[float]]


def attention(rows: Rows) -> torch.Tensor:
    """Return hand-made weights of one head, [head, query, key]."""
    return torch.tensor([rows])


def marks(tokens: str, special: str = "", separators: str = "") -> Marks:
    """Return the marks of a text in which every letter is a token."""
    return marks_of({"layer": tokens}, {"layer": [letter in special for letter in tokens]}, separators)["layer"]


# --- by hand ----------------------------------------------------------------------------------------------------------


def targets_by_hand(tokens: str, special: str, separators: str, query: int, keys: list[int]) -> dict[str, set[int]]:
    """Return the keys of each role by the definitions alone, visible or not."""

    def is_plain(i: int) -> bool:
        return tokens[i] not in special + separators

    def side(i: int) -> int:
        return sum(letter in separators for letter in tokens[:i])

    copies = {j for j in keys if is_plain(query) and is_plain(j) and j != query and tokens[j] == tokens[query]}
    far = max(abs(query - j) for j in keys)
    return {
        "first": {0},
        "previous": {query - 1},
        "itself": {query},
        "next": {query + 1},
        "farthest": {j for j in keys if abs(query - j) == far},
        "special": {j for j in keys if tokens[j] in special},
        "separator": {j for j in keys if tokens[j] in separators},
        "duplicate": copies,
        "induction": {j for j in keys if j < query and j - 1 in copies and is_plain(j)},
        "matching": {j for j in copies if side(j) != side(query)},
    }


def by_hand(
    weights: Rows, tokens: str, special: str, separators: str, *, causal: bool
) -> dict[str, tuple[float, float, int, int]]:
    """Return the mean weight, the mean under uniform attention, and the numbers of queries and of largest weights."""
    rows: dict[str, list[tuple[float, float, bool]]] = {}
    for i, row in enumerate(weights):
        keys = [j for j in range(len(tokens)) if not causal or j <= i]
        for role, meant in targets_by_hand(tokens, special, separators, i, keys).items():
            hits = [j for j in keys if j in meant]
            if role == "farthest" and causal:
                continue
            if role == "separator" and set(separators) & set(tokens) <= set(special):
                continue
            if not hits or len(hits) == len(keys):
                continue
            others = [j for j in keys if j not in hits]
            if role == "matching":
                between = [tokens[min(i, j) : max(i, j)] for j in others]
                is_across = [any(letter in separators for letter in part) for part in between]
                others = [
                    j
                    for j, across in zip(others, is_across, strict=True)
                    if across and tokens[j] not in special + separators
                ]
            is_top = max(row[j] for j in hits) > max((row[j] for j in others), default=-1.0)
            rows.setdefault(role, []).append((sum(row[j] for j in hits), len(hits) / len(keys), is_top))
    return {
        role: (
            sum(weight for weight, _, _ in each) / len(each),
            sum(even for _, even, _ in each) / len(each),
            len(each),
            sum(is_top for _, _, is_top in each),
        )
        for role, each in rows.items()
    }


def require_equal(weights: torch.Tensor, tokens: str, special: str, separators: str, *, causal: bool) -> None:
    known = marks(tokens, special, separators)
    measures = query_measures(weights, known, known, "self")
    for head, rows in enumerate(weights.tolist()):
        expected = by_hand(rows, tokens, special, separators, causal=causal)
        counted = {role for role in ROLES if role in measures and measures[role].counted.any()}
        assert counted == set(expected)
        for role, (mean, even, n, n_top) in expected.items():
            each = measures[role]
            assert each.tops is not None
            assert each.mean(head) == pytest.approx(mean, abs=1e-6)
            assert each.even[each.counted].mean() == pytest.approx(even)
            assert each.counted.sum() == n
            assert each.tops[head, each.counted].sum() == n_top


def test_a_perfect_induction_head() -> None:
    """On `abcabc`, the head attends to the token after the earlier copy or, without a copy, to the first token."""
    weights = torch.zeros(1, 6, 6)
    weights[0, range(6), [0, 0, 0, 1, 2, 3]] = 1.0
    weights[0] = 0.97 * weights[0] + 0.03 * torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    measures = query_measures(weights, marks("abcabc"), marks("abcabc"), "self")
    induction, duplicate = measures["induction"], measures["duplicate"]
    assert induction.counted.tolist() == [False] * 3 + [True] * 3
    assert induction.mean(0) == pytest.approx(0.97 + 0.03 * (1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert induction.even[3:].tolist() == pytest.approx([1 / 4, 1 / 5, 1 / 6])
    assert duplicate.mean(0) == pytest.approx(0.03 * (1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert induction.tops is not None
    assert duplicate.tops is not None
    assert induction.tops[0, 3:].all()
    assert not duplicate.tops[0].any()


def test_a_matching_head_across_a_separator() -> None:
    """On `CO>OC`, every atom attends to its copy on the other side, and a little to the separator."""
    tokens = "CO>OC"
    weights = torch.full((1, 5, 5), 0.02)
    weights[0, range(5), [4, 3, 2, 1, 0]] = 0.92
    measures = query_measures(weights, marks(tokens, separators=">"), marks(tokens, separators=">"), "self")
    matching = measures["matching"]
    assert matching.counted.tolist() == [True, True, False, True, True]
    assert matching.mean(0) == pytest.approx(0.92)
    assert matching.even.tolist() == pytest.approx([0.2, 0.2, 0, 0.2, 0.2])
    assert matching.tops is not None
    assert matching.tops[0, matching.counted].sum() == 4
    assert measures["separator"].mean(0) == pytest.approx((4 * 0.02 + 0.92) / 5)
    assert measures["farthest"].mean(0) == pytest.approx((0.92 + 0.02 + 0.04 + 0.02 + 0.92) / 5)


@settings(max_examples=80, deadline=None)
@given(
    tokens=st.text("abc>|", min_size=2, max_size=9),
    causal=st.booleans(),
    separators=st.sampled_from(["", ">", "|", ">|"]),
    seed=st.integers(0, 10**6),
)
@pytest.mark.slow
def test_any_attention_is_measured_as_loops_do(tokens: str, causal: bool, separators: str, seed: int) -> None:
    """The token `|` is special, and the weights are different softmax weights."""
    scores = torch.randn(3, len(tokens), len(tokens), generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(~torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril(), -torch.inf)
    require_equal(scores.softmax(dim=-1), tokens, "|", separators, causal=causal)


def test_even_attention_is_what_even_says_and_has_no_largest_weight() -> None:
    tokens = "[ab>ba]"
    known = marks(tokens, "[]", ">")
    measures = query_measures(torch.full((2, 7, 7), 1 / 7), known, known, "self")
    assert set(measures) == {*ROLES, "entropy_share", "distance"}
    for role, each in measures.items():
        assert each.values[:, each.counted] == pytest.approx(np.tile(each.even[each.counted], (2, 1)), abs=1e-6)
        assert each.tops is None or not each.tops[:, each.counted].any(), role


def test_entropy_and_distance() -> None:
    weights = attention([[1.0, 0.0], [0.25, 0.75]])
    measures = query_measures(weights, marks("ab"), marks("ab"), "self")
    assert measures["entropy_share"].mean(0) == pytest.approx(-(0.25 * log(0.25) + 0.75 * log(0.75)) / log(2))
    assert measures["distance"].mean(0) == pytest.approx(0.25)
    assert measures["distance"].counted.tolist() == [False, True]


def test_cross_attention_knows_copies_but_no_places() -> None:
    """The decoder reads `xa`, the encoder `abc`: for `a`, the copy is key 0 and the token after it is key 1."""
    by_stack = marks_of({"encoder": ["a", "b", "c"], "decoder": ["x", "a"]})
    weights = torch.tensor([[[[0.2, 0.3, 0.5], [0.1, 0.7, 0.2]]]])
    measures = site_measures(HeadSite("decoder", 0, "cross"), weights, by_stack)
    assert not {"previous", "itself", "next", "farthest", "matching", "distance"} & set(measures)
    assert measures["duplicate"].mean(0) == pytest.approx(0.1)
    assert measures["induction"].mean(0) == pytest.approx(0.7)
    assert measures["duplicate"].counted.tolist() == [False, True]
    with pytest.raises(InputError, match="but the numbers of given tokens are"):
        site_measures(HeadSite("decoder", 0, "self"), weights, by_stack)
    with pytest.raises(InputError, match="got a batch of 2 rows"):
        site_measures(HeadSite("decoder", 0, "cross"), weights.repeat(2, 1, 1, 1), by_stack)


def test_many_heads_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.randn(5, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    whole = query_measures(weights, marks("abcabc"), marks("abcabc"), "self")
    monkeypatch.setattr("headcount.analysis.role_measures.AT_ONCE", 72)
    for role, each in query_measures(weights, marks("abcabc"), marks("abcabc"), "self").items():
        assert np.array_equal(each.values, whole[role].values)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 60), n_texts=st.integers(1, 40))
def test_clusters_lose_nothing(n: int, n_texts: int) -> None:
    weights = torch.randn(2, n, n, generator=torch.Generator().manual_seed(n)).softmax(dim=-1)
    for each in query_measures(weights, marks("a" * n), marks("a" * n), "self").values():
        sums = in_clusters(each, n_texts)
        assert sums.counts.sum() == each.counted.sum()
        assert sums.sums.sum(axis=0) == pytest.approx(each.values[:, each.counted].sum(axis=1))
        assert sums.even.sum() == pytest.approx(each.even[each.counted].sum())
        assert len(sums.counts) == min(n, -(-CLUSTERS // n_texts))
        double = sums + sums
        assert (double.counts.sum(), len(double.sums)) == (2 * sums.counts.sum(), 2 * len(sums.sums))


def test_separators_may_be_taken_apart_by_a_tokenizer() -> None:
    assert separator_places(["a", "##>", "##>", "b", ">"], [">>"]) == [False, True, True, False, False]
    assert separator_places(["[SEP]", "a"], ["[SEP]"]) == [True, False]
    assert separator_places(["a", "b"], []) == [False, False]
