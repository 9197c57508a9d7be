"""Texts from XMP packets, found by pattern instead of an XML parser: no entities, no recursion, no surprises."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

_NAMES = (
    r"(?:exif:UserComment|dc:description|tiff:ImageDescription"
    r"|[A-Za-z]{1,20}:(?:parameters|prompt|workflow|Parameters|Prompt))"
)
_OPENING = re.compile(rf"<({_NAMES})\b[^<>]{{0,400}}>")
_ATTRIBUTE = re.compile(rf"\s({_NAMES})\s?=\s?(?:\"([^\"<]*)\"|'([^'<]*)')")
_TAG = re.compile(r"<[^<>]{0,400}>")
_LANGUAGE_END = re.compile(r"</rdf:li\s?>")
_MAX_TEXTS = 16
_DESCRIPTIONS = ("dc:description", "tiff:ImageDescription")
_PHOTO = re.compile(
    r"<(?:tiff:(?:Make|Model)|exif:(?:ExposureTime|FNumber|ISOSpeedRatings)|exifEX:|aux:|crs:|lr:)"
    r"|\s(?:tiff:(?:Make|Model)|exif:(?:ExposureTime|FNumber)|aux:Lens|crs:Version)\s?=\s?[\"']"
    r"|(?:Lightroom|Capture One|darktable|RawTherapee|DxO)"
)


class XmpText(NamedTuple):
    """A text of a packet.

    Args:
        text: the text, with entities resolved.
        is_description: whether its name is one that any picture may have.
    """

    text: str
    is_description: bool


def parse_xmp(packet: str) -> list[XmpText]:
    """The contents of elements and attributes used by generators, in order. Descriptions come last."""
    found: list[tuple[str, str]] = []
    position = 0
    while len(found) < _MAX_TEXTS and (opening := _OPENING.search(packet, position)):
        position = opening.end()
        if opening.group().endswith("/>"):
            continue
        end = packet.find(f"</{opening.group(1)}", position)
        if end < 0:
            break
        found.append((opening.group(1), _first_language(packet[position:end])))
        position = end
    for attribute in _ATTRIBUTE.finditer(packet):
        if len(found) >= _MAX_TEXTS:
            break
        found.append((attribute.group(1), attribute.group(2) or attribute.group(3) or ""))
    texts = [XmpText(html.unescape(raw).strip(), name in _DESCRIPTIONS) for name, raw in found]
    return sorted((one for one in texts if one.text), key=lambda one: one.is_description)


def _first_language(raw: str) -> str:
    """The text of an element, or of its first language."""
    return _TAG.sub("", raw[: end.start()] if (end := _LANGUAGE_END.search(raw)) else raw)


def is_photo(packet: str) -> bool:
    """Return whether a packet was written by a camera or by software that develops photographs."""
    return _PHOTO.search(packet) is not None
