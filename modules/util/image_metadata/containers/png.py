"""PNG: text chunks before and after the pixels, and EXIF (PNG specification, third edition)."""

from __future__ import annotations

import struct
from typing import ClassVar

from modules.util.image_metadata.containers.fields import DEFLATED, PROFILE, RAW, Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import MAX_CHUNKS, MAX_SAME_KEY, Reason, Unusable

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FIRST_CHUNK = 33
_HEADER = struct.Struct(">I4s")
_SIZE = struct.Struct(">II")
_KEY_BYTES = 81
_INTERNATIONAL_BYTES = 1024
_MAX_KEYS = 256
_PROFILES = ("Raw profile type exif", "Raw profile type APP1")
XMP_KEY = "XML:com.adobe.xmp"


class PngFields(Fields):
    """Size and texts of a PNG file. Reading stops at the pixels; ``more`` continues after them."""

    kind: ClassVar[str] = "PNG"
    __slots__ = ("_chunks", "_next")

    def __init__(self, source: Source) -> None:
        head = source.head
        if len(head) < _FIRST_CHUNK:
            raise Unusable(Reason.TRUNCATED)
        if head[12:16] != b"IHDR":
            raise Unusable(Reason.BAD_HEADER, "the first chunk is not IHDR")
        width, height = _SIZE.unpack_from(head, 16)
        super().__init__(source, width, height)
        self._chunks = 0
        self._next = _FIRST_CHUNK
        self._walk(stop_at_pixels=True)

    def more(self) -> bool:
        before = len(self.places), len(self.exif_places), len(self.xmp_places)
        if self._next:
            self._walk(stop_at_pixels=False)
        return before != (len(self.places), len(self.exif_places), len(self.xmp_places))

    def _walk(self, stop_at_pixels: bool) -> None:
        """Read chunks from ``_next`` on, which is 0 at the end of the file."""
        source, head, offset = self.source, self.source.head, self._next
        in_head = len(head) - 8
        for _ in range(MAX_CHUNKS - self._chunks):
            if offset <= in_head:
                length, name = _HEADER.unpack_from(head, offset)
            else:
                packed = source.read(offset, 8)
                if len(packed) < 8:
                    break
                length, name = _HEADER.unpack(packed)
            if name == b"IDAT":
                if stop_at_pixels:
                    self._next = offset
                    return
            elif name in _WANTED:
                self._keep(name, offset + 8, length)
            elif name == b"IEND":
                break
            offset += length + 12
            self._chunks += 1
        self._next = 0

    def _keep(self, name: bytes, offset: int, length: int) -> None:
        if name == b"eXIf":
            if len(self.exif_places) < MAX_SAME_KEY:
                self.exif_places.append((length, offset, RAW))
            return
        if len(self.places) > _MAX_KEYS:
            return
        start = self.source.read(offset, min(length, _KEY_BYTES))
        end = start.find(b"\0")
        if end < 0:
            return
        key = start[:end].decode("latin-1")
        if name == b"iTXt":
            self._keep_international(key, end, offset, length)
            return
        packing = DEFLATED if name == b"zTXt" else RAW
        skip = end + 2 if packing else end + 1
        if length < skip:
            return
        if key in _PROFILES:
            if len(self.exif_places) < MAX_SAME_KEY:
                self.exif_places.append((length - skip, offset + skip, packing | PROFILE))
        else:
            self.add(key, (length - skip, offset + skip, packing))

    def _keep_international(self, key: str, end: int, offset: int, length: int) -> None:
        """Read iTXt: a flag, a method, a language and a translated key precede the text."""
        start = self.source.read(offset, min(length, _INTERNATIONAL_BYTES))
        language_end = start.find(b"\0", end + 3)
        text = start.find(b"\0", language_end + 1) + 1 if language_end >= 0 else 0
        if not text:
            return
        place = (length - text, offset + text, DEFLATED if start[end + 1] else RAW)
        if key == XMP_KEY:
            if len(self.xmp_places) < MAX_SAME_KEY:
                self.xmp_places.append(place)
        else:
            self.add(key, place)


_WANTED = frozenset((b"tEXt", b"zTXt", b"iTXt", b"eXIf"))
