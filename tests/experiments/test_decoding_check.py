"""One forward pass decides what real decoding would say; and that this is checked, for real."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.dataset import FREE
from headcount.errors import CheckFailed
from headcount.experiments import decoding_check as redecoding
from headcount.experiments.decoding_check import CHECKED, DecodingCheck
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import BatchOutcome, Outcome, run_interventions
from headcount.heads import HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.models.encoder_decoder import EncoderDecoder, greedy
from headcount.runs.run import Run

SUMS = np.array(list(product(range(10), repeat=2)))[::2]


@pytest.fixture(scope="module")
def experiment(good_run: Run) -> Experiment:
    return task_experiment(good_run, SUMS, "half of all sums", at_once=64)


def trials_of(experiment: Experiment, *kinds: str) -> list[Intervention]:
    """One head of every site, alone."""
    return [Intervention((head,), kind) for kind in kinds for head in experiment.sites.heads[::2]]


@torch.no_grad()
def decoded(model: EncoderDecoder, tried: BatchOutcome, trial: int) -> Tensor:
    """Greedy decoding written out, with a hook of our own: the head's z is the stand-in, or nothing."""
    change = tried.changes[trial]
    (head,) = change.heads
    stand = change.stands.get(head.site, torch.zeros(1, 1, 2, 16))

    def put(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].unflatten(-1, (2, 16)).clone()
        known = stand[:, : z.shape[1]] if stand.shape[1] > 1 else stand
        z[:, :, head.index] = known[:, :, head.index].expand(len(z), z.shape[1], -1).to(z)
        return (z.flatten(start_dim=2),)

    hook = model.projections[head.site].register_forward_pre_hook(put)
    memory = model.encode(tried.block.inputs[0])
    decoder_input = tried.block.inputs[1][:, :1]  # the start token
    for _ in range(tried.block.inputs[1].shape[1]):
        decoder_input = torch.cat([decoder_input, model.decode(decoder_input, memory)[:, -1:].argmax(dim=-1)], dim=1)
    hook.remove()
    return decoder_input[:, 1:]


@pytest.mark.parametrize("kind", REPLACEMENTS.names())
def test_one_pass_scores_what_decoding_says(experiment: Experiment, kind: str) -> None:
    model, trials = experiment.model, trials_of(experiment, kind)
    assert isinstance(model, EncoderDecoder)
    token_mask = np.full((len(trials), len(SUMS)), np.nan)

    def look(tried: BatchOutcome) -> None:
        answers = experiment.task.encode(SUMS[tried.block.rows]).answer  # type: ignore[union-attr]
        for i in range(len(trials)):
            token_mask[i, tried.block.rows] = (decoded(model, tried, i).numpy() == answers).all(axis=1)

    found = run_interventions(experiment, trials, look=look)
    np.testing.assert_array_equal(found.scores, token_mask)
    assert found.clean.mean() > 0.5, "a model that knows something"
    assert 0 < found.scores.mean() < found.clean.mean(), "and heads that matter"


def test_zero_is_decoding_with_the_columns_zeroed(experiment: Experiment) -> None:
    """With the cache, as answers are given in earnest."""
    trials = trials_of(experiment, "zero")
    found = run_interventions(experiment, trials)
    batch = experiment.task.encode(SUMS)  # type: ignore[union-attr]
    for trial, scores in zip(trials, found.scores, strict=True):
        copy: Any = deepcopy(experiment.model)
        (head,) = trial.heads
        with torch.no_grad():
            copy.projections[head.site].weight.unflatten(1, (2, -1))[:, head.index] = 0.0
            memory = copy.encode(torch.from_numpy(batch.source))
        predicted = greedy(copy, memory, int(batch.decoder_input[0, 0]), batch.answer.shape[1]).numpy()
        np.testing.assert_array_equal(scores, (predicted == batch.answer).all(axis=1))


# --- the check ------------------------------------------------------------------------------------------------------


def checked(experiment: Experiment, *kinds: str) -> tuple[DecodingCheck, Outcome]:
    trials = trials_of(experiment, *kinds)
    redecoder = DecodingCheck(experiment, trials, explain=False)
    return redecoder, run_interventions(experiment, trials, look=redecoder)


def test_a_sample_of_every_trial_is_decoded(experiment: Experiment) -> None:
    redecoder, found = checked(experiment, *REPLACEMENTS.names())
    assert redecoder.decoded == CHECKED * len(found.scores)


