"""The few EXIF values that carry prompts, read with every offset checked (TIFF 6.0, EXIF 2.3)."""

from __future__ import annotations

import struct

from modules.util.image_metadata.limits import Reason, Unusable

_MAX_ENTRIES = 512
_EXIF_IFD = 0x8769
_NAMES = {
    0x010E: "imagedescription",
    0x010F: "make",
    0x0110: "model",
    0x0112: "orientation",
    0x0131: "software",
    0x927C: "makernote",
    0x9286: "usercomment",
    0x9C9C: "xpcomment",
}
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}


def parse_exif(data: bytes) -> dict[str, str]:
    """The wanted values as text, by lower-case name; ``orientation`` as a digit.

    Args:
        data: a TIFF block, with or without the leading ``Exif`` marker.

    Raises:
        Unusable: it is no TIFF block.
    """
    if data[:6] == b"Exif\0\0":
        data = data[6:]
    mark = data[:4]
    if mark == b"II*\0":
        order = "<"
    elif mark == b"MM\0*":
        order = ">"
    else:
        raise Unusable(Reason.BAD_EXIF, "it has no byte order mark")
    if len(data) < 8:
        raise Unusable(Reason.BAD_EXIF, "it is cut off")
    found: dict[str, str] = {}
    further = _read_ifd(data, struct.unpack_from(order + "I", data, 4)[0], order, found)
    if further:
        _read_ifd(data, further, order, found)
    return found


def _read_ifd(data: bytes, offset: int, order: str, found: dict[str, str]) -> int:
    """Collect wanted entries of one directory; returns the offset of the EXIF directory, 0 for none."""
    if offset + 2 > len(data):
        return 0
    count = min(struct.unpack_from(order + "H", data, offset)[0], _MAX_ENTRIES)
    entries = data[offset + 2 : offset + 2 + 12 * count]
    further = 0
    for tag, kind, number, value in struct.iter_unpack(order + "HHII", entries[: len(entries) // 12 * 12]):
        if tag == _EXIF_IFD:
            further = value
        name = _NAMES.get(tag)
        if name is None or name in found:
            continue
        size = _UNIT.get(kind, 0) * number
        if size <= 4:
            packed = struct.pack(order + "I", value)
            raw = packed[:size]
        else:
            raw = data[value : value + size]
        text = _text_of(name, raw, order)
        if text:
            found[name] = text
    return further


def _text_of(name: str, raw: bytes, order: str) -> str:
    if name == "orientation":
        return str(struct.unpack(order + "H", raw[:2])[0]) if len(raw) >= 2 else ""
    if name == "usercomment":
        return decode_user_comment(raw, order)
    if name == "xpcomment":
        return _clean(raw[: len(raw) // 2 * 2].decode("utf-16-le", "replace"))
    return _clean(_narrow(raw))


def decode_user_comment(raw: bytes, order: str = ">") -> str:
    """An EXIF UserComment: eight bytes naming the code, then text; also without the name, as some write it.

    UTF-16 is read in the byte order its own zero bytes show, because writers disagree with their TIFF header.
    """
    code, body = raw[:8], raw[8:]
    if code == b"UNICODE\0":
        return _clean(_utf16(body, order))
    if code[:5] in (b"ASCII", b"UTF-8", b"UTF8\0") and code[-1:] == b"\0":
        return _clean(_narrow(body))
    if code == b"JIS\0\0\0\0\0":
        return _clean(body.decode("iso2022_jp", "replace"))
    if code == bytes(8):
        raw = body
    if raw.count(0) * 3 > len(raw.rstrip(b"\0")) > 8:
        return _clean(_utf16(raw, order))
    return _clean(_narrow(raw))


def _narrow(raw: bytes) -> str:
    raw = raw.rstrip(b"\0")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _utf16(raw: bytes, order: str) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw[: len(raw) // 2 * 2].decode("utf-16", "replace")
    raw = raw[: len(raw) // 2 * 2]
    high_first, low_first = raw[0::2].count(0), raw[1::2].count(0)
    big = order == ">" if high_first == low_first else high_first > low_first
    return raw.decode("utf-16-be" if big else "utf-16-le", "replace")


def _clean(text: str) -> str:
    return text.strip("\0 \t\r\n\ufeff")
