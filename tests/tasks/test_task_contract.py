"""What `headcount.tasks.base` promises: of every task, of those that ask for a sequence, of those for a class."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from reversal import Reversal, registered  # noqa: F401

from headcount.errors import InputError
from headcount.runs.config import RunConfig
from headcount.runs.train import train_run
from headcount.tasks import TASKS
from headcount.tasks.base import IGNORE, SPLIT_SIZES, Batch, ClassBatch, ClassTask, SequenceTask, Task

PARTS = ("source", "decoder_input", "labels", "answer")
CLASSES = {name: TASKS.get(name) for name in TASKS.names()} | {"reversal": Reversal}
"""Headcount's own tasks, and one that another package adds."""
TINY_MODELS = {"encoder-decoder": {"n_encoder_layers": 1, "n_decoder_layers": 1}, "classifier": {"n_layers": 1}}
TINY_MODELS["decoder-only"] = {"n_layers": 1}
OUTPUT_TYPES = {name: each.output_type for name, each in CLASSES.items()}

pytestmark = pytest.mark.usefixtures("registered")


def of_type(output_type: str) -> list[str]:
    return [name for name, each in OUTPUT_TYPES.items() if each == output_type]


@pytest.fixture(params=CLASSES)
def task(request: pytest.FixtureRequest) -> Task:
    return build(request.param)


@pytest.fixture(params=of_type("sequence"))
def writer(request: pytest.FixtureRequest) -> SequenceTask:
    return cast(SequenceTask, build(request.param))


@pytest.fixture(params=of_type("class"))
def sorter(request: pytest.FixtureRequest) -> ClassTask:
    return cast(ClassTask, build(request.param))


def build(name: str) -> Task:
    part = CLASSES[name]
    task: Task = part(part.config_class())
    return task


def encode(task: Task, examples: np.ndarray) -> Batch | ClassBatch:
    return cast(SequenceTask | ClassTask, task).encode(examples)


def names(task: Task, examples: np.ndarray) -> set[str]:
    return {task.show(example) for example in examples}


def same(one: Batch | ClassBatch, other: Batch | ClassBatch) -> bool:
    assert type(one) is type(other)
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))


# --- every task -------------------------------------------------------------------------------------------------


def test_every_task_asks_for_a_sequence_or_a_class() -> None:
    assert set(OUTPUT_TYPES.values()) == {"sequence", "class"}


def test_the_name_is_the_registered_one(task: Task) -> None:
    assert task.name in TASKS.names()
    assert type(task) is TASKS.get(task.name)
    assert task.config == TASKS.get(task.name).config_class() == TASKS.get(task.name)().config


def test_the_vocabulary_has_distinct_tokens_and_padding(task: Task) -> None:
    assert len(set(task.tokens)) == len(task.tokens)
    assert 0 <= task.pad_id < len(task.tokens)


def test_its_defaults_are_the_settings_of_a_run(task: Task) -> None:
    config = RunConfig.build(task.name)
    found = {"model": config.model, "training": config.training}
    for section, settings in task.defaults.items():
        assert settings
        for name, value in settings.items():
            assert getattr(found[section], name) == value


def test_some_task_has_defaults() -> None:
    """Otherwise the test above shows nothing."""
    assert any(TASKS.get(name).defaults for name in TASKS.names())


def test_a_run_of_it_is_trained_and_evaluated(task: Task, tmp_path: Path) -> None:
    settings = TINY_MODELS[task.model_kind]
    sizes = {name: 20 for name in SPLIT_SIZES[1:] if hasattr(task.config, name)}
    tiny = {"d_model": 8, "n_heads": 2, "d_ff": 8, "steps": 1, "batch_size": 8, "threads": 1}
    run = train_run(RunConfig.build(task.name, **tiny, **settings, **sizes), tmp_path / "run")
    assert type(run.task) is type(task)
    assert run.predict(task.show(run.task.split("test")[0]))


