"""Modules without values, whose weights stay in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._device import DeviceContext

from modules.model.Model import base_tensors
from modules.util.tensors.lazy_tensors import LazyTensor, lazily

_ATTRIBUTE = "_lazy_tensors"
_FILLING = frozenset(
    [
        *(call for name, call in vars(nn.init).items() if name.endswith("_") and not name.startswith("_")),
        *(getattr(torch.Tensor, name) for name in ("fill_", "normal_", "uniform_", "zero_")),
    ]
)
"""Functions that give a tensor its first values."""


class ShapesOnly(DeviceContext):
    """A block in which new tensors have shapes but no memory, as on ``torch.device("meta")``. Giving them values, which
    takes a third of the time of building a module there, is skipped.
    """

    def __init__(self) -> None:
        super().__init__("meta")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FILLING:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta:
                return tensor
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def make_lazy(module: nn.Module, tensors: Mapping[str, LazyTensor]) -> nn.Module:
    """Assign the lazy tensors of a module on the ``meta`` device, by name. The module is frozen and in eval mode."""
    object.__setattr__(module, _ATTRIBUTE, dict(tensors))
    return module.eval().requires_grad_(False)


def replace_tensor(module: nn.Module, name: str, tensor: LazyTensor) -> None:
    """Replace one tensor of a lazy module."""
    vars(module)[_ATTRIBUTE][name] = tensor


def lazy_base_tensors(module: nn.Module) -> dict[str, LazyTensor]:
    """The base weights of a module by name: those still in files, or those it holds."""
    places = vars(module).get(_ATTRIBUTE)
    if places is None:
        return {name: lazily(tensor) for name, tensor in base_tensors(module)}
    return dict(sorted(places.items()))
