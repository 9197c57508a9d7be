"""Converts manifest entries of OneTrainer's pair tool to those of this program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modules.util.bucket import aspect_label
from modules.util.image_metadata.normalise import normalise_prompt

_SIDES = ("chosen", "rejected")
_LARGEST_ID = 999_999_999
_SHAPE = re.compile(r"\s*(\d{1,7}(?:\.\d{1,7})?)(?:\s*[:/xX×]\s*(\d{1,7}(?:\.\d{1,7})?))?\s*")


def adopt_entry(entry: Any) -> Any:
    """Convert a manifest entry to this program's form. Any other value, including a converted entry, is
    returned unchanged.

    OneTrainer numbers its pairs (``"pair_id": 0``), names files without their folder (``pair_0000.png``), and
    stores sources and hashes in flat keys (``chosen_source``, ``chosen_sha256``).
    """
    if not isinstance(entry, Mapping) or not _is_number(entry.get("pair_id")):
        return entry
    adopted = dict(entry)
    adopted["pair_id"] = f"pair_{entry['pair_id']:04d}"
    if isinstance(entry.get("prompt"), str):
        adopted["prompt"] = normalise_prompt(entry["prompt"])
    adopted["aspectratio"] = shape_name(str(entry.get("aspectratio", "")))
    for side in _SIDES:
        name = entry.get(f"{side}_file")
        if isinstance(name, str) and name and "/" not in name and "\\" not in name:
            adopted[f"{side}_file"] = f"{side}/{name}"
    for key, old in (("sources", "source"), ("hashes", "sha256")):
        if key not in entry:
            found = {side: adopted.pop(f"{side}_{old}", None) for side in _SIDES}
            adopted[key] = {side: value for side, value in found.items() if isinstance(value, str)}
    return adopted


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_ID


def shape_name(text: str) -> str:
    """The current name of an aspect ratio written as ``16:9``, ``1344x768`` or ``1.75``. Other texts are
    unchanged.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        return text.strip()
    width, height = (round(float(part or 1) * 10_000) for part in match.groups())
    return aspect_label(width, height) if width and height else text.strip()
