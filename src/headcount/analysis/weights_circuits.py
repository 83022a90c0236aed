"""Read from the weights of a head which keys it attends to, and what it copies from them.

The score of a query and a key is a product of both inputs and of the head's query and key matrices (its QK circuit,
Elhage et al. 2021, "A mathematical framework for transformer circuits"). Each input is split by least squares over many
examples into a mean, an effect of its token, an effect of its position, and a rest, which depends on other tokens:

    x_i = mean + token(t_i) + position(i) + rest

Without the rest, and without what is equal for all keys of a query, the score has these parts:

    positions   (q_mean + Q position(i)) . K position(j) / sqrt(d_head) + bias(i, j)
    tokens      (q_mean + Q token(t_i)) . K token(t_j) / sqrt(d_head)
    mixed       (Q token(t_i) . K position(j) + Q position(i) . K token(t_j)) / sqrt(d_head)

`explained` is the fraction of the variance of the real scores, within the keys of each query, that the three parts
predict (R^2). It is 1 where the input is exactly token + position: in the first layer of a model with LayerNorm after
the sum, or with positions that are biases of the scores. It is less with a LayerNorm before the block, and in all later
layers.

What a head copies is the product of its value and output matrices (its OV circuit) with the tokens' effects. A head of
the decoder writes into the residual stream that the logits are read from, so it has a direct path to the logits; every
LayerNorm on this path is replaced by its mean scale. Other heads have no direct path. For them, cosines between the
outputs for two tokens show which tokens they keep apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.weights_inputs import InputParts, ModelInputs, SiteInputs, require_own
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId, HeadSite
from headcount.models.transformer import DecoderOnly, EncoderDecoder, Residual, Transformer
from headcount.results import Contradiction, HeadName, Share
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask, Task, key_positions, stack_positions

N_NULL = 199
"""Number of random orders of the output tokens with which a copying score is compared."""
SMALLEST = 1e-12


@dataclass(frozen=True)
class Grid:
    """A matrix with names of its rows and columns; an entry is None where a query cannot see the key."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the matrix does not have one row per row name and one value per column name."""
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            yield "values", f"{len(self.rows)} rows of {len(self.columns)} values"

    def largest(self) -> tuple[str, str, float] | None:
        """Return the largest entry of the matrix as (row name, column name, value); None if the matrix has no entry."""
        cells = [(v, i, j) for i, row in enumerate(self.values) for j, v in enumerate(row) if v is not None]
        if not cells:
            return None
        value, i, j = max(cells, key=lambda cell: cell[0])
        return self.rows[i], self.columns[j], value


