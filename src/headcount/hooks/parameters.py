"""Output projections that are parameters: `self.W_O`, multiplied with z by einsum, matmul or F.linear.

No module is called there, so no hook could act. Inside `products_called`, the product of z with the parameter (or with
a view of it) is computed by the call of a module, `ParameterProjection`, which stands for the parameter in a `Site`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from headcount.errors import InstrumentError

FIRST_OPERAND = {torch.addmm: 1, Tensor.addmm: 1, torch.baddbmm: 1, Tensor.baddbmm: 1}
"""Products that add to their first argument."""
PRODUCTS = {F.linear, torch.einsum, torch.tensordot, torch.matmul, torch.mm, torch.bmm, *FIRST_OPERAND}
PRODUCTS |= {Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}


class ParameterProjection(nn.Module):
    """The product of z with a parameter, as a module that hooks act on."""

    def __init__(self, holder: nn.Module, name: str) -> None:
        super().__init__()
        self.__dict__["holder"] = holder  # not a part of this module
        self.name, self.is_called = name, False
        """Whether products with the parameter call this module."""
        self._product: Callable[[Tensor], Tensor] | None = None

    @property
    def weight(self) -> Tensor:
        """The parameter."""
        weight: Tensor = getattr(self.holder, self.name)
        return weight

    def forward(self, z: Tensor) -> Tensor:
        """Return the product of z with the parameter, as the model computed it last."""
        if self._product is None:
            raise InstrumentError(f"the parameter {self.name} was never multiplied with z")
        return self._product(z)

    def multiply(self, func: Callable[..., Tensor], args: Any, kwargs: Any, z: Tensor) -> Tensor:
        """Call this module with z, so that it computes this product."""
        leaves, form = pytree.tree_flatten((args, kwargs))
        place = next(i for i, leaf in enumerate(leaves) if leaf is z)
        leaves[place] = None

        def product(z: Tensor) -> Tensor:
            args, kwargs = pytree.tree_unflatten([*leaves[:place], z, *leaves[place + 1 :]], form)
            return func(*args, **kwargs)

        self._product = product
        projected: Tensor = self(z)
        return projected


@contextmanager
def products_called(projections: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, products with the parameters among these projections are calls of modules; contexts may nest."""
    closed = [each for each in projections if isinstance(each, ParameterProjection) and not each.is_called]
    if not closed:
        yield
        return
    try:
        for each in closed:
            each.is_called = True
        with _ProductCalls(closed):
            yield
    finally:
        for each in closed:
            each.is_called = False


class _ProductCalls(TorchFunctionMode):
    """Follows parameters through views and casts to the products that use them."""

    def __init__(self, projections: Iterable[ParameterProjection]) -> None:
        super().__init__()
        self._owners = WeakTensorKeyDictionary()
        for each in projections:
            self._owners[each.weight] = each

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        owners = {owner for each in tensors if (owner := self._owners.get(each)) is not None}
        if len(owners) != 1:
            return func(*args, **kwargs)
        (owner,) = owners
        if func in PRODUCTS:
            others = [each for each in tensors[FIRST_OPERAND.get(func, 0) :] if each not in self._owners]
            others = others[:1] if func is F.linear else others  # not its bias
            if len(others) != 1:
                raise InstrumentError(
                    f"the parameter {owner.name} is multiplied with {len(others)} tensors at once, so there is no z",
                    "compute the heads' outputs first, and multiply them with the parameter in a step of its own",
                )
            return owner.multiply(func, args, kwargs, others[0])
        result = func(*args, **kwargs)
        if all(each in self._owners or isinstance(each, nn.Parameter) for each in tensors):
            for each in pytree.tree_leaves(result):
                if isinstance(each, Tensor):
                    self._owners[each] = owner
        return result
