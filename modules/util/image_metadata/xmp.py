"""Texts out of XMP packets, by pattern instead of an XML parser: no entities, no recursion, no surprises."""

from __future__ import annotations

import html
import re

_NAMES = (
    r"(?:exif:UserComment|dc:description|tiff:ImageDescription"
    r"|[A-Za-z]{1,20}:(?:parameters|prompt|workflow|Parameters|Prompt))"
)
_OPENING = re.compile(rf"<({_NAMES})\b[^<>]{{0,400}}>")
_ATTRIBUTE = re.compile(rf"\s{_NAMES}\s?=\s?(?:\"([^\"<]*)\"|'([^'<]*)')")
_TAG = re.compile(r"<[^<>]{0,400}>")
_MAX_TEXTS = 16


def parse_xmp(packet: str) -> list[str]:
    """The contents of the elements and attributes that generators use, entities resolved, in order."""
    found: list[str] = []
    position = 0
    while len(found) < _MAX_TEXTS and (opening := _OPENING.search(packet, position)):
        position = opening.end()
        if opening.group().endswith("/>"):
            continue
        end = packet.find(f"</{opening.group(1)}", position)
        if end < 0:
            break
        found.append(packet[position:end])
        position = end
    found = [_TAG.sub("", text) for text in found]
    for attribute in _ATTRIBUTE.finditer(packet):
        if len(found) >= _MAX_TEXTS:
            break
        found.append(attribute.group(1) or attribute.group(2) or "")
    return [text for text in (html.unescape(raw).strip() for raw in found) if text]
