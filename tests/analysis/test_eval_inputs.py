"""Examples for attention measures, the keys that queries can see, and reading weights in chunks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reversal import Reversal

from headcount.analysis import attention_measures as measures_module
from headcount.analysis.attention_measures import HeadMeasures, eval_inputs
from headcount.analysis.specialisation import specialise
from headcount.errors import InputError
from headcount.models import masking as masking_module
from headcount.models import reading as reading_module
from headcount.models.attention import AttentionCache
from headcount.models.reading import visible_keys
from headcount.runs.run import Run

close = {"abs": 1e-5, "rel": 1e-4}


def require_visible_where_attention_goes(run):
    """Assert that every visible key gets attention in some example, and other keys get none in any."""
    kept = AttentionCache()
    with torch.no_grad():
        run.model(*map(torch.from_numpy, run.inputs(eval_inputs(run).examples)), weights=kept)
    assert set(kept) == set(run.model.sites)
    for site, weights in kept.items():
        rows, keys = (slice(0, n) for n in weights.shape[2:])
        expected = visible_keys(run.model, site, rows, keys, keys.stop, weights.device)
        assert torch.equal((weights > 0).any(dim=0).any(dim=0), expected)


@pytest.mark.parametrize("settings", [{}, {"window": 1}, {"causal": True}, {"encoding": "alibi", "window": 2}])
def test_what_is_visible_to_a_classifier(tiny_sorter, untrained, settings):
    require_visible_where_attention_goes(untrained(tiny_sorter, **settings))


@pytest.mark.parametrize("settings", [{}, {"encoding": "alibi"}, {"encoding": "rotary", "window": 2}])
def test_what_is_visible_to_an_adder(tiny_run, untrained, settings):
    require_visible_where_attention_goes(untrained(tiny_run, digits=2, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"window": 2}, {"causal": True}])
def test_weights_read_in_chunks_are_the_same(tiny_sorter, untrained, settings, monkeypatch):
    run = untrained(tiny_sorter, **settings)
    monkeypatch.setattr(measures_module, "MOST", 48)
    whole = specialise(run, 12, controls=(2, 1))
    monkeypatch.setattr(masking_module, "PAIRS", 40)
    monkeypatch.setattr(masking_module, "NARROW", 2)
    monkeypatch.setattr(reading_module, "PAIRS_AT_ONCE", 12 * 12 * 7)
    n_queries, add = set[int](), HeadMeasures.add

    def count(self, chunk):
        n_queries.add(chunk.weights.shape[2])
        add(self, chunk)

    monkeypatch.setattr(HeadMeasures, "add", count)
    pieces = specialise(run, 12, controls=(2, 1))
    assert max(n_queries) <= 3, "it was read in chunks"
    for one, other in zip(whole.heads, pieces.heads, strict=True):
        for a, b in zip(one.measures, other.measures, strict=True):
            assert (a.measure, a.condition, a.n) == (b.measure, b.condition, b.n)
            assert (a.mean, a.se) == pytest.approx((b.mean, b.se), **close)


def test_sequences_of_one_length_half_of_them_sorted(tiny_sorter):
    inputs = eval_inputs(tiny_sorter)
    assert inputs.examples.shape == (1000, 6)
    assert np.array_equal(inputs.examples, eval_inputs(tiny_sorter).examples)
    assert tiny_sorter.task.encode(inputs.examples).labels.mean() == 0.5
    assert eval_inputs(tiny_sorter, 9).examples.shape == (1000, 9)
    assert eval_inputs(tiny_sorter, 4096).examples.shape == (16, 4096)
    for length in (1, 0, -3, 10_000):
        with pytest.raises(InputError, match=r"--length must be from 2 to 8,192"):
            eval_inputs(tiny_sorter, length)


def test_one_example_tells_nothing_of_errors(tiny_run, untrained):
    with pytest.raises(InputError, match="train a model with a larger test set"):
        eval_inputs(untrained(tiny_run, n_test=1))


def test_neighbours_exist_only_where_they_do(tiny_sorter, untrained):
    run = untrained(tiny_sorter, causal=True)
    heads = specialise(run, controls=(2, 1)).heads
    assert [head.head for head in heads] == [str(head) for head in run.model.heads]
    for head in heads:
        assert head.find("right neighbour") is None, "nothing ahead is visible"
        assert head.find("left neighbour").n == 1000
        assert 0 < head.find("equal numbers").n < 1000
        parts = [head.find("itself", "all", name) for name in ("sorted", "unsorted")]
        assert [part.n for part in parts] == [500, 500]
        mean = (parts[0].mean + parts[1].mean) / 2
        assert head.find("itself").mean == pytest.approx(mean, **close)


def test_an_adder_has_no_lengths(tiny_run):
    with pytest.raises(InputError, match="leave --length out"):
        specialise(tiny_run, 9)


class PaddedReversal(Reversal):
    """Lists of different lengths: where the first number is even, padding follows the second number."""

    def encode(self, examples):
        batch = super().encode(examples)
        source = batch.source.copy()
        source[:, 2:] = np.where(examples[:, :1] % 2 == 0, self.pad_id, source[:, 2:])
        return replace(batch, source=source)


def test_padding_is_no_part_of_what_is_measured():
    task = PaddedReversal()
    model = SimpleNamespace(task=task, name="reverser")
    test = task.split("test")
    measured = eval_inputs(model)
    assert measured.data == "the longest examples of the test set"
    assert measured.examples.tolist() == test[test[:, 0] % 2 == 1].tolist()
    averaged = Run.aligned_examples(model, test)
    assert averaged.rows.tolist() == np.flatnonzero(test[:, 0] % 2).tolist()
    assert averaged.words == "the longest examples in "
    model.task = Reversal()
    assert (eval_inputs(model).data, Run.aligned_examples(model, test).words) == ("the test set", "")
