"""LoKr layers with the factors of a file, because programs factorise outputs and inputs in different ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from modules.util.errors import DataError

_FACTORS = ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")


def take_factors(name: str, layer: Any, tensors: Mapping[str, torch.Tensor], adapter: str) -> None:
    """Give peft's LoKr layer for ``adapter`` parameters of the shapes of a file's tensors.

    Raises:
        DataError: the product of the shapes is not that of the layer's weight.
    """
    weight = layer.get_base_layer().weight
    first, second = _product(tensors, 1), _product(tensors, 2)
    kernel = tuple(second[2:])
    fits = (
        len(first) == 2
        and len(second) in (2, 4)
        and first[0] * second[0] == weight.shape[0]
        and torch.Size(first).numel() * torch.Size(second).numel() == weight.numel()
        and kernel in ((), (1, 1), tuple(weight.shape[2:]))
    )
    if not fits:
        raise DataError(
            f"the factors of {name}, {first} and {second}, do not make its weight {tuple(weight.shape)}",
            field="lora_model_name",
            hint="the adapter was made for a model of another size",
        )
    for factor in _FACTORS:
        held = getattr(layer, factor)
        if adapter in held:
            del held[adapter]
        if factor in tensors:
            held[adapter] = nn.Parameter(torch.empty(tensors[factor].shape, device=weight.device))


def _product(tensors: Mapping[str, torch.Tensor], index: int) -> tuple[int, ...]:
    """The shape of one of the two factors; empty if its own factors do not match."""
    whole = tensors.get(f"lokr_w{index}")
    if whole is not None:
        return tuple(whole.shape)
    left, right = tensors[f"lokr_w{index}_a"], tensors[f"lokr_w{index}_b"]
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return ()
    return left.shape[0], right.shape[1]
