"""Bound how far rounding can move the logits of a classifier, in a forward pass that computes its own error bound.

A context is the tokens that one position sees. Its lead is the logit of the first class minus that of the last class,
as this position contributes it.

A certificate is about the function that the weights define in real numbers. Each operation here returns its value in
double precision and a bound of the distance to the exact value (after Higham 2002, "Accuracy and stability of
numerical algorithms", chapter 3). A sum of n products is within gamma_n = n u / (1 - n u) of the exact sum, relative
to the sum of absolute products, in any order of summation. u is the unit roundoff, 2^-53. The exponential function
is assumed to be within 4 u, the square root to be rounded correctly.

For single precision (u = 2^-24), in which models run, such a bound is far larger than the margins of small models.
`first_order_error` gives an estimate instead: the rounding error of each operation, times the derivative of the lead
with respect to the value of that operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import AttentionBlock, Classifier, FourierNumberEmbedding, Residual
from headcount.training.contexts import layers_of

DOUBLE, SINGLE = 2.0**-53, 2.0**-24
SLACK = 1 + 1e-6
"""Error bounds are computed in double precision too; this factor allows for the rounding of the bounds themselves."""
EXP_ERROR = 4


@dataclass(frozen=True)
class Bounded:
    """Numbers in double precision, and a bound of their distance from the exact numbers."""

    value: Tensor
    error: Tensor

    def __getitem__(self, index: object) -> Bounded:
        return Bounded(self.value[index], self.error[index])  # type: ignore[index]


@dataclass
class Arithmetic:
    """Operations on numbers with error bounds, in a floating-point format with the unit roundoff `unit`.

    With `is_first_order`, operations do not pass on the errors of their inputs. Each operation records its value and
    its own rounding error instead. The derivative of a result by each value then says how much each error contributes.
    """

    unit: float = DOUBLE
    is_first_order: bool = False
    recorded: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def gamma(self, n: int) -> float:
        """Return the relative bound gamma_n of the rounding error of a sum of `n` products."""
        return n * self.unit / (1 - n * self.unit)

    def result(self, value: Tensor, error: Tensor) -> Bounded:
        """Return the value of an operation with its error bound; with `is_first_order`, only record the error."""
        if not self.is_first_order:
            return Bounded(value, error * SLACK)
        if not value.requires_grad:
            value.requires_grad_()
        value.retain_grad()
        self.recorded.append((value, error.detach()))
        return Bounded(value, torch.zeros_like(error))

    def linear(self, x: Bounded, weight: Tensor, bias: Tensor, n_rounded: int = 0) -> Bounded:
        """Return W x + b with an error bound; the entries of W and b were themselves rounded `n_rounded` times."""
        gamma = self.gamma(weight.shape[1] + 1 + n_rounded)
        error = nn.functional.linear(x.error + gamma * x.value.abs(), weight.abs(), gamma * bias.abs())
        return self.result(nn.functional.linear(x.value, weight, bias), error)

    def add(self, x: Bounded, y: Bounded) -> Bounded:
        """Return x + y with a bound of its rounding error."""
        value = x.value + y.value
        return self.result(value, x.error + y.error + self.unit * value.abs())

    def relu(self, x: Bounded) -> Bounded:
        """Return max(x, 0), which adds no rounding error."""
        return Bounded(x.value.clamp(min=0), x.error)

    def layer_norm(self, x: Bounded, norm: nn.Module) -> Bounded:
        """Return LayerNorm(x) with an error bound, or x if `norm` is an identity."""
        if not isinstance(norm, nn.LayerNorm):
            return x
        unit, n = self.unit, x.value.shape[-1]
        gain, bias = norm.weight.detach().double(), norm.bias.detach().double()
        centred = x.value - x.value.mean(dim=-1, keepdim=True)
        mean_error = x.error.mean(dim=-1, keepdim=True) + self.gamma(n + 1) * x.value.abs().mean(dim=-1, keepdim=True)
        centred_error = x.error + mean_error + unit * centred.abs()
        square = centred**2
        variance = square.mean(dim=-1, keepdim=True) + norm.eps
        moved = (2 * centred.abs() * centred_error + centred_error**2).mean(dim=-1, keepdim=True)
        variance_error = moved + self.gamma(n + 4) * variance
        spread, least = variance.sqrt(), (variance - variance_error).clamp(min=norm.eps / 2).sqrt()
        spread_error = variance_error / (spread + least) + unit * spread
        ratio = centred / spread
        least = (spread - spread_error).maximum(least / SLACK)  # above 0, however large the errors are
        ratio_error = (centred_error + ratio.abs() * spread_error) / least + unit * ratio.abs()
        value = ratio * gain + bias
        error = gain.abs() * (ratio_error + unit * ratio.abs()) + 2 * unit * (value.abs() + bias.abs())
        return self.result(value, error)

    def attend(self, query: Bounded, key: Bounded, value: Bounded, bias: Tensor) -> Bounded:
        """Return the heads' outputs z [row, query, head, d_head], with an error bound.

        Queries, keys and values are [row, position, head, d_head]. `bias` [query, key, head] is -inf where a query does
        not see a key.
        """
        unit, d_head, n_keys = self.unit, query.value.shape[-1], key.value.shape[1]
        dot = torch.einsum("bqhe,bkhe->bqkh", query.value, key.value) / math.sqrt(d_head)
        sizes = query.value.abs(), key.value.abs()
        dot_error = self.gamma(d_head + 3) * torch.einsum("bqhe,bkhe->bqkh", *sizes)
        dot_error = dot_error + torch.einsum("bqhe,bkhe->bqkh", sizes[0], key.error)
        dot_error = dot_error + torch.einsum("bqhe,bkhe->bqkh", query.error, sizes[1] + key.error)
        score, seen = dot + bias, ~bias.isneginf()
        score_error = dot_error / math.sqrt(d_head) + unit * (score.abs() + dot.abs()).masked_fill(~seen, 0.0)
        top = score.amax(dim=2, keepdim=True)
        exponent_error = (score_error + unit * (score - top).abs().masked_fill(~seen, 0.0)).masked_fill(~seen, 0.0)
        worst = exponent_error.amax(dim=2, keepdim=True)
        weight = score.softmax(dim=2)
        weight_error = weight * torch.expm1(2 * worst + self.gamma(2 * n_keys + 2 * EXP_ERROR + 4)) + 1e-300 * seen
        z = torch.einsum("bqkh,bkhe->bqhe", weight, value.value)
        error = torch.einsum("bqkh,bkhe->bqhe", weight_error + self.gamma(n_keys) * weight, value.value.abs())
        error = error + torch.einsum("bqkh,bkhe->bqhe", weight + weight_error, value.error)
        return self.result(z, error)


class BoundedPass:
    """A forward pass of a classifier in double precision, over contexts, that also bounds its rounding error.

    A context is the tokens that one position sees.
    """

    def __init__(self, model: Classifier, n_tokens: int, arithmetic: Arithmetic) -> None:
        self.model, self.arithmetic, config = model, arithmetic, model.config
        self.width = config.window or 0
        self.causal = config.causal or model.positions.forces_causal
        self.every = self._embed(torch.arange(n_tokens, device=model.to_logits.weight.device))

    def _embed(self, tokens: Tensor) -> Bounded:
        """Return the embedding of each token in double precision, with a bound of its rounding error."""
        table = self.model.tokens
        if not isinstance(table, FourierNumberEmbedding):
            rows = table.weight.detach().double()[tokens]
            return Bounded(rows, torch.zeros_like(rows))
        waves = table.waves.double()[tokens]
        return self.arithmetic.linear(Bounded(waves, torch.zeros_like(waves)), *_weights(table.mix))

    def leads(self, tokens: Tensor, centre: int) -> Bounded:
        """Return, for each row of tokens, the lead that the position `centre` contributes, with an error bound.

        The lead is the logit of the first class minus that of the last class.
        """
        ops, model, layers = self.arithmetic, self.model, layers_of(self.model)
        x, places = self._embed(tokens) if ops.is_first_order else self.every[tokens], range(tokens.shape[1])
        for i, layer in enumerate(layers):
            queries = slice(centre, centre + 1) if i + 1 == len(layers) else slice(None)
            # The first layer's keys and values depend on the token alone: they are computed once per token.
            rows = None if i or ops.is_first_order else tokens
            x = self._attend(layer.self_attention, x, queries, list(places), rows)
            x = self._feed_forward(layer.feed_forward.layers, layer.feed_forward.residual, x)
        x = ops.layer_norm(x, model.norm)[:, 0]
        score = getattr(model.pooling, "score", None)
        x = x if score is None else ops.linear(x, *_weights(score))
        weight, bias = _weights(model.to_logits)
        lead = ops.linear(x, weight[:1] - weight[-1:], bias[:1] - bias[-1:], n_rounded=1)
        return Bounded(lead.value[:, 0], lead.error[:, 0])

    def _attend(
        self, block: AttentionBlock, x: Bounded, queries: slice, places: list[int], tokens: Tensor | None
    ) -> Bounded:
        """Return the residual stream at the given queries after one attention block, with an error bound."""
        ops, attention, residual = self.arithmetic, block.attention, block.residual
        stream = x[:, queries]
        if not isinstance(attention, MultiHeadAttention):  # all heads are cut out, the bias of the projection is left
            bias = attention.output["bias"].detach().double().expand_as(stream.value)
            return self._close(residual, ops.add(stream, Bounded(bias, torch.zeros_like(bias))))
        inputs, heads = self.every if tokens is not None else x, (-1, attention.d_head)
        normed = ops.layer_norm(inputs, residual.norm) if residual.pre else inputs

        def project(layer: nn.Linear) -> Bounded:
            out = ops.linear(normed, *_weights(layer))
            out = out if tokens is None else out[tokens]
            return Bounded(out.value.unflatten(-1, heads), out.error.unflatten(-1, heads))

        z = ops.attend(
            project(attention.query)[:, queries],
            project(attention.key),
            project(attention.value),
            self._bias(attention, places, queries),
        )
        z = Bounded(z.value.flatten(2), z.error.flatten(2))
        return self._close(residual, ops.add(stream, ops.linear(z, *_weights(attention.output))))

    def _feed_forward(self, layers: nn.Sequential, residual: Residual, x: Bounded) -> Bounded:
        """Return the residual stream after one feed-forward block, with an error bound."""
        ops = self.arithmetic
        normed = ops.layer_norm(x, residual.norm) if residual.pre else x
        hidden = ops.relu(ops.linear(normed, *_weights(layers[0])))
        return self._close(residual, ops.add(x, ops.linear(hidden, *_weights(layers[2]))))

    def _close(self, residual: Residual, x: Bounded) -> Bounded:
        return x if residual.pre else self.arithmetic.layer_norm(x, residual.norm)

    def _bias(self, attention: MultiHeadAttention, places: list[int], queries: slice) -> Tensor:
        """Return the bias of the position encoding [query, key, head], with -inf where a query does not see a key."""
        at = torch.tensor(places, device=self.every.value.device)
        distance = at[None] - at[queries, None]
        hidden = (distance.abs() > self.width) | ((distance > 0) if self.causal else torch.zeros_like(distance).bool())
        bias = self.model.positions.bias(at[queries, None], at[None])
        if bias is None:
            bias = torch.zeros(*distance.shape, 1, device=at.device)
        bias = bias.detach().double()
        bias = bias if bias.shape[-1] == 1 else bias[..., list(attention.kept)]
        return bias.masked_fill(hidden[..., None], -torch.inf)


def _weights(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear layer in double precision. The conversion from single precision is exact."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor), "a linear layer has a weight"
    assert isinstance(bias, Tensor), "a linear layer of these models has a bias"
    return weight.detach().double(), bias.detach().double()


def first_order_error(model: Classifier, n_tokens: int, tokens: Tensor, centre: int) -> Tensor:
    """Estimate, to first order, how far single-precision rounding can move the lead of each context, in logits.

    A context is the tokens that one position sees; its lead is the logit of the first class minus that of the last.
    """
    ops = Arithmetic(SINGLE, is_first_order=True)
    with torch.enable_grad():
        bounded = BoundedPass(model, n_tokens, ops)
        ops.recorded.clear()  # the table of all tokens, which contexts do not use here
        bounded.leads(tokens, centre).value.sum().backward()
    shares = [
        (value.grad * error).abs().flatten(1).sum(dim=1) for value, error in ops.recorded if value.grad is not None
    ]
    return torch.stack([share.expand(len(tokens)) for share in shares]).sum(dim=0)
