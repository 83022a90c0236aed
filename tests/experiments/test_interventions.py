"""Interventions in one job against a plain loop of whole passes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensor_experiments import tensor_experiment
from torch import Tensor, nn

from headcount.errors import InputError, InstrumentError
from headcount.experiments.donors_and_means import means_of
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import BatchOutcome, run_interventions
from headcount.experiments.removal import Removal
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention, plain_pass
from headcount.hooks.sites import Site, Sites
from headcount.models.config import ClassifierConfig
from headcount.models.transformer import Classifier
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # together they take over 5 s

N = 11
NUMBERS = torch.randint(20, (N, 5), generator=torch.Generator().manual_seed(3))


@cache
def model() -> Classifier:
    torch.manual_seed(0)
    shape = {"d_model": 8, "n_heads": 2, "d_ff": 12, "n_layers": 2, "encoding": "alibi", "dropout": 0.5}
    made = Classifier(ClassifierConfig(**shape), 21, 2, pad_id=20)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval().double()


def margin(logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return logits[:, 1] - logits[:, 0]


def experiment(metric: Callable[..., Any] = margin, at_once: int = 6, n: int = N) -> Experiment:
    return tensor_experiment(model(), Sites.of(model()), [NUMBERS[:n]], metric, at_once=at_once)


def interventions(*replacements: str) -> list[Intervention]:
    """Heads alone, and two together."""
    groups = [*[(head,) for head in model().heads], (model().heads[0], model().heads[-1])]
    return [Intervention(heads, replacement) for replacement in replacements for heads in groups]


def zeroed(heads: tuple[HeadId, ...]) -> Classifier:
    copy = deepcopy(model())
    with torch.no_grad():
        for head in heads:
            copy.projections[head.site].weight[:, head.index * 4 : head.index * 4 + 4] = 0.0
    return copy


# --- the right scores -----------------------------------------------------------------------------------------------


def test_zero_is_a_copy_with_the_columns_zeroed() -> None:
    tried = interventions("zero")
    found = run_interventions(experiment(), tried)
    with torch.no_grad():
        np.testing.assert_allclose(found.clean, margin(model()(NUMBERS), np.arange(N)), atol=1e-9)
        for intervention, scores in zip(tried, found.scores, strict=True):
            np.testing.assert_allclose(scores, margin(zeroed(intervention.heads)(NUMBERS), np.arange(N)), atol=1e-9)
    assert (np.abs(found.scores - found.clean).max(axis=1) > 1e-4).all()


@pytest.mark.parametrize("replacement", REPLACEMENTS.names())
def test_scores_are_those_of_whole_passes(replacement: str) -> None:
    """With the very replacements that were used, one intervention and one batch at a time."""
    asked, tried = experiment(), interventions(replacement)
    expected = np.full((len(tried), N), np.nan)

    def on_batch(seen: BatchOutcome) -> None:
        for i, change in enumerate(seen.interventions):
            assert change.heads == tried[i].heads
            predicted = plain_pass(model(), asked.sites, seen.batch.inputs, change)
            expected[i, seen.batch.rows] = asked.score(seen.batch, predicted)

    found = run_interventions(asked, tried, on_batch=on_batch)
    np.testing.assert_allclose(found.scores, expected, atol=1e-9)


def z_of(rows: Tensor) -> dict[Any, Tensor]:
    """What heads find in one example at a time, by hooks of our own: [site][example, query, head, d_head]."""
    kept: dict[Any, list[Tensor]] = {site: [] for site in model().sites}
    hooks = [
        projection.register_forward_pre_hook(lambda m, args, site=site: kept[site].append(args[0]))
        for site, projection in model().projections.items()
    ]
    with torch.no_grad():
        for row in rows:
            model()(row[None])
    for hook in hooks:
        hook.remove()
    return {site: torch.cat(found).unflatten(-1, (2, 4)) for site, found in kept.items()}


def test_the_mean_is_the_mean_of_each_position() -> None:
    z, heads = z_of(NUMBERS), model().heads
    found = run_interventions(experiment(), [Intervention((head,), "mean") for head in heads])
    for head, scores in zip(heads, found.scores, strict=True):
        change = Intervention((head,), values={head.site: z[head.site].mean(dim=0, keepdim=True)})
        with torch.no_grad():
            expected = margin(plain_pass(model(), Sites.of(model()), (NUMBERS,), change), np.arange(N))
        np.testing.assert_allclose(scores, expected, atol=1e-9)


def test_the_mean_of_batches_of_different_lengths(tiny_sorter: Run) -> None:
    """Each position over the examples that have it."""
    examples = tiny_sorter.task.split("test")
    asked = task_experiment(tiny_sorter, examples, "", "loss", at_once=3)
    lengths = {batch.inputs[0].shape[1] for batch in asked.batches}
    assert len(lengths) > 2
    site = asked.sites.heads[0].site
    sums, counts, values = torch.zeros(max(lengths), 2, 4), torch.zeros(max(lengths), 1, 1), {}

    def on_batch(tried: BatchOutcome) -> None:
        z = tried.cached.z(site)
        sums[: z.shape[1]] += z.sum(dim=0)
        counts[: z.shape[1]] += len(z)
        values[z.shape[1]] = tried.interventions[0].values[site]

    run_interventions(asked, [Intervention(asked.sites.heads[:1], "mean")], on_batch=on_batch)
    assert set(values) == lengths
    for length, value in values.items():
        expected = (sums / counts)[None, :length].double()
        torch.testing.assert_close(value.expand(1, length, 2, 4), expected, atol=1e-6, rtol=1e-5)


def test_resampling_takes_another_example_and_always_the_same() -> None:
    taken: list[list[int]] = []

    def on_batch(tried: BatchOutcome) -> None:
        (value,) = tried.interventions[0].values.values()
        z = tried.cached.z(model().sites[0])
        taken.append([next(i for i in range(len(z)) if torch.equal(row, z[i])) for row in value])

    for _ in range(2):
        run_interventions(experiment(at_once=4, n=8), [Intervention(model().heads[:1], "resample")], on_batch=on_batch)
    assert taken[:2] == taken[2:]
    for others in taken:
        assert sorted(others) == list(range(4)), "every row is a donor once"
        assert all(other != row for row, other in enumerate(others))


# --- batches and passes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_once", "batch_size"), [(2, 1), (3, 10), (N + 2, 7)])
def test_neither_batches_nor_passes_change_a_score(at_once: int, batch_size: int) -> None:
    found = run_interventions(experiment(at_once=at_once), interventions("zero", "mean"), batch_size=batch_size)
    np.testing.assert_allclose(found.clean, whole().clean, atol=1e-9)
    np.testing.assert_allclose(found.scores, whole().scores, atol=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=12, derandomize=True)
@given(at_once=st.integers(1, N + 2), batch_size=st.integers(1, 60))
def test_no_batches_and_no_passes_change_a_score(at_once: int, batch_size: int) -> None:
    test_neither_batches_nor_passes_change_a_score(at_once, batch_size)


@cache
def whole() -> Any:
    return run_interventions(experiment(at_once=N), interventions("zero", "mean"))


def test_passes_do_not_change_whom_a_head_is_resampled_from() -> None:
    found = [
        run_interventions(experiment(at_once=6), interventions("resample"), batch_size=size).scores
        for size in (1, 7, 512)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    np.testing.assert_allclose(found[0], found[2], atol=1e-9)


@pytest.mark.parametrize("n", [5, 9])
def test_no_example_is_left_alone_in_a_batch(n: int) -> None:
    """One more than a full batch: still there is a row to resample from."""
    found = run_interventions(experiment(at_once=4, n=n), interventions("resample"))
    assert np.isfinite(found.scores).all()


def test_scores_arrive_at_their_examples(tiny_sorter: Run) -> None:
    """A metric that says which example it was shown, though examples are sorted by length."""

    def row_number(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(rows) + 100 * output.isnan().any(dim=1)

    examples = tiny_sorter.task.split("test")
    asked = task_experiment(tiny_sorter, examples, "", row_number, at_once=3)
    assert sorted(np.concatenate([batch.rows for batch in asked.batches])) == list(range(len(examples)))
    assert [row for batch in asked.batches for row in batch.rows] != list(range(len(examples)))
    found = run_interventions(asked, [Intervention((head,)) for head in asked.sites.heads])
    np.testing.assert_array_equal(found.clean, np.arange(len(examples)))
    np.testing.assert_array_equal(found.scores, np.tile(np.arange(len(examples)), (len(asked.sites.heads), 1)))


# --- heads that were removed before -----------------------------------------------------------------------------------


def test_heads_that_were_removed_stay_removed() -> None:
    """As if their columns were 0, in the clean score and while further heads are removed."""
    removed = (model().heads[0], model().heads[3])
    others = [head for head in model().heads if head not in removed]
    removal = Removal(experiment())
    for head in removed:
        removal.remove(head)
    copy = zeroed(removed)
    cut = tensor_experiment(copy, Sites.of(copy), [NUMBERS], margin, at_once=6)
    expected = run_interventions(cut, [Intervention((head,)) for head in others])
    np.testing.assert_allclose(removal.clean(), expected.clean, atol=1e-9)
    scores = removal.scores(others, range(len(removal.experiment.batches)))
    np.testing.assert_allclose(scores, expected.scores, atol=1e-9)
    assert np.abs(removal.clean() - run_interventions(experiment(), []).clean).max() > 1e-4


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [lambda output, rows: output, lambda output, rows: output.mean(), lambda output, rows: output[:1, 0]],
    ids=["a table", "one number", "too few"],
)
def test_a_score_of_the_wrong_shape_is_an_error(wrong: Callable[..., Tensor]) -> None:
    with pytest.raises(InputError, match="one score for each example"):
        run_interventions(experiment(wrong), interventions("zero"))


@pytest.mark.parametrize("wrong", [lambda output, rows: 0.5, lambda output, rows: rows * 1.0], ids=["float", "numpy"])
def test_a_score_that_is_no_tensor_is_an_error(wrong: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="one score for each example"):
        run_interventions(experiment(wrong), interventions("zero"))


def test_unknown_replacements_and_heads_are_errors() -> None:
    with pytest.raises(InputError, match="no 'silence' among the replacements"):
        run_interventions(experiment(), [Intervention(model().heads[:1], "silence")])
    with pytest.raises(InputError, match="no head"):
        run_interventions(experiment(), [Intervention((HeadId.parse("L7H0"),))])


def test_an_intervention_without_heads_is_an_error() -> None:
    """Alone or among others: nothing is run that would pass for a head without effect."""
    calls: list[int] = []

    def counting(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        calls.append(len(rows))
        return margin(output, rows)

    for asked in ([Intervention(())], [*interventions("zero"), Intervention((), "mean")]):
        with pytest.raises(InputError, match="an intervention names no heads"):
            run_interventions(experiment(counting), asked)
    assert not calls


def test_an_instrument_that_does_not_act_is_never_believed() -> None:
    """The projection that is named is not the one that is used."""
    sites = Sites.of(model())
    site = model().sites[0]
    wrong = Sites({**sites, site: Site(nn.Linear(8, 8).double(), sites[site].heads)})
    with pytest.raises(InstrumentError):
        run_interventions(replace(experiment(), sites=wrong), interventions("zero"))


@pytest.mark.parametrize("fail_at", [1, 2, 9])
def test_a_metric_that_fails_leaves_no_trace(fail_at: int) -> None:
    calls: list[int] = []

    def fails(output: Tensor, rows: NDArray[np.int64]) -> Tensor:
        calls.append(len(output))
        if len(calls) == fail_at:
            raise ZeroDivisionError
        return output[:, 0]

    model().layers[1].train()
    before, weights = traces(), deepcopy(model().state_dict())
    with pytest.raises(ZeroDivisionError):
        run_interventions(experiment(fails), interventions("zero", "mean"))
    assert traces() == before
    model().eval()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model().state_dict().items())


def traces() -> list[Any]:
    assert not any("forward" in module.__dict__ for module in model().modules())
    return [
        (list(module._forward_hooks), list(module._forward_pre_hooks), sorted(module.__dict__), module.training)
        for module in model().modules()
    ]


def test_progress_is_told_batch_by_batch() -> None:
    told: list[tuple[int, int]] = []
    run_interventions(
        experiment(at_once=4), interventions("zero"), progress=lambda done, total: told.append((done, total))
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_model_that_changes_meanwhile_is_found_out() -> None:
    """However late: after the last intervention the first batch is passed again."""
    changing = deepcopy(model())
    last = tensor_experiment(changing, Sites.of(changing), [NUMBERS], margin, at_once=6)

    def change(tried: BatchOutcome) -> None:
        if tried.batch is last.batches[-1]:
            with torch.no_grad():
                list(changing.parameters())[-1].add_(torch.tensor([0.1, -0.1]))

    run_interventions(last, interventions("zero"))
    with pytest.raises(InstrumentError, match=r"is not deterministic.* two passes without ablation differ by"):
        run_interventions(last, interventions("zero"), on_batch=change)


def test_guessing_is_even_odds_over_what_the_model_outputs(tiny_sorter: Run, tiny_run: Run) -> None:
    for run, n in ((tiny_sorter, 2), (tiny_run, len(tiny_run.task.tokens))):
        asked = task_experiment(run, run.task.split("test"), "the test set", "loss")
        assert run_interventions(asked, []).majority_baseline == pytest.approx(-np.log(n))
    assert run_interventions(experiment(), []).majority_baseline == 0.0, "of a metric of one's own nothing is known"


def test_the_mean_of_the_parts_means_is_the_mean() -> None:
    """Of 16 rows, each of eight parts has two; whatever shares a batch."""
    numbers = torch.randint(20, (16, 5), generator=torch.Generator().manual_seed(4))
    made = [tensor_experiment(model(), Sites.of(model()), [numbers], margin, at_once=size) for size in (16, 3)]
    whole, *parts = means_of(made[0])
    for other, mine in zip(means_of(made[1]), (whole, *parts), strict=True):
        for site, mean in mine.items():
            torch.testing.assert_close(other[site], mean)
    for site, mean in whole.items():
        torch.testing.assert_close(torch.stack([part[site] for part in parts]).mean(dim=0), mean)
        assert not torch.equal(parts[0][site], parts[1][site])
