"""A table of texts and labels, for classifiers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.analysis.subjects import ACCURACY, LOSS
from headcount.errors import InputError
from headcount.guests.exams.base import Asked, Candidate, Exam, ExamKind, Rows


def make(name: str, table: Sequence[tuple[str, str]], candidate: Candidate) -> Exam:
    """How often the right class is named."""
    candidate.require_one_text()
    if getattr(candidate.config, "pad_token_id", None) is None:
        raise InputError(
            "the model's configuration names no padding token, so texts of unequal length cannot go together",
            "set pad_token_id in its config.json, to that of its tokenizer",
        )
    tokens = candidate.tokens([text for text, _ in table])
    right = np.array([_class_of(label, candidate) for _, label in table])

    def ask(rows: Rows) -> Asked:
        ids, mask = candidate.padded([tokens[row] for row in rows])
        labels = torch.from_numpy(right[rows]).to(candidate.device)

        def hit(logits: Tensor) -> Tensor:
            _require_classes(logits, candidate)
            return logits.argmax(dim=-1) == labels

        def loss(logits: Tensor) -> Tensor:
            _require_classes(logits, candidate)
            return F.cross_entropy(logits, labels, reduction="none")

        scores = {ACCURACY.name: hit, LOSS.name: lambda logits: -loss(logits)}
        return Asked((ids, mask), scores, loss, {"layer": mask.bool()})

    lengths = np.array([len(ids) for ids in tokens])
    width = max(candidate.config.hidden_size, candidate.config.num_labels)
    data = f"{len(table)} texts of {name}{candidate.cut_note(text for text, _ in table)}"
    data += candidate.unknown_note(tokens)
    return Exam(data, (ACCURACY, LOSS), lengths, ask, width, floor=lambda rows: _most(right[rows]))


def _class_of(label: str, candidate: Candidate) -> int:
    """A label's number, by the model's own names."""
    names = {str(known).lower(): int(i) for known, i in (getattr(candidate.config, "label2id", None) or {}).items()}
    if label.lower() in names:
        return names[label.lower()]
    if label.isdigit() and int(label) < candidate.config.num_labels:
        return int(label)
    raise InputError(
        f"the model has no class {label!r}",
        f"it has: {', '.join(names) or candidate.config.num_labels}, or their numbers",
    )


def _most(labels: Rows) -> float:
    return float(np.bincount(labels).max() / len(labels))


def _require_classes(logits: Tensor, candidate: Candidate) -> None:
    if logits.dim() != 2 or logits.shape[1] != candidate.config.num_labels:
        raise InputError(
            f"the model says a tensor of shape {tuple(logits.shape)}, not one row of logits for each text",
            "load it as a classifier (AutoModelForSequenceClassification)",
        )


PART = ExamKind("texts and their classes: accuracy", ("text", "label"), make)
