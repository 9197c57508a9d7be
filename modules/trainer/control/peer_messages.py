"""Messages between the processes of a run, as bytes that can only be data: JSON and tensors.

A message is read from a network connection, so nothing in it may run code, as a pickle would.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

_DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip
_LENGTH_BYTES = 8
_MAX_HEADER = 1 << 30


def packed(value: Any) -> torch.Tensor:
    """A value as a message.

    Args:
        value: ``None``, a bool, number, text or tensor, or lists, tuples and dicts of these.

    Returns:
        (bytes,) uint8 on the CPU.

    Raises:
        TypeError: the value holds anything else, such as an object of a class.
    """
    tensors: list[torch.Tensor] = []
    tree = _told(value, tensors)
    shapes = [[str(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    header = json.dumps([tree, shapes]).encode("utf-8")
    start = len(header).to_bytes(_LENGTH_BYTES, "little") + header
    pieces = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    return torch.cat([torch.frombuffer(bytearray(start), dtype=torch.uint8), *pieces])


def unpacked(message: torch.Tensor) -> Any:
    """The value of a message. Tuples arrive as lists, and tensors on the CPU.

    Raises:
        ValueError: these are not the bytes of a message.
    """
    data = message.numpy()
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    begin = _LENGTH_BYTES + length
    if length > _MAX_HEADER or begin > len(data):
        raise ValueError("a message of another process is damaged")
    try:
        tree, shapes = json.loads(data[_LENGTH_BYTES:begin].tobytes())
        return _heard(tree, _cut(message[begin:], shapes))
    except (KeyError, IndexError, TypeError, RuntimeError) as error:
        raise ValueError("a message of another process is damaged") from error


def _cut(data: torch.Tensor, shapes: list[tuple[str, list[int]]]) -> list[torch.Tensor]:
    made, begin = [], 0
    for name, shape in shapes:
        dtype = _DTYPES[name]
        end = begin + math.prod(shape) * dtype.itemsize
        # a copy begins where its type may begin in memory
        made.append(data[begin:end].clone().view(dtype).reshape(shape))
        begin = end
    return made


def _told(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value without its tensors, which are moved to the list."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor) and str(value.dtype) in _DTYPES:
        tensors.append(value.detach().cpu().contiguous())
        return {"tensor": len(tensors) - 1}
    if type(value) in (list, tuple):
        return [_told(one, tensors) for one in value]
    if type(value) is dict:
        return {"dict": [[_told(key, tensors), _told(one, tensors)] for key, one in value.items()]}
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")


def _heard(tree: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_heard(one, tensors) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    return {_heard(key, tensors): _heard(one, tensors) for key, one in tree["dict"]}
