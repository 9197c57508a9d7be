"""The picture of a published adapter: before and after, drawn from the pixels without metadata."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from modules.util.errors import DataError
from modules.util.owned_files import shown
from modules.util.pairs.decoding import IMAGE_ERRORS

CELL = 256
GAP, LINE = 6, 26
PAPER, INK = (250, 250, 250), (40, 40, 40)
THUMBNAIL_LIMIT = 64 << 10
_START = "data:image/jpeg;base64,"
_TRIES = ((512, 88), (512, 75), (384, 75), (320, 70), (256, 60), (192, 50), (128, 40))


def _cell(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            pixels = image.convert("RGB")
    except IMAGE_ERRORS as error:
        raise DataError(
            f"{shown(path)} cannot be read: {error}", hint="run compare to make it again"
        ) from error
    enlarged = max(1, CELL // max(pixels.size))
    if enlarged > 1:
        pixels = pixels.resize((pixels.width * enlarged, pixels.height * enlarged), Image.Resampling.NEAREST)
    pixels.thumbnail((CELL, CELL))
    return pixels


def before_after(pairs: Sequence[tuple[Path, Path]]) -> Image.Image:
    """Draw columns of two images: the same prompt and seed before and after.

    Raises:
        DataError: an image is unreadable.
    """
    columns = [(_cell(before), _cell(after)) for before, after in pairs]
    high = [max(column[half].height for column in columns) for half in (0, 1)]
    width = GAP + sum(max(a.width, b.width) + GAP for a, b in columns)
    sheet = Image.new("RGB", (max(width, 160), sum(high) + 2 * LINE + GAP), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for half, title in enumerate(("before", "after")):
        top = half * (high[0] + LINE)
        draw.text((GAP, top + 4), title, fill=INK, font=font)
        left = GAP
        for column in columns:
            sheet.paste(column[half], (left, top + LINE))
            left += max(column[0].width, column[1].width) + GAP
    return sheet


def data_url(picture: Image.Image) -> str:
    """Encode a picture as text for an adapter's metadata, in at most ``THUMBNAIL_LIMIT`` bytes."""
    for side, quality in _TRIES:
        small = picture.copy()
        small.thumbnail((side, side))
        stream = io.BytesIO()
        small.save(stream, "JPEG", quality=quality)
        text = _START + base64.b64encode(stream.getvalue()).decode()
        if len(text) <= THUMBNAIL_LIMIT:
            return text
    raise AssertionError("a picture of 128 pixels is below the limit")
