"""The scores of a classifier agree with counts by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headcount.limits import RARELY
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.stats import Proportion
from headcount.tasks.sortedness import Sortedness, SortednessConfig
from headcount.training.answers import ClassAnswers, classify, constant_answer
from headcount.training.evaluation import Classification, ClassLearner, SequenceLearner, _groups, learner_of

CLASSES = ("unsorted", "sorted")


class Judge(torch.nn.Module):
    """A perfect model without weights to speak of; what it was shown is written down."""

    def __init__(self, pad_id):
        super().__init__()
        self.pad_id, self.scale, self.shown = pad_id, torch.nn.Parameter(torch.tensor(3.0)), []

    def forward(self, source, *, first=0):
        assert not torch.is_grad_enabled()
        assert not self.training
        self.shown.append(tuple(source.shape))
        fall = (source[:, :-1] > source[:, 1:]) & (source[:, 1:] != self.pad_id)
        is_sorted = (~fall.any(dim=1)).float()
        return self.scale * torch.stack([1 - is_sorted, is_sorted], dim=1)


@pytest.fixture
def task():
    return Sortedness(SortednessConfig(n_values=20, shortest=3, longest=6, n_validation=20, n_test=30))


@pytest.fixture
def sorter(tiny_sorting):
    return build(RunConfig.build("sortedness", **tiny_sorting))


# --- answers ----------------------------------------------------------------------------------------------------


def test_answers_are_counted_by_hand():
    logits = np.array([[1.0, 3.0], [2.0, -1.0], [0.5, 0.0], [-4.0, 1.0]], dtype=np.float32)
    predicted = ClassAnswers(logits, np.array([1, 1, 0, 0]))
    assert predicted.predicted.tolist() == [1, 0, 0, 1]
    assert predicted.hits.tolist() == [True, False, True, False]
    assert predicted.margins.tolist() == [2.0, -3.0, 0.5, -5.0]
    assert (predicted.says_last.correct, predicted.says_last.n) == (2, 4)
    assert logits[0].tolist() == [1.0, 3.0], "asking for margins changes nothing"


def test_a_margin_is_the_lead_over_the_best_of_many():
    predicted = ClassAnswers(np.array([[1.0, 5.0, 4.5]], dtype=np.float32), np.array([1]))
    assert predicted.margins.tolist() == [0.5]
    assert (predicted.says_last.correct, predicted.says_last.n) == (0, 1)


def test_positive_margins_are_hits(sorter):
    task, model = sorter
    predicted = classify(model, task, task.sample(np.random.default_rng(0), 300))
    assert ((predicted.margins > 0) == predicted.hits).all()
    assert 0 < predicted.hits.sum() < 300


# --- constant answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_sorted", "expected"),
    [(0, "unsorted"), (1, "unsorted"), (2, None), (100, None), (198, None), (199, "sorted"), (200, "sorted")],
)
def test_a_constant_answer_is_named_where_the_other_is_shown_to_be_rare(n_sorted, expected):
    predicted = np.arange(200) < n_sorted
    assert constant_answer(predicted.astype(int), np.arange(200) % 2, CLASSES) == expected


@pytest.mark.parametrize(("n", "expected"), [(1, None), (2, None), (124, None), (125, "sorted"), (5000, "sorted")])
def test_few_examples_show_no_constant_answer(n, expected):
    """The docstring of RARELY states the number of examples that is needed."""
    assert constant_answer(np.ones(n, dtype=int), np.arange(n) % 2, CLASSES) == expected
    assert (Proportion.of(0, n).high < RARELY) == (expected is not None)


@pytest.mark.parametrize("label", [0, 1])
def test_one_answer_to_one_class_is_no_fault(label):
    predicted = np.full(200, label)
    assert constant_answer(predicted, np.full(200, label), CLASSES) is None
    assert constant_answer(predicted, np.repeat([1 - label, label], [1, 199]), CLASSES) is None, (
        "nearly all are of that class"
    )
    assert constant_answer(predicted, np.repeat([1 - label, label], [20, 180]), CLASSES) == CLASSES[label]


# --- asking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 7, 64, None])
def test_how_many_are_asked_at_once_changes_no_answer(sorter, at_once):
    task, model = sorter
    examples = task.sample(np.random.default_rng(0), 64)
    whole, parts = classify(model, task, examples, 64), classify(model, task, examples, at_once)
    assert np.array_equal(parts.predicted, whole.predicted)
    assert np.array_equal(parts.labels, whole.labels)
    np.testing.assert_allclose(parts.logits, whole.logits, atol=1e-5)


def test_the_model_sees_so_many_at_once_and_is_left_as_it_was(task):
    model = Judge(task.pad_id).train()
    classify(model, task, task.sample_of_length(np.random.default_rng(0), 50, None, 23), 10)
    assert model.shown == [(10, 50), (10, 50), (3, 50)]
    assert model.training


def test_long_sequences_are_asked_a_few_at_a_time(task):
    model = Judge(task.pad_id)
    for length, n, most in ((10, 600, 256), (1000, 100, 65), (70_000, 2, 1)):
        model.shown.clear()
        classify(model, task, task.sample_of_length(np.random.default_rng(0), length, None, n))
        assert sum(rows for rows, _ in model.shown) == n
        assert max(rows for rows, _ in model.shown) == most


def test_short_sequences_do_not_feel_the_long_ones_beside_them(sorter):
    task, model = sorter
    examples = task.sample(np.random.default_rng(0), 40)
    together = classify(model, task, examples).logits
    alone = [classify(model, task, task.parse(task.show(example))).logits[0] for example in examples]
    np.testing.assert_allclose(np.stack(alone), together, atol=1e-5)


# --- evaluation -------------------------------------------------------------------------------------------------


def test_a_perfect_model_is_right_everywhere(task):
    found = ClassLearner(Judge(task.pad_id), task).evaluate("test", "abc")
    assert (found.accuracy.right.correct, found.accuracy.right.n) == (30, 30)
    assert all(scores.right.rate == 1 for scores in found.rows)
    assert (found.wrong, found.constant, found.weights_sha256, found.split) == ((), None, "abc", "test")
    assert [(each.group, each.right.correct) for each in found.answer_shares] == [("unsorted", 15), ("sorted", 15)]


def test_groups_are_in_the_order_of_their_numbers():
    task = SimpleNamespace(facets=lambda examples: {"length": ("10", "6", "16", "6"), "kind": ("b", "a", "b", "b")})
    groups = [(facet, group, mask.tolist()) for facet, group, mask in _groups(task, np.zeros(4))]
    assert [(facet, group) for facet, group, _ in groups] == [
        *(("length", length) for length in ("6", "10", "16")),
        *(("kind", kind) for kind in "ab"),
    ]
    assert groups[0][2] == [False, True, False, True]


def test_groups_and_answers_add_up(sorter):
    task, model = sorter
    found = ClassLearner(model, task).evaluate("test")
    predicted = classify(model, task, task.split("test"))
    assert found.accuracy.right.correct == predicted.hits.sum()
    for facet in task.facets(task.split("test")):
        groups = [scores.right for scores in found.groups if scores.facet == facet]
        assert sum(share.n for share in groups) == 20
        assert sum(share.correct for share in groups) == predicted.hits.sum()
    assert [each.right.correct for each in found.answer_shares] == [(predicted.predicted == i).sum() for i in (0, 1)]
    assert Classification.from_json(found.to_json()) == found


def test_every_wrong_answer_is_listed_with_its_reason(sorter):
    task, model = sorter
    found = ClassLearner(model, task).evaluate("test")
    assert len(found.wrong) == 20 - found.accuracy.right.correct > 0
    for wrong in found.wrong:
        numbers = [int(word) for word in wrong.example.split()]
        assert wrong.right == ("sorted" if numbers == sorted(numbers) else "unsorted") != wrong.predicted
        assert wrong.explanation


def test_a_constant_model_is_marked(sorter):
    model = sorter[1]
    task = Sortedness(SortednessConfig(n_values=20, shortest=3, longest=6, n_validation=2, n_test=130))
    with torch.no_grad():
        model.to_logits.weight.zero_()
        model.to_logits.bias.copy_(torch.tensor([0.0, 1.0]))
    found = ClassLearner(model, task).evaluate("test")
    assert (found.accuracy.right.rate, found.constant) == (0.5, "sorted")
    assert [each.right.rate for each in found.answer_shares] == [0.0, 1.0]


# --- the learner ------------------------------------------------------------------------------------------------


def test_the_learner_is_the_one_the_task_asks_for(sorter, tiny):
    assert isinstance(learner_of(*reversed(sorter)), ClassLearner)
    assert isinstance(learner_of(*reversed(build(RunConfig.build("addition", **tiny)))), SequenceLearner)


def test_the_loss_is_the_cross_entropy_by_hand(sorter):
    task, model = sorter
    examples = task.sample(np.random.default_rng(0), 12)
    loss = learner_of(model, task).loss(examples)
    batch, total = task.encode(examples), 0.0
    for source, label in zip(batch.source, batch.labels, strict=True):
        logits = model(torch.tensor(source)[None])[0].tolist()
        total -= math.log(math.exp(logits[label]) / sum(map(math.exp, logits)))
    assert float(loss.detach()) == pytest.approx(total / 12, rel=1e-5)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_scores_tell_how_often_it_predicts_sorted(sorter):
    task, model = sorter
    examples = task.sample(np.random.default_rng(0), 50)
    learner, predicted = learner_of(model, task), classify(model, task, examples)
    scores, loss = learner.scores(examples)
    assert loss == pytest.approx(float(learner.loss(examples).detach()), rel=1e-5)
    assert learner.training_scores(examples) == {"accuracy": scores["accuracy"]}
    assert set(scores) == {"accuracy", "says_sorted"}
    assert learner.target_metric in scores
    assert (scores["accuracy"].correct, scores["accuracy"].n) == (predicted.hits.sum(), 50)
    assert (scores["says_sorted"].correct, scores["says_sorted"].n) == (predicted.predicted.sum(), 50)
    assert np.array_equal(learner.margins(examples), predicted.margins)
