"""What `headcount.tasks.base.Task` promises, asked of every task there is."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.tasks import TASKS
from headcount.tasks.base import IGNORE, Batch, Task

PARTS = ("source", "fed", "labels", "answer")


@pytest.fixture(params=TASKS.names())
def task(request: pytest.FixtureRequest) -> Task:
    return build(request.param)


def build(name: str) -> Task:
    part = TASKS.get(name)
    made: Task = part(part.config_class())
    return made


def names(task: Task, examples: np.ndarray) -> set[str]:
    return {task.show(example) for example in examples}


def same(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in PARTS)


def test_the_name_is_the_registered_one(task: Task) -> None:
    assert task.name in TASKS.names()
    assert type(task) is TASKS.get(task.name)
    assert task.config == TASKS.get(task.name).config_class() == TASKS.get(task.name)().config


def test_the_vocabulary_has_distinct_tokens_and_padding(task: Task) -> None:
    assert len(set(task.tokens)) == len(task.tokens)
    assert 0 <= task.pad_id < len(task.tokens)


def test_held_out_sets_repeat_and_share_nothing(task: Task) -> None:
    validation, test = task.split("validation"), task.split("test")
    assert np.array_equal(build(task.name).split("test"), test)
    assert len(names(task, validation)) == len(validation) > 0
    assert len(names(task, test)) == len(test) > 0
    assert not names(task, validation) & names(task, test)


def test_draws_repeat_with_their_stream_and_are_never_held_out(task: Task) -> None:
    drawn, again, other = (task.draw(np.random.default_rng(seed), 20_000) for seed in (0, 0, 1))
    assert len(drawn) == 20_000
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, other)
    assert not names(task, drawn) & (names(task, task.split("validation")) | names(task, task.split("test")))


def test_tokens_line_up_with_positions_and_vocabulary(task: Task) -> None:
    examples = task.split("test")[:50]
    batch = task.encode(examples)
    positions = (task.source_positions, task.fed_positions, task.fed_positions, task.answer_positions)
    for part, meant in zip(PARTS, positions, strict=True):
        tokens = getattr(batch, part)
        assert (tokens.shape, tokens.dtype) == ((len(examples), len(meant)), np.int64)
        assert ((tokens >= 0) & (tokens < len(task.tokens)) | (tokens == IGNORE)).all()
    assert task.pad_id not in batch.answer
    assert len(batch) == len(examples)


def test_teacher_forcing_and_free_running_ask_for_the_same_answer(task: Task) -> None:
    batch, begin = task.encode(task.split("test")), task.generation
    asked = batch.labels != IGNORE
    assert len(begin.given) + begin.n_tokens == batch.answer.shape[1]
    assert (batch.fed[:, 0] == begin.first).all()
    assert (batch.labels == batch.answer)[asked].all()
    assert asked.any(axis=1).all()
    assert (batch.fed[:, 1:] == batch.answer[:, :-1]).all()


def test_rows_of_a_batch_are_the_rows_alone(task: Task) -> None:
    examples = task.split("test")[:9]
    assert same(task.encode(examples)[3:5], task.encode(examples[3:5]))
    assert not same(task.encode(examples)[3:5], task.encode(examples[4:6]))


def test_text_leads_back_to_the_example(task: Task) -> None:
    for example in task.split("test")[:50]:
        assert np.array_equal(task.parse(task.show(example)), example[None])


def test_facets_group_every_example(task: Task) -> None:
    examples = task.split("test")
    facets = task.facets(examples)
    assert facets
    for groups in facets.values():
        assert len(groups) == len(examples)
        assert all(isinstance(group, str) and group for group in groups)
    assert any(len(set(groups)) > 1 for groups in facets.values())


def test_a_wrong_answer_is_shown_and_explained(task: Task) -> None:
    example, other = task.split("test")[:2]
    right, wrong = (task.encode(one[None]).answer[0] for one in (example, other))
    assert task.show_tokens(right) != task.show_tokens(wrong)
    assert task.explain(example, wrong)
    assert not task.explain(example, right)


def test_the_walk_is_the_whole_domain(task: Task) -> None:
    if task.domain_size > 10**6:
        first = next(task.walk())
        assert len(names(task, first)) == len(first)
        return
    blocks = list(task.walk())
    walked = np.concatenate(blocks).reshape(task.domain_size, -1)
    assert all((answers == answers[0]).all() for answers in (task.encode(block).answer for block in blocks))
    assert len(np.unique(walked, axis=0)) == task.domain_size
    assert (walked == task.split("test")[0].ravel()).all(axis=1).sum() == 1
