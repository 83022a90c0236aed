"""The labels of a course's submissions."""

import pytest

from headcount.api.courses import course_labels


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        (["in/alice/src/adapter.py:Model", "in/bob/src/adapter.py:Model"], ["alice", "bob"]),
        (["in/alice/a.py:Model", "in/bob/src/b.py:Net"], ["alice", "bob"]),
        (["one/alice/a.py:M", "one/bob/a.py:M", "two/alice/a.py:M"], ["one-alice", "one-bob", "two-alice"]),
        (["alice/a.py:A", "alice/a.py:B", "bob/a.py:A"], ["alice-A", "alice-B", "bob-A"]),
        (["in/alice/a.py:M"], ["alice"]),
        (["a.py:M"], ["a"]),
        (["runs/x", "sample:addition"], ["x", "sample-addition"]),
        (["one/x", "two/x"], ["1-one-x", "2-two-x"]),
    ],
)
def test_a_label_is_the_first_part_of_the_path_that_differs(models, labels):
    assert list(course_labels(models).values()) == labels
