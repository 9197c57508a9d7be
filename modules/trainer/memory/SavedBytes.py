"""Measures the memory that autograd holds for pending backward passes."""

from __future__ import annotations

import weakref
from types import TracebackType

import torch
from torch.autograd.graph import saved_tensors_hooks


class _Held:
    """A saved tensor. Its deletion means that autograd has released it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()


class SavedBytes:
    """A context that counts the bytes saved for backward inside it: current and peak.

    A storage saved several times counts once. Storages of parameters (leaves that require a gradient, and
    those in ``ignore``) do not count, because they exist anyway.

    Args:
        ignore: tensors whose storages are not activations, such as frozen weights.
    """

    def __init__(self, ignore: list[torch.Tensor] | None = None) -> None:
        self.current = 0
        self.peak = 0
        self._uses: dict[int, int] = {}
        # the address of the storage object, because meta tensors have no data
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignore or []}
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor)
        storage = tensor.untyped_storage()
        pointer, size = storage._cdata, storage.nbytes()
        if pointer in self._ignored or (tensor.is_leaf and tensor.requires_grad):
            return held
        if self._uses.get(pointer, 0) == 0:
            self.current += size
            self.peak = max(self.peak, self.current)
        self._uses[pointer] = self._uses.get(pointer, 0) + 1
        weakref.finalize(held, self._release, pointer, size).atexit = False
        return held

    def _unpack(self, held: _Held) -> torch.Tensor:
        return held.tensor

    def _release(self, pointer: int, size: int) -> None:
        self._uses[pointer] -= 1
        if self._uses[pointer] == 0:
            self.current -= size

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
