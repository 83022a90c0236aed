"""Save and restore a model's weights, buffers, modules, modes, hooks and settings.

state = ModelState(model)
...                            # any code that changes the model
state.differences()            # ["weights of h.1.attn.c_proj", "hooks at h.1"]
state.restore()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CONTAINERS = (dict, set, list)
"""Attributes of these types are restored in place, because the handles of hooks refer to the same objects."""


@dataclass(frozen=True)
class _KeptTensor:
    tensor: Tensor
    data: Tensor
    """The original storage of a tensor, into which the saved values are copied back."""
    values: Tensor
    requires_grad: bool
    grad: Tensor | None

    @classmethod
    def of(cls, tensor: Tensor) -> _KeptTensor:
        return cls(tensor, tensor.data, tensor.data.clone(), tensor.requires_grad, tensor.grad)

    @property
    def is_changed(self) -> bool:
        now = self.tensor.data
        is_alike = (now.shape, now.dtype, now.device) == (self.values.shape, self.values.dtype, self.values.device)
        return not is_alike or not torch.equal(now, self.values)

    def restore(self) -> None:
        if self.is_changed:
            self.tensor.data = self.data
            self.data.copy_(self.values)
        if self.tensor.is_leaf and self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        if self.tensor.grad is not self.grad:
            self.tensor.grad = self.grad


class _KeptModule:
    """The saved attributes of one module, with copies of its dictionaries, sets and lists."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.kind, self.attributes = module, type(module), dict(module.__dict__)
        self.contents: dict[str, Any] = {}
        for kind in CONTAINERS:
            held = {name: each for name, each in self.attributes.items() if isinstance(each, kind)}
            self.contents |= {name: kind(each) for name, each in held.items()}
        self.hooks = _hooks_of(module)

    @property
    def has_more_hooks(self) -> bool:
        """Whether the module has new hooks or another forward() since it was saved."""
        is_patched = self.module.__dict__.get("forward") is not self.attributes.get("forward")
        return bool(_hooks_of(self.module) - self.hooks) or is_patched

    @property
    def has_other_modules(self) -> bool:
        now, before = self.module._modules, self.contents.get("_modules", {})
        return list(now) != list(before) or any(now[name] is not each for name, each in before.items())

    def restore(self) -> None:
        if type(self.module) is not self.kind:  # torch.nn.utils.parametrize changes the class
            self.module.__class__ = self.kind
        for name in self.module.__dict__.keys() - self.attributes.keys():
            del self.module.__dict__[name]
        self.module.__dict__.update(self.attributes)
        for name, kept in self.contents.items():
            now: Any = self.attributes[name]
            if "_hooks" in name:  # removed hooks are not restored: they belong to the intervention
                for number in set(now) - set(kept):
                    del now[number]
            elif isinstance(now, list):
                now[:] = kept
            else:
                now.clear()
                now.update(kept)


def _hooks_of(module: nn.Module) -> frozenset[int]:
    return frozenset((*module._forward_hooks, *module._forward_pre_hooks))


class ModelState:
    """The saved state of a model, to compare the model with or to restore it to."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = {path: _KeptModule(module) for path, module in model.named_modules()}
        self._tensors = {path: _KeptTensor.of(tensor) for path, tensor in _tensors_of(model)}
        configs = {id(config): config for each in model.modules() if (config := _config_of(each)) is not None}
        self._configs = [(config, dict(vars(config))) for config in configs.values()]
        kinds = {type(module) for module in model.modules()}
        self._forwards = [(kind, vars(kind)["forward"]) for kind in kinds if "forward" in vars(kind)]

    def hooked(self) -> tuple[str, ...]:
        """Return the paths of modules that are new, have new hooks or another forward() since the state was saved."""
        return tuple(path for path, module in self._model.named_modules() if self._is_hooked(path, module))

    def unhooked(self) -> tuple[str, ...]:
        """Return the paths of modules that have lost hooks since the state was saved."""
        return tuple(path for path, each in self._modules.items() if each.hooks - _hooks_of(each.module))

    def differences(self) -> list[str]:
        """Return one short text per difference between the model and its saved state, such as `hooks at h.1`."""
        kept, now = self._modules, dict(self._model.named_modules())
        hooks = [f"hooks at {path or 'the model itself'}" for path, each in kept.items() if each.has_more_hooks]
        modules = [f"other submodules in {path or 'the model itself'}" for path in kept if kept[path].has_other_modules]
        weights = [f"other values of {path}" for path, each in self._tensors.items() if each.is_changed]
        modes = [path for path in kept if path in now and now[path].training != kept[path].attributes["training"]]
        mode = [f"training mode {'on' if now[modes[0]].training else 'off'}"] if modes else []
        patched = [
            f"another {kind.__name__}.forward" for kind, own in self._forwards if vars(kind).get("forward") is not own
        ]
        return [*hooks, *modules, *weights, *patched, *mode]

    def restore(self) -> None:
        """Restore the model to the saved state; hooks that were removed are not added again."""
        for kind, forward in self._forwards:
            if vars(kind).get("forward") is not forward:
                kind.forward = forward
        for module in self._modules.values():
            module.restore()
        with torch.no_grad():
            for tensor in self._tensors.values():
                tensor.restore()
        for config, settings in self._configs:
            vars(config).clear()
            vars(config).update(settings)

    def _is_hooked(self, path: str, module: nn.Module) -> bool:
        before = self._modules.get(path)
        return before is None or before.module is not module or before.has_more_hooks


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the paths and values of parameters, buffers, and tensors that are plain attributes of modules."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for path, module in model.named_modules():
        for name, each in vars(module).items():
            if isinstance(each, Tensor):
                yield f"{path}.{name}".lstrip("."), each


def _config_of(module: nn.Module) -> Any:
    """Return a Hugging Face model's configuration, which selects how attention is computed."""
    config = vars(module).get("config")
    return config if hasattr(config, "__dict__") and not isinstance(config, type) else None
