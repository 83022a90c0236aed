"""Find the table of position vectors in an adapter's model, by testing which tensor acts like such a table.

The table is one of two things:

- an embedding that is indexed by 0, 1, 2, ... whatever the tokens are;
- a parameter or buffer [position, d_model] whose first rows, one for each token, change the output, and whose later
  rows do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headcount.data.from_adapter import Pairs, encoded, own_pairs
from headcount.encodings import ENCODINGS
from headcount.encodings.base import EncodingInUse, FoundTable
from headcount.errors import InputError
from headcount.external.adapter import Adapted, Adapter, task_of
from headcount.external.user_code import user_code_errors
from headcount.hooks.gates import eval_mode
from headcount.seeds import stream
from headcount.tasks.base import ClassTask

N_EXAMPLES, MOST_TRIED, FEWEST_ROWS = 4, 16, 3
"""Limits of the search for a position table: `N_EXAMPLES` examples in each of two batches, at most `MOST_TRIED` rows
tried one by one, and at least `FEWEST_ROWS` rows in a table."""
NO_TABLES = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.MultiheadAttention,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.conv._ConvNd,
    nn.RNNBase,
)
"""Types of modules whose weights cannot be position tables; embeddings are tested separately."""
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Table:
    """A position table that was found in a model: a tensor with one row per position, such as learned embeddings."""

    name: str
    """The path of the tensor in the model."""
    rows: Tensor
    n_used: int
    """The number of rows that the longest examples use; later rows were not trained."""
    is_learned: bool


def find_encoding(name: str, model: Adapted) -> EncodingInUse:
    """Return the position table of an adapter's model as an encoding; raise an error if none is found.

    If there are several tables, the first one is returned: in an encoder-decoder, mostly the encoder's.
    """
    adapter, device = model.adapter, next(model.parameters()).device
    batches = [tuple(tensor.to(device) for tensor in encoded(adapter, pairs)[0]) for pairs in longest_pairs(adapter)]
    with eval_mode(model), torch.no_grad():
        table = _named_table(adapter, model, batches) or _looked_up(model, batches) or _sliced(model, batches)
    if table is None:
        raise InputError(
            f"no table of positions was found in {name}: neither an embedding that is indexed by 0, 1, 2, ... "
            "nor a parameter or buffer with one row per position",
            "if it has one, write positions(self, model) in the adapter class; it should return the table, a tensor "
            "of shape [position, d_model]",
            "a model with rotary positions or with biases on attention scores has no such table",
        )
    title = f"{table.name} (table)" if table.name in ENCODINGS.names() else table.name
    d_model, n_heads = table.rows.shape[1], len(next(iter(model.head_sites.values())).heads)
    encoding = FoundTable(table.rows, is_learned=table.is_learned)
    return EncodingInUse(title, encoding, table.n_used, n_heads if d_model % n_heads == 0 else 1)


def longest_pairs(adapter: Adapter) -> tuple[Pairs, Pairs]:
    """Return two small sets of pairs of question and answer; their questions are as long as the longest in training."""
    if adapter.task is None:
        pairs = sorted(own_pairs(adapter), key=lambda pair: len(pair[0]) + len(pair[1]))[-2 * N_EXAMPLES :]
        return pairs[::2], pairs[1::2]
    task = task_of(adapter)
    examples = task.split("test")
    if task.output_type == "class":
        classes, rng = cast(ClassTask, task), stream(0, "position table")
        longest = (adapter.trained or classes.trained_lengths)[1]
        examples = classes.sample_of_length(rng, longest, classes.negatives[0], 2 * N_EXAMPLES)
    pairs = [(task.show(example), task.answer(example)) for example in examples]
    longest = max(len(answer) for _, answer in pairs) if task.output_type == "sequence" else 0
    pairs = [pair for pair in pairs if len(pair[1]) >= longest][: 2 * N_EXAMPLES]
    return pairs[::2], pairs[1::2]


def _named_table(adapter: Adapter, model: Adapted, batches: Sequence[Inputs]) -> Table | None:
    """Return the position table that the adapter's positions() returns, or None if the adapter has no such method."""
    if type(adapter).positions is Adapter.positions:
        return None
    with user_code_errors(adapter, "positions"):
        rows = adapter.positions(model.model)
    if not (isinstance(rows, Tensor) and rows.dim() == 2 and rows.is_floating_point() and len(rows) >= FEWEST_ROWS):
        shown = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise InputError(
            f"positions() of the adapter returned {shown}",
            f"it should return a floating-point tensor of shape [position, d_model] with at least {FEWEST_ROWS} "
            "positions",
        )
    n_used = min(len(rows), max(each.shape[1] for each in batches[0] if each.dim() > 1))
    return Table("positions()", rows, n_used, is_learned=rows.requires_grad)


