"""Read the attention weights of any model, no matter how the model computes them.

Attention weights are a softmax over keys. A model computes them with a softmax function, or inside PyTorch's
`scaled_dot_product_attention`, whose arguments are used here to compute the weights again. The weights of an attention
block (a site) are the last softmax output with the right number of heads before the block's output projection is
called. If rows (examples) and heads could be confused, the product of weights and values that equals z, the input of
the projection, shows which axis comes first. Weights are handed over block by block, so that those of only one block
are in memory.

(Hugging Face models return weights only if they were loaded with attn_implementation="eager".)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headcount.errors import InstrumentError
from headcount.heads import HeadSite
from headcount.hooks.gates import SharedSiteCounter, eval_mode, input_of, join_heads, split_heads, unfused
from headcount.hooks.sites import Sites

Weights = Float[Tensor, "row head query key"]
SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax, torch._softmax, torch.special.softmax)
"""Functions whose result may be attention weights."""
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum)
"""Functions by which a model may multiply attention weights with values."""


def read_attention(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], show: Callable[[HeadSite, Weights], None]
) -> Any:
    """Run one forward pass, call `show(site, weights)` for each attention block, and return the model's output."""
    seen = _SeenTensors()
    turns, shown = SharedSiteCounter(sites), set[HeadSite]()

    def on_projection(module: nn.Module, args: Any) -> None:
        name = turns.next(module)
        if name in shown:
            raise InstrumentError(
                f"the output projection of {name} was called twice in one pass",
                "so its attention weights are ambiguous: give inputs on which every attention block runs once",
            )
        shown.add(name)
        z, n_heads = input_of(name, args), len(sites[name].heads)
        if sites[name].head_axis is not None:
            z = join_heads(split_heads(name, z, n_heads, sites[name].head_axis))  # concatenated in the last axis
        show(name, _site_weights(name, n_heads, len(inputs[0]), z, *seen.take()))

    with ExitStack() as hooks, torch.no_grad(), eval_mode(model), unfused(sites), seen:
        for projection in sites.projections:
            hooks.callback(projection.register_forward_pre_hook(on_projection).remove)
        output = model(*inputs)
    if missed := [str(site) for site in sites if site not in shown]:
        raise InstrumentError(
            f"the output projection of {', '.join(missed)} was never called",
            "their attention weights cannot be read: leave these attention blocks out of the `sites` argument",
        )
    return output


def attention_of(model: nn.Module, sites: Sites, *inputs: Tensor) -> dict[HeadSite, Weights]:
    """Return the attention weights [row, head, query, key] of every attention block, by site; for short inputs only.

    All weights are in memory at once. For long inputs, use `read_attention`.
    """
    weights: dict[HeadSite, Weights] = {}
    read_attention(model, sites, inputs, weights.__setitem__)
    return weights


