"""How many bytes of tensors are alive, counted as an allocator would: for steps on tensors without contents too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in the arguments or results of an operation; asked so often that PyTorch's own walk is too slow."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


class LiveBytes(TorchDispatchMode):
    """Context that counts the storages made inside it that are still alive, now and at most.

    Everything an operation returns is seen, in the backward pass as well: activations, gradients, and what is only
    alive between two operations. What an operation needs for itself alone is not.

    Args:
        ignore: tensors that exist already and are not to be counted when they show up.
    """

    def __init__(self, ignore: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        # keeping the storages of what is ignored keeps their numbers from being given to others
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
