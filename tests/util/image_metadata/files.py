"""Image files byte by byte: containers with whatever text a test wants, sound and unsound."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(name: bytes, data: bytes, length: int | None = None) -> bytes:
    """A PNG chunk; ``length`` to lie about it."""
    size = len(data) if length is None else length
    return struct.pack(">I", size & 0xFFFFFFFF) + name + data + struct.pack(">I", zlib.crc32(name + data))


def header(width: int = 2, height: int = 3) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def pixels(width: int = 2, height: int = 3) -> bytes:
    return chunk(b"IDAT", zlib.compress((b"\0" + bytes(3 * width)) * height))


def png(*before: bytes, after: bytes = b"", width: int = 2, height: int = 3) -> bytes:
    """A PNG file with chunks before and behind its pixels."""
    body = b"".join(before) + pixels(min(width, 64), min(height, 64)) + after
    return SIGNATURE + header(width, height) + body + chunk(b"IEND", b"")


def text(key: str, value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return chunk(b"tEXt", key.encode("latin-1") + b"\0" + raw)


def ztext(key: str, value: bytes, packed: bool = False) -> bytes:
    """A zTXt chunk; ``packed``: ``value`` is compressed already."""
    return chunk(b"zTXt", key.encode() + b"\0\0" + (value if packed else zlib.compress(value)))


def itext(key: str, value: bytes, packed: bool = False, deflate: bool = False) -> bytes:
    body = value if packed or not deflate else zlib.compress(value)
    flag = b"\1" if packed or deflate else b"\0"
    return chunk(b"iTXt", key.encode() + b"\0" + flag + b"\0en\0key\0" + body)


@lru_cache
def bomb(size: int = 1 << 26) -> bytes:
    """Zlib data that inflates to ``size`` zero bytes, made without holding them."""
    machine = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(machine.compress(block) for _ in range(size >> 20)) + machine.flush()


def tiff(entries: dict[int, bytes], ifd: dict[int, bytes] | None = None, order: str = ">") -> bytes:
    """A TIFF block with ASCII (or UNDEFINED, for UserComment) values and an EXIF directory."""

    def directory(values: dict[int, bytes], offset: int, further: int = 0) -> bytes:
        count = len(values) + bool(further)
        at = offset + 2 + 12 * count + 4
        packed, data = struct.pack(order + "H", count), b""
        for tag, value in values.items():
            kind = 7 if tag == 0x9286 else 2
            if len(value) <= 4:
                packed += struct.pack(order + "HHI", tag, kind, len(value)) + value.ljust(4, b"\0")
            else:
                packed += struct.pack(order + "HHII", tag, kind, len(value), at + len(data))
                data += value + bytes(len(value) % 2)
        if further:
            packed += struct.pack(order + "HHII", 0x8769, 4, 1, further)
        return packed + bytes(4) + data

    start = (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(order + "I", 8)
    if ifd is None:
        return start + directory(entries, 8)
    length = len(directory(entries, 8, 1))
    return start + directory(entries, 8, 8 + length) + directory(ifd, 8 + length)


def comment(value: str, code: str = "utf-16-be") -> bytes:
    """A UserComment."""
    names = {"utf-16-be": b"UNICODE\0", "utf-16-le": b"UNICODE\0", "ascii": b"ASCII\0\0\0", "utf-8": bytes(8)}
    return names[code] + value.encode(code)


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def jpeg(*segments: bytes, width: int = 2, height: int = 3) -> bytes:
    """A JPEG file as far as readers of headers care."""
    frame = segment(0xC0, struct.pack(">BHHB", 8, height, width, 3) + bytes(9))
    return b"\xff\xd8" + b"".join(segments) + frame + segment(0xDA, bytes(10)) + b"\0\0\xff\xd9"


def app1(exif: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + exif)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WebP file of these chunks."""
    body = b"".join(name + struct.pack("<I", len(d)) + d + bytes(len(d) % 2) for name, d in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp(*chunks: tuple[bytes, bytes], width: int = 2, height: int = 3) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return riff((b"VP8X", b"\x0c\0\0\0" + size), (b"VP8L", b"\x2f" + bytes(20)), *chunks)


def box(name: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(data) + 8 if length is None else length) + name + data


def avif(exif: bytes = b"", xmp: bytes = b"", turn: int = 0, width: int = 2, height: int = 3) -> bytes:
    """An AVIF file as far as readers of headers care."""
    ftyp = box(b"ftyp", b"avif\0\0\0\0avifmif1")
    items = [(2, b"Exif", bytes(4) + exif), (3, b"mime", xmp)]

    def entry(number: int, kind: bytes) -> bytes:
        return box(b"infe", b"\2\0\0\0" + struct.pack(">HH", number, 0) + kind + b"\0")

    def meta(at: int) -> bytes:
        info = box(
            b"iinf",
            bytes(4) + struct.pack(">H", 3) + entry(1, b"av01") + entry(2, b"Exif") + entry(3, b"mime"),
        )
        places = b""
        for number, _, data in items:
            places += struct.pack(">HHHII", number, 0, 1, at, len(data))
            at += len(data)
        iloc = box(b"iloc", bytes(4) + b"\x44\0" + struct.pack(">H", 2) + places)
        container = box(
            b"ipco", box(b"ispe", bytes(4) + struct.pack(">II", width, height)) + box(b"irot", bytes((turn,)))
        )
        links = box(b"ipma", bytes(4) + struct.pack(">IHB", 1, 1, 2) + b"\x01\x82")
        return box(
            b"meta",
            bytes(4) + box(b"pitm", bytes(4) + b"\0\1") + iloc + info + box(b"iprp", container + links),
        )

    start = len(ftyp) + len(meta(0)) + 8
    return ftyp + meta(start) + box(b"mdat", b"".join(data for _, _, data in items))
