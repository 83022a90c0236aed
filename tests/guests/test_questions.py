"""Exams in blocks: of like length, within memory, and no matter how large for the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import exam_models as texts
import hub_models as hub
import numpy as np
import pytest
import torch
from exam_models import TEXTS, classifier, table
from numpy.typing import NDArray
from torch import Tensor

from headcount import ablate_heads
from headcount.analysis.subjects import mean_total
from headcount.analysis.trials import Trial, parts_of, run_trials
from headcount.errors import InputError
from headcount.guests import questions
from headcount.guests.exams.base import Exam
from headcount.guests.guest import Guest
from headcount.guests.questions import halves, some_of, subject_of_exam

MANY = [f"{a} and {b}" for a in TEXTS for b in TEXTS]
CLASSES = table(("text", "label"), *((text, str(i % 3)) for i, text in enumerate(MANY)))
PAIRS = table(("first", "second", "score"), *((a, b, str(len(a) % 7)) for a in TEXTS for b in TEXTS))


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.statistics.DRAWS", 199)


@pytest.fixture
def sorted_texts(in_tmp: Path) -> tuple[Guest, Exam]:
    guest = texts.guest(classifier(max_position_embeddings=64))
    (in_tmp / "classes.tsv").write_text(CLASSES)
    return guest, guest.exam("classes.tsv")


@pytest.fixture
def pairs(in_tmp: Path) -> tuple[Guest, Exam]:
    guest = texts.guest(hub.build("bert alone"))
    (in_tmp / "pairs.tsv").write_text(PAIRS)
    return guest, guest.exam("pairs.tsv")


@contextmanager
def largest(model: torch.nn.Module) -> Iterator[list[int]]:
    """Rows of every forward pass."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(len(args[0])), with_kwargs=True)
    yield seen
    hook.remove()


