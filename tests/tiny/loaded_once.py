"""Runs take the parts of tiny models from memory: each is read from its folder once per process, then copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from modules.weights import loading
from tests.tiny import root
from tests.tiny.copies import Original

_MODULE, _TOKENIZER = loading.load_module, loading.load_tokenizer
_READ: dict[tuple[Any, ...], Original] = {}


def _known(key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
    if key not in _READ:
        _READ[key] = Original(read())
    return _READ[key].copy()


def _module(
    from_pretrained: Callable[..., Any], folder: Path, part: str, dtype: torch.dtype, *more: object
) -> Any:
    def read() -> Any:
        return _MODULE(from_pretrained, folder, part, dtype, *more)

    if folder.parent != root():
        return read()
    return _known((from_pretrained.__qualname__, folder, part, dtype, *more), read)


def _tokenizer(kind: Any, place: Path, **options: str) -> Any:
    def read() -> Any:
        return _TOKENIZER(kind, place, **options)

    if place.parent.parent != root():
        return read()
    return _known((kind.__qualname__, place, *sorted(options.items())), read)


@contextmanager
def loaded_once() -> Iterator[None]:
    """Inside the block a folder of ``tiny_folder`` is read once for all runs of the process; others are read each time.

    A loader that a test has replaced is left alone. Results of runs inside and outside of it may differ in the last
    digits: weights mapped from a file may lie at odd addresses, copies of them never do.
    """
    if loading.load_module is not _MODULE or loading.load_tokenizer is not _TOKENIZER:
        yield
        return
    with (
        mock.patch.object(loading, "load_module", _module),
        mock.patch.object(loading, "load_tokenizer", _tokenizer),
    ):
        yield
