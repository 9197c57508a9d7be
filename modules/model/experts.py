"""Feed-forward layers with a router, as in HiDream-I1, with gradients to their inputs.

Outside training mode, the class in diffusers computes the chosen experts without a graph. In training mode,
its router adds a loss of its own, and the denoiser returns another shape. Here both modes are the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn


def routed(layer: Any, x_BLE: torch.Tensor) -> torch.Tensor:
    """The output (B, L, E) of a layer with ``gate``, ``experts`` and ``shared_experts``.

    Each token goes to its router's top experts, and to the shared one:
    y = shared(x) + sum of p_i expert_i(x) over the chosen i, where p is the softmax of the router's scores.
    """
    choice_NK, weight_NK, _ = layer.gate(x_BLE)
    x_NE, weight_R = x_BLE.flatten(0, 1), weight_NK.flatten()
    out_NE = torch.zeros_like(x_NE)
    for expert, rows_R in zip(layer.experts, _by_expert(choice_NK, len(layer.experts)), strict=True):
        token_R = rows_R // choice_NK.shape[1]
        out_RE = expert(x_NE[token_R]) * weight_R[rows_R][:, None]
        out_NE = out_NE.index_add(0, token_R, out_RE.to(x_NE.dtype))
    shared_BLE: torch.Tensor = layer.shared_experts(x_BLE)
    return out_NE.view_as(x_BLE) + shared_BLE


def _by_expert(choice_NK: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """For each expert, the positions of its number among the choices of all tokens."""
    choice_R = choice_NK.flatten()
    if choice_R.is_meta:
        # meta tensors have no values, so all experts get equal parts
        sizes = [len(part) for part in choice_R.tensor_split(count)]
    else:
        sizes = torch.bincount(choice_R, minlength=count).tolist()
    rows: tuple[torch.Tensor, ...] = choice_R.argsort(stable=True).split(sizes)
    return rows


@cache
def _routed_class() -> type[nn.Module]:
    """A class with the library's name, whose import takes seconds, and the forward method defined here."""
    from diffusers.models.transformers.transformer_hidream_image import MOEFeedForwardSwiGLU

    class RoutedExperts(MOEFeedForwardSwiGLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return routed(self, x)

    return RoutedExperts


def let_gradients_through(denoiser: nn.Module) -> None:
    """Replace the forward method of a denoiser's layers with a router, and disable the router's own loss."""
    ours = _routed_class()
    (theirs,) = ours.__bases__
    for layer in denoiser.modules():
        if type(layer) is theirs:
            router: Any = layer.gate
            router._force_inference_output = True
            layer.__class__ = ours