@dataclass(frozen=True)
class HeadReading:
    """What the weights of a head show: which queries match which keys (QK circuit), what it copies (OV circuit)."""

    head: HeadName
    short: str
    explained: float
    """Fraction of the variance of attention scores, within the keys of a query, explained by tokens and positions."""
    positions: float
    """Fraction of the variance of attention scores explained by positions alone.

    It adds up to 1 with `tokens`, `mixed` and an unexplained rest.
    """
    tokens: float
    mixed: float
    """Fraction of the variance of attention scores explained by pairs of one side's token and the other's position."""
    copied_tokens: Share
    """Fraction of the variance of what the head writes for a key that the key's token explains."""
    copied_positions: Share
    """Fraction of the variance of what the head writes for a key that the key's position explains beyond the token."""
    copying: float | None
    """Copying score of the matrix from input tokens to output logits: 1 copies tokens, -1 suppresses them.

    It is the sum of the eigenvalues over the sum of their absolute values. None without a direct path from the head to
    the logits.
    """
    copying_chance: float | None
    """Size of the copying score that 5 % of random orders of the output tokens exceed. Larger scores are no accident.

    None without a direct path from the head to the logits.
    """
    match_positions: Grid
    match_tokens: Grid
    copies: Grid
    """What the head writes for each token: logits [key token, output token], or cosines between two tokens [key, key].

    Logits need a direct path from the head to the logits.
    """
    is_direct: bool

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction for a wrong short name, fractions above 1, or a copying score without a direct path."""
        if self.short != HeadId.parse(self.head).short:
            yield "short", HeadId.parse(self.head).short
        if self.explained > 1 + 1e-6:
            yield "explained", "at most 1"
        if self.is_direct != (self.copying is not None) or self.is_direct != (self.copying_chance is not None):
            yield "copying", "a score if the head has a direct path to the logits, and null otherwise"


# --- what a head matches and copies -----------------------------------------------------------------------------------


def read_heads(model: OpenModel, heads: Sequence[HeadId], inputs: ModelInputs) -> list[HeadReading]:
    """Return, for each given head, what its weights match (QK circuit) and what they copy (OV circuit)."""
    inner, task, readings = require_own(model), model.task, list[HeadReading]()
    assert task is not None, "require_own has checked this"
    for site in dict.fromkeys(head.site for head in heads):
        reading = _SiteReading(task, inputs.sites[site], inputs.outputs, _direct_path(inner, site, inputs))
        readings += [reading.head(head) for head in heads if head.site == site]
    return readings


class _SiteReading:
    """The attention scores of all heads of one block, split into parts explained by tokens, positions and both."""

    def __init__(self, task: Task, inputs: SiteInputs, outputs: list[int], path: Tensor | None) -> None:
        self.task, self.inputs, self.outputs, self.path = task, inputs, outputs, path
        n = len(task.tokens)
        self.queries = InputParts.of(inputs.x, inputs.query_tokens, n, inputs.is_query)
        self.keys = InputParts.of(inputs.y, inputs.key_tokens, n, inputs.is_key)
        query, key = inputs.matrix("query"), inputs.matrix("key")
        size = math.sqrt(inputs.attention.d_head)
        mean_H1E = self.queries.mean[None] @ query.transpose(1, 2) + inputs.bias_of("query")
        query_token, query_place = (
            each @ query.transpose(1, 2) for each in (self.queries.token, self.queries.position)
        )
        key_token, key_place = (each @ key.transpose(1, 2) / size for each in (self.keys.token, self.keys.position))
        self.tokens_HTT = (mean_H1E + query_token) @ key_token.transpose(1, 2)
        self.places_HQK = (mean_H1E + query_place) @ key_place.transpose(1, 2)
        self.token_place_HTK = query_token @ key_place.transpose(1, 2)
        self.place_token_HQT = query_place @ key_token.transpose(1, 2)

    def _names(self, n: int, *, is_key: bool) -> tuple[str, ...]:
        site = self.inputs.site
        if self.task.output_type == "class":
            return tuple(map(str, range(n)))
        task = cast(SequenceTask, self.task)
        positions = key_positions(task, site.stack, site.kind) if is_key else stack_positions(task, site.stack)
        return tuple(each.label for each in positions) if len(positions) == n else tuple(map(str, range(n)))

    def head(self, head: HeadId) -> HeadReading:
        """Return what the weights of one head of this block match and copy."""
        at = self.inputs.attention.kept.index(head.index)
        scale, bias = self.inputs.scale[:, at], self.inputs.bias[:, at]
        rows, columns = self.inputs.query_tokens[:, :, None], self.inputs.key_tokens[:, None, :]
        n_queries, n_keys = self.places_HQK.shape[1:]
        i, j = torch.arange(n_queries)[None, :, None], torch.arange(n_keys)[None, None]
        visible = self.inputs.visible[:, at]
        real = _centred(self.inputs.scores[:, at], visible)
        parts = {
            "positions": self.places_HQK[at] + bias,
            "tokens": self.tokens_HTT[at][rows, columns],
            "mixed": self.token_place_HTK[at][rows, j] + self.place_token_HQT[at][i, columns],
        }
        centred = {name: _centred(scale * part.expand(visible.shape), visible) for name, part in parts.items()}
        total = float(real.square().sum())
        shares = {name: float((part * real).sum()) / max(total, SMALLEST) for name, part in centred.items()}
        rest = real - torch.stack(list(centred.values())).sum(dim=0)
        explained = 1 - float(rest.square().sum()) / total if total > SMALLEST else 0.0
        return HeadReading(
            str(head),
            head.short,
            explained,
            shares["positions"],
            shares["tokens"],
            shares["mixed"],
            **self._copied(at),
            match_positions=self._position_grid(parts["positions"].mean(dim=0), visible.any(dim=0)),
            match_tokens=self._token_grid(self.tokens_HTT[at]),
        )

    def _position_grid(self, score_QK: Tensor, seen_QK: Tensor) -> Grid:
        rows, columns = (self._names(n, is_key=is_key) for n, is_key in zip(score_QK.shape, (False, True), strict=True))
        pairs = zip(_centred(score_QK, seen_QK).tolist(), seen_QK.tolist(), strict=True)
        values = (tuple(round(x, 4) if is_seen else None for x, is_seen in zip(*row, strict=True)) for row in pairs)
        return Grid(rows, columns, tuple(values))

    def _token_grid(self, score_TT: Tensor) -> Grid:
        rows, columns = self.queries.shown, self.keys.shown
        weights = self.keys.n_by_token[columns] / self.keys.n_by_token[columns].sum()
        score = score_TT[rows][:, columns]
        return _grid(self._tokens(rows), self._tokens(columns), score - (score @ weights)[:, None])

    def _tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.task.tokens[i] for i in ids)

    def _copied(self, at: int) -> dict[str, Any]:
        """Return what one head copies, as fields of `HeadReading` by name; `at` is the head's index in its block."""
        inputs, keys = self.inputs, self.keys
        circuit_DD = inputs.matrix("output")[at] @ inputs.matrix("value")[at]
        written, is_key = inputs.y @ circuit_DD.T, inputs.is_key
        token, place, mean = (each @ circuit_DD.T for each in (keys.token, keys.position, keys.mean))
        total = _variation(written[is_key])
        n = keys.n_by_token.clamp(min=1)[:, None]
        by_token = torch.zeros_like(token).index_add_(0, inputs.key_tokens[is_key], written[is_key]) / n
        other = float((written - by_token[inputs.key_tokens])[is_key].square().sum()) / total
        rest = float((written - mean - token[inputs.key_tokens] - place)[is_key].square().sum()) / total
        shares = {"copied_tokens": 1 - other, "copied_positions": other - rest}
        rows = keys.shown
        if self.path is None:
            unit = token[rows] / token[rows].norm(dim=1, keepdim=True).clamp(min=SMALLEST)
            names = self._tokens(rows)
            return {**shares, "copying": None, "copying_chance": None, "is_direct": False} | {
                "copies": _grid(names, names, unit @ unit.T)
            }
        logits = (token[rows] @ self.path.T)[:, self.outputs]
        logits = logits - logits.mean(dim=1, keepdim=True)
        both = [token for token in rows if token in self.outputs]
        square = logits[[rows.index(t) for t in both]][:, [self.outputs.index(t) for t in both]].numpy()
        score, chance = copying_score(square)
        grid = _grid(self._tokens(rows), self._tokens(self.outputs), logits)
        return {**shares, "copying": score, "copying_chance": chance, "is_direct": True, "copies": grid}


