"""The inputs of checkpointed blocks, kept in main memory between the forward and the backward pass.

Gradient checkpointing keeps nothing of a block but its inputs, one tensor of states for each block. They are
what is left to move: with them in main memory, the device holds the activations of one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

CHECKPOINT = "_gradient_checkpointing_func"
"""The name in diffusers and transformers of the function that runs a block under checkpointing."""

Checkpoint = Callable[..., Any]


def keep_inputs_in_main_memory(module: nn.Module) -> int:
    """Let the checkpointed blocks of a module keep their inputs in main memory. The numbers stay the same.

    Args:
        module: with gradient checkpointing switched on. Switching it on or off again undoes this.

    Returns:
        The number of submodules concerned; 0 if the module does not checkpoint this way.
    """
    found = [one for one in module.modules() if getattr(one, CHECKPOINT, None) is not None]
    for one in found:
        run = getattr(one, CHECKPOINT)
        if not isinstance(run, _Offloading):
            setattr(one, CHECKPOINT, _Offloading(run))
    return len(found)


class _Offloading:
    """A checkpoint function whose saved inputs leave the device."""

    def __init__(self, run: Checkpoint) -> None:
        self._run = run

    def __call__(self, *args: Any, **options: Any) -> Any:
        # what is saved inside the block is discarded by checkpointing itself, whose hooks are the inner ones
        with saved_tensors_hooks(Kept, Kept.back):
            return self._run(*args, **options)


class Kept:
    """A tensor that a block needs again, between the passes. On CUDA it is copied to page-locked memory and back in the
    order of the stream, so that neither copy is waited for. Of a meta tensor the outline is all there is.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device, self.dtype = tensor.device, tensor.dtype
        self.size, self.stride = tensor.size(), tensor.stride()
        self.copy: torch.Tensor | None = None
        if not tensor.is_meta:
            self.copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self.copy.copy_(tensor, non_blocking=tensor.is_cuda)

    def back(self) -> torch.Tensor:
        """The tensor on its device again, with the strides it had where these are dense."""
        if self.copy is None:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return self.copy.to(self.device, non_blocking=self.device.type == "cuda")
