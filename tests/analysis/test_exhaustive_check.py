import contextlib
import copy
import dataclasses
import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from asked_runs import verify
from printing import printed

from headcount.analysis import exhaustive_check
from headcount.analysis.exhaustive_check import Certificate, Nearest
from headcount.describing.verification import describe
from headcount.errors import CheckFailed, InputError
from headcount.runs.config import RunConfig
from headcount.runs.run import build, load
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.training import evaluation
from headcount.training.answers import answer, margins

pytestmark = pytest.mark.slow  # seconds together


@pytest.mark.slow
def test_every_sum_is_checked_and_every_error_listed(tiny_run):
    told = []
    certificate = verify(tiny_run, progress=lambda done, total: told.append((done, total)))
    pairs = list(itertools.product(range(10), repeat=2))
    wrong = [f"{a}+{b}" for a, b in pairs if int(tiny_run.predict(f"{a}+{b}")) != a + b]
    assert certificate.total == len(pairs) == 100
    assert sorted(each.example for each in certificate.wrong) == sorted(wrong)
    assert certificate.errors == len(wrong) > 0
    assert certificate.least_margin is None
    assert (100, 100) in told
    assert told[-1] == (100 + certificate.decoded, 100 + certificate.decoded)
    assert certificate.weights_sha256 == tiny_run.weights_sha256
    assert Certificate.from_json(certificate.to_json()) == certificate


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_cores_change_nothing(tiny_run, monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    before, certificate = torch.get_num_threads(), verify(tiny_run)
    monkeypatch.setattr(exhaustive_check, "workers", lambda model: contextlib.nullcontext(map))
    assert replace(certificate, environment={}) == replace(verify(tiny_run), environment={})
    assert certificate.environment["threads"] == str(cores)
    assert torch.get_num_threads() == before


def test_a_certificate_needs_both_ways_to_agree(tiny_run, monkeypatch):
    def lying(model, task, examples):
        predicted = answer(model, task, examples)
        return dataclasses.replace(
            predicted, free=np.where(predicted.free_hits.all(1)[:, None], 0, predicted.batch.answer)
        )

    monkeypatch.setattr(evaluation, "answer", lying)
    with pytest.raises(CheckFailed, match="disagree on"):
        verify(tiny_run)


class Walked(Addition):
    """A task that enumerates its domain wrongly."""

    def __init__(self, config, blocks):
        super().__init__(config)
        self.blocks = blocks

    def iter_domain(self):
        return iter(self.blocks)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda blocks: blocks[:-1], "99 examples, but states that it has 100"),
        (lambda blocks: [*blocks[:-1], blocks[0]], "an example twice, 0\\+0 or one that it listed"),
        (lambda blocks: [*blocks[:-1], np.repeat(blocks[-1], 2, axis=0)], "twice"),
    ],
)
def test_a_walk_that_leaves_out_or_repeats_gets_no_certificate(tiny_run, spoil, what):
    task = Walked(tiny_run.task.config, spoil(list(tiny_run.task.iter_domain())))
    with pytest.raises(CheckFailed, match=what):
        verify(replace(tiny_run, task=task))


def test_rounding_is_measured_and_what_hangs_on_it_counted(tiny_run):
    certificate = verify(tiny_run)
    everything = np.concatenate(list(tiny_run.task.iter_domain()))
    single = margins(tiny_run.model, tiny_run.task, everything)
    double = margins(copy.deepcopy(tiny_run.model).double(), tiny_run.task, everything)
    assert certificate.float_error == pytest.approx(np.abs(single - double).max(), rel=0.5)
    assert 0 < certificate.float_error < 1e-4
    assert certificate.n_recomputed == 100 + certificate.decoded - certificate.errors
    assert certificate.undecided == (np.abs(single) <= certificate.float_error).sum()
    assert {"hardware", "torch", "dtype", "device", "threads"} <= certificate.environment.keys()
    assert all(certificate.environment.values())
    text = printed(*describe(certificate), width=400)
    assert certificate.environment["hardware"] in text
    assert "of all 100 examples" in text


def test_the_nearest_are_kept_whatever_their_order():
    rng, near = np.random.default_rng(0), Nearest(5)
    leads = rng.normal(size=(30, 7))
    for i, block in enumerate(leads):
        near.add(np.stack([np.full(7, i), np.arange(7)], axis=1), np.where(block > 2, -np.inf, block))
    expected = np.argsort(np.abs(leads.ravel()))[:5]
    assert (near.examples @ [7, 1]).tolist() == expected.tolist()
    assert np.array_equal(near.margins, leads.ravel()[expected])


def test_numbers_that_are_none_get_no_certificate(tiny_run):
    broken = copy.deepcopy(tiny_run.model)
    with torch.no_grad():
        broken.to_logits.bias.fill_(torch.nan)
    with pytest.raises(CheckFailed, match="holds NaN"):
        verify(dataclasses.replace(tiny_run, model=broken))


def test_a_domain_too_large_to_walk(tiny_run, tiny):
    task, model = build(RunConfig.build("addition", **tiny | {"digits": 5}))
    with pytest.raises(InputError, match=r"has 8,100,000,000 examples, but only(.|\n)*headcount verify"):
        verify(dataclasses.replace(tiny_run, task=task, model=model))


def test_a_domain_without_end(tiny_sorter):
    with pytest.raises(InputError, match=r"has infinitely many examples, but only(.|\n)*headcount verify"):
        verify(tiny_sorter)


def test_the_packaged_sample_has_its_certificate():
    run = load("sample:addition")
    text = (run.folder.path / "results" / "certificate.json").read_text()
    certificate = Certificate.from_json(text)
    assert (certificate.weights_sha256, certificate.total, certificate.errors) == (run.weights_sha256, 810_000, 0)
    assert (certificate.distinct, certificate.undecided) == (810_000, 0)
    assert certificate.times_error > 1000


@pytest.mark.slow
def test_the_packaged_sample_is_right_on_a_part_of_its_domain():
    part = Addition(AdditionConfig(low=290, high=420, n_validation=1, n_test=1))
    certificate = verify(dataclasses.replace(load("sample:addition"), task=part), sample=200)
    assert (certificate.total, certificate.errors) == (131**2, 0)
