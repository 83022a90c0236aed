"""Record what heads read: the inputs and scores of every attention block, split into parts of tokens and positions.

Each input is split by least squares over many examples:

    x_i = mean + token(t_i) + position(i) + rest

The rest depends on other tokens. It is 0 where a block reads token embeddings to which position vectors are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from headcount.encodings.base import Encoding, Randomised
from headcount.errors import InputError, InstrumentError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadSite
from headcount.hooks.gates import eval_mode
from headcount.limits import N_WEIGHTS
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.masking import AttentionMask
from headcount.models.transformer import Classifier, DecoderOnly, EncoderDecoder, Transformer
from headcount.seeds import stream
from headcount.tasks.base import ClassTask
from headcount.training.evaluation import SequenceModel

MOST_SCORES = 2**19
"""Largest number of attention scores per head that are kept; long sequences get fewer examples."""
TOLERANCE = 1e-4
"""Largest accepted difference between the softmax of the recomputed scores and the model's own attention weights."""
Scores = Float[Tensor, "example head query key"]


@dataclass(frozen=True)
class InputParts:
    """The inputs of a projection as a sum: a mean, an effect of each token, an effect of each position, and a rest."""

    mean: Float[Tensor, " d_model"]
    token: Float[Tensor, "token d_model"]
    position: Float[Tensor, "position d_model"]
    n_by_token: Float[Tensor, " token"]

    @classmethod
    def of(cls, x: Tensor, tokens: Tensor, n_tokens: int, is_used: Tensor) -> InputParts:
        """Split inputs [example, position, d_model] by least squares into mean, token effects and position effects.

        Where a token always has the same position, such as the operator, its effect counts as the position's.
        """
        n_positions, rows = x.shape[1], x[is_used]
        where, which = torch.arange(n_positions).expand_as(tokens)[is_used], tokens[is_used]
        indices = torch.stack([which, n_tokens + where])
        n = n_tokens + n_positions
        gram, sums = x.new_zeros(n, n), x.new_zeros(n, x.shape[2])
        for one in indices:
            sums.index_add_(0, one, rows)
            for other in indices:
                gram.index_put_((one, other), x.new_ones(len(one)), accumulate=True)
        effects, counts = torch.linalg.pinv(gram, hermitian=True) @ sums, gram.diagonal()
        token, position = effects[:n_tokens].clone(), effects[n_tokens:].clone()
        _, groups = connected_components(gram.numpy() > 0, directed=False)
        for group in set(groups[(counts > 0).numpy()].tolist()):
            # Within a group of tokens and positions that occur together, only differences of effects are known.
            in_group = torch.from_numpy(groups == group)
            mean = _weighted(token[in_group[:n_tokens]], counts[:n_tokens][in_group[:n_tokens]])
            token[in_group[:n_tokens]] -= mean
            position[in_group[n_tokens:]] += mean
        mean = _weighted(position, counts[n_tokens:])
        position = torch.where(counts[n_tokens:, None] > 0, position - mean, 0.0)
        return cls(mean, token, position, counts[:n_tokens])

    @property
    def shown(self) -> list[int]:
        """Return the ids of tokens with an effect of their own; if there are none, of all tokens that occur."""
        is_seen = self.n_by_token > 0
        has_effect = is_seen & (self.token.norm(dim=1) > 1e-6)
        return cast("list[int]", torch.nonzero(has_effect if has_effect.any() else is_seen).flatten().tolist())


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    return (weights[:, None] * rows).sum(dim=0) / weights.sum()


