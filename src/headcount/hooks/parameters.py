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

Product = Callable[[Tensor], Tensor]
ADDING = {torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm}
"""Products that are added to the first argument."""
PRODUCTS = {F.linear, torch.einsum, torch.tensordot, torch.matmul, torch.mm, torch.bmm, *ADDING}
PRODUCTS |= {Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}


class ParameterProjection(nn.Module):
    """The product of z with a parameter, as a module that hooks act on."""

    def __init__(self, holder: nn.Module, name: str) -> None:
        super().__init__()
        self.__dict__["holder"] = holder  # not a part of this module
        self.name, self.is_called = name, False
        """Whether products with the parameter call this module."""
        self.product: Product | None = None
        """The last product of the model, as a function of z: other tensors in it may be of that very pass."""

    @property
    def weight(self) -> Tensor:
        """The parameter."""
        weight: Tensor = getattr(self.holder, self.name)
        return weight

    def forward(self, z: Tensor) -> Tensor:
        """Return the product of z with the parameter, as the model computed it last."""
        if self.product is None:
            raise InstrumentError(f"the parameter {self.name} was never multiplied with z")
        return self.product(z)

    def multiply(self, func: Callable[..., Tensor], args: Any, kwargs: Any, z: Tensor) -> Tensor:
        """Call this module with z, so that it computes this product."""
        leaves, form = pytree.tree_flatten((args, kwargs))
        place = next(i for i, leaf in enumerate(leaves) if leaf is z)
        leaves[place] = None

        def product(z: Tensor) -> Tensor:
            args, kwargs = pytree.tree_unflatten([*leaves[:place], z, *leaves[place + 1 :]], form)
            return func(*args, **kwargs)

        self.product = product
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
        others = [each for each in tensors if not self._is_weight(each)]
        if func in PRODUCTS and others:
            others = [each for each in _operands(func, args, kwargs) if not self._is_weight(each)]
            if len(others) != 1:
                raise InstrumentError(
                    f"the parameter {owner.name} is multiplied with {len(others)} tensors at once, so there is no z",
                    "compute the heads' outputs first, and multiply them with the parameter in a step of its own",
                )
            return owner.multiply(func, args, kwargs, others[0])
        result = func(*args, **kwargs)
        if not others:
            for each in pytree.tree_leaves(result):
                if isinstance(each, Tensor):
                    self._owners[each] = owner
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor in self._owners or isinstance(tensor, nn.Parameter)


def _operands(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a function multiplies: not what it adds."""
    if func is F.linear:
        return [args[0] if args else kwargs["input"]]
    leaves = pytree.tree_leaves((args[1:] if func in ADDING else args, kwargs))
    return [each for each in leaves if isinstance(each, Tensor)]
