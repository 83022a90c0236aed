"""Decoder-only models: ids, windows, padding and decoding, by two routes each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headcount.errors import ConfigError
from headcount.hooks.gates import eval_mode
from headcount.models import transformer
from headcount.models.attention import AttentionCache, KeyValueCache
from headcount.models.transformer import DecoderOnly, greedy
from headcount.models.windows import attend_near, near_keys
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.tasks.addition_long import END, PAD, AdditionLong, AdditionLongConfig
from headcount.tasks.base import past_end, widened
from headcount.training.answers import answer

TINY = {"d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "coupled ids, window": {},
    "coupled ids, no window": {"window": None},
    "abacus in a table": {"position_ids": "abacus", "encoding": "learned", "window": None},
    "most significant first, zeros": {"least_first": False, "zero_fill": True, "window": 2, "encoding": "t5"},
    "order, FIRE": {"position_ids": "order", "encoding": "fire", "window": None, "least_first": False},
    "order, rotary, window": {"position_ids": "order", "encoding": "rotary", "window": 3},
    "order, ALiBi": {"position_ids": "order", "encoding": "alibi", "window": None, "softmax": "log-length"},
    "order, none": {"position_ids": "order", "encoding": "none", "window": None, "norm": "post"},
    "coupled ids, log-length": {"softmax": "log-length", "window": 1},
}


def built(**settings: Any) -> tuple[AdditionLong, DecoderOnly]:
    task, model = build(RunConfig.build("addition-long", **TINY | {"n_validation": 20, "n_test": 20} | settings))
    assert isinstance(task, AdditionLong)
    assert isinstance(model, DecoderOnly)
    return task, model.double().eval()


@pytest.fixture(params=MODELS)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODELS[request.param]


def tensors(task: AdditionLong, examples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    batch = task.encode(examples)
    return torch.from_numpy(batch.source.copy()), torch.from_numpy(batch.decoder_input)


@torch.no_grad()
def test_decoding_with_a_cache_is_decoding_without(settings: dict[str, Any]) -> None:
    task, model = built(**settings)
    source, _ = tensors(task, task.sample(np.random.default_rng(0), 6))
    start = task.decoding_start
    first, n = start.first, start.n_tokens
    with_cache, without = (greedy(model, model.encode(source), first, n, use_cache=each) for each in (True, False))
    assert torch.equal(with_cache, without)
    fed = torch.cat([torch.full((6, 1), first), with_cache[:, :-1]], dim=1)
    assert torch.equal(model(source, fed).argmax(dim=-1), with_cache), "one pass over the whole answer"


@torch.no_grad()
def test_a_step_has_the_logits_of_the_whole_pass(settings: dict[str, Any]) -> None:
    task, model = built(**settings)
    source, fed = tensors(task, task.sample(np.random.default_rng(0), 4))
    prompt, caches = model.encode(source), dict[Any, KeyValueCache]()
    steps = [model.decode(fed[:, i : i + 1], prompt, n_past=i, caches=caches) for i in range(fed.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(source, fed))


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name, each in MODELS.items() if each.get("window", 1)])
def test_listed_keys_are_the_keys_of_the_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = built(**MODELS[name])
    source, fed = tensors(task, task.sample(np.random.default_rng(0), 5))
    masked = model(source, fed)
    monkeypatch.setattr(transformer, "NEAR_FROM", 0)
    with pytest.MonkeyPatch.context() as patch:
        calls = []

        def counted(*arguments: Any) -> Any:
            calls.append(arguments)
            return attend_near(*arguments)

        patch.setattr("headcount.models.attention.attend_near", counted)
        torch.testing.assert_close(model(source, fed), masked)
        assert len(calls) == TINY["n_layers"]
    prompt, caches = model.encode(source), dict[Any, KeyValueCache]()
    steps = [model.decode(fed[:, i : i + 1], prompt, n_past=i, caches=caches) for i in range(fed.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), masked)


@torch.no_grad()
def test_padding_has_no_influence(settings: dict[str, Any]) -> None:
    task, model = built(**settings)
    examples = task.sample(np.random.default_rng(0), 8)
    batch, n = task.encode(examples), task.decoding_start.n_tokens
    is_asked = ~past_end(batch.answer, END)
    logits, wider = (model(*tensors(task, each))[:, :n][is_asked] for each in (examples, widened(examples, 4)))
    torch.testing.assert_close(logits, wider)
    alone = model(*(each[:1] for each in tensors(task, examples)))
    torch.testing.assert_close(alone, model(*tensors(task, examples))[:1])


@torch.no_grad()
def test_answers_to_longer_sums_are_those_of_single_passes() -> None:
    task, model = built()
    sums = task.sample_of_length(np.random.default_rng(0), 120, "long-chain", 3)
    answers = answer(model, task, sums)
    assert answers.free is not None
    assert answers.free.shape == (3, 122)
    for row, tokens in zip(sums, answers.free, strict=True):
        assert np.array_equal(answer(model, task, row[None]).free, tokens[None])


@torch.no_grad()
def test_a_digit_depends_on_the_columns_in_its_window_alone() -> None:
    task, model = built(n_layers=1)
    example = task.parse("1234567890+1234567890")
    source, fed = tensors(task, example)
    before, place, n = model(source, fed), 5, task.n_columns
    for column in range(n):
        changed = source.clone()
        changed[0, [column, n + 1 + column]] = 3
        moved = (model(changed, fed) - before)[0, place].abs().max()
        assert (moved > 1e-9) == (column in (place - 2, place - 1, place)), column


def test_near_attention_is_torch_attention_with_the_mask_written_out() -> None:
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(6, (3, 40), generator=rng)
    is_token = torch.rand(3, 40, generator=rng) < 0.8
    query, key, value = (torch.randn(3, 2, 40, 8, generator=rng, dtype=torch.float64) for _ in range(3))
    sees = [
        [[j <= i and abs(row[j] - row[i]) <= 1 and known[j] for j in range(40)] for i in range(40)]
        for row, known in zip(ids.tolist(), is_token.tolist(), strict=True)
    ]
    mask = torch.tensor(sees)[:, None]
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).nan_to_num(0.0)
    near = near_keys(ids, 1, is_token)
    torch.testing.assert_close(attend_near(query, key, value, near), expected)
    assert near.keys.shape[2] < 40, "few keys are listed"


def test_ids_of_the_task_are_those_of_numpy() -> None:
    for settings in (MODELS["coupled ids, window"], MODELS["most significant first, zeros"]):
        task, model = built(**settings)
        batch = task.encode(task.sample(np.random.default_rng(1), 9))
        n_source, n_fed = batch.source.shape[1], batch.decoder_input.shape[1]
        assert model.scheme is not None
        parts = model.scheme.ids(batch.source, np.arange(n_source)[None], np.arange(n_fed)[None])
        plain = np.concatenate([np.broadcast_to(each, (9, each.shape[1])) for each in parts], axis=1)
        ids = model.ids(torch.from_numpy(batch.source.copy()), n_fed).expand(9, -1)
        assert np.array_equal(ids.numpy(), plain)


def test_ids_begin_at_random_in_training_only() -> None:
    task, model = built(encoding="learned", window=None, random_start=50, n_positions=70)
    source, _ = tensors(task, task.sample(np.random.default_rng(0), 40))
    assert model.encode(source).start is None
    start = model.train().encode(source).start
    assert start is not None
    assert len(set(start.flatten().tolist())) > 10
    assert start.max() < 50
    assert torch.equal(model.ids(source, 3, start), model.ids(source, 3) + start)
    _, abacus = built(encoding="learned", window=None, random_start=50, n_positions=70, position_ids="abacus")
    ids = abacus.ids(source, 3, start)
    assert (ids[:, task.n_columns] == 0).all(), "the plus sign keeps its id"
    assert torch.equal(ids[:, 0], 1 + start[:, 0])


def test_rows_end_at_their_end_token() -> None:
    task, model = built()
    source, _ = tensors(task, task.sample(np.random.default_rng(0), 30))
    with torch.no_grad():
        free = greedy(model, model.encode(source), task.decoding_start.first, 12)
        stopped = greedy(model, model.encode(source), task.decoding_start.first, 12, end_id=int(free[0, 3]))
    end = int(free[0, 3])
    is_filled = torch.from_numpy(past_end(free.numpy(), end))
    assert is_filled.any()
    assert torch.equal(stopped, free.masked_fill(is_filled, end))


def test_weights_are_read_over_question_and_answer() -> None:
    task, model = built()
    source, fed = tensors(task, task.sample(np.random.default_rng(0), 2))
    cache, n = AttentionCache(), source.shape[1] + fed.shape[1]
    with torch.no_grad():
        model(source, fed, weights=cache)
    for site in model.sites:
        assert cache[site].shape == (2, 2, n, n)
        assert (cache[site].triu(diagonal=1) == 0).all()
        assert (cache[site][:, :, :, : source.shape[1]] * (source == PAD)[:, None, None] == 0).all()


def test_an_exported_model_has_the_same_logits() -> None:
    task, model = built()
    inputs = tensors(task, task.sample(np.random.default_rng(0), 3))
    exported = torch.export.export(model, inputs)
    torch.testing.assert_close(exported.module()(*inputs), model(*inputs))


def test_a_cache_keeps_what_was_appended() -> None:
    parts = [torch.randn(2, 3, n, 4) for n in (5, 1, 1, 1, 7, 1)]
    cache = KeyValueCache()
    for i, part in enumerate(parts):
        key, value = cache.append(part, -part)
        assert torch.equal(key, torch.cat(parts[: i + 1], dim=2))
        assert torch.equal(value, -key)


def test_training_learns_the_first_digits() -> None:
    from headcount.training.config import TrainingConfig
    from headcount.training.loop import fit, new_state

    task, model = built(n_layers=1, d_model=64, n_heads=4, d_ff=128)
    state = new_state(model.float().train(), config := TrainingConfig(steps=100, batch_size=64, learning_rate=1e-2))
    fit(state, task, config, 0)
    examples = task.split("validation")
    with eval_mode(model, gradients=False):
        hits = answer(model, task, examples).teacher_forced_hits
    assert hits[:, 0].mean() > 0.5


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown ids": ({"position_ids": "coupld"}, "coupled"),
    "ids of unknown columns": ({"least_first": False}, "least significant digit first"),
    "hidden by ids": ({"encoding": "alibi"}, "larger ids"),
    "a small table": ({"encoding": "learned", "n_positions": 11}, "raise n_positions to 12"),
    "a small table for random starts": (
        {"encoding": "learned", "n_positions": 40, "random_start": 30},
        "raise n_positions to 41",
    ),
    "a small table for the order": (
        {"encoding": "learned", "n_positions": 32, "position_ids": "order"},
        "raise n_positions to 33",
    ),
    "an unknown length": ({"encoding": "length-normalised"}, "not known while it is decoded"),
    "a start of nothing": ({"encoding": "none", "random_start": 5}, "no effect"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_the_settings_of_ids(fault: str) -> None:
    settings, words = FAULTS[fault]
    with pytest.raises(ConfigError, match=words):
        RunConfig.build("addition-long", **settings)


def test_a_table_of_the_right_size_is_enough() -> None:
    for settings in ({"n_positions": 12}, {"n_positions": 41, "random_start": 30}):
        task, model = built(encoding="learned", window=None, **settings)
        model(*tensors(task, task.sample(np.random.default_rng(0), 50)))


def test_a_model_says_what_is_given_to_it() -> None:
    _, model = built()
    assert model.hard_codes == ("digits aligned by significance (coupled ids)", "window of ±1 on the ids")
    assert built(position_ids="order", window=None, encoding="fire")[1].hard_codes == ()
    assert AdditionLongConfig().least_first