@dataclass(frozen=True)
class SiteInputs:
    """What the heads of one attention block read on many examples: the inputs of queries and keys, and the scores."""

    site: HeadSite
    attention: MultiHeadAttention
    x: Float[Tensor, "example query d_model"]
    y: Float[Tensor, "example key d_model"]
    query_tokens: Int[Tensor, "example query"]
    key_tokens: Int[Tensor, "example key"]
    is_query: Bool[Tensor, "example query"]
    """Whether each query is a token, and not padding."""
    is_key: Bool[Tensor, "example key"]
    bias: Float[Tensor, "#example head query key"]
    """What the position encoding adds to each attention score; 0 for keys that the encoding hides."""
    scale: Float[Tensor, "#example head #query 1"]
    """Factor of all attention scores: 1, or s_h log n if the softmax is `log-length` (n visible keys, learned s_h)."""
    visible: Bool[Tensor, "example head query key"]
    scores: Scores = field(init=False)
    """The attention scores that enter the softmax, recomputed from the inputs and the weights."""

    def __post_init__(self) -> None:
        query, key = (
            x[:, None] @ self.matrix(name).transpose(1, 2) + self.bias_of(name)
            for x, name in ((self.x, "query"), (self.y, "key"))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(self.attention.d_head) + self.bias
        object.__setattr__(self, "scores", self.scale * scores)

    def matrix(self, name: str) -> Tensor:
        """Return the weight matrix of a projection, split by head.

        The shape is [head, d_head, d_model], or [head, d_model, d_head] for the projection `output`.
        """
        weight = getattr(self.attention, name).weight.detach().double().cpu()
        if name == "output":
            return cast(Tensor, weight.unflatten(1, (-1, self.attention.d_head)).transpose(0, 1))
        return cast(Tensor, weight.unflatten(0, (-1, self.attention.d_head)))

    def bias_of(self, name: str) -> Tensor:
        """Return the bias of a projection, split by head: [head, 1, d_head]."""
        bias = getattr(self.attention, name).bias.detach().double().cpu()
        return cast(Tensor, bias.unflatten(0, (-1, 1, self.attention.d_head)))

    def require_weights(self, weights: Tensor) -> None:
        """Raise an error unless the softmax of the recomputed scores equals the model's attention `weights`."""
        own = self.scores.masked_fill(~self.visible, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
        difference = float(((own - weights) * self.is_query[:, None, :, None]).abs().max())
        if not difference <= TOLERANCE:  # also if a weight is not a number
            raise InstrumentError(
                f"the attention weights that headcount recomputes for {self.site} differ from the model's own by "
                f"{difference:.1g}",
                "choose another model: the position encoding of this one changes attention scores in a way that "
                "headcount cannot recompute",
            )


@dataclass(frozen=True)
class ModelInputs:
    """The recorded inputs of every attention block of a model, and further facts for reading its weights."""

    sites: dict[HeadSite, SiteInputs]
    outputs: list[int]
    """Ids of the tokens that occur in right answers; empty for a classifier."""
    scales: dict[nn.Module, float]
    """For each LayerNorm of the decoder, its mean scale: the mean of 1 / (standard deviation of its input)."""


def read_inputs(model: OpenModel, n: int = N_WEIGHTS, *, seed: int = 0) -> ModelInputs:
    """Record the inputs of each attention block on `n` examples.

    Raise an error if the recorded inputs do not reproduce the model's own attention weights.
    """
    inner, task = require_own(model), model.task
    assert task is not None, "require_own has checked this"
    examples = task.sample(stream(seed, "weights"), max(16, min(n, MOST_SCORES // task.longest**2)))
    labels, device = torch.empty(0, dtype=torch.int64), next(inner.parameters()).device
    if task.output_type == "sequence":
        inputs, labels = cast(SequenceModel, model.answers).teacher_forced(examples)
    else:
        inputs = (torch.from_numpy(cast(ClassTask, task).encode(examples).source).to(device),)
    calls: dict[HeadSite, tuple[Any, Any]] = {}
    scales: dict[nn.Module, float] = {}

    def keep(site: HeadSite) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, args, kwargs: calls.update({site: (args, kwargs)})

    def note(module: nn.LayerNorm, args: Any) -> None:
        scales[module] = float((args[0].double().var(dim=-1, correction=0) + module.eps).rsqrt().mean())

    weights = AttentionCache()
    with ExitStack() as hooks, eval_mode(model.module), torch.no_grad():
        for site in inner.sites:
            block = inner.blocks[site].attention
            hooks.callback(block.register_forward_pre_hook(keep(site), with_kwargs=True).remove)
        for norm in _decoder_norms(inner):
            hooks.callback(norm.register_forward_pre_hook(note).remove)
        cast(Any, inner)(*inputs, weights=weights)
    sites = {site: _site_inputs(inner, site, inputs, *calls[site]) for site in inner.sites}
    for site, each in sites.items():
        each.require_weights(weights[site].double().cpu())
    return ModelInputs(sites, labels[labels >= 0].unique().tolist(), scales)


def _decoder_norms(inner: Transformer) -> list[nn.LayerNorm]:
    parts: tuple[nn.Module, ...] = ()
    if isinstance(inner, EncoderDecoder):
        parts = inner.decoder, inner.decoder_norm
    elif isinstance(inner, DecoderOnly):
        parts = inner.layers, inner.norm
    return [module for part in parts for module in part.modules() if isinstance(module, nn.LayerNorm)]


def _site_inputs(inner: Transformer, site: HeadSite, inputs: Any, args: Any, kwargs: Any) -> SiteInputs:
    attention = cast(MultiHeadAttention, inner.blocks[site].attention)
    masking = kwargs.get("masking") or AttentionMask()
    own, source = inputs[-1 if site.stack == "decoder" else 0].cpu(), inputs[0].cpu()
    own = torch.cat([each.cpu() for each in inputs], dim=1) if isinstance(inner, DecoderOnly) else own
    x, is_cross = args[0].double().cpu(), site.kind == "cross"
    y, tokens = (args[1].double().cpu(), source) if is_cross else (x, own)
    is_query, is_key = (each == each if inner.pad_id is None else each != inner.pad_id for each in (own, tokens))
    n_heads, queries, keys = len(attention.kept), slice(0, x.shape[1]), slice(0, y.shape[1])
    bias = masking.bias(queries, keys)
    if bias is None:
        bias = torch.zeros(1, n_heads, x.shape[1], y.shape[1])
    elif bias.shape[1] == attention.n_heads:
        bias = bias[:, list(attention.kept)]
    bias = bias.detach().double().cpu().expand(-1, n_heads, x.shape[1], y.shape[1])
    device = attention.output.weight.device
    mask = masking.mask_for(queries, keys, x.shape[1], y.shape[1], device)
    visible = is_query[:, None, :, None] & is_key[:, None, None] & ~bias.isneginf()
    scale = torch.ones(1, n_heads, 1, 1, dtype=torch.float64)
    if attention.log_n_scale is not None:
        n_visible = masking.n_visible(x.shape[1], y.shape[1], device).double().cpu()
        scale = attention.log_n_scale.detach().double().cpu()[None, :, None, None] * n_visible.log()[:, None, :, None]
    tensors = x, y, own, tokens, is_query, is_key, bias.nan_to_num(neginf=0.0), scale
    return SiteInputs(site, attention, *tensors, visible if mask is None else visible & mask.cpu())


def require_own(model: OpenModel) -> Transformer:
    """Return the transformer inside of a model that headcount trained.

    Raise an error for other models, and for position encodings that rotate queries and keys.
    """
    inner = model.inner
    if not isinstance(inner, EncoderDecoder | DecoderOnly | Classifier) or model.task is None:
        raise InputError(
            "the weights of heads can be analysed only in models that headcount trained, and "
            f"{model.label or model.name} is not one",
            "give the folder of a model that headcount trained, or sample:addition",
            "to measure what the heads of any other model attend to, use: headcount heads MODEL --stats",
        )
    for encoding in (each for each in inner.modules() if isinstance(each, Encoding)):
        base = encoding.inner if isinstance(encoding, Randomised) else encoding
        if type(base).rotate_qk is not Encoding.rotate_qk:
            raise InputError(
                f"{type(base).__name__} rotates queries and keys, so attention scores cannot be split into a part "
                "from tokens and one from positions",
                "choose a model whose position encoding is added to the embeddings or to the attention scores",
            )
    return inner
