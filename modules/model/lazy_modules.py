"""Modules without values, whose weights stay in files."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from modules.model.Model import base_tensors
from modules.util.tensors.lazy_tensors import LazyTensor, lazily

_ATTRIBUTE = "_lazy_tensors"


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