def softmax_axis(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return the axis argument of a call of a softmax function; None if the call has no such argument."""
    axis: int | None = args[1] if len(args) > 1 and args[1] is not None else kwargs.get("dim")
    return axis


class _SeenTensors(TorchFunctionMode):
    """A context that collects softmaxes, which may be attention weights, and products, which may be head outputs."""

    def __init__(self) -> None:
        super().__init__()
        self._weights, self._products = list[Tensor](), list[Tensor]()

    def take(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the softmaxes and the products that were collected since the last call of `take`."""
        taken, self._weights, self._products = (self._weights, self._products), [], []
        return taken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # the functions called inside do not reach this mode
            weights: Any = func(*args, **kwargs | {"need_weights": True, "average_attn_weights": False})[1]
            self._weights.append(weights)
        elif func is F.scaled_dot_product_attention:
            self._weights.append(computed_weights(*args, **kwargs))
            self._products.append(result)
        elif func in SOFTMAX and result.dim() >= 3:
            if softmax_axis(args, kwargs) in (-1, result.dim() - 1):  # over keys
                self._weights.append(result)
        elif func in PRODUCTS and self._weights and result.dim() in (3, 4):
            self._products.append(result)
        return result


def computed_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention weights that PyTorch's `scaled_dot_product_attention` computes from these arguments."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    score = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        is_visible = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
        score = score.masked_fill(~is_visible, -torch.inf)
    if attn_mask is not None:
        score = score.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else score + attn_mask
    return score.softmax(dim=-1).nan_to_num(0.0)  # a query that sees no key attends to nothing


def _site_weights(
    name: HeadSite, n_heads: int, n_rows: int, z: Tensor, weights: Sequence[Tensor], products: Sequence[Tensor]
) -> Weights:
    """Return the attention weights of a site among the softmaxes collected before its output projection.

    They are the last softmax that fits `n_heads`, `n_rows` and z. `products` show whether rows or heads come first.
    """
    candidates, heads_first = (_by_row(weights, n_rows, n_heads, is_heads_first, z) for is_heads_first in (False, True))
    if heads_first and not _has_z(products, n_rows, n_heads, False, z):
        if _has_z(products, n_rows, n_heads, True, z):
            candidates = heads_first
        elif any(tensor.dim() == 3 and len(tensor) == n_rows * n_heads for tensor in weights):
            raise InstrumentError(
                f"the attention weights of {name} have examples and heads merged into one axis, in unknown order",
                "give one example at a time",
            )
    if len({tensor.shape for tensor in candidates}) > 1:  # some are of another softmax, such as a mixture of experts
        is_self = name.kind == "self"
        candidates = [tensor for tensor in candidates if (tensor.shape[2] == tensor.shape[3]) == is_self]
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in weights)
    seen = f"; it computed softmaxes of shape {shapes}" if weights else ""
    if not candidates:
        raise InstrumentError(
            f"no softmax with {n_heads} heads was computed before the output projection of {name}, so its attention "
            "weights are not known",
            "the model computes them neither by softmax nor by scaled_dot_product_attention" + seen,
        )
    if len({tensor.shape for tensor in candidates}) > 1:
        raise InstrumentError(
            f"several softmaxes may be the attention weights of {name}" + seen,
            "its attention weights cannot be read: leave this attention block out of the `sites` argument",
        )
    return candidates[-1]


def _by_row(tensors: Sequence[Tensor], n_rows: int, n_heads: int, is_heads_first: bool, z: Tensor) -> list[Tensor]:
    """Return the tensors that fit a given order of axes, as [row, head, query, ...]; leave out all other tensors.

    The order is [head, row, ...] if `is_heads_first`, else [row, head, ...]; the two axes may be merged into one.
    """
    axes = (n_heads, n_rows) if is_heads_first else (n_rows, n_heads)
    n_queries = z.shape[int(len(z) == n_rows)] if z.dim() == 3 else None
    readable = []
    for tensor in tensors:
        if tensor.dim() == 3 and len(tensor) == n_rows * n_heads and not (is_heads_first and 1 in axes):
            tensor = tensor.unflatten(0, axes)  # with one row or one head, both orders are the same
        if tensor.dim() == 4 and tensor.shape[:2] == axes and tensor.shape[2] == (n_queries or tensor.shape[2]):
            readable.append(tensor.transpose(0, 1) if is_heads_first else tensor)
    return readable


def _has_z(products: Sequence[Tensor], n_rows: int, n_heads: int, is_heads_first: bool, z: Tensor) -> bool:
    """Return whether z equals one of the products, if these have heads in the first axis (or else rows in it)."""
    rounding = 1e-3 * float(z.abs().max())
    for product in reversed(_by_row(products, n_rows, n_heads, is_heads_first, z)):
        joined = product.transpose(1, 2).flatten(start_dim=2).to(z)
        for given in (z, z.transpose(0, 1)) if z.dim() == 3 else ():
            if given.shape == joined.shape and torch.allclose(given, joined, rtol=0, atol=rounding):
                return True
    return False