@pytest.mark.parametrize("room", [2, 7, 20])
@pytest.mark.parametrize("which", ["sorted_texts", "pairs"])
def test_memory_is_never_exceeded(
    which: str, room: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest, exam = request.getfixturevalue(which)
    longest = int(exam.lengths.max())
    monkeypatch.setattr(questions, "ROOM", room * exam.n_rows * longest * exam.width)
    subject = subject_of_exam(guest.model, guest.sites, exam)
    most = room * exam.n_rows
    assert subject.most_rows == most
    assert max(block.n_inputs for block in subject.blocks) <= most + exam.n_rows, "blocks of at least two examples"
    with largest(guest.model) as seen:
        run_trials(subject, [Trial((head,)) for head in guest.sites.heads], batch_size=10**6, proven=True)
    assert max(seen) <= max(most + exam.n_rows, 4)
    assert len(seen) > len(subject.blocks)


def test_blocks_are_of_like_length_and_hold_everybody_once(sorted_texts: tuple[Guest, Exam]) -> None:
    guest, exam = sorted_texts
    rows = some_of(exam, 30)
    subject = subject_of_exam(guest.model, guest.sites, exam, rows, at_once=4)
    assert sorted(np.concatenate([block.rows for block in subject.blocks]).tolist()) == list(range(30))
    assert (subject.n, len(subject.blocks)) == (30, 8)
    ends = [(exam.lengths[rows[block.rows]].min(), exam.lengths[rows[block.rows]].max()) for block in subject.blocks]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    for block, (_, most) in zip(subject.blocks, ends, strict=True):
        assert block.inputs[0].shape[1] == most
        expected = exam.ask(rows[block.rows]).inputs[0]
        assert torch.equal(block.inputs[0], expected)


@pytest.mark.parametrize("which", ["sorted_texts", "pairs"])
def test_the_result_does_not_depend_on_the_batch(which: str, request: pytest.FixtureRequest) -> None:
    guest, exam = request.getfixturevalue(which)
    metric = "loss" if which == "sorted_texts" else None
    one, other = (
        ablate_heads(guest, exam, metric, kinds=["zero", "mean"], batch_size=size, quiet=True).result
        for size in (512, 12)
    )
    assert one.conditions[0].clean == pytest.approx(other.conditions[0].clean, abs=1e-6)
    assert max(abs(effect.drop) for effect in one.heads) > 1e-3
    for mine, theirs in zip(one.heads, other.heads, strict=True):
        assert mine.drop == pytest.approx(theirs.drop, abs=1e-6)
        assert (mine.low, mine.high, mine.p) == pytest.approx((theirs.low, theirs.high, theirs.p), abs=1e-5)
    for here, there in zip(one.conditions[0].importances, other.conditions[0].importances, strict=True):
        assert here.importance == pytest.approx(there.importance, abs=1e-6)


def test_a_metric_of_ones_own(sorted_texts: tuple[Guest, Exam]) -> None:
    guest, exam = sorted_texts

    def first_logit(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        assert len(output) == len(rows)
        return output[:, 0] + torch.from_numpy(rows) * 0

    found = ablate_heads(guest, exam, first_logit, kinds=["zero"], quiet=True).result
    whole = exam.ask(np.arange(len(exam)))
    with torch.no_grad():
        expected = float(guest.model(*whole.inputs)[:, 0].mean())
    assert (found.metric, found.unit, found.is_share) == ("first_logit", "", False)
    assert found.conditions[0].clean == pytest.approx(expected, abs=1e-9)
    nameless = subject_of_exam(guest.model, guest.sites, exam, metric=partial(first_logit))
    assert nameless.metric.name == "score"


def test_a_metric_of_ones_own_is_a_mean_whatever_its_name(pairs: tuple[Guest, Exam]) -> None:
    guest, exam = pairs

    def spearman(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        return output[0::2, 0, 0]

    assert subject_of_exam(guest.model, guest.sites, exam, metric=spearman).total is mean_total


def test_a_figure_of_some_examples_is_of_those(pairs: tuple[Guest, Exam]) -> None:
    """Numbers of a subject's examples are not those of the exam's."""
    guest, exam = pairs
    rows = np.array([30, 2, 17, 9, 22, 11, 5])
    subject = subject_of_exam(guest.model, guest.sites, exam, rows, at_once=2)
    clean = run_trials(subject, []).clean
    asked: Any = exam.ask(rows)
    with torch.no_grad():
        expected = asked.scores["spearman"](guest.model(*asked.inputs)).numpy()
    np.testing.assert_allclose(clean, expected, atol=1e-9)
    assert float(subject.figure(clean)) == pytest.approx(float(exam.totals["spearman"](expected, rows)))


def test_examples_to_choose_on_are_others_than_those_to_measure_on(sorted_texts: tuple[Guest, Exam]) -> None:
    exam = sorted_texts[1]
    one, other = halves(exam)
    assert sorted([*one, *other]) == list(range(len(exam)))
    few = halves(exam, 9)
    assert (len(few[0]), len(few[1])) == (4, 5)
    assert not set(few[0]) & set(few[1])
    np.testing.assert_array_equal(some_of(exam, 7), some_of(exam, 7))
    np.testing.assert_array_equal(some_of(exam, 10**6), np.arange(len(exam)))
    for n in (3, 1, 0, -4):
        with pytest.raises(InputError, match="too few to choose"):
            halves(exam, n)
    with pytest.raises(InputError, match="1 examples are too few"):
        subject_of_exam(sorted_texts[0].model, sorted_texts[0].sites, exam, np.array([3]))
    assert len(some_of(exam, -4)) == len(some_of(exam, 0)) == 0, "not all but four"


# --- running text -----------------------------------------------------------------------------------------------------


@pytest.fixture
def running_text(in_tmp: Path) -> tuple[Guest, Exam]:
    guest = texts.guest(hub.build("gpt2"), "$A", length=3)
    (in_tmp / "text.txt").write_text(" ".join(TEXTS * 10))
    return guest, guest.exam("text.txt")


def test_of_a_text_the_first_half_chooses_and_the_second_measures(running_text: tuple[Guest, Exam]) -> None:
    exam = running_text[1]
    assert len(exam) > 100
    one, other = halves(exam)
    np.testing.assert_array_equal([*one, *other], np.arange(len(exam)))
    few = halves(exam, 21)
    assert (len(few[0]), len(few[1])) == (10, 11)
    assert few[0].max() < few[1].min()
    assert np.diff(few[0]).max() > 1, "from all of the half"


def test_windows_are_resampled_with_their_neighbours(running_text: tuple[Guest, Exam]) -> None:
    guest, exam = running_text
    assert exam.clusters is not None
    sizes = np.bincount(exam.clusters)
    assert len(sizes) >= 40
    assert set(sizes[:-1]) == {len(exam) // 40}
    rows = np.array([90, 3, 4, 91, 50])
    np.testing.assert_array_equal(subject_of_exam(guest.model, guest.sites, exam, rows).clusters, exam.clusters[rows])


def test_parts_of_a_mean_are_stretches_of_the_text(running_text: tuple[Guest, Exam]) -> None:
    """Neighbours are alike: parts that share the drift of the text would differ too little from each other."""
    guest, exam = running_text
    for rows in (np.arange(len(exam)), np.arange(0, len(exam), 3)):
        subject = subject_of_exam(guest.model, guest.sites, exam, rows, at_once=4)
        blocks = subject.reference or subject.blocks
        orders, parts = (np.concatenate(each) for each in ([block.order for block in blocks], parts_of(blocks)))
        assert sorted(orders) == list(range(len(exam))), "those that are measured, and the others"
        assert (np.diff(parts[np.argsort(orders)]) >= 0).all()
        assert set(np.bincount(parts)) <= {len(exam) // 8, len(exam) // 8 + 1}


def test_neighbours_in_a_text_seldom_share_a_block(running_text: tuple[Guest, Exam]) -> None:
    guest, exam = running_text
    subject = subject_of_exam(guest.model, guest.sites, exam, at_once=4)
    gaps = np.concatenate([np.diff(np.sort(block.rows)) for block in subject.blocks])
    assert (gaps == 1).mean() < 0.2


def test_rows_of_a_table_belong_to_nobody(sorted_texts: tuple[Guest, Exam]) -> None:
    guest, exam = sorted_texts
    assert exam.clusters is subject_of_exam(guest.model, guest.sites, exam).clusters is None


# --- what means are taken over ----------------------------------------------------------------------------------------


def test_means_are_taken_over_the_whole_exam(running_text: tuple[Guest, Exam], monkeypatch: pytest.MonkeyPatch) -> None:
    guest, exam = running_text
    rows = some_of(exam, 20)
    subject = subject_of_exam(guest.model, guest.sites, exam, rows)
    given = torch.cat([block.inputs[0] for block in subject.reference])
    whole = exam.ask(np.arange(len(exam))).inputs[0]
    assert sorted(given.tolist()) == sorted(whole.tolist())
    assert all(any(block is each for each in subject.reference) for block in subject.blocks), "no inputs twice"
    assert subject_of_exam(guest.model, guest.sites, exam).reference == (), "there are no more"
    monkeypatch.setattr(questions, "N_REFERENCE", 33)
    fewer = subject_of_exam(guest.model, guest.sites, exam, rows)
    assert sum(block.n_inputs for block in fewer.reference) == 33
    for bound in ("REFERENCE_BYTES", "N_REFERENCE"):
        monkeypatch.setattr(questions, bound, 1)
        assert subject_of_exam(guest.model, guest.sites, exam, rows).reference == ()


def test_large_models_take_their_means_over_what_a_sweep_costs(
    running_text: tuple[Guest, Exam], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest, exam = running_text
    monkeypatch.setattr(questions, "WORK", 1)
    subject = subject_of_exam(guest.model, guest.sites, exam, np.arange(5))
    assert sum(block.n_inputs for block in subject.reference) == 5 * len(guest.sites.heads) < len(exam)


def test_adapters_draw_fresh_examples_of_their_task(adder: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "N_REFERENCE", 300)
    exam = adder.exam()
    subject = subject_of_exam(adder.model, adder.sites, exam)
    given = [tuple(row) for block in subject.reference for row in block.inputs[0].tolist()]
    held_out = {tuple(row) for row in exam.ask(np.arange(len(exam))).inputs[0].tolist()}
    assert len(given) == 300
    assert not set(given) & held_out
    assert all(block.real["decoder"].any(dim=1).all() for block in subject.reference)
    again = subject_of_exam(adder.model, adder.sites, exam)
    assert torch.equal(again.reference[0].inputs[0], subject.reference[0].inputs[0])


def test_no_block_has_as_many_rows_as_a_sequence_is_long(sorted_texts: tuple[Guest, Exam]) -> None:
    guest, exam = sorted_texts
    for at_once in range(4, 14):
        subject = subject_of_exam(guest.model, guest.sites, exam, at_once=at_once)
        assert sorted(np.concatenate([block.rows for block in subject.blocks]).tolist()) == list(range(len(exam)))
        for block in subject.blocks:
            assert block.n_inputs < 4 or block.n_inputs not in block.inputs[0].shape[1:]
