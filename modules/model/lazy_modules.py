"""Modules without values, whose weights stay in files."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from modules.model.Model import base_tensors
from modules.util.tensors.lazy_tensors import LazyTensor, lazily

_ATTRIBUTE = "_stored_tensors"


def keep_stored(module: nn.Module, tensors: Mapping[str, LazyTensor]) -> nn.Module:
    """A module on the ``meta`` device, with the places of its tensors by name."""
    object.__setattr__(module, _ATTRIBUTE, dict(tensors))
    return module.eval().requires_grad_(False)


def change_stored(module: nn.Module, name: str, tensor: LazyTensor) -> None:
    """Put another tensor in the place of one of them."""
    vars(module)[_ATTRIBUTE][name] = tensor


def stored_tensors(module: nn.Module) -> dict[str, LazyTensor]:
    """The base weights of a module by name: those in files, or those it has."""
    places = vars(module).get(_ATTRIBUTE)
    if places is None:
        return {name: lazily(tensor) for name, tensor in base_tensors(module)}
    return dict(sorted(places.items()))
