"""A table of texts and labels, for classifiers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headcount.data.dataset import ACCURACY, LOSS, EvalBatch, EvalDataset, Rows, Score, class_scores
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.from_task import majority_share
from headcount.data.tables import Table
from headcount.errors import InputError


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of texts and labels in a table, scored by the accuracy of the predicted class."""
    tokenized.require_one_text()
    if getattr(tokenized.config, "pad_token_id", None) is None:
        raise InputError(
            "the model's configuration names no padding token, so texts of unequal length cannot share a batch",
            "set pad_token_id in its config.json, to that of its tokenizer",
        )
    rows_of_table = table.rows("text", "label")
    tokens = tokenized.tokens([text for text, _ in rows_of_table])
    right, note = classes_of(table, [label for _, label in rows_of_table], tokenized.config)

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([tokens[row] for row in rows])
        return EvalBatch.scored(rows, (ids, mask), scores_of(right[rows], tokenized), {"layer": mask.bool()})

    lengths = np.array([len(ids) for ids in tokens])
    width = max(tokenized.config.hidden_size, tokenized.config.num_labels)
    data = f"{len(tokens)} texts of {table.name}{table.note('text', 'label')}{note}"
    data += tokenized.cut_note(text for text, _ in rows_of_table) + tokenized.unknown_note(tokens)
    return EvalDataset(
        data, (ACCURACY, LOSS), lengths, encode, width, majority_baseline=lambda rows: majority_share(right[rows])
    )


def scores_of(right: Rows, tokenized: TokenizedModel) -> dict[str, Score]:
    """Return the scores of a classifier of texts or images whose right classes are these."""
    kind = "Image" if tokenized.takes_images else "Sequence"
    advice = f"load it as a classifier (AutoModelFor{kind}Classification)"
    return class_scores(torch.from_numpy(right).to(tokenized.device), tokenized.config.num_labels, advice)


def classes_of(table: Table, labels: list[str], config: Any) -> tuple[Rows, str]:
    """Return the model's class number for each label of the table, and a note if classes were matched by order.

    A label is one of the model's class names, or a number. If the table has names for its class numbers, classes are
    matched by these names. If the model has none of the names, but as many classes, the numbers are used.
    """
    known = {str(name).lower(): int(i) for name, i in (getattr(config, "label2id", None) or {}).items()}
    known = {str(i): i for i in range(config.num_labels)} | known
    has = f"it has: {_few(sorted(known, key=lambda name: (name.isdecimal(), known[name])))}"
    own, note = table.class_names.get("label", ()), ""
    if own and all(name.lower() in known for name in own):
        labels = [own[int(each)] if each.isdecimal() and int(each) < len(own) else each for each in labels]
    elif own:
        if len(own) != config.num_labels or any(name.lower() in known for name in own):  # some names, but not all
            raise InputError(f"{table.name} has the classes {_few(own)}, which are not the model's", has)
        note = f" (classes by their order: {_few([f'{i} is {name}' for i, name in enumerate(own)])})"
    for i, label in enumerate(labels):
        if label.lower() not in known:
            raise InputError(f"{table.where(i)}: the model has no class {label!r}", has)
    return np.array([known[label.lower()] for label in labels], dtype=np.int64), note


def _few(names: Sequence[str]) -> str:
    """Join the first ten names for a message, and say if there are more."""
    return ", ".join([*names[:10], "..."] if len(names) > 10 else names)


PART = Format("texts and their classes: accuracy", ("text", "label"), make)
