"""Counts the bytes of live tensors as an allocator would, on meta tensors too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in the arguments or results of an operation. Called so often that PyTorch's own traversal
    is too slow.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


class LiveBytes(TorchDispatchMode):
    """A context that counts the live storages created inside it: current and peak.

    All results of operations are counted, in the backward pass too: activations, gradients, and temporaries
    between operations. Memory used only inside an operation is not.

    Args:
        ignore: existing tensors that must not be counted.
    """

    def __init__(self, ignore: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        # keeping references to ignored storages prevents their addresses from being reused
        self._ignored = [tensor.untyped_storage() for tensor in ignore]
        self._known = {storage._cdata for storage in self._ignored}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self._see(tensor, before)
        return out

    def _see(self, tensor: torch.Tensor, before: set[int]) -> None:
        storage = tensor.untyped_storage()
        number, size = storage._cdata, storage.nbytes()
        if number in self._known or number in before:
            return
        self._known.add(number)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._gone, number, size).atexit = False

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.current -= size
