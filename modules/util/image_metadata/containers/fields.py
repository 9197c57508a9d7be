"""Content of a container: its size and its texts by name, decoded lazily."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from operator import itemgetter
from typing import ClassVar

from modules.util.image_metadata.containers.exif import decode_text, parse_exif
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.containers.xmp import XmpText, is_photo, parse_xmp
from modules.util.image_metadata.limits import (
    MAX_CHUNK_TEXT,
    MAX_FILE_TEXT,
    MAX_SAME_KEY,
    Reason,
    Unusable,
)

RAW, DEFLATED, PROFILE = 0, 1, 2
"""Encoding of a text: raw, zlib, and optionally a profile in hexadecimal digits."""
Place = tuple[int, int, int]
"""(length, offset, encoding) of a text in its file. The length comes first because short texts are tried first."""

_PREFIX_END = 16
_PREFIXES = ("prompt", "workflow", "parameters")


MAKES_PICTURES = re.compile(
    r"leonardo|sea ?art|grok|\bx\.?ai\b"
    r"|midjourney|dall.?e|openai|chat.?gpt|firefly|stable ?diffusion|stability|ideogram"
    r"|novelai|recraft|\bflux\b|black forest|gemini|imagen|playground|nightcafe|tensor\.?art|civitai|draw things"
    r"|diffusionbee|invoke|comfyui|fooocus|swarmui|automatic1111|\bai\b",
    re.IGNORECASE,
)
"""Names of programs and services that generate images from text."""


class Fields:
    """Size and texts of one image.

    Args:
        source: the open file.
        width, height: in pixels, from the header.
    """

    kind: ClassVar[str] = ""
    __slots__ = (
        "_exif",
        "_spent",
        "comments",
        "exif_places",
        "has_exif",
        "has_xmp",
        "height",
        "note",
        "places",
        "source",
        "width",
        "xmp_places",
    )

    def __init__(self, source: Source, width: int, height: int) -> None:
        self.source = source
        self.width = width
        self.height = height
        self.places: dict[str, list[Place]] = {}
        self.exif_places: list[Place] = []
        self.has_exif = self.has_xmp = False
        """True if there are EXIF values or an XMP packet without a location of their own."""
        self.xmp_places: list[Place] = []
        self.comments: list[Place] = []
        self.note: Unusable | None = None
        self._exif: dict[str, str] | None = None
        self._spent = 0

    def add(self, key: str, place: Place) -> None:
        """Add a text under ``key``. Beyond a reasonable number they are ignored."""
        same = self.places.setdefault(key, [])
        if len(same) < MAX_SAME_KEY:
            same.append(place)

    def more(self) -> bool:
        """Look for texts after the pixels. Returns whether there was anything new to read."""
        return False

    def texts(self, key: str) -> Iterator[str]:
        """Yield every readable text called ``key``, shortest first. Unreadable ones leave a note."""
        places = self.places.get(key)
        if places is None:
            return
        for place in places if len(places) == 1 else sorted(places, key=itemgetter(0)):
            try:
                yield decode_text(self.load(place))
            except Unusable as error:
                self.note = error

    def load(self, place: Place) -> bytes:
        """Read the bytes of a text, inflated if needed.

        Raises:
            Unusable: the data is too large, damaged, or truncated.
        """
        length, offset, packing = place
        if length > MAX_CHUNK_TEXT:
            raise Unusable(Reason.TEXT_TOO_LARGE, f"{length} bytes in one text")
        if self._spent >= MAX_FILE_TEXT:
            raise Unusable(Reason.TEXT_TOO_LARGE, f"more than {MAX_FILE_TEXT} bytes in all")
        data = self.source.read(offset, length)
        if len(data) < length:
            raise Unusable(Reason.TRUNCATED)
        if packing & DEFLATED:
            self._spent += MAX_CHUNK_TEXT
            data = inflate(data)
            self._spent -= MAX_CHUNK_TEXT
        self._spent += len(data)
        return _unhex(data) if packing & PROFILE else data

    def exif(self) -> dict[str, str]:
        """The wanted EXIF values as text, by lower-case name; empty if there are none."""
        if self._exif is None:
            self._exif = {}
            for place in self.exif_places[:MAX_SAME_KEY]:
                try:
                    for name, value in parse_exif(self.load(place)).items():
                        self._exif.setdefault(name, value)
                except Unusable as error:
                    self.note = error
        return self._exif

    def orientation(self) -> int:
        """Return the rotation of the stored image for display, 1 to 8 as in EXIF."""
        value = int(self.exif().get("orientation", "1")) if self.exif_places or self.has_exif else 1
        return value if 1 <= value <= 8 else 1

    def prefixed(self) -> dict[str, str]:
        """EXIF values that contain their own name (``prompt:{...}``, ``Workflow: {...}``), by that name."""
        found: dict[str, str] = {}
        for value in self.exif().values():
            if _names_itself(value):
                key, _, text = value.partition(":")
                found.setdefault(key.strip().lower(), text.strip())
        return found

    def xmp(self) -> list[XmpText]:
        """Texts in the XMP packets that may hold a prompt."""
        return [text for packet in self.xmp_packets() for text in parse_xmp(packet)]

    def xmp_packets(self) -> list[str]:
        """The XMP packets."""
        return [decode_text(data) for data in self._loaded(self.xmp_places)]

    def is_photo(self) -> bool:
        """Return whether there are traces of a camera or of software that develops photographs."""
        exif = self.exif()
        if "exposure" in exif:
            return True
        makers = [exif[name] for name in ("make", "model") if name in exif]
        if any(not _names_itself(maker) and not MAKES_PICTURES.search(maker) for maker in makers):
            return True
        return any(map(is_photo, self.xmp_packets()))

    def comment_texts(self) -> list[str]:
        """The comments of a JPEG file."""
        return [decode_text(data) for data in self._loaded(self.comments)]

    def _loaded(self, places: list[Place]) -> list[bytes]:
        loaded = []
        for place in places[:MAX_SAME_KEY]:
            try:
                loaded.append(self.load(place))
            except Unusable as error:
                self.note = error
        return loaded


def _names_itself(value: str) -> bool:
    colon = value.find(":", 0, _PREFIX_END)
    return colon > 0 and value[:colon].strip().lower() in _PREFIXES


def inflate(data: bytes) -> bytes:
    """Decompress zlib data of at most ``MAX_CHUNK_TEXT`` bytes.

    Raises:
        Unusable: the data is larger, damaged or truncated.
    """
    machine = zlib.decompressobj()
    try:
        text = machine.decompress(data, MAX_CHUNK_TEXT)
        if machine.unconsumed_tail and machine.decompress(machine.unconsumed_tail, 1):
            raise Unusable(Reason.TEXT_TOO_LARGE, f"it inflates to more than {MAX_CHUNK_TEXT} bytes")
    except zlib.error as error:
        raise Unusable(Reason.BAD_TEXT, str(error)) from error
    if not machine.eof:
        raise Unusable(Reason.BAD_TEXT, "it is truncated")
    return text


def _unhex(data: bytes) -> bytes:
    """Decode a profile written by ImageMagick: type, length, and bytes in hexadecimal digits."""
    parts = data.split(None, 2)
    try:
        return bytes.fromhex(parts[2].decode("ascii"))
    except (IndexError, ValueError) as error:
        raise Unusable(Reason.BAD_EXIF, "a profile that cannot be read") from error
