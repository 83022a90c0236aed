"""The effect of a single token on attention, compared with plain loops, and on heads that cannot react."""

import numpy as np
import pytest
import torch

from headcount.analysis.attention_contrasts import MOVED, contrast_of, shifts
from headcount.models.attention import AttentionCache
from headcount.tasks.base import Contrast

N = 8
"""Number of examples per column for the plain loops."""


@pytest.fixture(scope="module")
def adder(tiny_run, untrained):
    return untrained(tiny_run, digits=2, n_test=60)


def rows(run, example, head, queries):
    batch, kept = run.task.encode(example[None]), AttentionCache()
    with torch.no_grad():
        run.model(torch.from_numpy(batch.source), torch.from_numpy(batch.decoder_input), weights=kept)
    return kept[head.site][0, head.index, queries].double().numpy()


@pytest.mark.parametrize(("short", "queries"), [("X1H0", {"10s": [1], "100s": [0]}), ("E0H1", {"10s": [0, 3]})])
def test_steps_are_those_of_plain_loops(adder, short, queries):
    contrast, head = contrast_of(adder), adder.find_head(short)
    operator, some = 2, dict[str, list[tuple[float, ...]]]((name, []) for name in queries)
    for name, *steps in zip(contrast.columns, *contrast.steps, strict=True):
        if name in queries and len(some[name]) < N:
            w = [rows(adder, step, head, queries[name]) for step in steps]
            moved = [np.abs(w[i + 1] - w[i]).sum(axis=1).mean() / 2 for i in (0, 1)]
            gained = [(w[i + 1] - w[i])[:, operator].mean() for i in (0, 1)]
            some[name].append((*moved, *gained))
    # The same examples: as many of each column as were looped over.
    kept = [i for name in queries for i in np.flatnonzero(np.array(contrast.columns) == name)[:N]]
    before, between, after = (step[kept] for step in contrast.steps)
    few = Contrast("", "", (before, between, after), tuple(contrast.columns[i] for i in kept))
    changes = shifts(adder, few)[head.site][head.index]
    assert all(len(values) == N for values in some.values())
    for name, values in some.items():
        beside, across, gained_beside, gained_across = np.array(values).T
        told = {each.measure: each for each in changes if each.column == name}
        assert told[MOVED].n == N
        assert (told[MOVED].beside, told[MOVED].across) == pytest.approx((beside.mean(), across.mean()), rel=1e-4)
        difference = across - beside
        error = difference.std(ddof=1) / np.sqrt(N)
        assert (told[MOVED].mean, told[MOVED].se) == pytest.approx((difference.mean(), error), rel=1e-3, abs=1e-7)
        assert told["operator"].beside == pytest.approx(gained_beside.mean(), rel=1e-3, abs=1e-7)
        assert told["operator"].across == pytest.approx(gained_across.mean(), rel=1e-3, abs=1e-7)


def test_heads_that_see_nothing_of_it_do_not_move(adder):
    by_site = shifts(adder, contrast_of(adder))
    assert {site: len(heads) for site, heads in by_site.items()} == {
        site: len(adder.model.heads_at(site)) for site in adder.model.sites
    }
    for site, heads in by_site.items():
        for head in heads:
            whole = next(each for each in head if (each.measure, each.column) == (MOVED, "all"))
            if (site.stack, site.kind, site.layer) == ("decoder", "self", 0):
                assert (whole.beside, whole.across) == (0, 0), "it has not looked at the source yet"
            else:
                assert whole.across > 0


def test_a_task_without_a_contrast(tiny_sorter):
    assert contrast_of(tiny_sorter) is None
