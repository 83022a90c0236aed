"""A table of texts and labels, for classifiers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.dataset import ACCURACY, LOSS, EvalBatch, EvalDataset, Rows, Score
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.from_task import majority_share
from headcount.data.tables import Table
from headcount.errors import InputError


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Make a dataset scored by the accuracy of the class."""
    tokenized.require_one_text()
    if getattr(tokenized.config, "pad_token_id", None) is None:
        raise InputError(
            "the model's configuration names no padding token, so texts of unequal length cannot go together",
            "set pad_token_id in its config.json, to that of its tokenizer",
        )
    rows_of_table = table.rows("text", "label")
    tokens = tokenized.tokens([text for text, _ in rows_of_table])
    right, note = classes_of(table, [label for _, label in rows_of_table], tokenized.config)

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([tokens[row] for row in rows])
        scores, loss = class_scores(right[rows], tokenized)
        return EvalBatch(rows, (ids, mask), scores, loss, {"layer": mask.bool()})

    lengths = np.array([len(ids) for ids in tokens])
    width = max(tokenized.config.hidden_size, tokenized.config.num_labels)
    data = f"{len(tokens)} texts of {table.name}{table.note('text', 'label')}{note}"
    data += tokenized.cut_note(text for text, _ in rows_of_table) + tokenized.unknown_note(tokens)
    return EvalDataset(
        data, (ACCURACY, LOSS), lengths, encode, width, majority_baseline=lambda rows: majority_share(right[rows])
    )


def class_scores(right: Rows, tokenized: TokenizedModel) -> tuple[dict[str, Score], Score]:
    """Return scores of the right classes, and the loss."""
    labels, n_classes = torch.from_numpy(right).to(tokenized.device), tokenized.config.num_labels

    def classes(logits: Tensor) -> Tensor:
        if logits.dim() != 2 or logits.shape[1] != n_classes:
            kind = "Image" if tokenized.takes_images else "Sequence"
            raise InputError(
                f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each example",
                f"load it as a classifier (AutoModelFor{kind}Classification)",
            )
        return logits

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(classes(logits), labels, reduction="none")

    def hit(logits: Tensor) -> Tensor:
        return classes(logits).argmax(dim=-1) == labels

    return {ACCURACY.name: hit, LOSS.name: lambda logits: -loss(logits)}, loss


def classes_of(table: Table, labels: list[str], config: Any) -> tuple[Rows, str]:
    """Return the number of each label, and a note on how it was found.

    Labels are the model's own names, or numbers. Where the data name the classes that their numbers stand for, those
    names are taken; if the model knows none of them, the numbers, provided that both have as many classes.
    """
    known = {str(name).lower(): int(i) for name, i in (getattr(config, "label2id", None) or {}).items()}
    known = {str(i): i for i in range(config.num_labels)} | known
    has = f"it has: {_few(sorted(known, key=lambda name: (name.isdecimal(), known[name])))}"
    own, note = table.class_names.get("label", ()), ""
    if own and all(name.lower() in known for name in own):
        labels = [own[int(each)] if each.isdecimal() and int(each) < len(own) else each for each in labels]
    elif own:
        if len(own) != config.num_labels or any(name.lower() in known for name in own):  # some are: a slip
            raise InputError(f"{table.name} has the classes {_few(own)}, which are not the model's", has)
        note = f" (classes by their order: {_few([f'{i} is {name}' for i, name in enumerate(own)])})"
    for i, label in enumerate(labels):
        if label.lower() not in known:
            raise InputError(f"{table.where(i)}: the model has no class {label!r}", has)
    return np.array([known[label.lower()] for label in labels], dtype=np.int64), note


def _few(names: Sequence[str], most: int = 10) -> str:
    return ", ".join([*names[:most], "..."] if len(names) > most else names)


PART = Format("texts and their classes: accuracy", ("text", "label"), make)
