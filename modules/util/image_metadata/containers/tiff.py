"""TIFF and BMP: size, orientation and texts of a TIFF file (TIFF 6.0). A BMP file carries no texts."""

from __future__ import annotations

import struct
from typing import ClassVar

from modules.util.image_metadata.containers.exif import read_tiff
from modules.util.image_metadata.containers.fields import Fields
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import Reason, Unusable

TIFF_SIGNATURES = (b"II*\0", b"MM\0*")
BMP_SIGNATURE = b"BM"
_BMP_HEAD = 26


class TiffFields(Fields):
    """Size and texts of a TIFF file; its directories may be anywhere in the file."""

    kind: ClassVar[str] = "TIFF"
    __slots__ = ("_packet",)

    def __init__(self, source: Source) -> None:
        super().__init__(source, 0, 0)
        values = read_tiff(source.read)
        self.width, self.height = (int(values.pop(name, "0")) for name in ("width", "height"))
        self._packet = values.pop("xmp", "")
        self._exif = values
        self.has_exif = True
        self.has_xmp = bool(self._packet)

    def xmp_packets(self) -> list[str]:
        return [self._packet] if self._packet else []


class BmpFields(Fields):
    """Size of a BMP file."""

    kind: ClassVar[str] = "BMP"
    __slots__ = ()

    def __init__(self, source: Source) -> None:
        head = source.read(0, _BMP_HEAD)
        if len(head) < _BMP_HEAD:
            raise Unusable(Reason.TRUNCATED)
        if struct.unpack_from("<I", head, 14)[0] == 12:
            width, height = struct.unpack_from("<HH", head, 18)
        else:
            width, height = struct.unpack_from("<ii", head, 18)
        # A negative height means that rows run from the top down.
        super().__init__(source, max(0, width), abs(height))
