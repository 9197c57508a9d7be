"""WebP: size, EXIF and XMP chunks (WebP container specification)."""

from __future__ import annotations

import struct
from typing import ClassVar

from modules.util.image_metadata.containers.fields import RAW, Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import MAX_CHUNKS, Reason, Unusable

_HEADER = struct.Struct("<4sI")
_FEW = 8


def is_webp(head: bytes) -> bool:
    """Return whether a file with this start is a WebP file."""
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP"


class WebpFields(Fields):
    """Size and texts of a WebP file. The texts usually follow the pixels."""

    kind: ClassVar[str] = "WebP"
    __slots__ = ()

    def __init__(self, source: Source) -> None:
        super().__init__(source, 0, 0)
        read, offset = source.read, 12
        for _ in range(MAX_CHUNKS):
            packed = read(offset, 8)
            if len(packed) < 8:
                break
            name, length = _HEADER.unpack(packed)
            if name == b"EXIF":
                if len(self.exif_places) < _FEW:
                    self.exif_places.append((length, offset + 8, RAW))
            elif name == b"XMP ":
                if len(self.xmp_places) < _FEW:
                    self.xmp_places.append((length, offset + 8, RAW))
            elif not self.width and name in (b"VP8X", b"VP8 ", b"VP8L"):
                self.width, self.height = _size(name, read(offset + 8, 10))
            offset += 8 + length + (length & 1)
        if not self.width:
            raise Unusable(Reason.TRUNCATED if offset > source.size else Reason.BAD_HEADER, "no size")


def _size(name: bytes, data: bytes) -> tuple[int, int]:
    if len(data) < 10:
        raise Unusable(Reason.TRUNCATED)
    if name == b"VP8X":
        return int.from_bytes(data[4:7], "little") + 1, int.from_bytes(data[7:10], "little") + 1
    if name == b"VP8L":
        if data[0] != 0x2F:
            raise Unusable(Reason.BAD_HEADER, "no lossless mark")
        bits = int.from_bytes(data[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[3:6] != b"\x9d\x01\x2a":
        raise Unusable(Reason.BAD_HEADER, "no key frame")
    width, height = struct.unpack_from("<HH", data, 6)
    return width & 0x3FFF, height & 0x3FFF
