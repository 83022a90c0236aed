"""Support output projections that are parameters, such as `self.W_O`, instead of modules.

A model multiplies such a parameter with z (the outputs of all heads) by einsum, matmul or F.linear. The product calls
no module, so hooks cannot act on it. Inside the context `products_called`, the product is computed by calling a module,
`ParameterProjection`, which represents the parameter.
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
"""Functions that compute a matrix product and add it to their first argument."""
PRODUCTS = {F.linear, torch.einsum, torch.tensordot, torch.matmul, torch.mm, torch.bmm, *ADDING}
PRODUCTS |= {Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}


class ParameterProjection(nn.Module):
    """A module that multiplies z (head outputs) with a parameter, so that hooks can act on the product."""

    def __init__(self, holder: nn.Module, name: str) -> None:
        super().__init__()
        self.__dict__["holder"] = holder  # must not become a submodule
        self.name, self.is_called = name, False
        """Whether products with the parameter are computed by calling this module (inside `products_called`)."""
        self.product: Product | None = None
        """The model's last product with the parameter, as a function of head outputs z; None before the first one."""

    @property
    def weight(self) -> Tensor:
        """The parameter that the model uses as its output projection instead of a linear layer."""
        weight: Tensor = getattr(self.holder, self.name)
        return weight

    def forward(self, z: Tensor) -> Tensor:
        """Return the product of head outputs z with the parameter, computed as in the model's last pass."""
        if self.product is None:
            raise InstrumentError(
                f"the parameter {self.name} was given as an output projection, but was never multiplied with the "
                "outputs of heads",
                "check its path: the model must multiply it with head outputs in every forward pass",
            )
        return self.product(z)

    def multiply(self, func: Callable[..., Tensor], args: Any, kwargs: Any, z: Tensor) -> Tensor:
        """Return the product `func(*args, **kwargs)`, computed by calling this module with z, for hooks to act on."""
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
    """Return a context in which each product with a parameter in `projections` is computed by a module call.

    Contexts can be nested.
    """
    parameters = [module for module in projections if isinstance(module, ParameterProjection) and not module.is_called]
    if not parameters:
        yield
        return
    try:
        for projection in parameters:
            projection.is_called = True
        with _ProductCalls(parameters):
            yield
    finally:
        for projection in parameters:
            projection.is_called = False


class _ProductCalls(TorchFunctionMode):
    """A context that notices products with the parameters, or with views or casts of them, and calls their modules."""

    def __init__(self, projections: Iterable[ParameterProjection]) -> None:
        super().__init__()
        self._owners = WeakTensorKeyDictionary()
        for projection in projections:
            self._owners[projection.weight] = projection

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        owners = {owner for tensor in tensors if (owner := self._owners.get(tensor)) is not None}
        if len(owners) != 1:
            return func(*args, **kwargs)
        (owner,) = owners
        others = [tensor for tensor in tensors if not self._is_weight(tensor)]
        if func in PRODUCTS and others:
            others = [tensor for tensor in _operands(func, args, kwargs) if not self._is_weight(tensor)]
            if len(others) != 1:
                raise InstrumentError(
                    f"the parameter {owner.name} was given as an output projection, but is multiplied with "
                    f"{len(others)} tensors at once, so no tensor holds head outputs",
                    "compute the heads' outputs first, and multiply them with the parameter in a step of its own",
                )
            return owner.multiply(func, args, kwargs, others[0])
        result = func(*args, **kwargs)
        if not others:
            for tensor in tensors_in(result):
                self._owners[tensor] = owner
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor in self._owners or isinstance(tensor, nn.Parameter)


def _operands(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a call of `func` multiplies, without those that it adds, such as a bias."""
    if func is F.linear:
        return [args[0] if args else kwargs["input"]]
    return tensors_in((args[1:] if func in ADDING else args, kwargs))


def tensors_in(tree: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
