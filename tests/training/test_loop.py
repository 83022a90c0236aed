import numpy as np
import pytest
import torch

from headcount.errors import HeadcountError
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.runs.train import train_run
from headcount.seeds import stream
from headcount.stats import Proportion
from headcount.training import loop
from headcount.training.loop import averaged, fit, new_state, pack, unpack

pytestmark = pytest.mark.slow  # together they take over 5 s


class Recorder:
    """A listener that records all reports."""

    def __init__(self):
        self.losses, self.evaluations = {}, []

    def on_steps(self, last_step, losses, rates):
        assert len(losses) == len(rates)
        for step, loss in enumerate(losses, start=last_step - len(losses) + 1):
            assert step not in self.losses, "a step is told once"
            self.losses[step] = loss

    def on_evaluation(self, step, scores):
        self.evaluations.append((step, scores))


@pytest.fixture(autouse=True)
def _search_early(monkeypatch):
    """A tiny model never gets mostly right, so hard examples are searched for at once."""
    monkeypatch.setattr(loop, "SEARCH_FROM", 0.0)


def start(settings, **changes):
    config = RunConfig.build("addition", seed=3, **(settings | changes))
    task, model = build(config)
    return config, task, new_state(model, config.training)


def weights(state):
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def test_every_step_and_every_evaluation_is_told(tiny):
    config, task, state = start(tiny, steps=25, eval_every=10, checkpoint_every=7)
    told, saved = Recorder(), []
    assert fit(state, task, config.training, 3, listeners=[told], save=lambda s: saved.append(s.step))
    assert list(told.losses) == list(range(1, 26))
    assert [step for step, _ in told.evaluations] == [10, 20, 25]
    assert all(set(scores.validation) == {"teacher_forced", "free_running"} for _, scores in told.evaluations)
    assert {share.n for _, scores in told.evaluations for share in scores.validation.values()} == {10}
    assert [scores.training["teacher_forced"].n for _, scores in told.evaluations] == [10, 10, 10]
    assert saved == [7, 14, 21, 25]
    assert told.losses[25] < told.losses[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.2, "averaging": 0.9, "hard_share": 0.5},
        *(
            pytest.param(each, marks=pytest.mark.slow)  # together over 5 seconds
            for each in ({}, {"dropout": 0.2}, {"averaging": 0.9}, {"hard_share": 0.5}, {"norm": "post"})
        ),
    ],
)
def test_going_on_from_bytes_ends_in_the_same_bytes(tiny, changes):
    config, task, whole = start(tiny, **changes)
    fit(whole, task, config.training, 3)

    _, _, first = start(tiny, **changes)
    fit(first, task, config.training, 3, asked_to_stop=lambda: first.step == 5)
    _, _, second = start(tiny, **changes)
    assert unpack(pack(first, {"log_bytes": 17}), second)["log_bytes"] == 17
    fit(second, task, config.training, 3)

    assert second.step == whole.step
    assert pack(second, {}) == pack(whole, {})


@pytest.mark.slow
def test_seeds_differ_and_repeat(tiny):
    runs = []
    for seed in (1, 1, 2):
        config, task, state = start(tiny)
        fit(state, task, config.training, seed)
        runs.append(pack(state, {}))
    assert runs[0] == runs[1] != runs[2]


def test_stops_when_the_target_is_met_often_enough(tiny):
    config, task, state = start(tiny, target=0.0, target_evaluations=2, steps=100, eval_every=5)
    assert fit(state, task, config.training, 0)
    assert state.step == 10
    config, task, state = start(tiny, target=None, steps=15, eval_every=5)
    fit(state, task, config.training, 0)
    assert state.step == 15


def test_the_validation_loss_and_the_training_accuracy_are_what_plain_passes_give(tiny):
    config, task, state = start(tiny, steps=8, eval_every=8)
    told = Recorder()
    fit(state, task, config.training, 3, listeners=[told])
    ((_, scores),) = told.evaluations
    state.model.eval()
    with averaged(state), torch.no_grad():
        batch = task.encode(task.split("validation"))
        logits = state.model(*map(torch.from_numpy, (batch.source, batch.decoder_input)))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten())
        assert scores.validation_loss == pytest.approx(float(loss), rel=1e-5)
        drawn = task.encode(task.sample(stream(3, "training accuracy", 8), 10))
        predicted = state.model(*map(torch.from_numpy, (drawn.source, drawn.decoder_input))).argmax(dim=-1).numpy()
    right = (predicted == drawn.labels).all(axis=1)
    assert scores.training["teacher_forced"] == Proportion.count(right)
    assert not task.is_held_out(task.sample(stream(3, "training accuracy", 8), 10)).any()


def test_evaluating_changes_no_weight(tiny):
    ends = []
    for every in (1, 100):
        config, task, state = start(tiny, eval_every=every, dropout=0.2, hard_share=0.0, averaging=0.9)
        fit(state, task, config.training, 3)
        ends.append(pack(state, {}))
    assert ends[0] == ends[1]


def test_weights_that_are_no_numbers_are_told_at_the_evaluation(tiny):
    config, task, state = start(tiny, steps=1, averaging=0.0, learning_rate=1e38, schedule="constant")
    with pytest.raises(HeadcountError, match="diverged: by step 1"):
        fit(state, task, config.training, 0)


def test_divergence_is_an_error_not_a_result(tiny):
    config, task, state = start(tiny, learning_rate=1e30, schedule="constant", clip_norm=1e30)
    with pytest.raises(HeadcountError, match=r"diverged.*\n.*--learning-rate"):
        fit(state, task, config.training, 0)


def test_divergence_in_the_last_step_is_told_too(tiny, tmp_path):
    settings = tiny | {"steps": 1, "learning_rate": 1e38, "schedule": "constant", "averaging": 0.0}
    with pytest.raises(HeadcountError, match="diverged"):
        train_run(RunConfig.build("addition", **settings), tmp_path / "run")


def test_the_average_is_the_running_average(tiny):
    config, task, state = start(tiny, averaging=0.9, steps=27)
    seen = {}
    fit(state, task, config.training, 0, asked_to_stop=lambda: bool(seen.update({state.step: weights(state)})))
    expected = seen[5]
    for step in range(5, 28, 5):
        decay = min(0.9, (1 + step) / (10 + step)) ** 5
        expected = {name: decay * expected[name] + (1 - decay) * seen[step][name] for name in expected}
    own = weights(state)
    with averaged(state):
        for name, tensor in state.model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name])
    assert all(torch.equal(own[name], tensor) for name, tensor in state.model.state_dict().items())
    assert any(not torch.equal(own[name], expected[name]) for name in own)


@pytest.mark.slow
def test_hard_examples_are_training_examples(tiny):
    config, task, state = start(tiny, hard_share=0.5, steps=20, eval_every=2)
    fit(state, task, config.training, 0)
    assert len(state.hard) > 100
    assert not task.is_held_out(state.hard).any()
    held = np.concatenate([task.split("test"), task.split("validation")])
    assert task.is_held_out(held[:, ::-1]).all()
