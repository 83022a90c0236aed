"""Why does a head attend where it attends, and what does it copy? Read both from its weights.

The score of a query and a key is a product of both inputs and of the head's query and key matrices (its QK circuit,
Elhage et al. 2021, "A mathematical framework for transformer circuits"). Each input is split by least squares over many
examples into a mean, an effect of its token, an effect of its position, and a rest, which depends on other tokens:

    x_i = mean + token(t_i) + position(i) + rest

Without the rest, and up to what is equal for all keys of a query, the score has these parts:

    positions   (q_mean + Q position(i)) . K position(j) / sqrt(d_head) + bias(i, j)
    tokens      (q_mean + Q token(t_i)) . K token(t_j) / sqrt(d_head)
    mixed       (Q token(t_i) . K position(j) + Q position(i) . K token(t_j)) / sqrt(d_head)

`explained` is the part of the variance of the real scores, within the keys of each query, that the three parts predict
(R^2). It is 1 where the input is exactly token + position: in the first layer of a model with LayerNorm after the sum.
LayerNorm before the block, and all later layers, make it less.

What a head copies is the product of its value and output matrices (its OV circuit) with the tokens' effects. A head of
the decoder writes into the stream that the logits are read from, so its direct path gives logits; every LayerNorm on
that path is replaced by its mean scale. Other heads have no direct path to the logits. For them, cosines between what
they write for two tokens show which tokens they keep apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from headcount.analysis.routes import position_labels
from headcount.encodings.base import Encoding, Randomised
from headcount.errors import InputError, InstrumentError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import eval_mode
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, EncoderDecoder, Residual, Transformer
from headcount.results import Contradiction, HeadName, Share
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, SequenceTask
from headcount.training.evaluation import SequenceModel

N_EXAMPLES = 512
"""Number of examples over which inputs are averaged."""
MOST_SCORES = 2**19
"""Largest number of scores per head that are kept; long sequences get fewer examples."""
N_CHECKED, TOLERANCE = 8, 1e-4
"""Number of examples on which scores are compared with the model's attention weights, and the allowed difference."""
N_NULL = 199
"""Number of random orders of the output tokens, with which a copying score is compared."""
SMALLEST = 1e-12
Scores = Float[Tensor, "example head query key"]


@dataclass(frozen=True)
class Grid:
    """A matrix with names of its rows and columns; None where a query cannot see a key."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a matrix whose shape differs from its names."""
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            yield "values", f"{len(self.rows)} rows of {len(self.columns)} values"

    def largest(self) -> tuple[str, str, float] | None:
        """Return the row, the column and the value of the largest entry; None if there is none."""
        cells = [(v, i, j) for i, row in enumerate(self.values) for j, v in enumerate(row) if v is not None]
        if not cells:
            return None
        value, i, j = max(cells, key=lambda cell: cell[0])
        return self.rows[i], self.columns[j], value


