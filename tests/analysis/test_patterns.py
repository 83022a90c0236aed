import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headcount.analysis.attention import AttentionPatterns, average_patterns, patterns_on, patterns_on_each
from headcount.analysis.attention_measures import matrix_of, rounded
from headcount.errors import InputError
from headcount.runs.run import load


@pytest.fixture(scope="module")
def run():
    return load("sample:addition")


def test_one_example_shows_what_the_model_used(run):
    patterns = patterns_on(run, "374+814")
    assert (patterns.predicted, patterns.right, patterns.n) == ("1188", "1188", 1)
    assert "374+814 = 1188 (right; probability" in patterns.title
    assert 0.9 < patterns.probability <= 1
    head_slots = {site.site: site for site in patterns.sites}
    assert list(head_slots) == [str(site) for site in run.model.sites]
    cross = head_slots["decoder.1.cross"]
    assert cross.keys == tuple("374+814")
    assert cross.queries == ("<s> → 1", "1 → 1", "1 → 8", "8 → 8")
    assert head_slots["decoder.0.self"].keys == ("<s>", "1", "1", "8")
    for site in patterns.sites:
        for head in site.heads:
            np.testing.assert_allclose(np.sum(head.weights, axis=1), 1, atol=1e-4)
            expected = run.attention("374+814", head.head)
            torch.testing.assert_close(torch.tensor(head.weights), expected, atol=1e-5, rtol=1e-4)
    assert AttentionPatterns.from_json(patterns.to_json()) == patterns


@pytest.mark.slow
def test_the_average_is_the_mean_over_the_test_set(run):
    patterns = average_patterns(run, "test")
    examples = run.task.split("test")
    assert patterns.n == len(examples)
    few = examples[:40]
    weights = torch.stack([run.attention(run.task.show(example), "X1H2") for example in few]).mean(dim=0)
    shown = next(h for site in patterns.sites for h in site.heads if h.short == "X1H2")
    spread = np.array(shown.deviation) / np.sqrt(len(few))
    assert (np.abs(np.array(shown.weights) - weights.numpy()) < 5 * spread + 1e-3).all()
    cross = next(site for site in patterns.sites if site.site == "decoder.1.cross")
    assert cross.keys == ("a 100s", "a 10s", "a 1s", "+", "b 100s", "b 10s", "b 1s")
    assert cross.queries == ("→ 1000s", "→ 100s", "→ 10s", "→ 1s")


def test_heads_are_found_by_either_name(run):
    assert torch.equal(run.attention("374+814", "decoder.1.cross.2"), run.attention("374+814", "X1H2"))
    with pytest.raises(
        InputError, match=r"no head 'encoder.2.self.0'(.|\n)*4 heads at each of encoder.0.self, (.|\n)*headcount heads"
    ):
        run.attention("374+814", "E2H0")


@given(arrays(np.float64, (1, 8), elements=st.floats(-1e30, 1e30)))
def test_numbers_are_rounded_at_once_as_they_are_one_by_one(values):
    values = np.concatenate([values, [[0.1234575, 1 / 1024, 2.0**-30, 0.0, -0.0, 1.0, 0.5, 1e-25]]])
    assert matrix_of(values) == tuple(tuple(map(rounded, row)) for row in values.tolist())


@pytest.mark.parametrize(
    ("name", "texts", "sign"),
    [
        ("sample:addition", ["374+814", "100+100", "999+999"], " = "),
        ("sample:sortedness", ["3 1 2", "1 2 3 4", "5 5 9"], " → "),
    ],
)
def test_many_examples_at_once_are_as_one_by_one(name, texts, sign):
    run = load(name)
    for text, each in zip(texts, patterns_on_each(run, texts), strict=True):
        alone = patterns_on(run, text)
        assert (each.title, each.example, each.correct) == (alone.title, text, alone.correct)
        assert each.verdict.startswith(f"{text}{sign}{each.predicted} (right")
        for site, same in zip(each.sites, alone.sites, strict=True):
            assert (site.queries, site.keys) == (same.queries, same.keys)
            for head, other in zip(site.heads, same.heads, strict=True):
                np.testing.assert_allclose(head.weights, other.weights, atol=2e-6)
