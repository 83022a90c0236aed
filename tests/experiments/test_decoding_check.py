"""One forward pass decides what real decoding would predict; and a sample is decoded to check that."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.dataset import FREE
from headcount.errors import CheckFailed
from headcount.experiments import decoding_check
from headcount.experiments.decoding_check import CHECKED, DecodingCheck
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import BatchOutcome, Outcome, run_interventions
from headcount.heads import HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.models.transformer import EncoderDecoder, greedy
from headcount.runs.run import Run
from headcount.tasks.base import SequenceTask

SUMS = np.array(list(product(range(10), repeat=2)))[::2]


@pytest.fixture(scope="module")
def experiment(good_run: Run) -> Experiment:
    return task_experiment(good_run, SUMS, "half of all sums", at_once=64)


def interventions_of(experiment: Experiment, *replacements: str) -> list[Intervention]:
    """One head of every site, alone."""
    return [Intervention((head,), replacement) for replacement in replacements for head in experiment.sites.heads[::2]]


@torch.no_grad()
def decoded(model: EncoderDecoder, tried: BatchOutcome, intervention: int) -> Tensor:
    """Greedy decoding written out, with a hook of our own: the head's z is the replacement, or nothing."""
    change = tried.interventions[intervention]
    (head,) = change.heads
    value = change.values.get(head.site, torch.zeros(1, 1, 2, 16))

    def put(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].unflatten(-1, (2, 16)).clone()
        known = value[:, : z.shape[1]] if value.shape[1] > 1 else value
        z[:, :, head.index] = known[:, :, head.index].expand(len(z), z.shape[1], -1).to(z)
        return (z.flatten(start_dim=2),)

    hook = model.projections[head.site].register_forward_pre_hook(put)
    memory = model.encode(tried.batch.inputs[0])
    decoder_input = tried.batch.inputs[1][:, :1]  # the start token
    for _ in range(tried.batch.inputs[1].shape[1]):
        decoder_input = torch.cat([decoder_input, model.decode(decoder_input, memory)[:, -1:].argmax(dim=-1)], dim=1)
    hook.remove()
    return decoder_input[:, 1:]


@pytest.mark.parametrize("replacement", REPLACEMENTS.names())
def test_one_pass_scores_what_decoding_predicts(experiment: Experiment, replacement: str) -> None:
    model, interventions = experiment.model, interventions_of(experiment, replacement)
    assert isinstance(model, EncoderDecoder)
    expected = np.full((len(interventions), len(SUMS)), np.nan)

    def on_batch(tried: BatchOutcome) -> None:
        answers = cast(SequenceTask, experiment.task).encode(SUMS[tried.batch.rows]).answer
        for i in range(len(interventions)):
            expected[i, tried.batch.rows] = (decoded(model, tried, i).numpy() == answers).all(axis=1)

    found = run_interventions(experiment, interventions, on_batch=on_batch)
    np.testing.assert_array_equal(found.scores, expected)
    assert found.clean.mean() > 0.5, "a model that knows something"
    assert 0 < found.scores.mean() < found.clean.mean(), "and heads that matter"


def test_zero_is_decoding_with_the_columns_zeroed(experiment: Experiment) -> None:
    """With the cache, as answers are given in earnest."""
    interventions = interventions_of(experiment, "zero")
    found = run_interventions(experiment, interventions)
    batch = cast(SequenceTask, experiment.task).encode(SUMS)
    for intervention, scores in zip(interventions, found.scores, strict=True):
        copy: Any = deepcopy(experiment.model)
        (head,) = intervention.heads
        with torch.no_grad():
            copy.projections[head.site].weight.unflatten(1, (2, -1))[:, head.index] = 0.0
            memory = copy.encode(torch.from_numpy(batch.source))
        predicted = greedy(copy, memory, int(batch.decoder_input[0, 0]), batch.answer.shape[1]).numpy()
        np.testing.assert_array_equal(scores, (predicted == batch.answer).all(axis=1))


# --- the check ------------------------------------------------------------------------------------------------------


def checked(experiment: Experiment, *replacements: str) -> tuple[DecodingCheck, Outcome]:
    interventions = interventions_of(experiment, *replacements)
    check = DecodingCheck(experiment, interventions, explain=False)
    return check, run_interventions(experiment, interventions, on_batch=check)


