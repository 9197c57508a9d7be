"""Trained weights that are kept in main memory and copied to the device in every pass.

During a layer's forward pass, its parameters are replaced by copies on the device of its input. Autograd
tracks the copies, so that gradients arrive in main memory next to the weights. With gradient checkpointing,
only one block's copies exist at a time. The optimizer always sees the original parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modules.model.compact import FrozenLinear, lock_parameters

_STAYING = "weights_in_main_memory"


def offload_trained(module: nn.Module, fraction: float) -> int:
    """Keep all parameters of the last ``fraction`` of a part's block layers in main memory, and train them
    there.

    Only layers with a matrix or a kernel are counted; norms and vectors in between stay too.

    Returns:
        Number of parameters that stay.
    """
    owners = list(_in_blocks(module))
    layers = [place for place, owner in enumerate(owners) if any(p.dim() > 1 for p in _own(owner).values())]
    count = round(fraction * len(layers))
    staying = owners[layers[len(layers) - count] :] if count else []
    for owner in staying:
        setattr(owner, _STAYING, tuple(_own(owner)))
        owner.register_forward_pre_hook(_bring, with_kwargs=True)
        owner.register_forward_hook(_take_back, always_call=True)
    parameters = [parameter for owner in staying for parameter in _own(owner).values()]
    if torch.cuda.is_available():
        lock_parameters([parameter for parameter in parameters if parameter.device.type == "cpu"])
    return len(parameters)


def staying_trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that ``offload_trained`` keeps in main memory."""
    return [parameter for owner in module.modules() for parameter in _kept(owner).values()]


def staying(module: nn.Module) -> list[torch.Tensor]:
    """All weights that stay in main memory, trained or not."""
    frozen = [m.weight for m in module.modules() if isinstance(m, FrozenLinear) and m.stays]
    return [*frozen, *staying_trained(module)]


@contextmanager
def left_behind(module: nn.Module) -> Iterator[None]:
    """Inside the block, a part can be moved without the trained weights that stay."""
    kept = [(owner, found) for owner in module.modules() if (found := _kept(owner))]
    try:
        for owner, found in kept:
            owner._parameters.update(dict.fromkeys(found))
        yield
    finally:
        for owner, found in kept:
            owner._parameters.update(found)


def _in_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The modules inside lists of blocks that have parameters of their own, in module order."""
    lists = tuple(name + "." for name, child in module.named_modules() if isinstance(child, nn.ModuleList))
    for path, owner in module.named_modules():
        if lists and f"{path}.".startswith(lists) and _own(owner):
            yield owner


def _own(owner: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in owner._parameters.items() if value is not None}


def _kept(owner: nn.Module) -> dict[str, nn.Parameter]:
    return {name: owner._parameters[name] for name in getattr(owner, _STAYING, ())}  # type: ignore[misc]


def _bring(owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    found = _kept(owner)
    owner.__dict__["_parameters_at_home"] = found
    for name, parameter in found.items():
        if inputs and (parameter.device != inputs[0].device or parameter.is_meta):
            copy = parameter.to(inputs[0].device, non_blocking=True, copy=True)
            owner._parameters[name] = copy  # type: ignore[assignment]


def _take_back(owner: nn.Module, _args: Any, _output: Any) -> None:
    owner._parameters.update(owner.__dict__.pop("_parameters_at_home", {}))
