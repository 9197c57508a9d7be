"""Counts the bytes of live tensors as an allocator would, on meta tensors too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.trainer.memory.ShapeMemo import ShapeMemo


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in the arguments or results of an operation. Called so often that PyTorch's own traversal
    is too slow.
    """
    found: list[torch.Tensor] = []
    _collect((value,), found)
    return found


_NO_TENSORS = frozenset((type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size))
"""Types of most arguments that are not tensors; looked up, because ``isinstance`` is slow with ``torch.Tensor``."""


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    for value in values:
        if type(value) in _NO_TENSORS:
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)


class LiveBytes(TorchDispatchMode):
    """A context that counts the live storages created inside it: current and peak.

    All results of operations are counted, in the backward pass too: activations, gradients, and temporaries
    between operations. Memory used only inside an operation is not.

    Args:
        ignore: existing tensors that must not be counted.
        memo: results of earlier operations; without it, every operation is called.
    """

    def __init__(self, ignore: Iterable[torch.Tensor] = (), memo: ShapeMemo | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memo = memo
        self.current = 0
        self.peak = 0
        # keeping references to ignored storages prevents their addresses from being reused
        self._ignored = [tensor.untyped_storage() for tensor in ignore]
        self._known = {storage._cdata for storage in self._ignored}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._memo is not None:
            with torch._C.DisableTorchFunction():
                key, out = self._memo.recall(func, args, kwargs)
                if out is not None:
                    self._see(out, set())
                    return out
        with torch._C.DisableTorchFunction():
            before = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if self._memo is not None and key is not None:
                self._memo.learn(key, out, before)
            self._see(out, before)
        return out

    def _see(self, out: Any, before: set[int]) -> None:
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            number, size = storage._cdata, storage.nbytes()
            if number in self._known or number in before:
                continue
            self._known.add(number)
            self.current += size
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._gone, number, size).atexit = False

    def _gone(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.current -= size
