"""Every encoding and every pooling learns a few steps and answers at any length."""

from typing import cast

import numpy as np
import pytest
import torch

from headcount.encodings import ENCODINGS
from headcount.errors import ConfigError
from headcount.models.config import POOLINGS
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.tasks.base import ClassTask
from headcount.training.answers import classify
from headcount.training.loop import fit, new_state

LENGTHS = (1, 2, 8, 40)
FEW_STEPS = {"steps": 2, "batch_size": 4, "eval_every": 2, "longest": 6}

pytestmark = pytest.mark.slow  # together: every encoding with every pooling


def learn_and_answer(settings, **changes):
    """Two steps of training, then answers at several lengths: all numbers, and the training moved something."""
    config = RunConfig.build("sortedness", **(settings | FEW_STEPS | changes))
    task, model = build(config)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    assert fit(new_state(model, config.training), task, config.training, 0)
    moved = {name for name, tensor in model.named_parameters() if not torch.equal(tensor, before[name])}
    assert {"to_logits.weight", "to_logits.bias"} <= moved
    for length in LENGTHS:
        examples = cast(ClassTask, task).sample_of_length(np.random.default_rng(0), length, None, 3)
        predicted = classify(model, task, examples)
        assert predicted.logits.shape == (3, 2)
        assert np.isfinite(predicted.logits).all(), (changes, length)
    return moved


@pytest.mark.parametrize("encoding", ENCODINGS.names())
def test_every_encoding_with_poolings(tiny_sorting, encoding, pytestconfig):
    """Train a third of all pairs, every encoding and every pooling among them; with `--long`, all pairs."""
    step = 1 if pytestconfig.getoption("--long") else 3
    for pooling in POOLINGS.names()[ENCODINGS.names().index(encoding) % step :: step]:
        moved = learn_and_answer(tiny_sorting, encoding=encoding, pooling=pooling)
        assert any(name.startswith("layers.") for name in moved), pooling


CHANGES = {
    "random": {"random_positions": 50, "n_positions": 50},
    "window": {"window": 1},
    "log-length": {"softmax": "log-length"},
    "causal": {"causal": True},
    "all at once": {"causal": True, "window": 2, "softmax": "log-length", "random_positions": 50, "n_positions": 50},
    "reports": {"norm": "post", "dropout": 0.2, "numbers": "table"},
}


def masked_models():
    """Yield every encoding with every change; half of the single changes for `--long` only."""
    for i, encoding in enumerate(ENCODINGS.names()):
        for j, (name, changes) in enumerate(CHANGES.items()):
            is_common = j >= 4 or (i + j) % 2 == 0 or (encoding, name) == ("none", "random")
            marks = [] if is_common else [pytest.mark.long]
            yield pytest.param(encoding, changes, id=f"{name}-{encoding}", marks=marks)


@pytest.mark.parametrize(("encoding", "changes"), [*masked_models()])
def test_every_encoding_with_every_mask(tiny_sorting, encoding, changes):
    if encoding == "none" and "random_positions" in changes:
        with pytest.raises(ConfigError, match="random position ids have no effect"):
            learn_and_answer(tiny_sorting, encoding=encoding, **changes)
        return
    learn_and_answer(tiny_sorting, encoding=encoding, **changes)


def test_the_padding_fault_and_a_fixed_training_set(tiny_sorting):
    learn_and_answer(tiny_sorting, padding_is_zero=True, n_train=16)
    learn_and_answer(tiny_sorting, paired=True, negatives="adjacent")


def test_hard_examples_of_a_classifier_are_training_examples(tiny_sorting, monkeypatch):
    monkeypatch.setattr("headcount.training.loop.SEARCH_FROM", 0.0)
    config = RunConfig.build("sortedness", **tiny_sorting | {"hard_share": 0.5})
    task, model = build(config)
    state = new_state(model, config.training)
    fit(state, task, config.training, 0)
    assert len(state.hard) > 100
    held = {task.show(row) for name in ("validation", "test") for row in task.split(name)}
    assert not held & {task.show(row) for row in state.hard}