def _looked_up(model: nn.Module, batches: Sequence[Inputs]) -> Table | None:
    """Return the table of an embedding that is indexed by 0, 1, 2, ... whatever the tokens are; None without one."""
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    indices: dict[nn.Embedding, list[Tensor]] = {}

    def record(module: nn.Embedding, args: tuple[Any, ...]) -> None:
        indices.setdefault(module, []).append(args[0].detach().cpu())

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_pre_hook(record).remove)
        for batch in batches:
            model(*batch)
    for table, calls in indices.items():
        first, longest = int(calls[0].min()), max(ids.shape[-1] for ids in calls)
        if all(map(_is_in_order, calls)) and table.weight.shape[1] > 1 and longest >= FEWEST_ROWS:
            name = names[table].removeprefix("model.")
            is_learned = table.weight.requires_grad
            return Table(f"{name}.weight", table.weight[first:], longest, is_learned=is_learned)
    return None


def _is_in_order(ids: Tensor) -> bool:
    """Return whether every row of a tensor of indices counts up by one, and all rows from the same number."""
    rows = ids.reshape(-1, ids.shape[-1]) if ids.dim() else ids.reshape(1, 1)
    return bool((rows == rows[:1]).all() and (rows[0].diff() == 1).all())


def _sliced(model: nn.Module, batches: Sequence[Inputs]) -> Table | None:
    """Return the parameter or buffer whose first rows affect the output, and later rows do not; None without one."""
    # The model may add a class token.
    widths = {tensor.shape[1] + n_added for tensor in batches[0] if tensor.dim() > 1 for n_added in (0, 1)}
    for name, tensor in _candidates(model):
        rows = tensor.squeeze()
        used = [_n_used(model, batch, rows) for batch in batches]
        if used[0] not in widths or len(set(used)) > 1:
            continue
        tried = np.linspace(0, used[0] - 1, min(used[0], MOST_TRIED)).astype(int).tolist()
        if all(_acts(model, batches[0], rows, slice(row, row + 1)) for row in tried):
            is_learned = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            return Table(name.removeprefix("model."), rows.detach().clone(), used[0], is_learned=is_learned)
    return None


def _candidates(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the paths and tensors of parameters and buffers that may be position tables: two axes are longer than 1."""
    for path, module in model.named_modules():
        if isinstance(module, NO_TABLES):
            continue
        own = (*module.named_parameters(path, recurse=False), *module.named_buffers(path, recurse=False))
        for name, tensor in own:
            if tensor.is_floating_point() and tensor.squeeze().dim() == 2 and len(tensor.squeeze()) >= FEWEST_ROWS:
                yield name, tensor


def _n_used(model: nn.Module, batch: Inputs, rows: Tensor) -> int:
    """Return the number of rows of a tensor up to the last one that changes the model's output, found by bisection."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _acts(model, batch, rows, slice(middle, None)) else (low, middle)
    return low


def _acts(model: nn.Module, batch: Inputs, rows: Tensor, which: slice) -> bool:
    """Return whether the model's output changes when the rows `which` of the tensor `rows` change.

    The tensor shares its memory with the model; the rows are restored afterwards.
    """
    clean, before = model(*batch), rows[which].clone()
    rows[which] += 1 + before.abs()
    try:
        changed = model(*batch)
    finally:
        rows[which] = before
    return bool((changed - clean).abs().max() > 1e-6 * clean.abs().max())