def _grid(rows: tuple[str, ...], columns: tuple[str, ...], values: Tensor) -> Grid:
    return Grid(rows, columns, tuple(tuple(round(x, 4) for x in row) for row in values.tolist()))


def _variation(rows: Tensor) -> float:
    return max(float((rows - rows.mean(dim=0)).square().sum()), SMALLEST)


def _centred(scores: Tensor, visible: Tensor) -> Tensor:
    """Return attention scores minus their mean over the visible keys of each query; 0 at hidden keys."""
    n = visible.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = scores.where(visible, 0.0).sum(dim=-1, keepdim=True) / n
    return (scores - mean).where(visible, 0.0)


def copying_score(matrix: NDArray[np.float64]) -> tuple[float, float]:
    """Return the copying score of a square matrix, and the absolute score that 5 % of random column orders exceed.

    The score is the sum of the eigenvalues over the sum of their absolute values, after rows and columns are
    centred.

    >>> copying_score(np.eye(6))[0], copying_score(-np.eye(6))[0]
    (1.0, -1.0)
    """
    if len(matrix) < 2:
        return 0.0, 1.0
    centred = matrix - matrix.mean(axis=0) - matrix.mean(axis=1, keepdims=True) + matrix.mean()
    rng = stream(0, "copying")
    orders = [np.arange(len(matrix)), *(rng.permutation(len(matrix)) for _ in range(N_NULL))]
    scores = []
    for order in orders:
        values = np.linalg.eigvals(centred[:, order])
        scores.append(float(values.sum().real / max(np.abs(values).sum(), SMALLEST)))
    return round(scores[0], 6), round(float(np.quantile(np.abs(scores[1:]), 0.95)), 6)


def _direct_path(inner: Transformer, site: HeadSite, inputs: ModelInputs) -> Tensor | None:
    """Return the matrix [output token, d_model] from a block's output to the logits; None without a direct path."""
    if isinstance(inner, DecoderOnly):
        last_norm, layers = inner.norm, inner.layers
    elif isinstance(inner, EncoderDecoder) and site.stack == "decoder":
        last_norm, layers = inner.decoder_norm, inner.decoder
    else:
        return None
    if inner.config.norm == "pre":
        norms: list[nn.Module] = [last_norm]
    else:
        after = [module for module in layers.modules() if isinstance(module, Residual)]
        norms = [each.norm for each in after[after.index(inner.blocks[site].residual) :]]
    path = inner.to_logits.weight.detach().double().cpu()
    for norm in reversed(norms):
        path = fold_norm(path, norm) * inputs.scales.get(norm, 1.0)
    return path


def fold_norm(matrix: Tensor, norm: nn.Module) -> Tensor:
    """Fold a LayerNorm into the matrix that follows it, so that the matrix reads the residual stream before the norm.

    The scale of the norm, 1 / (standard deviation), differs between inputs and is left out.
    """
    if not isinstance(norm, nn.LayerNorm):
        return matrix
    scaled = matrix * norm.weight.detach().double().cpu()
    return scaled - scaled.mean(dim=1, keepdim=True)
