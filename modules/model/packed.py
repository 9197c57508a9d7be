"""Frozen linear layers in 4 and 8 bit integers, with bitsandbytes' kernels; needs that package.

Its own layers keep what they rounded where only their own ``to`` finds it, not that of the module they are in, and
follow neither autocast nor a first pass on the CPU.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import bitsandbytes
import torch
from bitsandbytes.nn import Int8Params, Linear4bit, Linear8bitLt, Params4bit
from torch import nn

_library_log = logging.getLogger("bitsandbytes.autograd._functions")


def _told_in_every_pass(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("MatMul8bitLt: inputs will be cast")


_library_log.addFilter(_told_in_every_pass)


def autocast_input(x: torch.Tensor) -> torch.Tensor:
    """What ``nn.Linear`` would compute with: under autocast the input in its type."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class EightBitLinear(Linear8bitLt):  # type: ignore[misc]
    """LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339) of a frozen layer.

    Rounded when it is first moved or used; from then on ``state`` holds the weight and its scales, on the
    weight's device.
    """

    def __init__(self, layer: nn.Linear, weight: torch.Tensor) -> None:
        sizes = (layer.in_features, layer.out_features, layer.bias is not None)
        super().__init__(*sizes, has_fp16_weights=False, device="meta")
        self.weight = Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.state.CB is None:
            self._apply(lambda tensor: tensor.to(device=tensor.device))
        x = autocast_input(x)
        self.state.is_training = self.training
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return bitsandbytes.matmul(x, self.weight, bias=bias, state=self.state)  # type: ignore[no-any-return]

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.weight.CB is not None and self.state.CB is None:
            self.init_8bit_state()
        if self.state.CB is not None:
            # moved or not, one tensor
            self.state.CB = self.weight.data
            self.state.SCB = self.state.SCB.to(self.weight.device)
        return self


class FourBitLinear(Linear4bit):  # type: ignore[misc]
    """QLoRA's NF4 (Dettmers et al. 2023, arXiv 2305.14314) of a frozen layer, rounded when first moved or used."""

    def __init__(self, layer: nn.Linear, weight: torch.Tensor, compute: torch.dtype) -> None:
        sizes = (layer.in_features, layer.out_features, layer.bias is not None)
        super().__init__(*sizes, compute_dtype=compute, quant_type="nf4", device="meta")
        self.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", module=self)
        self.bias = layer.bias
        # would pack the weight anew for the CPU in a way that the module's ``to`` does not undo
        self.support_avx512bf16_for_cpu = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.weight.bnb_quantized:
            self._apply(lambda tensor: tensor.to(device=tensor.device))
        x = autocast_input(x)
        wanted = self.compute_dtype or x.dtype
        bias = None if self.bias is None else self.bias.to(wanted)
        out = bitsandbytes.matmul_4bit(
            x.to(wanted), self.weight, bias=bias, quant_state=self.weight.quant_state
        )
        return out.to(x.dtype)  # type: ignore[no-any-return]
