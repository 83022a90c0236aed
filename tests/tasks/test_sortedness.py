"""The data of sortedness, against plain Python."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import InputError
from headcount.tasks.base import EMPTY
from headcount.tasks.sortedness import NEGATIVES, Sortedness, SortednessConfig, kind_shares

SMALL = {"n_values": 30, "shortest": 3, "longest": 7, "n_validation": 40, "n_test": 40}
numbers = st.lists(st.integers(0, 29), min_size=1, max_size=9)


def task_of(**settings):
    return Sortedness(SortednessConfig(**(SMALL | settings)))


def plain(example):
    """The numbers of one example as a list."""
    return [int(x) for x in example if x != EMPTY]


def drawn(task, n=200, seed=0):
    examples = task.sample(np.random.default_rng(seed), n)
    return examples, [plain(row) for row in examples]


def falls(row):
    return [i for i, (a, b) in enumerate(pairwise(row)) if a > b]


# --- labels -----------------------------------------------------------------------------------------------------


def test_labels_agree_with_python():
    task = task_of()
    examples, rows = drawn(task)
    labels = task.encode(examples).labels
    assert [task.classes[label] for label in labels] == ["sorted" if row == sorted(row) else "unsorted" for row in rows]
    assert len(set(labels.tolist())) == 2


@given(numbers)
def test_any_sequence_is_judged_as_python_does(row):
    task = task_of()
    example = task.parse(" ".join(map(str, row)))
    assert task.encode(example).labels.tolist() == [int(row == sorted(row))]
    assert task.first_broken(example).tolist() == [falls(row)[0] if falls(row) else -1]
    assert plain(example[0]) == row
    assert task.show(example[0]) == " ".join(map(str, row))


def test_a_short_sequence_is_judged_by_its_own_numbers():
    task = task_of()
    padded = np.array([[1, 2, 3, EMPTY, EMPTY], [1, 3, 2, EMPTY, EMPTY], [0, 0, 0, 0, 0]])
    assert task.encode(padded).labels.tolist() == [1, 0, 1]
    assert task.first_broken(padded).tolist() == [-1, 1, -1]
    assert task.encode(padded[:2]).labels.tolist() == [1, 0]


def test_the_first_broken_pair_is_the_first():
    task = task_of()
    examples, rows = drawn(task)
    assert task.first_broken(examples).tolist() == [falls(row)[0] if falls(row) else -1 for row in rows]
    assert any(len(falls(row)) > 1 for row in rows)


def test_facets_count_broken_pairs_and_numbers():
    task = task_of()
    examples, rows = drawn(task)
    facets = task.facets(examples)
    assert [int(length) for length in facets["length"]] == [len(row) for row in rows]
    counted = ["3 or more" if len(falls(row)) > 2 else str(len(falls(row))) for row in rows]
    assert list(facets["broken pairs"]) == counted
    assert [name == "sorted" for name in facets["class"]] == [row == sorted(row) for row in rows]


# --- balance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("n", [2, 7, 64, 101])
def test_exactly_half_is_sorted(n, paired):
    task = task_of(n_validation=n, n_test=n, paired=paired)
    for examples in (task.split("validation"), task.split("test"), drawn(task, n)[0]):
        assert task.encode(examples).labels.sum() == n - n // 2


def test_a_coin_is_fair_but_not_exact():
    task = task_of(balance="coin")
    shares = [task.encode(drawn(task, 64, seed)[0]).labels.mean() for seed in range(60)]
    assert len(set(shares)) > 5
    assert np.mean(shares) == pytest.approx(0.5, abs=0.04)
    labels = task.encode(task.split("test")).labels
    assert set(labels.tolist()) == {0, 1}


@pytest.mark.parametrize("n", [40, 41])
def test_matched_pairs_are_a_sequence_and_its_sorted_self(n):
    _, rows = drawn(task_of(paired=True), n)
    unsorted, ordered = rows[: n // 2], rows[n // 2 :]
    assert [sorted(row) for row in unsorted] == ordered[: n // 2]
    assert all(row != sorted(row) for row in unsorted)
    assert len(ordered) == n - n // 2
    _, free = drawn(task_of(paired=False), n)
    assert [sorted(row) for row in free[: n // 2]] != free[n // 2 : 2 * (n // 2)]


def test_matched_pairs_stay_together_where_one_of_them_is_refused():
    task = task_of(paired=True, n_values=8, longest=5)
    for examples in (task.split("validation"), task.split("test"), drawn(task, 40)[0]):
        rows = [plain(row) for row in examples]
        assert [sorted(row) for row in rows[:20]] == rows[20:]


# --- lengths and padding ----------------------------------------------------------------------------------------


def test_every_trained_length_comes_and_is_padded_behind():
    task = task_of()
    examples, rows = drawn(task)
    assert Counter(len(row) for row in rows).keys() == set(range(3, 8))
    source = task.encode(examples).source
    assert source.tolist() == [row + [30] * (7 - len(row)) for row in rows]
    assert (task.pad_id, task.tokens[task.pad_id], task.masks_padding) == (30, "<pad>", True)
    assert task.tokens[:30] == tuple(map(str, range(30)))


def test_a_batch_is_no_wider_than_its_longest():
    task = task_of()
    examples, rows = drawn(task)
    short = examples[[len(row) == 3 for row in rows]]
    assert task.encode(short).source.shape[1] == 3
    assert task.encode(short).source.max() < 30


def test_the_old_fault_pads_with_a_number_and_hides_nothing():
    task = task_of(padding_is_zero=True)
    examples, rows = drawn(task)
    batch = task.encode(examples)
    assert (task.pad_id, task.masks_padding) == (0, False)
    assert batch.source.tolist() == [row + [0] * (7 - len(row)) for row in rows]
    assert batch.labels.tolist() == [int(row == sorted(row)) for row in rows], "what is right does not change"
    sound = task_of()
    assert np.array_equal(drawn(sound)[0], examples), "the fault is in the padding, not in the data"


# --- values -----------------------------------------------------------------------------------------------------


def test_distinct_numbers_come_once():
    _, rows = drawn(task_of(distinct=True))
    assert all(len(set(row)) == len(row) for row in rows)
    _, ties = drawn(task_of())
    assert any(len(set(row)) < len(row) for row in ties)


def test_distinct_numbers_run_out_in_long_sequences():
    task = task_of(distinct=True)
    for length, n_different in ((30, 30), (31, None)):
        rows = task.sample_of_length(np.random.default_rng(0), length, None, 20)
        assert rows.shape == (20, length)
        if n_different:
            assert {len(set(plain(row))) for row in rows} == {n_different}


def test_narrow_sequences_have_small_steps():
    def spread(small_steps):
        _, rows = drawn(task_of(n_values=1000, small_steps=small_steps), 400)
        return np.median([max(row) - min(row) for row in rows])

    assert spread(1.0) < 200 < 500 < spread(0.0)
    _, rows = drawn(task_of(n_values=1000, small_steps=1.0), 400)
    assert all(0 <= x < 1000 for row in rows for x in row)
    assert max(x for row in rows for x in row) > 900, "narrow ranges lie anywhere"


def test_samples_of_one_length_never_have_small_steps():
    small_steps, wide = (task_of(n_values=1000, small_steps=share) for share in (1.0, 0.0))
    for kind in (None, *NEGATIVES):
        made = [task.sample_of_length(np.random.default_rng(0), 50, kind, 10) for task in (small_steps, wide)]
        assert np.array_equal(*made)


# --- kinds of negatives -----------------------------------------------------------------------------------------


def test_shares_are_what_was_written():
    assert kind_shares("shuffle:1,adjacent:3") == {"shuffle": 0.25, "adjacent": 0.75}
    assert kind_shares(" moved_one : 0.5 , adjacent") == pytest.approx({"moved_one": 1 / 3, "adjacent": 2 / 3})


def test_negatives_come_in_the_shares_asked_for():
    def share_with_one_break(negatives):
        _, rows = drawn(task_of(shortest=16, longest=16, n_values=1000, negatives=negatives), 2000)
        return np.mean([len(falls(row)) == 1 for row in rows if row != sorted(row)])

    assert share_with_one_break("adjacent") == 1
    assert share_with_one_break("shuffle") < 0.01
    assert share_with_one_break("shuffle:1,adjacent:3") == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("negatives", "explanation"),
    [
        ("shufle", r"no kind of unsorted sequence 'shufle'; did you mean 'shuffle'\?"),
        ("", "no kind of unsorted sequence ''"),
        ("shuffle,", "no kind of unsorted sequence ''"),
        ("shuffle,adjacent,shuffle:2", "shuffle is named twice"),
        ("shuffle:often", "the weight of shuffle must be a number, such as shuffle:2, got 'often'"),
        ("shuffle:1:2", "must be a number, such as shuffle:2, got '1:2'"),
        ("shuffle:0", "must be positive and finite"),
        ("shuffle:-1", "must be positive and finite"),
        ("shuffle:inf", "must be positive and finite"),
        ("shuffle:nan", "must be positive and finite"),
    ],
)
def test_nonsense_negatives_are_told(negatives, explanation):
    with pytest.raises(ValueError, match=explanation):
        kind_shares(negatives)
    with pytest.raises(ValueError, match=explanation):
        SortednessConfig(negatives=negatives)


@pytest.mark.parametrize("length", [2, 5, 64])
@pytest.mark.parametrize("kind", NEGATIVES)
def test_stretched_negatives_are_unsorted_in_their_way(kind, length):
    rows = [plain(row) for row in task_of().sample_of_length(np.random.default_rng(0), length, kind, 50)]
    assert all(len(row) == length and row != sorted(row) for row in rows)
    breaks = [len(falls(row)) for row in rows]
    if kind == "adjacent":
        for row in rows:
            i = falls(row)[0]
            row[i], row[i + 1] = row[i + 1], row[i]
            assert row == sorted(row), "one swap of neighbours mends it"
    if kind == "moved_one":
        assert max(breaks) <= 2
    if kind == "shuffle" and length == 64:
        assert min(breaks) > 10


def test_stretched_positives_are_sorted_and_fresh():
    rows = [plain(row) for row in task_of().sample_of_length(np.random.default_rng(0), 500, None, 10)]
    assert all(len(row) == 500 and row == sorted(row) for row in rows)
    assert len(set(map(tuple, rows))) == 10


# --- splits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"paired": True}, {"balance": "coin"}, {"small_steps": 1.0}, {"distinct": True}]
)
def test_no_sequence_is_in_two_sets(settings):
    task = task_of(n_values=8, longest=5, n_train=60, **settings)
    sets = {name: [tuple(plain(row)) for row in task.split(name)] for name in ("train", "validation", "test")}
    assert {name: len(rows) for name, rows in sets.items()} == {"train": 60, "validation": 40, "test": 40}
    assert len({row for rows in sets.values() for row in rows}) == 140


def test_fresh_draws_meet_no_held_out_sequence_even_where_they_easily_could():
    task = task_of(n_values=6, shortest=2, longest=4, n_validation=20, n_test=20)
    held = {tuple(plain(row)) for name in ("validation", "test") for row in task.split(name)}
    _, rows = drawn(task, 5000)
    assert not held & set(map(tuple, rows))
    every = {tuple(row) for length in (2, 3, 4) for row in np.ndindex(*[6] * length)}
    assert held < every
    assert len(set(map(tuple, rows))) > len(every) // 2, "all the rest is drawn"


def test_a_fixed_training_set_is_all_there_is_to_draw():
    task = task_of(n_train=10)
    _, rows = drawn(task, 500)
    assert set(map(tuple, rows)) == {tuple(plain(row)) for row in task.split("train")}
    with pytest.raises(InputError, match=r"no split 'train'(.|\n)*validation, test"):
        task_of().split("train")


def test_the_split_seed_alone_decides_what_is_held_out():
    one, same, other = task_of(), task_of(n_train=5), task_of(split_seed=1)
    assert np.array_equal(one.split("test"), same.split("test"))
    assert not np.array_equal(one.split("test"), other.split("test"))


def test_too_small_a_domain_is_told():
    task = task_of(n_values=2, shortest=2, longest=3, n_validation=10, n_test=10)
    with pytest.raises(InputError, match=r"too few sequences of 2 to 3 numbers below 2(.|\n)*raise --n-values"):
        task.split("test")


def test_a_domain_that_is_all_held_out_leaves_nothing_to_draw():
    task = task_of(n_values=2, shortest=2, longest=2, n_validation=2, n_test=2, negatives="adjacent", distinct=True)
    with pytest.raises(InputError, match="too few sequences"):
        task.sample(np.random.default_rng(0), 4)


# --- text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["3 5 5 9", "3,5,5,9", " 3, 5,5 9 ", "03 5 5 0009", "3\t5\n5 9"])
def test_sequences_are_read(text):
    assert task_of().parse(text).tolist() == [[3, 5, 5, 9]]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no numbers"),
        (" , ,", "no numbers"),
        ("3 x 5", "'x' in '3 x 5' is not a number"),
        ("3 -5", "'-5' in '3 -5' is not a number"),
        ("3 5.0", "'5.0' in '3 5.0' is not a number"),
        ("3 ²", "is not a number"),
        ("3 30", "30 in '3 30' is out of range"),
        ("9" * 5000, "is out of range"),
    ],
)
def test_what_is_no_sequence_is_told_what_is(text, what):
    with pytest.raises(InputError, match=what) as error:
        task_of().parse(text)
    assert "write numbers from 0 to 29" in str(error.value)
    assert len(str(error.value)) < 300


def test_a_sequence_may_be_longer_than_any_in_training():
    task = task_of()
    example = task.parse(" ".join(["7"] * 400))
    assert task.encode(example).source.shape == (1, 400)


def test_explanations_name_the_first_broken_pair():
    task = task_of()
    (broken,), (fine,) = task.parse("3 5 4 9 1"), task.parse("3 5 5 9")
    assert task.explain(broken, 1) == "first wrong order at position 1: 5 > 4"
    assert task.explain(fine, 0) == "all neighbours are in order"
    assert task.explain(broken, 0) == task.explain(fine, 1) == ""


# --- crops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 6, 16, 40, 99])
def test_a_crop_is_a_piece_with_the_swap_and_that_piece_in_order(length):
    whole = task_of().sample_of_length(np.random.default_rng(0), 40, "adjacent", 60)
    cut, mended = task_of().cropped(np.random.default_rng(1), whole, length)
    assert cut.shape == mended.shape == (60, min(length, 40))
    starts = set()
    for row, piece, ordered in zip(*(map(plain, rows) for rows in (whole, cut, mended)), strict=True):
        (swap,) = falls(row)
        starts |= {i for i in range(len(row)) if row[i : i + len(piece)] == piece}
        assert any(row[i : i + len(piece)] == piece for i in range(len(row)))
        assert [(piece[i], piece[i + 1]) for i in falls(piece)] == [(row[swap], row[swap + 1])]
        assert ordered == sorted(piece)
    if length < 40:
        assert len(starts) > 5, "pieces come from wherever the swap is"