def test_held_out_sets_repeat_and_share_nothing(task: Task) -> None:
    validation, test = task.split("validation"), task.split("test")
    assert np.array_equal(build(task.name).split("test"), test)
    assert len(names(task, validation)) == len(validation) > 0
    assert len(names(task, test)) == len(test) > 0
    assert not names(task, validation) & names(task, test)


def test_a_split_that_is_not_there(task: Task) -> None:
    with pytest.raises(InputError, match=r"'exam'(.|\n)*validation"):
        task.split("exam")


def test_draws_repeat_with_their_stream_and_are_never_held_out(task: Task) -> None:
    drawn, again, other = (task.sample(np.random.default_rng(seed), 20_000) for seed in (0, 0, 1))
    assert len(drawn) == 20_000
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, other)
    assert not names(task, drawn) & (names(task, task.split("validation")) | names(task, task.split("test")))


def test_no_source_is_longer_than_the_longest(task: Task) -> None:
    widths = [encode(task, task.split(name)).source.shape[1] for name in ("validation", "test")]
    widths.append(encode(task, task.sample(np.random.default_rng(0), 500)).source.shape[1])
    assert max(widths) == task.longest


def test_text_leads_back_to_the_example(task: Task) -> None:
    examples = task.split("test")[:50]
    assert len(examples) == 50
    for example in examples:
        found = task.parse(task.show(example))
        assert same(encode(task, found), encode(task, example[None]))
        assert task.show(found[0]) == task.show(example)


@pytest.mark.parametrize("text", ["", "  ", "nonsense", "1 -2", "3.5", "９"])
def test_text_that_names_no_example_is_told_what_does(task: Task, text: str) -> None:
    with pytest.raises(InputError, match=r"\n  .*such as"):
        task.parse(text)


def test_facets_group_every_example(task: Task) -> None:
    examples = task.split("test")
    facets = task.facets(examples)
    assert facets
    for groups in facets.values():
        assert len(groups) == len(examples)
        assert all(isinstance(group, str) and group for group in groups)
    assert any(len(set(groups)) > 1 for groups in facets.values())