@pytest.mark.parametrize(("kind", "row"), [("zero", 0), ("zero", -1), ("mean", 0), ("resample", -1)])
def test_a_wrong_score_is_caught(experiment: Experiment, kind: str, row: int) -> None:
    """One wrong score, in one trial: of the first and of the last example of the block."""
    first = experiment.batches[0]
    calls = 0

    def lies(output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        score = first.score(output).clone()
        if calls == 4:  # the clean score is the first
            score[row] = ~score[row]
        return score

    spoilt = replace(experiment, blocks=(replace(first, score=lies), *experiment.batches[1:]))
    with pytest.raises(CheckFailed, match=r"one forward pass and real decoding disagree on \d\+\d"):
        checked(spoilt, kind)


def test_decoding_with_the_heads_still_speaking_is_caught(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check whose own heads were not silent would find other answers, for heads that matter."""
    monkeypatch.setattr(redecoding, "CHECKED", 32)
    monkeypatch.setattr(redecoding, "_interventions", lambda *given: ({}, {}))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, "zero")


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_decoding_with_the_wrong_replacement_is_caught(
    experiment: Experiment, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = redecoding._interventions
    monkeypatch.setattr(redecoding, "CHECKED", 32)
    monkeypatch.setattr(redecoding, "_interventions", lambda *given: (right(*given)[0], {}))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, kind)


def test_the_tokens_that_were_decoded_are_looked_at(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redecoding, "greedy", lambda *given, **how: greedy(*given, **how).roll(1, dims=1))
    with pytest.raises(CheckFailed, match="disagree"):
        checked(experiment, "zero")


def test_heads_of_the_base_are_silent_while_decoding_too(experiment: Experiment) -> None:
    """The score is that without the base, so must be the answer."""
    found = run_interventions(experiment, trials_of(experiment, "zero"))
    base = [experiment.sites.heads[int(found.scores.sum(axis=1).argmin())]]
    trials = [trial for trial in trials_of(experiment, "zero") if trial.heads != tuple(base)]
    redecoder = DecodingCheck(experiment, trials, explain=False)
    run_interventions(experiment, trials, base=base, look=redecoder)
    assert redecoder.decoded


def test_only_free_running_answers_are_decoded(good_run: Run, tiny_sorter: Run) -> None:
    forced = task_experiment(good_run, SUMS[:8], "", "teacher-forced")
    classes = task_experiment(tiny_sorter, tiny_sorter.task.split("test"), "")
    for experiment in (forced, classes):
        assert experiment.metric is not FREE
        assert checked(experiment, "zero")[0].decoded == 0


# --- what broke -----------------------------------------------------------------------------------------------------


def test_what_broke_is_what_was_right_before(experiment: Experiment) -> None:
    trials = trials_of(experiment, "zero")
    redecoder = DecodingCheck(experiment, trials, explain=True)
    found = run_interventions(experiment, trials, look=redecoder)
    broken: NDArray[np.bool_] = (found.clean > 0.5) & (found.scores <= 0.5)
    for trial, broke, each in zip(trials, broken, redecoder.failures(), strict=True):
        assert (each.head, each.kind, each.n_broken) == (str(trial.heads[0]), "zero", int(broke.sum()))
        shown = {tuple(map(int, example.example.split("+"))) for example in each.examples}
        assert shown <= {tuple(pair) for pair in SUMS[broke].tolist()}
        assert all(example.predicted != example.right for example in each.examples)
        assert bool(each.examples) == broke.any()


def test_a_growing_stand_in_keeps_its_positions(experiment: Experiment) -> None:
    """At each step of decoding, position t gets what stands at t."""
    site = HeadSite("decoder", 0)
    trials = [Intervention((site.head(0),), "mean")]
    seen: list[Tensor] = []

    def look(tried: BatchOutcome) -> None:
        if seen:
            return
        hook = experiment.sites[site].projection.register_forward_hook(lambda m, args, predicted: seen.append(args[0]))
        DecodingCheck(experiment, trials, explain=False)(tried)
        hook.remove()
        mean = tried.changes[0].stands[site][0, :, 0]
        for z in seen:
            torch.testing.assert_close(z[0, :, :16].double(), mean[: z.shape[1]], atol=1e-6, rtol=1e-6)

    run_interventions(experiment, trials, look=look)
    assert [z.shape[1] for z in seen] == [1, 2]
