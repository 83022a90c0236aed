"""A table of sources and targets, for encoder-decoders: how well is each next token of the target predicted?"""

from typing import Any

import numpy as np
import torch

from headcount.data.dataset import LOSS, EvalBatch, EvalDataset, Rows, token_scores
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.tables import Table
from headcount.errors import InputError
from headcount.tasks.base import IGNORE


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of source and target texts in a table, scored by the teacher-forced loss of the target."""
    model: Any = tokenized.model.model
    if not tokenized.has_decoder:
        raise InputError(
            f"the columns source and target need an encoder-decoder, and {type(model).__name__} is none",
            "give plain text, or a table with the columns text and label",
        )
    if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        raise InputError(
            f"{type(model).__name__} has no head that predicts tokens",
            "load it with its language-modelling head (AutoModelForSeq2SeqLM)",
        )
    pairs = table.rows("source", "target")
    sources = tokenized.tokens([source for source, _ in pairs])
    targets = tokenized.tokens([target for _, target in pairs], as_target=True)

    def encode(rows: Rows) -> EvalBatch:
        ids, mask = tokenized.padded([sources[row] for row in rows])
        wanted, there = tokenized.padded([targets[row] for row in rows])
        labels = torch.where(there.bool(), wanted, torch.full_like(wanted, IGNORE))
        decoder_input = model.prepare_decoder_input_ids_from_labels(labels=labels)
        token_mask = {"encoder": mask.bool(), "decoder": there.bool()}
        return EvalBatch.scored(rows, (ids, decoder_input, mask), token_scores(labels), token_mask)

    lengths = np.array([max(len(a), len(b)) for a, b in zip(sources, targets, strict=True)])
    data = f"{len(pairs)} answers of {table.name}{table.note('source', 'target')}"
    data += tokenized.cut_note(source for source, _ in pairs)
    data += tokenized.unknown_note([*sources, *targets])
    return EvalDataset(data, (LOSS,), lengths, encode, tokenized.config.vocab_size)


PART = Format("sources and targets: loss of the target", ("source", "target"), make)
