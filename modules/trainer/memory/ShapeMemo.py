"""Shapes of the results of operations on meta tensors, which take long to compute."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

_Result = tuple[torch.Size, tuple[int, ...], torch.dtype]


class ShapeMemo:
    """The results of operations that only make new meta tensors from meta tensors. They have the same shapes whenever
    shapes, strides, types and other arguments are the same. The layers of a model repeat each other, and operations
    on the meta device are written in Python.

    Args:
        way: returns what results depend on besides the arguments, such as the type of autocast.
    """

    def __init__(self, way: Callable[[], Hashable]) -> None:
        self._way = way
        self._known: dict[Hashable, _Result | list[_Result | None] | None] = {}

    def recall(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Any]:
        """Return the key of an operation, and new tensors like those that it gave before.

        The key is ``None`` if its results cannot be remembered, the tensors are ``None`` if it must be called.
        """
        if not _makes_new_tensors(func):
            return None, None
        try:
            key = (func, self._way(), _outline(args), _outline(kwargs) if kwargs else ())
        except _NotOnlyShapesError:
            return None, None
        known = self._known.get(key)
        return key, None if known is None else _made(known)

    def learn(self, key: Hashable, out: Any, taken: set[int]) -> None:
        """Remember what an operation gave.

        Args:
            key: from ``recall``.
            taken: addresses of its arguments' storages. A few operations return one of them against their schema.
        """
        if key not in self._known:
            self._known[key] = _results(out, set(taken))


class _NotOnlyShapesError(Exception):
    """The result may depend on the content of an argument."""


@cache
def _makes_new_tensors(func: Any) -> bool:
    """True if an operation changes no tensor and returns no view, by its schema."""
    if not isinstance(func, OpOverload):
        return False
    schema = func._schema
    return not any(one.alias_info for one in (*schema.arguments, *schema.returns))


def _outline(value: Any) -> Hashable:
    """A key for all that the shape of a result depends on.

    Raises:
        _NotOnlyShapesError: a tensor has numbers, or an argument is of an unknown kind.
    """
    if isinstance(value, torch.Tensor):
        if not value.is_meta or value.layout is not torch.strided:
            raise _NotOnlyShapesError
        return (torch.Tensor, value.shape, value.stride(), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(map(_outline, value))
    if isinstance(value, dict):
        return tuple((name, _outline(one)) for name, one in value.items())
    if value is None or isinstance(value, _PLAIN):
        # 1, 1.0 and True are equal but make tensors of different types
        return (type(value), value)
    raise _NotOnlyShapesError


_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _results(out: Any, taken: set[int]) -> _Result | list[_Result | None] | None:
    """The outlines of results; ``None`` if one of them is anything but a new meta tensor."""
    if isinstance(out, torch.Tensor):
        return _result(out, taken)
    if not isinstance(out, tuple):
        return None
    made: list[_Result | None] = []
    for one in out:
        made.append(None if one is None else _result(one, taken))
        if one is not None and made[-1] is None:
            return None
    return made


def _result(out: Any, taken: set[int]) -> _Result | None:
    if type(out) is not torch.Tensor or not out.is_meta or out.layout is not torch.strided:
        return None
    storage = out.untyped_storage()
    if storage._cdata in taken:
        return None
    taken.add(storage._cdata)
    known = (out.shape, out.stride(), out.dtype)
    return known if _empty(known).untyped_storage().nbytes() == storage.nbytes() else None


def _made(known: _Result | list[_Result | None]) -> Any:
    if isinstance(known, tuple):
        return _empty(known)
    return tuple(None if one is None else _empty(one) for one in known)


def _empty(known: _Result) -> torch.Tensor:
    shape, stride, dtype = known
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
