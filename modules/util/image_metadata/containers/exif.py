"""The few EXIF values that carry prompts. Every offset is checked (TIFF 6.0, EXIF 2.3)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from modules.util.image_metadata.limits import MAX_CHUNK_TEXT, Reason, Unusable

_MAX_ENTRIES = 512
_EXIF_IFD = 0x8769
_NAMES = {
    0x0100: "width",
    0x0101: "height",
    0x010E: "imagedescription",
    0x010F: "make",
    0x0110: "model",
    0x0112: "orientation",
    0x0131: "software",
    0x013B: "artist",
    0x02BC: "xmp",
    0x829A: "exposure",
    0x829D: "exposure",
    0x8827: "exposure",
    0x927C: "makernote",
    0x9286: "usercomment",
    0x9C9C: "xpcomment",
}
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r")
_LEAST_BYTES = 12
_NUMBERS = ("width", "height", "orientation")
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}

Read = Callable[[int, int], bytes]
"""Reads bytes at (offset, length), counted from the byte order mark; fewer at the end."""


def parse_exif(data: bytes) -> dict[str, str]:
    """The wanted values as text, by lower-case name. Sizes and ``orientation`` are digits.

    ``exposure`` is present if a camera recorded how it took a picture, whatever its value.

    Args:
        data: a TIFF block, with or without the leading ``Exif`` marker.

    Raises:
        Unusable: the data is not a TIFF block.
    """
    if data[:6] == b"Exif\0\0":
        data = data[6:]
    return read_tiff(lambda offset, length: data[offset : offset + length])


def read_tiff(read: Read) -> dict[str, str]:
    """As ``parse_exif``, for a TIFF block or file that is read in pieces.

    Raises:
        Unusable: the data is not a TIFF block.
    """
    head = read(0, 8)
    mark = head[:4]
    if mark == b"II*\0":
        order = "<"
    elif mark == b"MM\0*":
        order = ">"
    else:
        raise Unusable(Reason.BAD_EXIF, "it has no byte order mark")
    if len(head) < 8:
        raise Unusable(Reason.BAD_EXIF, "it is truncated")
    found: dict[str, str] = {}
    further = _read_ifd(read, struct.unpack_from(order + "I", head, 4)[0], order, found)
    if further:
        _read_ifd(read, further, order, found)
    return found


def _read_ifd(read: Read, offset: int, order: str, found: dict[str, str]) -> int:
    """Collect wanted entries of one directory. Returns the offset of the EXIF directory, 0 for none."""
    packed = read(offset, 2)
    if len(packed) < 2:
        return 0
    count = min(struct.unpack(order + "H", packed)[0], _MAX_ENTRIES)
    entries = read(offset + 2, 12 * count)
    further, left = 0, MAX_CHUNK_TEXT
    for tag, kind, number, value in struct.iter_unpack(order + "HHII", entries[: len(entries) // 12 * 12]):
        if tag == _EXIF_IFD:
            further = value
        name = _NAMES.get(tag)
        if name is None or name in found:
            continue
        size = _UNIT.get(kind, 0) * number
        if size <= 4:
            raw = struct.pack(order + "I", value)[:size]
        else:
            raw = read(value, min(size, left))
            left -= len(raw)
        text = _text_of(name, raw, order)
        if text:
            found[name] = text
    return further


def _text_of(name: str, raw: bytes, order: str) -> str:
    if name in _NUMBERS:
        return str(int.from_bytes(raw[:4], "little" if order == "<" else "big")) if len(raw) >= 2 else ""
    if name == "exposure":
        return "noted"
    if name == "usercomment":
        return decode_user_comment(raw, order)
    if name == "xpcomment":
        return _clean(raw[: len(raw) // 2 * 2].decode("utf-16-le", "replace"))
    return _clean(decode_text(raw))


def decode_user_comment(raw: bytes, order: str = ">") -> str:
    """Decode an EXIF UserComment: eight bytes that name the encoding, then text. Some writers omit the name.

    The byte order of UTF-16 is guessed from its zero bytes, because writers often ignore their TIFF header.
    """
    code, body = raw[:8], raw[8:]
    if code == b"UNICODE\0":
        return _clean(body.decode("utf-8") if _is_utf8(body) else _utf16(body, order))
    if code[:5] in (b"ASCII", b"UTF-8", b"UTF8\0") and code[-1:] == b"\0":
        return _clean(decode_text(body))
    if code == b"JIS\0\0\0\0\0":
        return _clean(body.decode("iso2022_jp", "replace"))
    if code == bytes(8):
        raw = body
    if raw.count(0) * 3 > len(raw.rstrip(b"\0")) > 8:
        return _clean(_utf16(raw, order))
    return _clean(decode_text(raw))


def decode_text(data: bytes) -> str:
    """Decode as UTF-8, which generators write whatever the container specifies, else as Latin-1."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_utf8(raw: bytes) -> bool:
    """Return whether a text said to be Unicode is UTF-8 with a space or a new line inside.

    In UTF-16, each of these has a zero byte, and six other characters are hardly ever valid UTF-8 throughout, without
    control characters.
    """
    text = raw.rstrip(b"\0").strip()
    if _CONTROLS & set(text) or not (b" " in text or b"\n" in text):
        return False
    if len(text) < _LEAST_BYTES and len(raw) % 2 == 0:
        return False
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _utf16(raw: bytes, order: str) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw[: len(raw) // 2 * 2].decode("utf-16", "replace")
    raw = raw[: len(raw) // 2 * 2]
    high_first, low_first = raw[0::2].count(0), raw[1::2].count(0)
    big = order == ">" if high_first == low_first else high_first > low_first
    return raw.decode("utf-16-be" if big else "utf-16-le", "replace")


def _clean(text: str) -> str:
    return text.strip("\0 \t\r\n\ufeff")