def test_a_sample_of_every_intervention_is_decoded(experiment: Experiment) -> None:
    check, found = checked(experiment, *REPLACEMENTS.names())
    assert check.decoded == CHECKED * len(found.scores)


@pytest.mark.parametrize(("replacement", "row"), [("zero", 0), ("zero", -1), ("mean", 0), ("resample", -1)])
def test_a_wrong_score_is_caught(experiment: Experiment, replacement: str, row: int) -> None:
    """One wrong score, in one intervention: of the first and of the last example of the batch."""
    first = experiment.batches[0]
    calls = 0

    def lies(output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        score = first.scores[FREE.name](output).clone()
        if calls == 4:  # the clean score is the first
            score[row] = ~score[row]
        return score

    spoilt = replace(experiment, batches=(replace(first, scores={FREE.name: lies}), *experiment.batches[1:]))
    with pytest.raises(CheckFailed, match=r"free-running decoding disagree on whether the model answers \d\+\d"):
        checked(spoilt, replacement)


def test_decoding_with_the_heads_left_in_is_caught(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that did not ablate would find other answers, for heads that matter."""
    monkeypatch.setattr(decoding_check, "CHECKED", 32)
    monkeypatch.setattr(decoding_check, "_gates_and_values", lambda *given: ({}, {}))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, "zero")


@pytest.mark.parametrize("replacement", ["mean", "resample"])
def test_decoding_with_the_wrong_replacement_is_caught(
    experiment: Experiment, replacement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = decoding_check._gates_and_values
    monkeypatch.setattr(decoding_check, "CHECKED", 32)
    monkeypatch.setattr(decoding_check, "_gates_and_values", lambda *given: (right(*given)[0], {}))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, replacement)


def test_the_tokens_that_were_decoded_are_looked_at(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_check, "greedy", lambda *given, **how: greedy(*given, **how).roll(1, dims=1))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, "zero")


def test_only_free_running_answers_are_decoded(good_run: Run, tiny_sorter: Run) -> None:
    forced = task_experiment(good_run, SUMS[:8], "", "teacher-forced")
    classes = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "")
    for experiment in (forced, classes):
        assert experiment.metric is not FREE
        assert checked(experiment, "zero")[0].decoded == 0


# --- what broke -----------------------------------------------------------------------------------------------------


def test_what_broke_is_what_was_right_before(experiment: Experiment) -> None:
    interventions = interventions_of(experiment, "zero")
    check = DecodingCheck(experiment, interventions, explain=True)
    found = run_interventions(experiment, interventions, on_batch=check)
    broken: NDArray[np.bool_] = (found.clean > 0.5) & (found.scores <= 0.5)
    for intervention, broke, each in zip(interventions, broken, check.failures(), strict=True):
        assert (each.head, each.replacement, each.n_broken) == (str(intervention.heads[0]), "zero", int(broke.sum()))
        shown = {tuple(map(int, example.example.split("+"))) for example in each.examples}
        assert shown <= {tuple(pair) for pair in SUMS[broke].tolist()}
        assert all(example.predicted != example.right for example in each.examples)
        assert bool(each.examples) == broke.any()


def test_the_prefix_of_a_replacement_keeps_its_positions(experiment: Experiment) -> None:
    """At each step of decoding, position t gets the value at t."""
    site = HeadSite("decoder", 0)
    interventions = [Intervention((site.head(0),), "mean")]
    seen: list[Tensor] = []

    def on_batch(tried: BatchOutcome) -> None:
        if seen:
            return
        hook = experiment.sites[site].projection.register_forward_hook(
            lambda module, args, output: seen.append(args[0])
        )
        DecodingCheck(experiment, interventions, explain=False)(tried)
        hook.remove()
        mean = tried.interventions[0].values[site][0, :, 0]
        for z in seen:
            torch.testing.assert_close(z[0, :, :16].double(), mean[: z.shape[1]], atol=1e-6, rtol=1e-6)

    run_interventions(experiment, interventions, on_batch=on_batch)
    assert [z.shape[1] for z in seen] == [1, 2]
