"""Attention weights, read off any model: whatever it computes them with.

Attention weights are a softmax over keys, and every way to compute them comes by `softmax` or by PyTorch's
`scaled_dot_product_attention`, which is shown here what it was given and computes them again. The weights of a site are
the last ones of its number of heads before its output projection is called; whether rows or heads come first in them is
told by the product that became z. They are handed over site by site, so that no more than one site's are in memory.

(Hugging Face models return weights only if they were loaded with attn_implementation="eager".)
"""

import math
from collections.abc import Callable, Sequence
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
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum)


def read_attention(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], show: Callable[[HeadSite, Weights], None]
) -> Any:
    """Make one pass and `show` every site's attention weights as they come; returns the model's output."""
    seen = _Seen()
    turns, shown = SharedSiteCounter(sites), set[HeadSite]()

    def reached(module: nn.Module, args: Any) -> None:
        name = turns.next(module)
        if name in shown:
            raise InstrumentError(f"the output projection of {name} was called twice in one pass")
        shown.add(name)
        z, n_heads = input_of(name, args), len(sites[name].heads)
        if sites[name].head_axis is not None:
            z = join_heads(split_heads(name, z, n_heads, sites[name].head_axis))  # side by side
        show(name, _of_site(name, n_heads, len(inputs[0]), z, *seen.take()))

    with ExitStack() as hooks, torch.no_grad(), eval_mode(model), unfused(sites), seen:
        for projection in sites.projections:
            hooks.callback(projection.register_forward_pre_hook(reached).remove)
        output = model(*inputs)
    if missed := [str(site) for site in sites if site not in shown]:
        raise InstrumentError(f"the output projection of {', '.join(missed)} was never called")
    return output


def attention_of(model: nn.Module, sites: Sites, *inputs: Tensor) -> dict[HeadSite, Weights]:
    """Every site's attention weights [row, head, query, key] at once: for short inputs."""
    found: dict[HeadSite, Weights] = {}
    read_attention(model, sites, inputs, found.__setitem__)
    return found


class _Seen(TorchFunctionMode):
    """Keeps what may be attention weights, and products that may be z, until somebody takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._weights, self._products = list[Tensor](), list[Tensor]()

    def take(self) -> tuple[list[Tensor], list[Tensor]]:
        """Everything since the last time."""
        taken, self._weights, self._products = (self._weights, self._products), [], []
        return taken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # PyTorch's own attention: what is inside is not shown here
            weights: Any = func(*args, **kwargs | {"need_weights": True, "average_attn_weights": False})[1]
            self._weights.append(weights)
        elif func is F.scaled_dot_product_attention:
            self._weights.append(computed_weights(*args, **kwargs))
            self._products.append(result)
        elif func in SOFTMAX and result.dim() >= 3:
            dim = args[1] if len(args) > 1 and args[1] is not None else kwargs.get("dim")
            if dim in (-1, result.dim() - 1):  # over keys
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
    """The weights inside PyTorch's `scaled_dot_product_attention`, by its documentation."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    score = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
        score = score.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        score = score.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else score + attn_mask
    return score.softmax(dim=-1).nan_to_num(0.0)  # a query that may see nothing attends to nothing


def _of_site(
    name: HeadSite, n_heads: int, n_rows: int, z: Tensor, weights: Sequence[Tensor], products: Sequence[Tensor]
) -> Weights:
    """The last weights that may be those of a site."""
    fit, turned = (_read(weights, n_rows, n_heads, is_turned, z) for is_turned in (False, True))
    if turned and not _is_z(products, n_rows, n_heads, False, z):
        if _is_z(products, n_rows, n_heads, True, z):
            fit = turned
        elif any(each.dim() == 3 and len(each) == n_rows * n_heads for each in weights):
            raise InstrumentError(
                f"the weights before the output projection of {name} have rows and heads in one axis, in unknown order",
                "give one row at a time",
            )
    if len({each.shape for each in fit}) > 1:  # another softmax: a mixture's, or of a block that is not among the sites
        fit = [each for each in fit if (each.shape[2] == each.shape[3]) == (name.kind == "self")]
    shown = "; it showed tensors of " + ", ".join(str(tuple(each.shape)) for each in weights) if weights else ""
    if not fit:
        raise InstrumentError(
            f"no attention weights of {n_heads} heads were seen before the output projection of {name}",
            "the model computes them neither by softmax nor by scaled_dot_product_attention" + shown,
        )
    if len({each.shape for each in fit}) > 1:
        raise InstrumentError(f"which of several are the attention weights of {name} cannot be told" + shown)
    return fit[-1]


def _read(tensors: Sequence[Tensor], n_rows: int, n_heads: int, is_turned: bool, z: Tensor) -> list[Tensor]:
    """Those that can be read as [row, head, query, ...]; if they are turned, heads come before rows."""
    axes = (n_heads, n_rows) if is_turned else (n_rows, n_heads)
    n_queries = z.shape[int(len(z) == n_rows)] if z.dim() == 3 else None
    found = []
    for tensor in tensors:
        if tensor.dim() == 3 and len(tensor) == n_rows * n_heads and not (is_turned and 1 in axes):
            tensor = tensor.unflatten(0, axes)  # if either is 1, there is but one way
        if tensor.dim() == 4 and tensor.shape[:2] == axes and tensor.shape[2] == (n_queries or tensor.shape[2]):
            found.append(tensor.transpose(0, 1) if is_turned else tensor)
    return found


def _is_z(products: Sequence[Tensor], n_rows: int, n_heads: int, is_turned: bool, z: Tensor) -> bool:
    """Whether one of these products, so read, is what the projection was given."""
    rounding = 1e-3 * float(z.abs().max())
    for product in reversed(_read(products, n_rows, n_heads, is_turned, z)):
        side_by_side = product.transpose(1, 2).flatten(start_dim=2).to(z)
        for given in (z, z.transpose(0, 1)) if z.dim() == 3 else ():
            if given.shape == side_by_side.shape and torch.allclose(given, side_by_side, rtol=0, atol=rounding):
                return True
    return False
