"""A table of texts and labels, for classifiers."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.dataset import ACCURACY, LOSS, EvalBatch, EvalDataset, Rows
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.from_task import majority_share
from headcount.errors import InputError


def make(name: str, table: Sequence[tuple[str, str]], tokenized: TokenizedModel) -> EvalDataset:
    """How often the right class is named."""
    tokenized.require_one_text()
    if getattr(tokenized.config, "pad_token_id", None) is None:
        raise InputError(
            "the model's configuration names no padding token, so texts of unequal length cannot go together",
            "set pad_token_id in its config.json, to that of its tokenizer",
        )
    tokens = tokenized.tokens([text for text, _ in table])
    right = np.array([_class_of(label, tokenized) for _, label in table])

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([tokens[row] for row in rows])
        labels = torch.from_numpy(right[rows]).to(tokenized.device)

        def classes(logits: Tensor) -> Tensor:
            if logits.dim() != 2 or logits.shape[1] != tokenized.config.num_labels:
                raise InputError(
                    f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each text",
                    "load it as a classifier (AutoModelForSequenceClassification)",
                )
            return logits

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(classes(logits), labels, reduction="none")

        def hit(logits: Tensor) -> Tensor:
            return classes(logits).argmax(dim=-1) == labels

        scores = {ACCURACY.name: hit, LOSS.name: lambda logits: -loss(logits)}
        return EvalBatch(rows, (ids, mask), scores, loss, {"layer": mask.bool()})

    lengths = np.array([len(ids) for ids in tokens])
    width = max(tokenized.config.hidden_size, tokenized.config.num_labels)
    data = f"{len(table)} texts of {name}{tokenized.cut_note(text for text, _ in table)}"
    data += tokenized.unknown_note(tokens)
    return EvalDataset(
        data, (ACCURACY, LOSS), lengths, encode, width, majority_baseline=lambda rows: majority_share(right[rows])
    )


def _class_of(label: str, tokenized: TokenizedModel) -> int:
    """A label's number, by the model's own names."""
    names = {str(known).lower(): int(i) for known, i in (getattr(tokenized.config, "label2id", None) or {}).items()}
    if label.lower() in names:
        return names[label.lower()]
    if label.isdigit() and int(label) < tokenized.config.num_labels:
        return int(label)
    raise InputError(
        f"the model has no class {label!r}",
        f"it has: {', '.join(names) or tokenized.config.num_labels}, or their numbers",
    )


PART = Format("texts and their classes: accuracy", ("text", "label"), make)
