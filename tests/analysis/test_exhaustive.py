import contextlib
import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch

from headcount.analysis import exhaustive
from headcount.analysis.exhaustive import Certificate, verify
from headcount.errors import CheckFailed, InputError
from headcount.runs.config import RunConfig
from headcount.runs.run import build, load
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.training import workers
from headcount.training.evaluation import answer

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
    assert certificate.model == tiny_run.digest
    assert Certificate.from_json(certificate.to_json()) == certificate


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_cores_change_nothing(tiny_run, monkeypatch, cores):
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    before, certificate = torch.get_num_threads(), verify(tiny_run)
    monkeypatch.setattr(exhaustive, "workers", lambda model: contextlib.nullcontext(map))
    assert certificate == verify(tiny_run)
    assert torch.get_num_threads() == before


def test_a_certificate_needs_both_ways_to_agree(tiny_run, monkeypatch):
    def lying(model, task, examples):
        said = answer(model, task, examples)
        return dataclasses.replace(said, free=np.where(said.free_hits.all(1)[:, None], 0, said.batch.answer))

    monkeypatch.setattr(exhaustive, "answer", lying)
    with pytest.raises(CheckFailed, match="disagree on"):
        verify(tiny_run)


def test_numbers_that_are_none_get_no_certificate(tiny_run):
    broken = copy.deepcopy(tiny_run.model)
    with torch.no_grad():
        broken.to_logits.bias.fill_(torch.nan)
    with pytest.raises(CheckFailed, match="holds NaN"):
        verify(dataclasses.replace(tiny_run, model=broken))


def test_a_domain_too_large_to_walk(tiny_run, tiny):
    task, model = build(RunConfig.build("addition", **tiny | {"digits": 5}))
    with pytest.raises(InputError, match=r"8,100,000,000 examples are too many(.|\n)*headcount evaluate"):
        verify(dataclasses.replace(tiny_run, task=task, model=model))


def test_the_packaged_sample_has_its_certificate():
    run = load("sample:addition")
    text = (run.folder.path / "results" / "certificate.json").read_text()
    certificate = Certificate.from_json(text)
    assert (certificate.model, certificate.total, certificate.errors) == (run.digest, 810_000, 0)


@pytest.mark.slow
def test_the_packaged_sample_is_right_on_a_part_of_its_domain():
    part = Addition(AdditionConfig(low=290, high=420, n_validation=1, n_test=1))
    certificate = verify(dataclasses.replace(load("sample:addition"), task=part), sample=200)
    assert (certificate.total, certificate.errors) == (131**2, 0)
