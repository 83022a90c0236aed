"""Images and their classes, for vision transformers: a folder with one subfolder for each class."""

from collections.abc import Iterator

import numpy as np

from headcount.data.dataset import ACCURACY, LOSS, EvalBatch, EvalDataset, Rows, split_evenly
from headcount.data.formats.classes import classes_of, scores_of
from headcount.data.from_file import Format, TokenizedModel
from headcount.data.from_images import patch_grid, pixels_of
from headcount.data.from_task import majority_share
from headcount.data.tables import Table
from headcount.errors import InputError
from headcount.limits import require_room
from headcount.seeds import stream


def make(table: Table, tokenized: TokenizedModel) -> EvalDataset:
    """Return the dataset of images and labels in a table, scored by the accuracy of the predicted class."""
    if not tokenized.takes_images:
        raise InputError(f"{type(tokenized.model.model).__name__} takes no images", "give it texts")
    pairs = table.rows("image", "label")
    images = [table.folder / image if isinstance(image, str) else image for image, _ in pairs]
    right, note = classes_of(table, [label for _, label in pairs], tokenized.config)
    n_rows, n_columns = patch_grid(tokenized.config)
    n_tokens = n_rows * n_columns + 1

    def encode(rows: Rows) -> EvalBatch:
        pixels = pixels_of([images[row] for row in rows], tokenized)
        return EvalBatch.scored(rows, [pixels], scores_of(right[rows], tokenized))

    def split(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
        (first,) = encode(rows[:1]).inputs
        require_room(len(rows) * first.nbytes, f"the pixels of {len(rows):,} images", "measure fewer of them: --n")
        shuffled = stream(0, "blocks of images").permutation(len(rows))
        yield from split_evenly(shuffled, at_once, {n_tokens, n_tokens - 1, *first.shape[1:]})

    data = f"{len(images)} images of {table.name}{table.note('image', 'label')}{note}"
    return EvalDataset(
        data,
        (ACCURACY, LOSS),
        np.full(len(images), n_tokens),
        encode,
        max(tokenized.config.hidden_size, tokenized.config.num_labels),
        majority_baseline=lambda rows: majority_share(right[rows]),
        split=split,
    )


PART = Format("images and their classes: accuracy", ("image", "label"), make)
