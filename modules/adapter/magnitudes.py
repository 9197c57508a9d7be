"""DoRA with a magnitude for each input of a layer, as OneTrainer has it. peft has those of outputs only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class InputMagnitudes(nn.Module):
    """The magnitudes m of the columns of a weight W with a low-rank change s B A.

    The layer computes with (W + s B A) m / n, where n are the norms of the columns of W + s B A. Gradients
    take n for a constant (Liu et al. 2024, arXiv 2402.09353, section 4.3). A column belongs to one input, so
    the inputs are scaled instead of the weight.

    Args:
        weight: W, (out, in) of a linear layer or (out, in, height, width) of a convolution.

    Attributes:
        weight: m, (1, in) or (1, in, 1, 1).
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(self.get_weight_norm(weight, torch.zeros_like(weight)))

    @torch.no_grad()
    def get_weight_norm(
        self, weight: torch.Tensor, lora_weight: torch.Tensor, scaling: float = 1.0
    ) -> torch.Tensor:
        """The norms of the columns of ``weight + scaling * lora_weight``, in the shape of m."""
        whole = weight + scaling * lora_weight
        norm: torch.Tensor = torch.linalg.vector_norm(whole, dim=(0, *range(2, whole.dim())), keepdim=True)
        return norm

    def forward(self, x: torch.Tensor, layer: Any, adapter: str) -> torch.Tensor:
        """Return what is added to the base's output.

        Args:
            x: input of the layer, after dropout: (..., in), or (B, in, height, width) for a convolution.
            layer: peft's layer, which has the base, the factors A and B, and s.
            adapter: name of the adapter in it.
        """
        base, scaling = layer.get_base_layer(), layer.scaling[adapter]
        down, up = layer.lora_A[adapter], layer.lora_B[adapter]
        with torch.no_grad():
            wide = torch.promote_types(
                torch.promote_types(base.weight.dtype, down.weight.dtype), torch.float32
            )
            change = up.weight.to(wide).flatten(1) @ down.weight.to(wide).flatten(1)
            norm = self.get_weight_norm(base.weight.to(wide), change.view(base.weight.shape), scaling)
            # rounded as m is, because a fresh adapter has to divide equal numbers, and not to 0
            norm = norm.to(self.weight.dtype).clamp_min(torch.finfo(self.weight.dtype).tiny)
        convolution = isinstance(base, nn.Conv2d)
        factor = self.weight / norm if convolution else (self.weight / norm).flatten()
        # the base's output is already there, and lacks only what the scaled inputs add to it
        more = (x * (factor - 1)).to(base.weight.dtype)
        apply = base._conv_forward if convolution else nn.functional.linear
        added: torch.Tensor = apply(more, base.weight, None) + up(down(x * factor)) * scaling
        return added


class _Variant:
    """The operations that peft's layers leave to a variant, for magnitudes of inputs."""

    @staticmethod
    def forward(
        module: Any, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        x = module.lora_dropout[active_adapter](x)
        added: torch.Tensor = module.lora_magnitude_vector[active_adapter](x, module, active_adapter)
        return result + added

    @staticmethod
    def merge_safe(module: Any, active_adapter: str, orig_weight: torch.Tensor) -> torch.Tensor:
        magnitudes, change = (
            module.lora_magnitude_vector[active_adapter],
            module.get_delta_weight(active_adapter),
        )
        factor = magnitudes.weight / magnitudes.get_weight_norm(orig_weight, change)
        merged: torch.Tensor = (factor * (orig_weight + change)).to(orig_weight.dtype)
        return merged


class _Weakened:
    """The operations of a variant, with all it changes in a layer's output times a strength.

    The scaling of the low-rank change alone would leave the magnitudes at full strength. Other programs scale the
    change of the whole weight, and so does merging.
    """

    def __init__(self, whole: Any, strength: float) -> None:
        self.whole, self.strength = whole, strength

    def forward(self, module: Any, *, result: torch.Tensor, **given: Any) -> torch.Tensor:
        changed: torch.Tensor = self.whole.forward(module, result=result, **given)
        return result + self.strength * (changed - result)


def weaken(layer: Any, adapter: str, strength: float) -> None:
    """Multiply what one of peft's DoRA layers changes. A later strength replaces this one."""
    variant = layer.lora_variant[adapter]
    whole = variant.whole if isinstance(variant, _Weakened) else variant
    layer.lora_variant[adapter] = whole if strength == 1.0 else _Weakened(whole, strength)


def measure_inputs(layer: Any, adapter: str) -> None:
    """Replace the magnitudes of outputs in one of peft's DoRA layers by those of inputs."""
    layer.lora_magnitude_vector[adapter] = InputMagnitudes(layer.get_base_layer().weight)
    layer.lora_variant[adapter] = _Variant()


def of_inputs(magnitudes: torch.Tensor) -> bool:
    """Return whether magnitudes in a file are those of inputs: (1, in, ...) instead of (out, 1, ...) or (out,).
    """
    return magnitudes.dim() > 1 and magnitudes.shape[0] == 1 and magnitudes.numel() > 1