@dataclass(frozen=True)
class HeadReading:
    """What the weights of one head match, and what they copy."""

    head: HeadName
    short: str
    explained: float
    """Part of the variance of the real scores, within the keys of each query, that tokens and positions predict."""
    positions: float
    """Part of that variance that belongs to positions alone. This part, the next two and a rest add up to 1."""
    tokens: float
    mixed: float
    """Part that belongs to a query's token with a key's position, or to a query's position with a key's token."""
    copied_tokens: Share
    """Part of the variance of what the head would copy from each key that the keys' tokens explain."""
    copied_positions: Share
    """Part that the keys' positions explain beyond their tokens. The rest depends on other tokens."""
    copying: float | None
    """Sum of the eigenvalues of the matrix from tokens to their logits, over the sum of their sizes: 1 copies tokens,
    -1 suppresses them. None without a direct path."""
    copying_chance: float | None
    """Size of this score that 5 % of random orders of the output tokens exceed."""
    match_positions: Grid
    match_tokens: Grid
    copies: Grid
    """Logits by key token and output token for a head with a direct path; otherwise cosines between key tokens."""
    is_direct: bool

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield impossible values."""
        if self.short != HeadId.parse(self.head).short:
            yield "short", HeadId.parse(self.head).short
        if self.explained > 1 + 1e-6:
            yield "explained", "at most 1"
        if self.is_direct != (self.copying is not None) or self.is_direct != (self.copying_chance is not None):
            yield "copying", "a score if and only if the head has a direct path"


# --- inputs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputParts:
    """The inputs of a projection, split into a mean, effects of tokens and effects of positions."""

    mean: Float[Tensor, " d_model"]
    token: Float[Tensor, "token d_model"]
    position: Float[Tensor, "position d_model"]
    n_by_token: Float[Tensor, " token"]

    @classmethod
    def of(cls, x: Tensor, tokens: Tensor, n_tokens: int, is_used: Tensor) -> InputParts:
        """Split inputs [example, position, d_model] by least squares.

        Where a token has a position to itself, such as the operator, its effect counts as the position's.
        """
        n_positions = x.shape[1]
        where = torch.arange(n_positions).expand_as(tokens)[is_used]
        which, rows = tokens[is_used], x[is_used]
        counts = torch.zeros(n_tokens, n_positions, dtype=x.dtype)
        counts.index_put_((which, where), torch.ones(len(which), dtype=x.dtype), accumulate=True)
        by_token = torch.zeros(n_tokens, x.shape[2], dtype=x.dtype).index_add_(0, which, rows)
        by_position = torch.zeros(n_positions, x.shape[2], dtype=x.dtype).index_add_(0, where, rows)
        gram = torch.cat(
            [
                torch.cat([counts.sum(dim=1).diag(), counts], dim=1),
                torch.cat([counts.T, counts.sum(dim=0).diag()], dim=1),
            ]
        )
        effects = torch.linalg.pinv(gram, hermitian=True) @ torch.cat([by_token, by_position])
        token, position = effects[:n_tokens].clone(), effects[n_tokens:].clone()
        n_by_token, n_by_position = counts.sum(dim=1), counts.sum(dim=0)
        _, groups = connected_components(gram.numpy() > 0, directed=False)
        of_token, of_position = torch.from_numpy(groups[:n_tokens]), torch.from_numpy(groups[n_tokens:])
        for group in of_token[n_by_token > 0].unique():
            mean = _weighted(token[of_token == group], n_by_token[of_token == group])
            token[of_token == group] -= mean
            position[of_position == group] += mean
        mean = _weighted(position, n_by_position)
        position = torch.where(n_by_position[:, None] > 0, position - mean, 0.0)
        return cls(mean, token, position, n_by_token)

    @property
    def shown(self) -> list[int]:
        """The tokens that have an effect of their own; all that occur, if none has."""
        is_seen = self.n_by_token > 0
        has_effect = is_seen & (self.token.norm(dim=1) > SMALLEST**0.5)
        return cast("list[int]", torch.nonzero(has_effect if has_effect.any() else is_seen).flatten().tolist())


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    return (weights[:, None] * rows).sum(dim=0) / weights.sum()


@dataclass(frozen=True)
class SiteInputs:
    """What the heads of one attention block read, on many examples."""

    site: HeadSite
    attention: MultiHeadAttention
    x: Float[Tensor, "example query d_model"]
    y: Float[Tensor, "example key d_model"]
    query_tokens: Int[Tensor, "example query"]
    key_tokens: Int[Tensor, "example key"]
    pad_id: int | None
    masking: AttentionMask

    def matrix(self, name: str) -> Tensor:
        """Return a projection by head: [head, d_head, d_model], or [head, d_model, d_head] for the output."""
        weight = getattr(self.attention, name).weight.detach().double().cpu()
        if name == "output":
            return weight.unflatten(1, (-1, self.attention.d_head)).transpose(0, 1)
        return weight.unflatten(0, (-1, self.attention.d_head))

    def bias_of(self, name: str) -> Tensor:
        """Return the bias of a projection, [head, 1, d_head]."""
        bias = getattr(self.attention, name).bias.detach().double().cpu()
        return bias.unflatten(0, (-1, 1, self.attention.d_head))

    @property
    def is_query(self) -> Bool[Tensor, "example query"]:
        """Which queries are tokens and not padding."""
        return self._is_token(self.query_tokens)

    @property
    def is_key(self) -> Bool[Tensor, "example key"]:
        """Which keys are tokens and not padding."""
        return self._is_token(self.key_tokens)

    def _is_token(self, tokens: Tensor) -> Tensor:
        return torch.ones_like(tokens, dtype=torch.bool) if self.pad_id is None else tokens != self.pad_id

    @property
    def position_bias(self) -> Scores:
        """The encoding's bias, with -inf for keys that it hides; zeros without one."""
        n_heads, shape = len(self.attention.kept), (self.x.shape[1], self.y.shape[1])
        bias = self.masking.bias(slice(0, shape[0]), slice(0, shape[1]))
        if bias is None:
            return torch.zeros(1, n_heads, *shape, dtype=torch.float64)
        is_whole = bias.shape[1] == self.attention.n_heads
        bias = bias[:, list(self.attention.kept)] if is_whole else bias
        return bias.detach().double().cpu().expand(-1, n_heads, *shape)

    @property
    def visible(self) -> Bool[Tensor, "example head query key"]:
        """Which keys each query sees; a padded query sees none."""
        n_queries, n_keys = self.x.shape[1], self.y.shape[1]
        device = self.attention.output.weight.device
        mask = self.masking.mask_for(slice(0, n_queries), slice(0, n_keys), n_queries, n_keys, device)
        sees = self.is_query[:, None, :, None] & self.is_key[:, None, None] & ~self.position_bias.isneginf()
        return sees if mask is None else sees & mask.cpu()

    @property
    def scale(self) -> Float[Tensor, "#example head #query 1"]:
        """The factor of all scores: 1, or s_h log n with the softmax `log-length`."""
        factor = self.attention.log_n_scale
        if factor is None:
            return torch.ones(1, len(self.attention.kept), 1, 1, dtype=torch.float64)
        n_visible = self.masking.n_visible(self.x.shape[1], self.y.shape[1], factor.device)
        return factor.detach().double().cpu()[None, :, None, None] * n_visible.cpu().double().log()[:, None, :, None]

    @property
    def scores(self) -> Scores:
        """The real scores before the softmax; hidden keys count as 0."""
        query = self.x[:, None] @ self.matrix("query").transpose(1, 2) + self.bias_of("query")
        key = self.y[:, None] @ self.matrix("key").transpose(1, 2) + self.bias_of("key")
        score = query @ key.transpose(2, 3) / math.sqrt(self.attention.d_head) + self.position_bias
        return (self.scale * score).where(self.visible, 0.0)


