"""JPEG: EXIF, XMP and comments from the segments before the pixels (ITU-T T.81, EXIF 2.3)."""

from __future__ import annotations

import struct
from typing import ClassVar

from modules.util.image_metadata.containers.fields import RAW, Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import MAX_CHUNKS, Reason, Unusable

SIGNATURE = b"\xff\xd8\xff"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_APP1, _COMMENT, _SCAN, _END = 0xE1, 0xFE, 0xDA, 0xD9
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_FRAME = struct.Struct(">BHH")


class JpegFields(Fields):
    """Size and texts of a JPEG file."""

    kind: ClassVar[str] = "JPEG"
    __slots__ = ()

    def __init__(self, source: Source) -> None:
        super().__init__(source, 0, 0)
        offset = 2
        for _ in range(MAX_CHUNKS):
            packed = source.read(offset, 4)
            if len(packed) < 4:
                raise Unusable(Reason.TRUNCATED)
            if packed[0] != 0xFF:
                raise Unusable(Reason.BAD_HEADER, f"no marker at byte {offset}")
            marker = packed[1]
            if marker == 0xFF:
                offset += 1
                continue
            if marker in _ALONE:
                offset += 2
                continue
            if marker in (_SCAN, _END):
                break
            length = (packed[2] << 8 | packed[3]) - 2
            if length < 0:
                raise Unusable(Reason.BAD_HEADER, f"a segment without a length at byte {offset}")
            self._keep(marker, offset + 4, length)
            offset += length + 4
        if not self.width:
            raise Unusable(Reason.BAD_HEADER, "no size")

    def _keep(self, marker: int, offset: int, length: int) -> None:
        if marker in _FRAMES:
            packed = self.source.read(offset, 5)
            if len(packed) < 5:
                raise Unusable(Reason.TRUNCATED)
            _, self.height, self.width = _FRAME.unpack(packed)
        elif marker == _COMMENT:
            self.comments.append((length, offset, RAW))
        elif marker == _APP1:
            start = self.source.read(offset, min(length, len(_XMP)))
            if start[:6] == b"Exif\0\0":
                self.exif_places.append((length - 6, offset + 6, RAW))
            elif start == _XMP:
                self.xmp_places.append((length - len(_XMP), offset + len(_XMP), RAW))
