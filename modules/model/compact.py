"""Stores frozen weights in less memory: in fewer bits, or in main memory until a layer needs them.

Only linear layers inside lists of blocks are changed, which hold nearly all weights of a transformer or UNet.
The layers outside the blocks are small and sensitive.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from modules.model.dtypes import FLOAT_8, NFLOAT_4, QUANTIZED
from modules.util.errors import UnsupportedError

MAIN_MEMORY = "main memory"
FLOAT_8_LARGEST = 448.0
PINNED_AT_ONCE = 1 << 29
"""Bytes of page-locked memory allocated at once. What is copied there exists twice meanwhile."""
_ALIGNMENT = 256
_log = logging.getLogger(__name__)
_NO_LIBRARY = "install the optional package: pip install -r requirements-gpu.txt"


class FrozenLinear(nn.Linear):
    """A linear layer whose weight is converted to the type and device of its input in every pass.

    The weight may be float8 with a scale for each output, and may be in main memory. Autograd holds the
    converted copy, so that with gradient checkpointing only one block's copies exist at a time.
    """

    scale_O1: torch.Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("scale_O1", None)
        self.stays = False

    @property
    def kept_as(self) -> str:
        """The form in which the weight is stored, if not as a plain one on the layer's device."""
        if self.stays:
            return MAIN_MEMORY
        return FLOAT_8 if self.scale_O1 is not None else ""

    @torch.no_grad()
    def to_float8(self) -> None:
        """Round the weight to float8 (4 exponent and 3 mantissa bits), with one scale per output."""
        weight_OI = self.weight.float()
        scale_O1 = weight_OI.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / FLOAT_8_LARGEST
        rounded_OI = (weight_OI / scale_O1).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(rounded_OI, requires_grad=False)
        self.scale_O1 = scale_O1

    def keep_in_main_memory(self) -> None:
        """Keep the weight in place when the layer is moved."""
        self.stays = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        dtype = self.wanted_dtype(input)
        weight_OI = self.to_device(input.device, dtype)
        if self.scale_O1 is not None:
            weight_OI = weight_OI * self.scale_O1.to(device=input.device, dtype=dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return nn.functional.linear(input, weight_OI, bias)

    def wanted_dtype(self, input: torch.Tensor) -> torch.dtype:
        """The compute type: that of autocast, or of the input."""
        device = input.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype

    def to_device(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The weight on the needed device and in the needed type, without its scales.

        The copy is ordered with the computations of the device; only the CPU does not wait.
        """
        return self.weight.to(device=device, dtype=dtype, non_blocking=True)

    def _apply(self, fn: Any, recurse: bool = True) -> FrozenLinear:
        if not self.stays and self.scale_O1 is None:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            return self
        # a change of device moves everything but what stays; a change of type leaves float8 and its scales
        # alone
        moved = fn(torch.empty(0)).device
        weight_OI = self.weight.data
        if not self.stays:
            weight_OI = weight_OI.to(moved)
        if self.scale_O1 is not None:
            self.scale_O1 = self.scale_O1.to(moved)
        elif self.stays:
            weight_OI = weight_OI.to(fn(weight_OI[:0]).dtype)
        self.weight = nn.Parameter(weight_OI, requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter(fn(self.bias.data), requires_grad=False)
        return self


def block_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """(parent, name, layer) of every linear layer inside a list of blocks, in module order."""
    lists = tuple(name + "." for name, child in module.named_modules() if isinstance(child, nn.ModuleList))
    for path, parent in list(module.named_modules()):
        for name, child in list(parent.named_children()):
            inside = f"{path}.{name}.".startswith(lists) if lists else False
            if inside and isinstance(child, nn.Linear) and not isinstance(parent, nn.ModuleList):
                yield parent, name, child


def roundable_layers(
    module: nn.Module, names: Collection[str] | None = None
) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """The layers in ``block_layers``, or those with the given paths, that support fewer bits.

    Layers that the libraries keep in float32 are unchanged: T5 converts activations to the type of such
    weights (``wo``).
    """
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    paths = {id(child): path for path, child in module.named_modules()}
    for parent, name, layer in block_layers(module) if names is None else _linear_layers(module):
        path = paths[id(layer)]
        if kept.isdisjoint(path.split(".")) and (names is None or path in names):
            yield parent, name, layer


def _linear_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for _, parent in list(module.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                yield parent, name, child


def roundable_names(module: nn.Module) -> list[str]:
    """The paths of all linear layers that support fewer bits, in the module's order.

    Outside of blocks, layers that the libraries do not store in fewer bits either are left out: they convert
    activations to the type of such weights.
    """
    inside = {id(layer) for _, _, layer in roundable_layers(module)}
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    exact = [
        re.compile(pattern) for pattern in getattr(module, "_skip_layerwise_casting_patterns", None) or ()
    ]
    made = []
    for path, layer in module.named_modules():
        sound = kept.isdisjoint(path.split(".")) and not any(one.search(path) for one in exact)
        if isinstance(layer, nn.Linear) and (sound or id(layer) in inside):
            made.append(path)
    return made


@torch.no_grad()
def quantize(module: nn.Module, kind: str, compute: torch.dtype, names: Collection[str] | None = None) -> int:
    """Store weights of a frozen part in fewer bits. Returns the number of changed layers.

    4- and 8-bit integers are rounded when the part is first moved to its device.

    Args:
        kind: FLOAT_8 (one scale for each output), INT_8 (LLM.int8, Dettmers et al. 2022, arXiv 2208.07339) or
            NFLOAT_4 (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).
        compute: type the layers compute in.
        names: paths of the layers; those in blocks by default.

    Raises:
        UnsupportedError: the library for it is not installed.
    """
    if kind not in QUANTIZED:
        raise ValueError(f"{kind!r} is not a quantised type")
    count = 0
    for parent, name, layer in list(roundable_layers(module, names)):
        setattr(parent, name, _quantized(layer, kind, compute))
        count += 1
    # the choice of layers affects the results, and the weights do not reveal it before they are rounded
    told = "" if names is None else f": {hashlib.sha256(chr(0).join(sorted(names)).encode()).hexdigest()}"
    module.stored_as = f"{kind} in {count} layers{told}"  # type: ignore[assignment]
    return count


def _quantized(layer: nn.Linear, kind: str, compute: torch.dtype) -> nn.Module:
    if kind == FLOAT_8:
        rounded = FrozenLinear(layer)
        rounded.to_float8()
        return rounded
    packed = _packed(kind)
    weight = layer.weight.data.to(compute if compute != torch.float32 else layer.weight.dtype)
    if kind == NFLOAT_4:
        return packed.FourBitLinear(layer, weight, compute)  # type: ignore[no-any-return]
    return packed.EightBitLinear(layer, weight)  # type: ignore[no-any-return]


def _packed(kind: str) -> Any:
    """The module of layers that need an optional package."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            f"weights in {kind} need bitsandbytes, which is not installed",
            field="weight_dtype",
            hint=_NO_LIBRARY,
        ) from error
    from modules.model import packed

    return packed


def offload_blocks(module: nn.Module, fraction: float) -> int:
    """Keep the weights of the last ``fraction`` of a frozen part's block layers in main memory, from which
    they are copied to the device in every pass. Returns the number of these layers.

    Raises:
        UnsupportedError: the weights of these layers cannot be kept elsewhere.
    """
    layers = list(block_layers(module))
    count = round(fraction * len(layers))
    staying: list[FrozenLinear] = []
    for parent, name, layer in layers[len(layers) - count :]:
        if not isinstance(layer, FrozenLinear) and type(layer) is not nn.Linear:
            raise UnsupportedError(
                f"{type(layer).__name__} cannot be kept in main memory",
                field="offload_fraction",
                hint="use FLOAT_8, BFLOAT_16 or FLOAT_16 weights with it, or set offload_fraction to 0",
            )
        frozen = layer if isinstance(layer, FrozenLinear) else FrozenLinear(layer)
        frozen.keep_in_main_memory()
        setattr(parent, name, frozen)
        staying.append(frozen)
    if torch.cuda.is_available():
        lock_pages([layer for layer in staying if layer.weight.device.type == "cpu"])
    return count


def pinned(size: int) -> torch.Tensor:
    """Page-locked memory, which a device reads without the CPU. PyTorch rounds its size up to a power of two."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def lock_pages(layers: Sequence[FrozenLinear]) -> None:
    """Move the layers' frozen weights to page-locked memory; see ``lock_parameters``."""
    for layer in layers:
        layer.weight.requires_grad_(False)
    lock_parameters([layer.weight for layer in layers])


def lock_parameters(parameters: Sequence[torch.Tensor]) -> None:
    """Move parameters to page-locked memory, many per piece, because each piece's size is rounded up to a
    power of two. What cannot be locked stays unchanged.
    """
    sizes = [-(-p.nbytes // _ALIGNMENT) * _ALIGNMENT for p in parameters]
    for size, inside in pieces(sizes):
        try:
            memory = pinned(size)
        except RuntimeError as error:
            _log.warning(
                "no page-locked memory for offloaded weights, which makes their copies slower: %s",
                str(error).strip().partition("\n")[0],
            )
            return
        start = 0
        for index in inside:
            weight = parameters[index].data
            there = memory[start : start + weight.nbytes]
            parameters[index].data = there.view(weight.dtype).view(weight.shape).copy_(weight)
            start += sizes[index]


def pieces(sizes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """(size, indices) of pieces of memory, in powers of two, for objects of these sizes."""
    left = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    while left:
        total = sum(sizes[index] for index in left)
        # the largest that can be filled, but at least one that holds the largest object
        size = max(1 << (min(total, PINNED_AT_ONCE).bit_length() - 1), 1 << (sizes[left[0]] - 1).bit_length())
        inside, room = [], size
        for index in left:
            if sizes[index] <= room:
                inside.append(index)
                room -= sizes[index]
        yield size, inside
        taken = set(inside)
        left = [index for index in left if index not in taken]
