"""Plain text, for models that say the next token."""

from __future__ import annotations

import numpy as np
import torch

from headcount.analysis.subjects import LOSS
from headcount.guests.exams._windows import clusters_of, windows
from headcount.guests.exams.base import Asked, Candidate, Exam, ExamKind, Rows, negative, token_loss
from headcount.tasks.base import IGNORE


def make(name: str, text: str, candidate: Candidate) -> Exam:
    """How well each next token of the text is foretold."""
    tokens = windows(name, text, candidate)

    def ask(rows: Rows) -> Asked:
        ids = torch.from_numpy(tokens[rows]).to(candidate.device)
        labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORE)], dim=1)
        score = token_loss(labels)
        return Asked((ids, torch.ones_like(ids)), {LOSS.name: score}, negative(score))

    n, length = tokens.shape
    data = f"windows of {length} tokens of {name}, loss of the next token{candidate.unknown_note(tokens)}"
    return Exam(data, (LOSS,), np.full(n, length), ask, candidate.config.vocab_size, clusters=clusters_of(n))


PART = ExamKind("text: loss of the next token", (), make)
