"""Draws a grid of images as one image with labelled columns and rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from modules.pipeline.nodes.images import load_rgb

MOST_SIDE, MOST_PIXELS = 16_000, 60_000_000
LARGEST_CELL, SMALLEST_CELL = 512, 96
FONT_SIZE, LINE, GAP, ROW_HEAD, MOST_LINES = 14, 18, 4, 150, 4
ELLIPSIS = "..."
STRENGTH_CELL, STRENGTH_HEAD = 256, 20
SORTED_CELL, SORTED_COLUMNS = 192, 6


def wrapped(text: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """Wrap a text to a width, at most ``MOST_LINES`` lines. Longer texts are truncated with an ellipsis."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if measure(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    cut = len(lines) > MOST_LINES
    lines = lines[:MOST_LINES]
    if cut:
        lines[-1] += ELLIPSIS
    return [_fitting(line, width, measure) for line in lines]


def _fitting(line: str, width: float, measure: Callable[[str], float]) -> str:
    line = line[:500]
    if measure(line) <= width:
        return line
    while line and measure(line + ELLIPSIS) > width:
        line = line[:-1]
    return line + ELLIPSIS


def cell_side(columns: int, rows: int, longest: int) -> int:
    """The longer side of a cell in pixels that keeps the sheet within its limits."""
    room = min((MOST_SIDE - ROW_HEAD) // columns, (MOST_SIDE - MOST_LINES * LINE) // rows)
    area = int((MOST_PIXELS / (columns * rows)) ** 0.5)
    return max(1, min(LARGEST_CELL, longest, room, area))


def draw_sheet(rows: Sequence[Sequence[Path]], across: Sequence[str], down: Sequence[str]) -> bytes:
    """Draw the sheet as a PNG file.

    Args:
        rows: the images, row by row, all rows of the same length.
        across: a label for each column; empty labels take no space.
        down: a label for each row.
    """
    sizes = [_size(path) for row in rows for path in row]
    scale = cell_side(len(across), len(down), max(map(max, sizes))) / max(map(max, sizes))
    wide, high = (max(1, round(max(size[axis] for size in sizes) * scale)) for axis in (0, 1))
    step = max(wide, SMALLEST_CELL)
    font = ImageFont.load_default(FONT_SIZE)
    heads = [wrapped(text, step - 2 * GAP, font.getlength) for text in across]
    sides = [wrapped(text, ROW_HEAD - 2 * GAP, font.getlength) for text in down]
    top = LINE * max(map(len, heads)) + 2 * GAP if any(across) else 0
    left = ROW_HEAD if any(down) else 0
    tall = max(high, LINE * max(map(len, sides))) if left else high
    sheet = Image.new("RGB", (left + step * len(across), top + tall * len(down)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, lines in enumerate(heads if top else ()):
        draw.multiline_text((left + column * step + GAP, GAP), "\n".join(lines), "black", font)
    for number, row in enumerate(rows):
        if left:
            draw.multiline_text((GAP, top + number * tall), "\n".join(sides[number]), "black", font)
        for column, path in enumerate(row):
            with Image.open(path) as image:
                size = tuple(max(1, round(side * scale)) for side in image.size)
                small = image.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS)
            sheet.paste(small, (left + column * step, top + number * tall))
    return _png(sheet)


def strength_grid(paths: Sequence[Path], strengths: Sequence[float]) -> bytes:
    """Draw a PNG file with a row for each image and a labelled column for each strength.

    Args:
        paths: all images of the first strength, then all of the second, ...
    """
    rows = len(paths) // len(strengths)
    images = [Image.open(path).convert("RGB") for path in paths]
    scale = min(1.0, STRENGTH_CELL / max(max(image.size) for image in images))
    wide, high = (max(1, round(max(image.size[axis] for image in images) * scale)) for axis in (0, 1))
    sheet = Image.new("RGB", (len(strengths) * wide, STRENGTH_HEAD + rows * high), "white")
    draw = ImageDraw.Draw(sheet)
    for number, image in enumerate(images):
        column, row = divmod(number, rows)
        draw.text((column * wide + 4, 4), f"{strengths[column]:g}", fill="black")
        sheet.paste(image.resize((wide, high)), (column * wide, STRENGTH_HEAD + row * high))
    return _png(sheet)


def sorted_sheet(found: Sequence[tuple[Path, str]]) -> bytes:
    """Draw a PNG file with images in reading order, all as large as fit a cell, each above its label.

    Args:
        found: the images and their labels, at least one.
    """
    columns = min(SORTED_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    step = SORTED_CELL + LINE + 2 * GAP
    font = ImageFont.load_default(FONT_SIZE)
    sheet = Image.new("RGB", (columns * (SORTED_CELL + GAP), rows * step), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (path, label) in enumerate(found):
        left, top = number % columns * (SORTED_CELL + GAP), number // columns * step
        small = ImageOps.contain(load_rgb(path), (SORTED_CELL, SORTED_CELL))
        sheet.paste(small, (left, top))
        draw.text((left, top + SORTED_CELL + GAP), _fitting(label, SORTED_CELL, font.getlength), "black", font)
    return _png(sheet)


def _png(sheet: Image.Image) -> bytes:
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size