def read_inputs(model: OpenModel, n: int = N_EXAMPLES, *, seed: int = 0) -> tuple[dict[HeadSite, SiteInputs], Tensor]:
    """Return what each attention block reads on `n` examples, and the labels of a sequence task (else empty)."""
    inner, task = require_own(model), model.task
    assert task is not None, "require_own has checked this"
    n = max(16, min(n, MOST_SCORES // task.longest**2))
    examples, labels = task.sample(stream(seed, "weights"), n), torch.empty(0, dtype=torch.int64)
    device = next(inner.parameters()).device
    if task.output_type == "sequence":
        inputs, labels = cast(SequenceModel, model.answers).teacher_forced(examples)
    else:
        inputs = (torch.from_numpy(cast(ClassTask, task).encode(examples).source).to(device),)
    seen: dict[HeadSite, tuple[Any, Any]] = {}

    def keep(site: HeadSite, module: nn.Module, args: Any, kwargs: Any) -> None:
        seen[site] = args, kwargs

    weights = AttentionCache()
    with ExitStack() as hooks, eval_mode(model.module), torch.no_grad():
        for site in inner.sites:
            hook = partial(keep, site)
            hooks.callback(inner.blocks[site].attention.register_forward_pre_hook(hook, with_kwargs=True).remove)
        cast(Any, inner)(*inputs, weights=weights)
    by_site = {}
    for site, (args, kwargs) in seen.items():
        x, memory = args[0].double().cpu(), args[1] if len(args) > 1 else None
        y = x if memory is None else memory.double().cpu()
        own = inputs[-1 if site.stack == "decoder" else 0].cpu()
        tokens = own, own if memory is None else inputs[0].cpu()
        attention = cast(MultiHeadAttention, inner.blocks[site].attention)
        masking = kwargs.get("masking") or AttentionMask()
        by_site[site] = SiteInputs(site, attention, x, y, *tokens, inner.pad_id, masking)
        _require_same_weights(by_site[site], weights[site].double().cpu())
    return by_site, labels.cpu()


def _require_same_weights(inputs: SiteInputs, weights: Tensor) -> None:
    """Check that the softmax of the scores gives the model's attention weights."""
    scores = inputs.scores.masked_fill(~inputs.visible, -torch.inf)[:N_CHECKED]
    own = scores.softmax(dim=-1).nan_to_num(0.0)
    used = inputs.visible[:N_CHECKED].any(dim=-1, keepdim=True)
    difference = float(((own - weights[:N_CHECKED]) * used).abs().max())
    if difference > TOLERANCE:
        raise InstrumentError(
            f"scores computed from the weights of {inputs.site} differ from the model's by {difference:.1g}",
            "the encoding does something to queries and keys that is not known here",
        )


def require_own(model: OpenModel) -> Transformer:
    """Return the transformer that headcount built; raise an error for other models and for rotary encodings."""
    inner = model.inner
    if not isinstance(inner, EncoderDecoder | Classifier) or model.task is None:
        raise InputError(
            f"weights are read in headcount's own models, and {model.label or model.name} is none",
            "give a run or sample:addition; what heads of any model attend to: headcount heads MODEL --stats",
        )
    for encoding in (each for each in inner.modules() if isinstance(each, Encoding)):
        base = encoding.inner if isinstance(encoding, Randomised) else encoding
        if type(base).rotate_qk is not Encoding.rotate_qk:
            raise InputError(
                f"{type(base).__name__} changes queries and keys by their positions, so scores have no token part",
                "choose a model with another encoding: added to the embeddings, or a bias of the scores",
            )
    return inner


# --- what a head matches and copies -----------------------------------------------------------------------------------


def read_heads(
    model: OpenModel, heads: Sequence[HeadId], by_site: Mapping[HeadSite, SiteInputs], labels: Tensor
) -> list[HeadReading]:
    """Read what each of these heads matches, and what it copies."""
    inner, readings = require_own(model), []
    scales = _norm_scales(model, inner)
    for site in dict.fromkeys(head.site for head in heads):
        reading = _SiteReading(model, by_site[site], labels, _direct_path(inner, site, scales))
        readings += [reading.head(head) for head in heads if head.site == site]
    return readings


class _SiteReading:
    """The decomposed scores of all heads of one attention block."""

    def __init__(self, model: OpenModel, inputs: SiteInputs, labels: Tensor, path: Tensor | None) -> None:
        assert model.task is not None, "require_own has checked this"
        self.inputs, self.task, self.path = inputs, model.task, path
        self.outputs = labels[labels >= 0].unique().tolist()
        tokens, n = self.task.tokens, len(self.task.tokens)
        self.queries = InputParts.of(inputs.x, inputs.query_tokens, n, inputs.is_query)
        self.keys = InputParts.of(inputs.y, inputs.key_tokens, n, inputs.is_key)
        self.token_names = tokens
        self.position_names = self._names(inputs.x.shape[1], is_key=False), self._names(inputs.y.shape[1], is_key=True)
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
        self.visible = inputs.visible
        self.real = _centred(inputs.scores, self.visible)

    def _names(self, n: int, *, is_key: bool) -> tuple[str, ...]:
        site = self.inputs.site
        if self.task.output_type == "class":
            return tuple(map(str, range(n)))
        task = cast(SequenceTask, self.task)
        if site.stack == "decoder" and is_key and site.kind == "self":
            labels = [each.label for each in task.decoder_input_positions]
            return tuple(labels) if len(labels) == n else tuple(map(str, range(n)))
        return tuple(position_labels(task, "encoder" if is_key else site.stack, n))

    def head(self, head: HeadId) -> HeadReading:
        """Return the reading of one head."""
        at = self.inputs.attention.kept.index(head.index)
        scale = self.inputs.scale[:, at]
        bias = self.inputs.position_bias[:, at].nan_to_num(neginf=0.0)
        rows, columns = self.inputs.query_tokens[:, :, None], self.inputs.key_tokens[:, None, :]
        n_queries, n_keys = self.places_HQK.shape[1:]
        i, j = torch.arange(n_queries)[None, :, None], torch.arange(n_keys)[None, None]
        visible, real = self.visible[:, at], self.real[:, at]
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
        centred, seen = _centred(score_QK, seen_QK).tolist(), seen_QK.tolist()
        values = [
            [round(x, 4) if is_seen else None for x, is_seen in zip(*row, strict=True)]
            for row in zip(centred, seen, strict=True)
        ]
        return Grid(*self.position_names, tuple(map(tuple, values)))

    def _token_grid(self, score_TT: Tensor) -> Grid:
        rows, columns = self.queries.shown, self.keys.shown
        weights = self.keys.n_by_token[columns] / self.keys.n_by_token[columns].sum()
        score = score_TT[rows][:, columns]
        return _grid(self._tokens(rows), self._tokens(columns), score - (score @ weights)[:, None])

    def _tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.token_names[i] for i in ids)

    def _copied(self, at: int) -> dict[str, Any]:
        """Return how much of what is copied belongs to tokens and to positions, and the picture of the tokens."""
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
    """Return scores less their mean over the visible keys of each query; 0 at hidden keys."""
    n = visible.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = scores.where(visible, 0.0).sum(dim=-1, keepdim=True) / n
    return (scores - mean).where(visible, 0.0)


def copying_score(matrix: NDArray[np.float64]) -> tuple[float, float]:
    """Return the copying score of a matrix from tokens to tokens, and the size that random orders exceed in 5 %.

    The score is the sum of the eigenvalues over the sum of their sizes, after rows and columns are centred.

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


# --- the direct path --------------------------------------------------------------------------------------------------


def _norms_to_logits(inner: Transformer, site: HeadSite) -> list[nn.Module]:
    """Return the LayerNorms between what a block of the decoder writes and the logits, in order."""
    assert isinstance(inner, EncoderDecoder), "a classifier has no direct path"
    if inner.config.norm == "pre":
        return [inner.decoder_norm]
    after = [module for module in inner.decoder.modules() if isinstance(module, Residual)]
    return [each.norm for each in after[after.index(inner.blocks[site].residual) :]]


def _norm_scales(model: OpenModel, inner: Transformer) -> dict[nn.Module, float]:
    """Return the mean of 1 / (standard deviation) over the inputs of each LayerNorm of the decoder."""
    if not isinstance(inner, EncoderDecoder):
        return {}
    assert model.task is not None, "require_own has checked this"
    scales: dict[nn.Module, float] = {}

    def note(module: nn.Module, args: Any) -> None:
        variance = args[0].double().var(dim=-1, correction=0) + cast(nn.LayerNorm, module).eps
        scales[module] = float(variance.rsqrt().mean())

    examples = model.task.sample(stream(0, "norms"), N_EXAMPLES)
    inputs, _ = cast(SequenceModel, model.answers).teacher_forced(examples)
    with ExitStack() as hooks, eval_mode(model.module), torch.no_grad():
        for module in (*inner.decoder.modules(), inner.decoder_norm):
            if isinstance(module, nn.LayerNorm):
                hooks.callback(module.register_forward_pre_hook(note).remove)
        inner(*inputs)
    return scales


def _direct_path(inner: Transformer, site: HeadSite, scales: Mapping[nn.Module, float]) -> Tensor | None:
    """Return the matrix [output token, d_model] from what a block writes to the logits; None without such a path."""
    if not isinstance(inner, EncoderDecoder) or site.stack != "decoder":
        return None
    path = inner.to_logits.weight.detach().double().cpu()
    for norm in reversed(_norms_to_logits(inner, site)):
        path = fold_norm(path, norm) * scales.get(norm, 1.0)
    return path


def fold_norm(matrix: Tensor, norm: nn.Module) -> Tensor:
    """Return a matrix that reads a stream before a LayerNorm as `matrix` reads it after it, but for the scale."""
    if not isinstance(norm, nn.LayerNorm):
        return matrix
    scaled = matrix * norm.weight.detach().double().cpu()
    return scaled - scaled.mean(dim=1, keepdim=True)
