"""The votes of an arena as one picture: two images per vote, with a green frame around the preferred one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from modules.arena.Arena import Voted
from modules.util.pairs.decoding import IMAGE_ERRORS

CELL, GAP, FRAME, HEAD = 128, 8, 4, 24
ACROSS = 5
"""Number of votes per row."""
MOST = 200
GREEN, GREY, PAPER, INK = "#2e9e57", "#9a9a9a", "#ffffff", "#202020"


def picture_of_votes(voted: Sequence[Voted], sentence: str) -> bytes:
    """Draw the newest ``MOST`` votes as a PNG file, below the result. A tie has two grey frames, an image
    that cannot be read is a grey area.
    """
    shown = voted[-MOST:]
    columns = max(1, min(ACROSS, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    wide, high = 2 * CELL + GAP, CELL + GAP
    size = (columns * (wide + GAP) + GAP, HEAD + GAP + rows * high)
    sheet = Image.new("RGB", (max(size[0], 8 * len(sentence)), size[1]), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((GAP, GAP), sentence, fill=INK)
    for number, vote in enumerate(shown):
        row, column = divmod(number, columns)
        left, top = GAP + column * (wide + GAP), HEAD + GAP + row * high
        for side, path in enumerate((vote.first, vote.second)):
            colour = GREY if vote.best is None else GREEN if vote.best == side else PAPER
            x = left + side * (CELL + GAP // 2)
            draw.rectangle((x, top, x + CELL - 1, top + CELL - 1), fill=colour)
            sheet.paste(_small(path), (x + FRAME, top + FRAME))
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()


def _small(path: Path) -> Image.Image:
    """An image in the size of its cell; grey if it is gone or damaged, because the vote still counts."""
    side = CELL - 2 * FRAME
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * CELL, 2 * CELL))
            return ImageOps.pad(image.convert("RGB"), (side, side), color=PAPER)
    except IMAGE_ERRORS:
        return Image.new("RGB", (side, side), GREY)
