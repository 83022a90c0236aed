import numpy as np
import pytest
import torch

from headcount.errors import CheckpointError
from headcount.hooks.gates import eval_mode
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.training.answers import answer, margins
from headcount.training.evaluation import Evaluation, SequenceLearner
from headcount.training.loop import fit, new_state, pack, unpack


def plain_greedy(model, task, example):
    """Decoding as a beginner writes it: one example, whole model again for every token."""
    batch, start = task.encode(example[None]), task.decoding_start
    predicted = [start.first]
    for _ in range(start.n_tokens):
        logits = model(torch.tensor(batch.source), torch.tensor([predicted]))
        predicted.append(int(logits[0, -1].argmax()))
    return [*start.given, *predicted[1:]]


@pytest.mark.parametrize("fault", [{}, {"start_token": False}])
def test_free_running_agrees_with_plain_decoding(tiny, fault):
    task, model = build(RunConfig.build("addition", **(tiny | fault)))
    examples = task.split("test")
    predicted = answer(model, task, examples)
    assert predicted.free.tolist() == [plain_greedy(model, task, example) for example in examples]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [{}, {"start_token": False}, {"loss_ignores_zero": True}])
def test_one_forward_pass_decides_free_running(tiny, good_run, fault):
    task = good_run.task if not fault else build(RunConfig.build("addition", **(tiny | fault)))[0]
    everything = np.concatenate(list(task.iter_domain()))
    right = answer(good_run.model, task, everything).free_hits.all(axis=1)
    assert ((margins(good_run.model, task, everything) > 0) == right).all()
    assert right.any(), "a model that is never right proves nothing"


@pytest.mark.slow
def test_both_exact_matches_are_one_number_for_a_sound_model(good_run):
    evaluation = good_run.evaluate("test")
    assert evaluation.exact.teacher_forced == evaluation.exact.free_running


def test_groups_and_digits_add_up(tiny_run):
    evaluation = tiny_run.evaluate("test")
    n = len(tiny_run.task.split("test"))
    for facet in ("carries", "longest chain", "sum"):
        groups = [scores for scores in evaluation.groups if scores.facet == facet]
        assert sum(scores.free_running.n for scores in groups) == n
        assert sum(scores.free_running.correct for scores in groups) == evaluation.exact.free_running.correct
    assert [scores.group for scores in evaluation.digits] == ["10s", "1s"]
    assert len(evaluation.wrong) == n - evaluation.exact.free_running.correct
    assert all(wrong.predicted != wrong.right and wrong.explanation for wrong in evaluation.wrong)
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


def test_the_first_digit_is_not_asked_without_a_start_token(tiny):
    task, model = build(RunConfig.build("addition", start_token=False, **tiny))
    first, last = SequenceLearner(model, task).evaluate("test").digits
    assert first.teacher_forced is None
    assert last.teacher_forced is not None


def test_ignored_zeros_do_not_count_under_teacher_forcing(tiny):
    task, model = build(RunConfig.build("addition", loss_ignores_zero=True, **tiny))
    predicted = answer(model, task, task.split("test"))
    zeros = predicted.batch.answer == 0
    assert zeros.any()
    assert predicted.teacher_forced_hits[zeros].all()


def test_evaluating_leaves_the_model_as_it_was(tiny_run):
    tiny_run.model.train()
    with eval_mode(tiny_run.model, gradients=False):
        assert not tiny_run.model.training
    assert tiny_run.model.training
    tiny_run.model.eval()


def test_a_checkpoint_of_another_model_is_refused(tiny):
    states = []
    for d_model in (16, 32):
        config = RunConfig.build("addition", **(tiny | {"d_model": d_model, "steps": 1}))
        task, model = build(config)
        states.append(new_state(model, config.training))
    fit(states[0], task, config.training, 0)
    with pytest.raises(CheckpointError, match="does not fit"):
        unpack(pack(states[0], {}), states[1])
    with pytest.raises(CheckpointError):
        unpack(pack(states[0], {})[:-7], states[0])
    assert np.isfinite(margins(states[1].model, task, task.split("test"))).all()
