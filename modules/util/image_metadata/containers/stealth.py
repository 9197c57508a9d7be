"""Text hidden in the least significant bits of the pixels, as written by NovelAI and A1111 extensions.

This is the only reader that decodes pixels. Bits run down the columns, in alpha alone or in red, green and
blue. A signature and a 32-bit length precede the text.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.util.image_metadata.limits import MAX_CHUNK_TEXT, Reason, Unusable

if TYPE_CHECKING:
    import numpy

_MAX_PIXELS = 4096 * 4096
_SIGNATURE_BYTES = 15
_HEAD_BITS = (_SIGNATURE_BYTES + 4) * 8
_SIGNATURES = {
    b"stealth_pnginfo": ("A", False),
    b"stealth_pngcomp": ("A", True),
    b"stealth_rgbinfo": ("RGB", False),
    b"stealth_rgbcomp": ("RGB", True),
}
_GZIP = 31


def stealth_texts(path: str | os.PathLike[str], width: int, height: int) -> Iterator[str]:
    """Yield the hidden texts of a PNG or lossless WebP file.

    Raises:
        Unusable: the image cannot be decoded, or the hidden data is damaged or too large.
    """
    import numpy
    from PIL import Image

    if width * height > _MAX_PIXELS:
        raise Unusable(Reason.TOO_MANY_PIXELS, f"{width}x{height} for hidden text")
    try:
        with Image.open(path, formats=("PNG", "WEBP")) as image:
            if image.mode not in ("RGB", "RGBA"):
                return
            pixels = numpy.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unusable(Reason.UNDECODABLE, str(error)) from error
    for channels in ("A", "RGB"):
        if channels == "RGB" or pixels.shape[2] == 4:
            part = pixels[:, :, 3:] if channels == "A" else pixels[:, :, :3]
            text = _hidden(part, channels)
            if text is not None:
                yield text


def _hidden(values_HWC: numpy.ndarray, channels: str) -> str | None:
    """Decode the text in the least significant bits of ``values_HWC``, read column by column."""
    height, _, depth = values_HWC.shape
    head = _bits(values_HWC, 0, _HEAD_BITS)
    known = _SIGNATURES.get(head[:_SIGNATURE_BYTES])
    if known is None or known[0] != channels:
        return None
    length = int.from_bytes(head[_SIGNATURE_BYTES : _SIGNATURE_BYTES + 4], "big")
    if length % 8 or length > values_HWC.size - _HEAD_BITS or height * depth == 0:
        raise Unusable(Reason.BAD_TEXT, f"a hidden text of {length} bits")
    if length // 8 > MAX_CHUNK_TEXT:
        raise Unusable(Reason.TEXT_TOO_LARGE, f"a hidden text of {length // 8} bytes")
    data = _bits(values_HWC, _HEAD_BITS, length)
    if known[1]:
        data = _unzip(data)
    return data.decode("utf-8", "replace")


def _bits(values_HWC: numpy.ndarray, start: int, count: int) -> bytes:
    """Pack ``count`` least significant bits from bit ``start`` on, down the columns, into bytes."""
    import numpy

    height, _, depth = values_HWC.shape
    per_column = height * depth
    columns = values_HWC[:, start // per_column : -(-(start + count) // per_column)]
    flat = columns.transpose(1, 0, 2).reshape(-1)
    first = start % per_column
    return numpy.packbits(flat[first : first + count] & 1).tobytes()


def _unzip(data: bytes) -> bytes:
    machine = zlib.decompressobj(_GZIP)
    try:
        text = machine.decompress(data, MAX_CHUNK_TEXT)
    except zlib.error as error:
        raise Unusable(Reason.BAD_TEXT, str(error)) from error
    if machine.unconsumed_tail:
        raise Unusable(
            Reason.TEXT_TOO_LARGE, f"hidden text that inflates to more than {MAX_CHUNK_TEXT} bytes"
        )
    return text
