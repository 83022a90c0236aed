"""Heads are matched by where they look: planted permutations are found, and strangers are refused."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount.analysis.matching import Matching, match
from headcount.analysis.watched import watch
from headcount.errors import InputError
from headcount.models.weights import KeptWeights


@pytest.fixture(scope="module")
def run(tiny_run, untrained):
    return untrained(tiny_run, digits=2, n_heads=4, n_test=30)


@pytest.fixture(scope="module")
def stranger(tiny_run, untrained):
    """Another seed."""
    return untrained(tiny_run, digits=2, n_heads=4, n_test=30, seed=5)


def permuted(run, order):
    """The same run, the heads of every site in another order: head i becomes what head order[i] was."""
    model = deepcopy(run.model)
    n_heads = run.config.model.n_heads
    with torch.no_grad():
        for block in (module for module in model.modules() if hasattr(module, "attention")):
            for name in ("query", "key", "value"):
                for tensor in getattr(block.attention, name).parameters():
                    tensor.copy_(tensor.unflatten(0, (n_heads, -1))[order].flatten(0, 1))
            weight = block.attention.output.weight
            weight.copy_(weight.unflatten(1, (n_heads, -1))[:, order].flatten(1, 2))
    return replace(run, model=model, name="permuted")


def weights_of(run):
    kept = KeptWeights()
    with torch.no_grad():
        logits = run.model(*map(torch.from_numpy, watch(run).inputs), weights=kept)
    return kept, logits


def test_a_planted_permutation_is_found(run):
    order = [2, 0, 3, 1]
    other = permuted(run, order)
    (ours, logits), (theirs, same_logits) = weights_of(run), weights_of(other)
    torch.testing.assert_close(logits, same_logits, atol=1e-4, rtol=1e-4)
    assert all((ours[site] - theirs[site]).abs().max() > 0.1 for site in ours), "the permutation acted"
    found = match(run, other)
    assert [(kind.stack, kind.kind) for kind in found.kinds] == [
        ("encoder", "self"),
        ("decoder", "self"),
        ("decoder", "cross"),
    ]
    for kind in found.kinds:
        for pair in kind.pairs:
            site, _, index = pair.head.rpartition(".")
            assert pair.partner == f"{site}.{order.index(int(index))}"
            assert pair.overlap == pytest.approx(1, abs=1e-4)
            assert pair.se == pytest.approx(0, abs=1e-4)
            assert pair.same_index < 0.9
        assert kind.matched == pytest.approx(1, abs=1e-4)
        assert kind.arbitrary < 0.9


def test_a_run_matched_with_itself_is_the_identity(run, tiny_sorter):
    for each in (run, tiny_sorter):
        for kind in match(each, each).kinds:
            assert [pair.partner for pair in kind.pairs] == [pair.head for pair in kind.pairs]
            for pair in kind.pairs:
                assert pair.overlap == pair.same_index == pytest.approx(1, abs=1e-5)


def test_overlaps_are_those_of_plain_loops(run, stranger):
    found = match(run, stranger)
    (ours, _), (theirs, _) = weights_of(run), weights_of(stranger)
    for kind in found.kinds:
        for head, means, errors in zip(kind.heads, kind.overlaps, kind.errors, strict=True):
            for other, mean, error in zip(kind.others, means, errors, strict=True):
                mine, its = run.find_head(head), run.find_head(other)
                a, b = ours[mine.site][:, mine.index].double(), theirs[its.site][:, its.index].double()
                apart = (a - b).abs().sum(dim=-1) / 2  # total variation
                queries = slice(1, None) if (kind.stack, kind.kind) == ("decoder", "self") else slice(None)
                each = (1 - apart[:, queries]).mean(dim=1).numpy()
                assert mean == pytest.approx(each.mean(), abs=1e-5)
                assert error == pytest.approx(each.std(ddof=1) / np.sqrt(len(each)), abs=1e-5)
        assert kind.arbitrary == pytest.approx(np.mean(kind.overlaps), abs=1e-5)
        assert kind.arbitrary < kind.matched == pytest.approx(np.mean([p.overlap for p in kind.pairs]), abs=1e-5)


def test_the_pairing_is_one_to_one_and_the_best(run, stranger):
    rng = np.random.default_rng(0)
    for kind in match(run, stranger).kinds:
        overlaps = np.array(kind.overlaps)
        partners = [kind.others.index(pair.partner) for pair in kind.pairs]
        assert sorted(partners) == list(range(len(kind.heads)))
        best = overlaps[range(len(partners)), partners].sum()
        assert all(overlaps[range(len(partners)), rng.permutation(len(partners))].sum() <= best for _ in range(200))


def test_unequal_numbers_of_heads(run, tiny_run, untrained):
    cut = untrained(tiny_run, digits=2, n_heads=4, n_test=30, pruned="X0H0,X1H3,E0H0,E0H1,E0H2,E0H3")
    (own, cross) = match(run, cut).kinds
    assert (own.kind, cross.kind) == ("self", "cross")
    assert (len(own.pairs), len(own.others), len(cross.pairs), len(cross.others)) == (8, 8, 8, 6)
    alone = [pair for pair in cross.pairs if pair.partner is None]
    assert [(pair.overlap, pair.se) for pair in alone] == [(None, None)] * 2
    by_name = {pair.head: pair for pair in cross.pairs}
    assert by_name["decoder.0.cross.0"].same_index is None
    assert by_name["decoder.0.cross.1"].same_index is not None
    assert {pair.head for pair in match(cut, run).kinds[1].pairs} == set(cross.others)


def test_a_match_survives_json(run, stranger):
    found = match(run, stranger)
    assert Matching.from_json(found.to_json()) == found
    assert (found.n, found.data, found.other) == (30, "the test set", stranger.name)


def test_runs_that_cannot_be_compared_are_refused(run, tiny_run, tiny_sorter, untrained):
    with pytest.raises(InputError, match=r"does addition and (.|\n)*does sortedness"):
        match(run, tiny_sorter)
    with pytest.raises(InputError, match=r"digits: 2 in (.|\n)*, 1 in (.|\n)*n_heads: 4 in (.|\n)*seed or training"):
        match(run, tiny_run)
    with pytest.raises(InputError, match="n_layers: 1"):
        match(tiny_sorter, untrained(tiny_sorter, n_layers=2))
    with pytest.raises(InputError, match="at most 2,048"):
        match(tiny_sorter, tiny_sorter, 4096)
    assert match(tiny_sorter, untrained(tiny_sorter, pooling="mean"), 9).n == 1000
