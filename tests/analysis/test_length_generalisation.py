"""Length generalisation: the counts must equal the model's predictions."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from asked_runs import stretch

from headcount.analysis.length_generalisation import NEAR, NeighbourMass, Stretch
from headcount.errors import InputError
from headcount.experiments.models import RunModel
from headcount.models import masking
from headcount.models.attention import AttentionCache
from headcount.models.transformer import Classifier
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build
from headcount.seeds import stream
from headcount.training.answers import classify

LENGTHS = (3, 6, 9, 20)
KINDS = ("shuffle", "adjacent")


def fresh_run(settings, tmp_path, **changes):
    """Return an untrained run."""
    config = RunConfig.build("sortedness", **(settings | changes))
    task, model = build(config)
    return Run("a run", RunFolder(tmp_path), config, task, model.eval(), "digest")


def constant(run, which):
    """Return a copy of the run that predicts one class for everything."""
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        model.to_logits.weight.zero_()
        model.to_logits.bias.copy_(torch.eye(2)[which])
    return replace(run, model=model)


class Perfect(Classifier):
    """A model that compares neighbours. Its layers still run, so that attention can be read."""

    def forward(self, source, **given):
        logits = super().forward(source, **given)
        is_sorted = (source[:, :-1] <= source[:, 1:]).all(dim=1)
        return torch.stack([~is_sorted, is_sorted], dim=1).to(logits)


def perfect(run):
    model = copy.deepcopy(run.model)
    model.__class__ = Perfect
    return replace(run, model=model)


def all_cells(result):
    return (*result.cells, *result.cropped_results, *(each.cell for each in result.ids))


@pytest.fixture(scope="module")
def result(tiny_sorter):
    return stretch(tiny_sorter, LENGTHS, KINDS, 15)


# --- cells ------------------------------------------------------------------------------------------------------


def test_there_is_a_cell_for_every_length_and_negative(result, tiny_sorter):
    assert [(cell.length, cell.negative) for cell in result.cells] == [(n, kind) for n in LENGTHS for kind in KINDS]
    assert (result.name, result.weights_sha256, result.seed) == (tiny_sorter.name, tiny_sorter.weights_sha256, 0)
    assert (result.trained, result.classes) == ((3, 6), ("unsorted", "sorted"))
    assert (result.encoding, result.pooling, result.label) == ("sinusoidal", "max", "sinusoidal, max")
    assert (result.hard_codes, result.refused_lengths) == ((), ())


def test_every_negative_is_tried_unless_some_are_named(tiny_sorter):
    result = stretch(tiny_sorter, [4], n=4)
    assert [cell.negative for cell in result.cells] == [*tiny_sorter.task.negatives, "patterns"]
    assert [cell.negative for cell in stretch(tiny_sorter, [4], ["adjacent", "adjacent"], 4).cells] == ["adjacent"]


def test_accuracy_alone_is_that_of_the_whole_measurement(tiny_sorter):
    whole, alone = (stretch(tiny_sorter, [4, 8], KINDS, 6, explain=explain) for explain in (True, False))
    assert alone.cells == whole.cells
    assert whole.attention_shares
    for explained in (alone.attention_shares, alone.ids, alone.cropped_results):
        assert not explained


def test_shares_are_consistent_with_accuracy(result):
    for cell in all_cells(result):
        unsorted, ordered = cell.recall
        assert (unsorted.n, ordered.n, cell.n) in ((7, 8, 15), (7, 7, 14))
        assert cell.accuracy == (unsorted.correct + ordered.correct) / cell.n
        assert 0 <= cell.low <= cell.accuracy <= cell.high <= 1
        says_unsorted, says_sorted = cell.answers
        assert says_unsorted.correct + says_sorted.correct == says_sorted.n == cell.n
        assert says_sorted.correct == ordered.correct + unsorted.n - unsorted.correct
        assert cell.constant == (cell.constant_class is not None)
    assert any(0 < cell.accuracy < 1 for cell in result.cells)


def test_the_same_seed_gives_all_runs_the_same_examples(tiny_sorter, monkeypatch):
    asked = []
    encode = type(tiny_sorter.task).encode

    def record(task, rows):
        asked.append(rows.copy())
        return encode(task, rows)

    monkeypatch.setattr(type(tiny_sorter.task), "encode", record)
    stretch(tiny_sorter, [9], KINDS, 6)
    first = [rows.tolist() for rows in asked]
    asked.clear()
    stretch(constant(tiny_sorter, 0), [9], KINDS, 6)
    assert [rows.tolist() for rows in asked] == first


def test_a_cell_is_what_the_model_predicts(tiny_sorter, monkeypatch):
    """Count the hits again on the same examples."""
    seen: dict[tuple[int, str | None], list[Any]] = {}
    sample_of_length = tiny_sorter.task.sample_of_length

    def remembered(rng, length, kind, n):
        seen.setdefault((length, kind), []).append(sample_of_length(rng, length, kind, n))
        return seen[length, kind][-1]

    task = copy.copy(tiny_sorter.task)
    task.sample_of_length = remembered
    (cell,) = stretch(replace(tiny_sorter, task=task), [12], ["shuffle"], 40).cells
    (wrong,) = seen[12, "shuffle"]
    right = next(rows for rows in seen[12, None] if len(rows) == 20)
    predicted = [classify(tiny_sorter.model, task, rows) for rows in (wrong, right)]
    assert [share.correct for share in cell.recall] == [int(each.hits.sum()) for each in predicted]
    np.testing.assert_allclose(cell.margin, [each.margins.mean() for each in predicted], atol=1e-5)


def test_patterns_are_hard_examples_of_both_classes(tiny_sorter, monkeypatch):
    """Count the hits again on the same examples; kinds do not depend on what else is measured."""
    seen: list[Any] = []
    patterns = tiny_sorter.task.patterns_of_length

    def remembered(*given):
        seen.append(patterns(*given))
        return seen[-1]

    task = copy.copy(tiny_sorter.task)
    task.patterns_of_length = remembered
    (cell,) = stretch(replace(tiny_sorter, task=task), [12], ["patterns"], 41).cells
    rows = seen[-1]
    is_sorted = (np.diff(rows, axis=1) >= 0).all(axis=1)
    assert rows.shape == (82, 12)
    predicted = [classify(tiny_sorter.model, task, part) for part in (rows[~is_sorted][:20], rows[is_sorted][:21])]
    assert [(share.correct, share.n) for share in cell.recall] == [
        (int(each.hits.sum()), n) for each, n in zip(predicted, (20, 21), strict=True)
    ]
    together = stretch(tiny_sorter, [12], [*KINDS, "patterns"], 41).cells
    assert together[-1] == cell
    assert list(together[:-1]) == list(stretch(tiny_sorter, [12], KINDS, 41).cells)


def test_a_task_without_patterns_is_measured_on_its_negatives(tiny_sorter):
    task = copy.copy(tiny_sorter.task)
    task.patterns_of_length = lambda *given: None
    without = replace(tiny_sorter, task=task)
    assert [cell.negative for cell in stretch(without, [4], n=4).cells] == list(task.negatives)
    with pytest.raises(InputError, match="no kind of example 'patterns'"):
        stretch(without, [4], ["patterns"], 4)


@pytest.mark.parametrize("which", [0, 1])
def test_a_constant_model_is_marked_everywhere(tiny_sorter, which):
    result = stretch(constant(tiny_sorter, which), LENGTHS, KINDS, 126)
    assert (len(result.cells), len(result.cropped_results)) == (len(LENGTHS) * len(KINDS), 2)
    assert result.ids
    for cell in all_cells(result):
        assert (cell.constant, cell.constant_class, cell.accuracy) == (True, result.classes[which], 0.5)
        assert cell.answers[which].rate == cell.recall[which].rate == 1
        assert cell.margin == (1 - 2 * which, 2 * which - 1)


def test_a_perfect_model_is_right_everywhere_and_not_marked(tiny_sorter):
    result = stretch(perfect(tiny_sorter), (2, 40, 300), None, 10)
    for cell in all_cells(result):
        assert (cell.accuracy, cell.constant, cell.constant_class) == (1.0, False, None)
        assert cell.margin == (1.0, 1.0)
    assert {cell.length for cell in result.cropped_results} == {40, 300}


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_the_batch_size_changes_no_cell(result, tiny_sorter, batch_size):
    other = stretch(tiny_sorter, LENGTHS, KINDS, 15, batch_size=batch_size)
    for ours, theirs in zip(all_cells(result), all_cells(other), strict=True):
        np.testing.assert_allclose(ours.margin, theirs.margin, atol=1e-5)
        assert replace(ours, margin=()) == replace(theirs, margin=())


def test_cropped_results_are_measured_only_beyond_the_trained_lengths(result):
    assert [(cell.length, cell.negative) for cell in result.cropped_results] == [(n, "adjacent") for n in (9, 20)]


def test_cropped_results_are_of_a_trained_length(tiny_sorter, monkeypatch):
    widths = []
    forward = Classifier.forward

    def record(self, source, **more):
        widths.append(source.shape)
        return forward(self, source, **more)

    monkeypatch.setattr(Classifier, "forward", record)
    stretch(tiny_sorter, [30], ["adjacent"], 8)
    assert {width for _, width in widths} == {6, 30}
    assert sum(rows for rows, width in widths if width == 6) == 8 * (1 + len((*NEAR, 24)))


def test_gaps_and_ids_are_told_apart_on_adjacent_swaps_or_not_at_all(tiny_sorter):
    result = stretch(tiny_sorter, [30], ["shuffle"], 8)
    assert (result.cropped_results, result.ids, result.refused_first_ids) == ((), (), ())


# --- ids --------------------------------------------------------------------------------------------------------


def test_ids_begin_near_0_and_where_the_end_of_each_length_does(result):
    assert [each.first for each in result.ids] == sorted({*NEAR, 9 - 6, 20 - 6})
    assert {(each.cell.length, each.cell.negative, each.cell.n) for each in result.ids} == {(6, "adjacent", 15)}


def test_other_ids_are_what_the_model_is_asked_with(tiny_sorter, result):
    """Count the hits again with sinusoids that are shifted by hand."""
    task, model = tiny_sorter.task, copy.deepcopy(tiny_sorter.model)
    added = model.positions.add_to_embeddings
    model.positions.add_to_embeddings = lambda x, where: added(x, where._replace(ids=where.ids + 14))
    rng = stream(0, "stretch ids")
    examples = [task.sample_of_length(rng, 6, kind, n) for kind, n in (("adjacent", 7), (None, 8))]
    moved = [classify(model, task, rows) for rows in examples]
    still = [classify(tiny_sorter.model, task, rows) for rows in examples]
    (asked,) = [each for each in result.ids if each.first == 14]
    np.testing.assert_allclose(asked.cell.margin, [each.margins.mean() for each in moved], atol=1e-5)
    change = max(np.abs(a.logits - b.logits).max() for a, b in zip(moved, still, strict=True))
    assert asked.moved == pytest.approx(change, abs=1e-5)
    assert change > 0.1
    assert result.ids[0].moved == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"encoding": name} for name in ("none", "relative", "t5", "alibi", "rotary")], ids=str
)
def test_ids_do_not_matter_where_only_distances_do(tiny_sorting, tmp_path, changes):
    result = stretch(fresh_run(tiny_sorting, tmp_path, **changes), [600], ["adjacent"], 8)
    assert [each.first for each in result.ids] == [*NEAR, 594]
    assert max(each.moved for each in result.ids) < 1e-4


def test_ids_past_a_table_are_refused_and_the_rest_is_measured(tiny_sorting, tmp_path):
    run = fresh_run(tiny_sorting, tmp_path, encoding="learned", n_positions=10, past_table="error")
    result = stretch(run, (4, 10, 11, 50), ["adjacent"], 4)
    assert [each.first for each in result.ids] == [0, 1, 4]
    assert result.refused_first_ids == (5, 44)


# --- draws ------------------------------------------------------------------------------------------------------


def test_another_draw_asks_about_other_sequences(tiny_sorter, result):
    again, other = (stretch(tiny_sorter, [9], KINDS, 15, draw=draw) for draw in (0, 1))
    assert again.cells == tuple(cell for cell in result.cells if cell.length == 9)
    assert (again.draw, other.draw) == (0, 1)
    for what in ("cells", "cropped_results", "attention_shares"):
        assert getattr(other, what) != getattr(again, what)
    assert [each.cell for each in other.ids] != [each.cell for each in again.ids]


def test_it_round_trips_through_json(result):
    assert Stretch.from_json(result.to_json()) == result


def test_progress_ends_where_it_should(tiny_sorter):
    told = []
    stretch(tiny_sorter, (3, 5), KINDS, 8, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (100, 100)
    assert told == sorted(told)
    assert len(set(told)) > 3


def test_lengths_come_once_and_in_order(tiny_sorter):
    result = stretch(tiny_sorter, [9, 4, 9], ["shuffle"], 4)
    assert [cell.length for cell in result.cells] == [4, 9]
    assert len({(attention_share.length, attention_share.head) for attention_share in result.attention_shares}) == len(
        result.attention_shares
    )


# --- refusals ---------------------------------------------------------------------------------------------------


def test_lengths_past_a_table_are_listed_and_the_rest_is_measured(tiny_sorting, tmp_path):
    run = fresh_run(tiny_sorting, tmp_path, encoding="learned", n_positions=10, past_table="error")
    result = stretch(run, (4, 10, 11, 50), ["shuffle"], 4)
    assert [cell.length for cell in result.cells] == [4, 10]
    assert result.refused_lengths == (11, 50)
    assert {attention_share.length for attention_share in result.attention_shares} == {4, 10}
    with pytest.raises(InputError, match="past the end of the learned position table, which has 10 rows"):
        stretch(run, (11, 50), ["shuffle"], 4)
    clamped = fresh_run(tiny_sorting, tmp_path, encoding="learned", n_positions=10, past_table="clamp")
    assert stretch(clamped, (4, 50), ["shuffle"], 4).refused_lengths == ()


@pytest.mark.parametrize(
    ("lengths", "kinds", "n", "what"),
    [
        ([], None, 4, "got none"),
        ([8, 1], None, 4, "got 8, 1"),
        ([-3], None, 4, "got -3"),
        ([8], ["shuffled"], 4, r"no kind of example 'shuffled'(.|\n)*did you mean 'shuffle'"),
        ([8], ["zigzag"], 4, r"no kind of example 'zigzag'(.|\n)*transpositions"),
        ([8], None, 1, "--n must be at least 2, .* got 1"),
        ([8], None, -5, "--n must be at least 2, .* got -5"),
        ([8], None, {"draw": -1}, "--draw must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_asked_is_told(tiny_sorter, lengths, kinds, n, what):
    with pytest.raises(InputError, match=what):
        stretch(tiny_sorter, lengths, kinds, **(n if isinstance(n, dict) else {"n": n}))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_no_batch_is_smaller_than_one(tiny_sorter, batch_size):
    with pytest.raises(InputError, match="batch"):
        stretch(tiny_sorter, [8], None, 4, batch_size=batch_size)


def test_a_model_that_writes_its_answers_cannot_be_stretched(tiny_run):
    with pytest.raises(InputError, match=r"only a classifier can be measured at several sequence lengths"):
        stretch(tiny_run)


# --- labels -----------------------------------------------------------------------------------------------------


def test_labels_say_what_is_not_the_default(tiny_sorting, tmp_path):
    many = {"encoding": "alibi", "causal": True, "window": 2, "softmax": "log-length", "random_positions": 9}
    run = fresh_run(tiny_sorting, tmp_path, pooling="mean", **many)
    assert RunModel.of(run).description.label == "alibi, random of 9, causal, window ±2, log-length, mean"
    assert "window of ±2" in run.model.hard_codes


def test_runs_that_differ_in_their_seed_alone_share_a_recipe(tiny_sorting, tmp_path):
    def recipe(**changes):
        return stretch(fresh_run(tiny_sorting, tmp_path, **changes), [3], ["shuffle"], 2).recipe

    assert recipe() == recipe(seed=9) != ""
    assert len({recipe(), recipe(n_layers=2), recipe(small_steps=0.5), recipe(steps=13)}) == 4


# --- looks ------------------------------------------------------------------------------------------------------


def means_over_neighbours(weights):
    """Return the means over neighbours from the whole weights, [batch, head, query, key], one position at a time."""
    rows, heads, n, _ = weights.shape
    return [
        [
            sum(float(weights[b, h, q, q + step]) for b in range(rows) for q in range(n) if 0 <= q + step < n)
            / (rows * n)
            for step in (-1, 0, 1)
        ]
        for h in range(heads)
    ]


@pytest.mark.parametrize("changes", [{}, {"causal": True}, {"window": 1}, {"window": 3, "causal": True}])
@pytest.mark.parametrize("pairs", [1, 40, 2**20])
def test_neighbour_mass_is_read_off_the_whole_weights(tiny_sorting, tmp_path, monkeypatch, changes, pairs):
    run = fresh_run(tiny_sorting, tmp_path, n_layers=2, encoding="rotary", **changes)
    examples = run.task.sample_of_length(np.random.default_rng(0), 13, None, 3)
    source = torch.tensor(run.task.encode(examples).source)
    kept, mass = AttentionCache(), NeighbourMass(run.model)
    with torch.no_grad():
        run.model(source, weights=kept)
        monkeypatch.setattr(masking, "PAIRS", pairs)
        monkeypatch.setattr(masking, "NARROW", 4)
        for rows in (source[:1], source[1:]):
            mass.begin(rows)
            run.model(rows, weights=mass)
    attention_shares = {
        attention_share.head: [attention_share.left, attention_share.itself, attention_share.right]
        for attention_share in mass.attention_shares(13)
    }
    assert list(attention_shares) == [str(head) for head in run.model.heads]
    alike = {attention_share.head: attention_share.alike for attention_share in mass.attention_shares(13)}
    same = (source[:, :, None] == source[:, None, :])[:, None]
    for site, weights in kept.items():
        for i, expected in enumerate(means_over_neighbours(weights)):
            assert attention_shares[str(site.head(i))] == pytest.approx(expected, abs=1e-6)
        on_equals = (weights * same).sum(dim=3).mean(dim=(0, 2)).tolist()
        near = weights.diagonal(1, 2, 3).sum(dim=2) + weights.diagonal(-1, 2, 3).sum(dim=2)  # [example, head]
        errors = {"alike": (weights * same).sum(dim=3).mean(dim=2), "neighbours": near / 13}
        for attention_share in mass.attention_shares(13):
            if attention_share.head.startswith(f"layer.{site.layer}"):
                for what, shares in errors.items():
                    se = float(shares[:, int(attention_share.head[-1])].std()) / 3**0.5
                    assert (attention_share.n, getattr(attention_share, f"{what}_se")) == (
                        3,
                        pytest.approx(se, abs=1e-6),
                    )
        assert [alike[str(site.head(i))] for i in range(len(on_equals))] == pytest.approx(on_equals, abs=1e-6)
    if changes == {"window": 1}:
        assert all(sum(three) == pytest.approx(1, abs=1e-6) for three in attention_shares.values()), (
            "nothing else is visible"
        )


def test_there_is_an_attention_share_for_every_length_and_head(result, tiny_sorter):
    heads = [str(head) for head in tiny_sorter.model.heads]
    assert [(attention_share.length, attention_share.head) for attention_share in result.attention_shares] == [
        (n, head) for n in LENGTHS for head in heads
    ]
    assert all(
        0 <= share <= 1
        for attention_share in result.attention_shares
        for share in (attention_share.left, attention_share.itself, attention_share.right)
    )
    assert all(
        attention_share.itself <= attention_share.alike + 1e-6 <= 1 + 2e-6
        for attention_share in result.attention_shares
    )
    at_three = [attention_share for attention_share in result.attention_shares if attention_share.length == 3]
    assert all(
        0 < attention_share.left + attention_share.itself + attention_share.right <= 1 for attention_share in at_three
    )
