"""Norm-weighted attention, compared with plain Python, and where it equals plain attention."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount.analysis.attention import AttentionPatterns, average_patterns, patterns_on
from headcount.analysis.attention_measures import eval_inputs, measure
from headcount.analysis.head_labels import untrained as control
from headcount.models.attention import AttentionCache
from headcount.models.reading import ValueNorms


@pytest.fixture(scope="module")
def adder(tiny_run, untrained):
    return control(untrained(tiny_run, digits=2, n_test=40), 0)


def by_hand(run, head):
    """Return the shares of ||a_ij f(x_j)|| for the first example of the test set, with each vector written out."""
    batch, kept, inputs = run.task.encode(run.task.split("test")[:1]), AttentionCache(), []
    attention = run.model.blocks[head.site].attention
    hook = attention.value.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    with torch.no_grad():
        run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input), weights=kept)
    hook.remove()
    (x,) = inputs
    part = slice(head.index * attention.d_head, (head.index + 1) * attention.d_head)
    norms = np.zeros(kept[head.site].shape[2:])
    for i, row in enumerate(kept[head.site][0, head.index].double()):
        for j, weight in enumerate(row):
            value = attention.value.weight[part].double() @ x[0, j].double() + attention.value.bias[part].double()
            norms[i, j] = (weight * (attention.output.weight[:, part].double() @ value)).norm().item()
    return norms / norms.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("short", ["E0H1", "D1H0", "X0H1"])
def test_shares_are_those_written_out_by_hand(adder, short):
    head = adder.find_head(short)
    batch, kept = adder.task.encode(adder.task.split("test")[:1]), AttentionCache()
    with torch.no_grad(), ValueNorms(adder.model) as norms:
        adder.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input), weights=kept)
    expected = by_hand(adder, head)
    np.testing.assert_allclose(norms.share(head.site, kept[head.site])[0, head.index], expected, atol=1e-5)
    assert np.abs(expected - kept[head.site][0, head.index].numpy()).max() > 0.01, "not the weights themselves"
    few = eval_inputs(adder).some(1)
    measures = measure(adder, few, norm_weighted=True)[head.site]
    first = measures["first token"]
    sees = slice(1 if short.startswith("D") else 0, None)  # the decoder's first query has no choice
    assert first.sums[0, head.index].sum() == pytest.approx(expected[sees, 0].sum(), abs=1e-4)


def test_where_all_norms_are_alike_it_is_plain_attention(adder):
    model = copy.deepcopy(adder.model)
    with torch.no_grad():
        for block in model.blocks.values():
            block.attention.value.weight.zero_()
            block.attention.value.bias.fill_(0.3)
    run = replace(adder, model=model)
    plain, weighted = (patterns_on(run, "37+48", norm_weighted=norms) for norms in (False, True))
    assert (plain.weighting, weighted.weighting) == ("attention weight", "norm-weighted attention")
    for one, other in zip(plain.sites, weighted.sites, strict=True):
        for head, same in zip(one.heads, other.heads, strict=True):
            np.testing.assert_allclose(head.weights, same.weights, atol=1e-5)


def test_averages_are_over_shares(adder):
    patterns = average_patterns(adder, "test", norm_weighted=True)
    assert patterns.weighting == "norm-weighted attention"
    assert AttentionPatterns.from_json(patterns.to_json()) == patterns
    for site in patterns.sites:
        for head in site.heads:
            np.testing.assert_allclose(np.sum(head.weights, axis=1), 1, atol=1e-4)


def test_hooks_are_gone_afterwards(adder):
    with ValueNorms(adder.model):
        assert any(block.attention.value._forward_hooks for block in adder.model.blocks.values())
    assert not any(block.attention.value._forward_hooks for block in adder.model.blocks.values())
