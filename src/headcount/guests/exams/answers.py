"""A table of sources and targets, for encoder-decoders: how well is each next token of the target foretold?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headcount.analysis.subjects import LOSS
from headcount.errors import InputError
from headcount.guests.exams.base import Asked, Candidate, Exam, ExamKind, Rows, negative, token_loss
from headcount.tasks.base import IGNORE


def make(name: str, table: Sequence[tuple[str, str]], candidate: Candidate) -> Exam:
    """The loss of the target, fed the right one."""
    model: Any = candidate.model.model
    if not candidate.has_decoder:
        raise InputError(f"{type(model).__name__} is no encoder-decoder", "give plain text, or text and label")
    if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        raise InputError(
            f"{type(model).__name__} says no tokens",
            "load it with its language-modelling head (AutoModelForSeq2SeqLM)",
        )
    sources, targets = candidate.tokens([row[0] for row in table]), _targets(table, candidate)

    def ask(rows: Rows) -> Asked:
        ids, mask = candidate.padded([sources[row] for row in rows])
        wanted, there = candidate.padded([targets[row] for row in rows])
        labels = torch.where(there.bool(), wanted, torch.full_like(wanted, IGNORE))
        fed = model.prepare_decoder_input_ids_from_labels(labels=labels)
        score = token_loss(labels)
        real = {"encoder": mask.bool(), "decoder": there.bool()}
        return Asked((ids, fed, mask), {LOSS.name: score}, negative(score), real)

    lengths = np.array([max(len(a), len(b)) for a, b in zip(sources, targets, strict=True)])
    return Exam(
        f"{len(table)} answers of {name}{candidate.cut_note(row[0] for row in table)}"
        f"{candidate.unknown_note([*sources, *targets])}",
        (LOSS,),
        lengths,
        ask,
        candidate.config.vocab_size,
    )


def _targets(table: Sequence[tuple[str, str]], candidate: Candidate) -> list[list[int]]:
    found = candidate.tokenizer(text_target=[row[1] for row in table], truncation=True, max_length=candidate.length)[
        "input_ids"
    ]
    return [list(ids) for ids in found]


PART = ExamKind("sources and targets: loss of the target", ("source", "target"), make)
