"""Runs take the parts of tiny models from memory: each is read from its folder once per process, then copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from modules.model.dtypes import PartDtypes
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.weights import loading, part_sources
from tests.tiny import root
from tests.tiny.copies import Original

_MODULE, _TOKENIZER = loading.load_module, loading.load_tokenizer
_OUTLINE, _SCALES = part_sources.part_from_folder, part_sources._has_scales
_READ: dict[tuple[Any, ...], Original] = {}


def _known(key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
    if key not in _READ:
        _READ[key] = Original(read())
    return _READ[key].copy()


def _module(place: Path, part: PartSpec, dtypes: PartDtypes) -> Any:
    def read() -> Any:
        return _MODULE(place, part, dtypes)

    if place.parent.parent != root():
        return read()
    return _known((part.module, part.classes, place, dtypes.of(part.name), *_files(part, dtypes)), read)


def _tokenizer(kind: Any, place: Path, **options: str) -> Any:
    def read() -> Any:
        return _TOKENIZER(kind, place, **options)

    if place.parent.parent != root():
        return read()
    return _known((kind.__qualname__, place, *sorted(options.items())), read)


def _outline(place: Path, part: PartSpec, spec: FamilySpec, dtypes: PartDtypes) -> Any:
    def read() -> Any:
        return _OUTLINE(place, part, spec, dtypes)

    if place.parent.parent != root() or not dtypes.lazy:
        return read()
    return _known(("outline", place, part.name, spec.key, *_files(part, dtypes), dtypes.configs_only), read)


def _scales(place: Path, part: PartSpec, dtypes: PartDtypes) -> Any:
    if place.parent.parent != root():
        return _SCALES(place, part, dtypes)
    return _known(("scales", place, *_files(part, dtypes)), lambda: _SCALES(place, part, dtypes))


def _files(part: PartSpec, dtypes: PartDtypes) -> tuple[Any, ...]:
    """What decides which files of a part are read."""
    return part.name in dtypes.half, dtypes.variant, dtypes.before.get(part.name, "")


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
        mock.patch.object(part_sources, "part_from_folder", _outline),
        mock.patch.object(part_sources, "_has_scales", _scales),
    ):
        yield
