"""Decides which plain-text descriptions may be the prompt of a picture."""

from __future__ import annotations

import re

from modules.util.image_metadata.formats.comfy_values import can_be_prompt

_BY_DEVICES = re.compile(
    r"(?:olympus|sony|nikon|canon|kodak|samsung|pentax|fuji\w{0,8}|konica|minolta|casio|panasonic)[\w ]{0,30}"
    r"(?:camera|dsc|still|pictures?|techwin)[\w ]{0,20}"
    r"|(?:dcim\b|exif[_ ]jpeg|maker:|screen ?shot|created (?:with|by|using)|made (?:with|in) (?:the )?gimp).{0,200}"
    r"|(?:scanned )?(?:image|picture|photo|file|document|page|description|caption|title|test|untitled)[\s_-]?\d{0,6}"
    r"|(?:signature|creator|author|credits?|source|id|uuid|job id)\s?[:#=].*"
    r"|(?:copyright|\(c\)|©).*",
    re.IGNORECASE | re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_OTHER_SCRIPT = re.compile(r"[^\x00-\u02ff]{2}")
_FEWEST_WORDS = 2


def describes_a_prompt(text: str, known_maker: bool) -> bool:
    """Return whether a description may be a prompt, rather than text that devices and editors insert.

    Args:
        known_maker: whether the file names a known image generator. A single word is enough then.
    """
    text = text.strip()
    if not text or text[0] in "{[<" or not can_be_prompt(text) or _BY_DEVICES.fullmatch(text):
        return False
    words = len(_WORD.findall(text[:2000]))
    return words >= (1 if known_maker else _FEWEST_WORDS) or _OTHER_SCRIPT.search(text) is not None
