"""Frozen linear layers in 4- and 8-bit integers, with the kernels of bitsandbytes, which is required.

bitsandbytes' own layers hide their rounded weights from the enclosing module, so that these stay on the
device when the module is moved. They also ignore autocast, and do not support a first pass without a move.
These layers are therefore our own.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import torch
from bitsandbytes.autograd._functions import MatmulLtState, matmul, matmul_4bit
from bitsandbytes.functional import QuantState, int8_vectorwise_quant, quantize_4bit
from torch import nn

from modules.model.dtypes import INT_8, NFLOAT_4

_library_log = logging.getLogger("bitsandbytes.autograd._functions")
_BLOCK, _SECOND_BLOCK = 64, 256
"""Weights that share a 4-bit scale, and scales that share a second scale."""


def _worth_telling(record: logging.LogRecord) -> bool:
    # it is reported for every layer in every pass, and is how the method works
    return not record.getMessage().startswith("MatMul8bitLt: inputs will be cast")


_library_log.addFilter(_worth_telling)


class PackedLinear(nn.Linear):
    """A frozen layer whose weight is rounded when it is first moved, or used in place. Everything it keeps is
    a parameter or a buffer.
    """

    kept_as = ""

    def __init__(self, layer: nn.Linear, weight_OI: torch.Tensor) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        self.bias = layer.bias
        self.rounded = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.rounded:
            self._round_on(self.weight.device)
        device = input.device.type
        if torch.is_autocast_enabled(device):
            # as nn.Linear does, because the surrounding layers pass float32 and expect it back
            input = input.to(torch.get_autocast_dtype(device))
        return self.multiplied(input)

    def multiplied(self, input: torch.Tensor) -> torch.Tensor:
        """The product with the rounded weight, in the input's type."""
        raise NotImplementedError

    def rounded_on(self, device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The weight rounded on a device, with its scales."""
        raise NotImplementedError

    @torch.no_grad()
    def _round_on(self, device: torch.device) -> None:
        packed, scales = self.rounded_on(device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        for name, tensor in scales.items():
            self.register_buffer(name, tensor)
        self.rounded = True

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # a change of device moves everything; a change of type keeps the precision of the scales
        moved = fn(torch.empty(0)).device
        if not self.rounded and moved.type != "meta":
            self._round_on(moved)
        if self.weight.device != moved:
            self.weight = nn.Parameter(self.weight.data.to(moved), requires_grad=False)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(moved))
        if self.bias is not None:
            self.bias = nn.Parameter(fn(self.bias.data), requires_grad=False)
        return self


class EightBitLinear(PackedLinear):
    """LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339): one scale for each output, inputs rounded in every pass."""

    kept_as = INT_8
    scale_O: torch.Tensor

    def rounded_on(self, device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        packed_OI, scale_O, _ = int8_vectorwise_quant(self.weight.data.to(device, torch.float16).contiguous())
        return packed_OI, {"scale_O": scale_O}

    def multiplied(self, input: torch.Tensor) -> torch.Tensor:
        state = MatmulLtState(CB=self.weight.data, SCB=self.scale_O)
        state.has_fp16_weights, state.is_training = False, self.training
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return matmul(input, self.weight, bias=bias, state=state)  # type: ignore[no-any-return]


class FourBitLinear(PackedLinear):
    """QLoRA's NF4 (Dettmers et al. 2023, arXiv 2305.14314): a scale for each block of weights, itself in 8 bits.

    Args:
        compute: type to multiply in.
    """

    kept_as = NFLOAT_4
    scale: torch.Tensor
    scale_mean: torch.Tensor
    scale_table: torch.Tensor
    second_scale: torch.Tensor
    table: torch.Tensor

    def __init__(self, layer: nn.Linear, weight_OI: torch.Tensor, compute: torch.dtype) -> None:
        super().__init__(layer, weight_OI)
        self.compute = compute

    def rounded_on(self, device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        packed, state = quantize_4bit(
            self.weight.data.to(device).contiguous(),
            blocksize=_BLOCK,
            compress_statistics=True,
            quant_type="nf4",
        )
        return packed, {
            "scale": state.absmax,
            "scale_mean": state.offset,
            "scale_table": state.state2.code,
            "second_scale": state.state2.absmax,
            "table": state.code,
        }

    def state(self) -> Any:
        """The quantisation state for the kernels."""
        second = QuantState(
            self.second_scale, code=self.scale_table, blocksize=_SECOND_BLOCK, dtype=torch.float32
        )
        return QuantState(
            self.scale,
            shape=torch.Size((self.out_features, self.in_features)),
            code=self.table,
            blocksize=_BLOCK,
            quant_type="nf4",
            dtype=self.compute,
            offset=self.scale_mean,
            state2=second,
        )

    def multiplied(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.compute)
        out = matmul_4bit(input.to(self.compute), self.weight, bias=bias, quant_state=self.state())
        return out.to(input.dtype)  # type: ignore[no-any-return]
