"""AVIF: size, orientation, EXIF and XMP from its ``meta`` box (ISO/IEC 14496-12 and 23008-12)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar

from modules.util.image_metadata.containers.fields import RAW, Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import Reason, Unusable

_BRANDS = (b"avif", b"avis", b"mif1", b"msf1", b"heic", b"heix")
_MAX_META = 1024 * 1024
_MAX_BOXES = 10_000
_EXIF, _MIME = b"Exif", b"mime"
_ROTATION = {0: 1, 1: 8, 2: 3, 3: 6}


def is_avif(head: bytes) -> bool:
    """Return whether a file with this start is an AVIF (or HEIF) file."""
    return head[4:8] == b"ftyp" and head[8:12] in _BRANDS


class AvifFields(Fields):
    """Size and texts of an AVIF file.

    Args:
        source: the open file.
    """

    kind: ClassVar[str] = "AVIF"
    __slots__ = ("turned",)

    def __init__(self, source: Source) -> None:
        super().__init__(source, 0, 0)
        self.turned = 1
        meta = _meta_box(source)
        if not meta:
            raise Unusable(Reason.BAD_HEADER, "no meta box")
        boxes = {name: meta[start:end] for name, start, end in _boxes(meta, 4)}
        items = _item_types(boxes.get(b"iinf", b""))
        primary = _primary(boxes.get(b"pitm", b""))
        self._take_properties(boxes.get(b"iprp", b""), primary)
        if not self.width:
            raise Unusable(Reason.BAD_HEADER, "no size")
        for number, offset, length in _locations(boxes.get(b"iloc", b"")):
            kind = items.get(number)
            if kind == _EXIF:
                self._take_exif(offset, length)
            elif kind == _MIME:
                self.xmp_places.append((length, offset, RAW))

    def orientation(self) -> int:
        return self.turned

    def _take_exif(self, offset: int, length: int) -> None:
        """Read an EXIF item, which starts with the offset of its TIFF header."""
        packed = self.source.read(offset, 4)
        if len(packed) == 4:
            skip = 4 + int.from_bytes(packed, "big")
            if skip < length:
                self.exif_places.append((length - skip, offset + skip, RAW))

    def _take_properties(self, data: bytes, primary: int) -> None:
        """Read size and rotation of the primary item. If its links are damaged, use the largest size found.
        """
        parts = {name: data[start:end] for name, start, end in _boxes(data)}
        container = parts.get(b"ipco", b"")
        properties = [(name, container[start:end]) for name, start, end in _boxes(container)]
        wanted = _associated(parts.get(b"ipma", b""), primary)
        chosen = [properties[i - 1] for i in wanted if 0 < i <= len(properties)]
        if not any(name == b"ispe" for name, _ in chosen):
            chosen = properties
        for name, value in chosen:
            if name == b"ispe" and len(value) >= 12:
                width, height = struct.unpack_from(">II", value, 4)
                if width * height > self.width * self.height:
                    self.width, self.height = width, height
            elif name == b"irot" and value:
                self.turned = _ROTATION[value[0] & 3]


def _meta_box(source: Source) -> bytes:
    """Find the top-level ``meta`` box."""
    offset = 0
    for _ in range(64):
        packed = source.read(offset, 16)
        if len(packed) < 8:
            return b""
        length, name = struct.unpack_from(">I4s", packed)
        start = 8
        if length == 1 and len(packed) == 16:
            length, start = struct.unpack_from(">Q", packed, 8)[0], 16
        elif length == 0:
            length = source.size - offset
        if length < start:
            return b""
        if name == b"meta":
            if length > _MAX_META:
                raise Unusable(Reason.TEXT_TOO_LARGE, f"a meta box of {length} bytes")
            meta = source.read(offset + start, length - start)
            if len(meta) < length - start:
                raise Unusable(Reason.TRUNCATED)
            return meta
        offset += length
    return b""


def _boxes(data: bytes, offset: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, end) of the contents of each box in ``data``."""
    for _ in range(_MAX_BOXES):
        if offset + 8 > len(data):
            return
        length, name = struct.unpack_from(">I4s", data, offset)
        if length == 0:
            length = len(data) - offset
        if length < 8 or offset + length > len(data):
            return
        yield name, offset + 8, offset + length
        offset += length


def _primary(data: bytes) -> int:
    width = 2 if data[:1] == b"\0" else 4
    return int.from_bytes(data[4 : 4 + width], "big")


def _item_types(data: bytes) -> dict[int, bytes]:
    """Item number -> type, from ``iinf``."""
    found: dict[int, bytes] = {}
    for name, start, end in _boxes(data, 6 if data[:1] == b"\0" else 8):
        if name == b"infe" and end - start >= 12:
            entry = data[start:end]
            width = 2 if entry[0] < 3 else 4
            number = int.from_bytes(entry[4 : 4 + width], "big")
            found[number] = entry[6 + width : 10 + width]
    return found


def _associated(data: bytes, primary: int) -> list[int]:
    """Property numbers of the primary item, from ``ipma``."""
    if len(data) < 8:
        return []
    wide_items, wide_properties = data[0] >= 1, data[3] & 1
    count, at = min(int.from_bytes(data[4:8], "big"), _MAX_BOXES), 8
    for _ in range(count):
        width = 4 if wide_items else 2
        number = int.from_bytes(data[at : at + width], "big")
        at += width
        if at >= len(data):
            return []
        amount = data[at]
        at += 1
        size = 2 if wide_properties else 1
        if number == primary:
            packed = data[at : at + amount * size]
            mask = 0x7FFF if wide_properties else 0x7F
            return [int.from_bytes(packed[i : i + size], "big") & mask for i in range(0, len(packed), size)]
        at += amount * size
    return []


def _locations(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (item number, offset in the file, length) of items stored in one piece, from ``iloc``."""
    if len(data) < 8:
        return
    version = data[0]
    offset_size, length_size, base_size = data[4] >> 4, data[4] & 15, data[5] >> 4
    index_size = data[5] & 15 if version in (1, 2) else 0
    at = 6

    def take(size: int) -> int:
        nonlocal at
        value = int.from_bytes(data[at : at + size], "big")
        at += size
        return value

    number_size = 4 if version == 2 else 2
    for _ in range(min(take(number_size), _MAX_BOXES)):
        if at >= len(data):
            return
        number = take(number_size)
        method = take(2) & 15 if version in (1, 2) else 0
        take(2)
        base = take(base_size)
        extents = take(2)
        places = []
        for _ in range(min(extents, 64)):
            take(index_size)
            offset = take(offset_size)
            places.append((offset, take(length_size)))
        if extents > 64:
            return
        if len(places) == 1 and method == 0:
            yield number, base + places[0][0], places[0][1]