SITES = {
    "encoder-decoder": (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")),
    "decoder-only": (("layer", "self"),),
    "classifier": (("layer", "self"),),
}


def axes(task: Task, stack: str, kind: str, examples: np.ndarray) -> tuple[int, int]:
    """How many queries and keys a site has."""
    batch = encode(task, examples)
    decoder_input = batch.decoder_input if isinstance(batch, Batch) else None
    queries = decoder_input if stack == "decoder" else batch.source
    keys = decoder_input if (stack, kind) == ("decoder", "self") else batch.source
    assert queries is not None and keys is not None, "a classifier has one stack"  # noqa: PT018
    if stack == "layer" and decoder_input is not None:
        return (queries.shape[1] + decoder_input.shape[1],) * 2
    return queries.shape[1], keys.shape[1]


def test_every_kind_of_site_has_targets_columns_and_a_condition(task: Task) -> None:
    examples = task.split("test")[::40]
    for stack, kind in SITES[task.model_kind]:
        here, (n_queries, n_keys) = task.attention_targets(stack, kind, examples), axes(task, stack, kind, examples)
        assert here.targets
        assert here.query_column.shape == (n_queries,)
        assert set(here.query_column.tolist()) - {-1} == set(range(len(here.columns)))
        assert len(set(here.columns)) == len(here.columns)
        holds = here.condition.holds
        assert holds.shape == (len(examples), len(here.columns) or 1)
        assert holds.dtype == np.bool_
        assert holds.any()
        assert not holds.all()
        assert here.condition.yes != here.condition.no
        for target in here.targets.values():
            where = target(np.arange(n_queries)[:, None], np.arange(n_keys)[None])
            assert where.dtype == np.bool_
            assert np.broadcast_to(where, (len(examples), n_queries, n_keys)).any(), "a target that nothing ever is"


def test_a_target_asked_about_some_places_is_a_piece_of_the_whole(task: Task) -> None:
    examples = task.split("test")[:20]
    for stack, kind in SITES[task.model_kind]:
        n_queries, n_keys = axes(task, stack, kind, examples)
        queries, keys = np.arange(n_queries)[:, None], np.arange(n_keys)[None]
        targets = task.attention_targets(stack, kind, examples).targets
        assert targets
        for target in targets.values():
            whole, piece = (
                np.broadcast_to(found, (len(examples), *shape))
                for found, shape in (
                    (target(queries, keys), (n_queries, n_keys)),
                    (target(queries[1:3], keys[:, 2:]), (2, n_keys - 2)),
                )
            )
            assert np.array_equal(whole[:, 1:3, 2:], piece)


# --- examples for the search of counterexamples -----------------------------------------------------------------


NARROW: dict[str, list[dict[str, object]]] = {
    "addition": [
        {"digits": 1, "n_validation": 5, "n_test": 5},
        {"low": 250, "high": 420},
        {"low": 0, "least_first": True},
        {"digits": 9},
    ],
    "addition-long": [
        {"digits": 1, "n_validation": 3, "n_test": 3},
        {"digits": 2, "n_validation": 5, "n_test": 5, "least_first": False},
        {"zero_fill": True},
    ],
    "sortedness": [
        {"n_values": 2, "shortest": 12, "longest": 14, "n_validation": 20, "n_test": 20},
        {"shortest": 2, "longest": 3},
        {"distinct": True},
        {"distinct": True, "n_values": 12, "longest": 16},
        {"small_steps": 0.5, "shortest": 16},
        {"padding_is_zero": True},
    ],
    "reversal": [{"low": 10, "high": 15, "n_numbers": 2, "n_validation": 5, "n_test": 5}],
}
"""Settings that leave little room for hard examples and for changes."""


SEARCHED = [
    pytest.param(name, settings, id=" ".join([name, *(f"{key}={value}" for key, value in settings.items())]))
    for name in CLASSES
    for settings in ({}, *NARROW.get(name, ()))
]


def require_valid(task: Task, examples: np.ndarray) -> None:
    """Fail unless every example can be written, read again and encoded, and is in the range of training."""
    assert examples.dtype == np.int64
    assert examples.shape[1:] == task.sample(np.random.default_rng(0), 2).shape[1:]
    for example in examples:
        again = task.parse(task.show(example))
        assert task.show(again[0]) == task.show(example)
        assert same(encode(task, again), encode(task, example[None]))
        if task.output_type == "class":
            shortest, longest = cast(ClassTask, task).trained_lengths
            assert shortest <= cast(ClassTask, task).lengths(example[None])[0] <= longest
    if task.output_type == "sequence":
        cast(SequenceTask, task).index(examples)  # fails outside of the task's domain
    if getattr(task.config, "distinct", False):
        rows = [row[row >= 0].tolist() for row in examples]
        assert all(len(set(row)) == len(row) for row in rows if len(row) <= task.config.n_values)


@pytest.mark.parametrize(("name", "settings"), SEARCHED)
def test_hard_examples_and_mutations_are_valid_and_in_range(name: str, settings: dict[str, object]) -> None:
    task: Task = CLASSES[name](CLASSES[name].config_class(**settings))
    hard = task.hard_examples(np.random.default_rng(0), 300)
    again, other = (task.hard_examples(np.random.default_rng(seed), 300) for seed in (0, 1))
    assert hard is not None
    assert 9 <= len(hard) <= 300
    assert np.array_equal(hard, again)
    assert not np.array_equal(hard, other)
    require_valid(task, hard)
    for examples in (hard, task.sample(np.random.default_rng(2), 300)):
        before = examples.copy()
        mutated, repeated = (task.mutate(np.random.default_rng(3), examples) for _ in range(2))
        assert mutated is not None
        assert np.array_equal(mutated, repeated)
        assert np.array_equal(examples, before), "the examples that are given stay as they are"
        require_valid(task, mutated)
        n_changed = (mutated != examples).reshape(len(examples), -1).sum(axis=1)
        assert n_changed.min() >= 1
        assert n_changed.max() <= 2


def test_hard_examples_have_both_classes_and_all_lengths(sorter: ClassTask) -> None:
    hard = sorter.hard_examples(np.random.default_rng(0), 2000)
    assert hard is not None
    labels = sorter.encode(hard).labels
    assert 0.3 < labels.mean() < 0.7
    shortest, longest = sorter.trained_lengths
    assert set(sorter.lengths(hard).tolist()) == set(range(shortest, longest + 1))


@pytest.mark.parametrize("length", [2, 3, 40])
def test_patterns_have_both_classes_and_any_length(sorter: ClassTask, length: int) -> None:
    patterns, again = (sorter.patterns_of_length(np.random.default_rng(0), length, 400) for _ in range(2))
    assert patterns is not None
    assert np.array_equal(patterns, again)
    assert patterns.shape == (400, length)
    assert 0.2 < sorter.encode(patterns).labels.mean() < 0.8
    if length > 10:
        assert (np.diff(np.sort(patterns, axis=1), axis=1) <= 1).mean() > 0.5, "most steps are small"


def test_a_task_need_not_be_searchable() -> None:
    task, rng = Reversal(), np.random.default_rng(0)
    assert Task.hard_examples(task, rng, 5) is None
    assert Task.mutate(task, rng, task.sample(rng, 5)) is None


# --- tasks that ask for a sequence ------------------------------------------------------------------------------


def test_tokens_line_up_with_positions_and_vocabulary(writer: SequenceTask) -> None:
    examples = writer.split("test")[:50]
    batch = writer.encode(examples)
    positions = (
        writer.source_positions,
        writer.decoder_input_positions,
        writer.decoder_input_positions,
        writer.answer_positions,
    )
    for part, meant in zip(PARTS, positions, strict=True):
        tokens = getattr(batch, part)
        assert (tokens.shape, tokens.dtype) == ((len(examples), len(meant)), np.int64)
        assert ((tokens >= 0) & (tokens < len(writer.tokens)) | (tokens == IGNORE)).all()
    assert writer.pad_id not in batch.answer
    assert len(batch) == len(examples)


def test_teacher_forcing_and_free_running_ask_for_the_same_answer(writer: SequenceTask) -> None:
    batch, begin = writer.encode(writer.split("test")), writer.decoding_start
    asked = batch.labels != IGNORE
    assert len(begin.given) + begin.n_tokens == batch.answer.shape[1]
    assert (batch.decoder_input[:, 0] == begin.first).all()
    assert (batch.labels == batch.answer)[asked].all()
    assert asked.any(axis=1).all()
    assert (batch.decoder_input[:, 1:] == batch.answer[:, :-1]).all()


def test_rows_of_a_batch_are_the_rows_alone(writer: SequenceTask) -> None:
    examples = writer.split("test")[:9]
    assert same(writer.encode(examples)[3:5], writer.encode(examples[3:5]))
    assert not same(writer.encode(examples)[3:5], writer.encode(examples[4:6]))


def test_text_leads_back_to_the_very_same_array(writer: SequenceTask) -> None:
    examples = writer.split("test")[:50]
    assert len(examples) == 50
    for example in examples:
        assert np.array_equal(writer.parse(writer.show(example)), example[None])


def test_a_wrong_answer_is_shown_and_explained(writer: SequenceTask) -> None:
    example, other = writer.split("test")[:2]
    right, wrong = (writer.encode(one[None]).answer[0] for one in (example, other))
    assert writer.show_tokens(right) != writer.show_tokens(wrong)
    assert writer.explain(example, wrong)
    assert not writer.explain(example, right)


@pytest.mark.slow
def test_the_domain_is_iterated_as_a_whole(writer: SequenceTask) -> None:
    if writer.domain_size > 10**6:
        first = next(writer.iter_domain())
        assert len(names(writer, first)) == len(first)
        return
    blocks = list(writer.iter_domain())
    domain = np.concatenate(blocks).reshape(writer.domain_size, -1)
    assert all((answers == answers[0]).all() for answers in (writer.encode(block).answer for block in blocks))
    assert len(np.unique(domain, axis=0)) == writer.domain_size
    assert (domain == writer.split("test")[0].ravel()).all(axis=1).sum() == 1
    assert np.array_equal(np.sort(writer.index(np.concatenate(blocks))), np.arange(writer.domain_size))


# --- tasks that ask for a class ---------------------------------------------------------------------------------


def test_classes_and_negatives_have_names(sorter: ClassTask) -> None:
    assert len(set(sorter.classes)) == len(sorter.classes) >= 2
    assert len(set(sorter.negatives)) == len(sorter.negatives) >= 1


def test_both_classes_are_in_every_set(sorter: ClassTask) -> None:
    for examples in (sorter.split("validation"), sorter.split("test"), sorter.sample(np.random.default_rng(0), 64)):
        assert set(sorter.encode(examples).labels.tolist()) == set(range(len(sorter.classes)))


def test_sources_are_tokens_with_padding_behind(sorter: ClassTask) -> None:
    examples = sorter.split("test")[:200]
    batch = sorter.encode(examples)
    assert isinstance(batch, ClassBatch)
    assert batch.source.dtype == batch.labels.dtype == np.int64
    assert batch.labels.shape == (len(examples),)
    assert len(batch) == len(batch.source) == len(examples)
    assert ((batch.source >= 0) & (batch.source < len(sorter.tokens))).all()
    is_token = batch.source != sorter.pad_id
    assert not is_token.all(), "these are of mixed lengths"
    assert (is_token[:, :-1] | ~is_token[:, 1:]).all()


def test_rows_of_a_class_batch_are_the_rows_alone(sorter: ClassTask) -> None:
    examples = sorter.split("test")[:9]
    part, alone = sorter.encode(examples)[3:5], sorter.encode(examples[3:5])
    width = alone.source.shape[1]
    assert np.array_equal(part.labels, alone.labels)
    assert np.array_equal(part.source[:, :width], alone.source)
    assert (part.source[:, width:] == sorter.pad_id).all()


def test_trained_lengths_are_those_of_training(sorter: ClassTask) -> None:
    source = sorter.encode(sorter.sample(np.random.default_rng(0), 2000)).source
    lengths = (source != sorter.pad_id).sum(axis=1)
    assert (lengths.min(), lengths.max()) == sorter.trained_lengths
    assert sorter.trained_lengths[1] == sorter.longest


@pytest.mark.parametrize("length", [2, 3, 16, 17, 300])
def test_samples_have_any_length_and_the_class_asked_for(sorter: ClassTask, length: int) -> None:
    for kind in (None, *sorter.negatives):
        one, again, other = (
            sorter.sample_of_length(np.random.default_rng(seed), length, kind, 20) for seed in (0, 0, 1)
        )
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)
        batch = sorter.encode(one)
        assert batch.source.shape == (20, length)
        assert set(batch.labels.tolist()) == {len(sorter.classes) - 1 if kind is None else 0}


def test_a_negative_that_is_not_there(sorter: ClassTask) -> None:
    with pytest.raises(InputError, match=r"'upside-down'"):
        sorter.sample_of_length(np.random.default_rng(0), 9, "upside-down", 2)


@pytest.mark.parametrize("length", [2, 8, 40])
def test_cropped_examples_keep_their_class(sorter: ClassTask, length: int) -> None:
    whole = sorter.sample_of_length(np.random.default_rng(0), 40, sorter.local_negative, 30)
    for label, cut in zip(
        (0, len(sorter.classes) - 1), sorter.cropped(np.random.default_rng(1), whole, length), strict=True
    ):
        assert sorter.encode(cut).source.shape == (30, length)
        assert set(sorter.encode(cut).labels.tolist()) == {label}


def test_a_wrong_class_is_explained(sorter: ClassTask) -> None:
    examples = sorter.split("test")
    labels = sorter.encode(examples).labels
    some = np.concatenate([np.flatnonzero(labels == each)[:20] for each in range(len(sorter.classes))])
    assert len(some) == 20 * len(sorter.classes)
    for example, right in zip(examples[some], labels[some], strict=True):
        for predicted in range(len(sorter.classes)):
            assert bool(sorter.explain(example, predicted)) == (predicted != right)
