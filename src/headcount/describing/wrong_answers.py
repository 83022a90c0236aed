"""Which examples does the model answer wrong? Sentences, tables and commands about single wrong answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from headcount.describing.blocks import Commands, DataTable
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.training.evaluation import WrongAnswer

SHOWN = 20
"""Number of wrong answers that a terminal prints; the result file has all of them."""
MOST_WORDS = 16
"""Longest sequence, in tokens, that is written out; a longer one is abbreviated."""
MOST_RUNS = 6
"""Largest number of runs of equal tokens in an abbreviated sequence."""
LONGEST_COMMAND = 300
"""Largest number of characters of an example in a command."""


def mistake(wrong: WrongAnswer, title: str, output_type: str = "class") -> str:
    """Return a clause with the wrong answer of a model to an example, and the right answer.

    >>> from headcount.training.evaluation import WrongAnswer
    >>> mistake(WrongAnswer("3 5 4", "unsorted", "sorted", ""), "the sorter")
    'the sorter calls 3 5 4 sorted, but it is unsorted'
    """
    if output_type == "class":
        return f"{title} calls {abbreviated(wrong.example)} {wrong.predicted}, but it is {wrong.right}"
    return f"{title} answers {wrong.example} with {wrong.predicted or 'nothing'}, but {wrong.right} is right"


def wrong_table(name: str, wrong: Sequence[WrongAnswer], caption: str, most: int, n_wrong: int) -> list[DataTable]:
    """Return a table of the first wrong answers, each with an explanation of the error; no table if there are none."""
    rows = tuple((abbreviated(each.example), each.predicted, each.right, each.explanation) for each in wrong[:most])
    more = f": the first {len(rows)} of {n_wrong:,}" if n_wrong > len(rows) else ""
    columns = ("example", "predicted", "right", "what went wrong")
    return [DataTable(name, f"{caption}{more}", columns, rows)] if rows else []


def see_it(model: str, wrong: WrongAnswer) -> list[Commands]:
    """Return the command that shows a wrong answer; none if the example is too long for a command line."""
    if len(wrong.example) > LONGEST_COMMAND:
        return []
    command = " ".join(["headcount predict", argument(model), argument(wrong.example)])
    return [Commands((command,), "To see this wrong answer:")]


def in_range(wrong: Sequence[WrongAnswer], trained: tuple[int, int]) -> WrongAnswer:
    """Return the first wrong answer to a sequence of a training length, or the first of all if there is none."""
    shortest, longest = trained
    return next((each for each in wrong if shortest <= len(each.example.split()) <= longest), wrong[0])


def abbreviated(example: str) -> str:
    """Return a long sequence in short form, each run of equal tokens as `59 x 63`; a short sequence stays unchanged.

    >>> abbreviated("3 5 4"), abbreviated(" ".join(["59"] * 63 + ["99"]))
    ('3 5 4', '59 x 63, 99')
    >>> abbreviated(" ".join(map(str, range(40))))
    '0, 1, 2, ..., 37, 38, 39'
    """
    words = example.split()
    if len(words) <= MOST_WORDS:
        return example
    runs = [(word, len(list(group))) for word, group in groupby(words)]
    texts = [word if n == 1 else f"{word} x {n}" for word, n in runs]
    if len(texts) > MOST_RUNS:
        texts = [*texts[: MOST_RUNS // 2], "...", *texts[-(MOST_RUNS // 2) :]]
    return ", ".join(texts)
