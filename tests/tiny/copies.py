"""Copies of a model, as ``copy.deepcopy`` makes them, in a tenth of its time: the objects around the tensors go through
``pickle``, which is written in C; tensors and functions are handed over next to it.
"""

from __future__ import annotations

import copy
import io
import pickle
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

_AS_THEY_ARE = (FunctionType, BuiltinFunctionType)
"""Kinds that ``copy.deepcopy`` does not copy, and that ``pickle`` may not find by their name."""


class Original:
    """Something that is copied many times and never changed.

    Args:
        value: what to copy.
        shared: objects within it that all copies have in common.
    """

    def __init__(self, value: Any, *shared: Any) -> None:
        written = _Writer(shared)
        written.dump(value)
        self._bytes, self._beside = written.file.getvalue(), written.beside

    def copy(self) -> Any:
        """A copy of its own; a tensor that occurs twice in the original occurs twice in it."""
        return _Reader(self._bytes, self._beside).load()


class _Writer(pickle.Pickler):
    def __init__(self, shared: tuple[Any, ...]) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=4)
        self.beside: list[Any] = []
        self._shared = {id(one) for one in shared}
        self._places: dict[int, int] = {}

    def persistent_id(self, one: Any) -> int | None:
        handed = isinstance(one, (torch.Tensor, *_AS_THEY_ARE)) or id(one) in self._shared
        if not handed and not (isinstance(one, type) and "<locals>" in one.__qualname__):
            return None
        if id(one) not in self._places:
            self._places[id(one)] = len(self.beside)
            self.beside.append(one)
        return self._places[id(one)]


class _Reader(pickle.Unpickler):
    def __init__(self, written: bytes, beside: list[Any]) -> None:
        super().__init__(io.BytesIO(written))
        self._beside = beside
        self._memo: dict[int, Any] = {}

    def persistent_load(self, place: int) -> Any:
        one = self._beside[place]
        return copy.deepcopy(one, self._memo) if isinstance(one, torch.Tensor) else one
