"""Masks that are painted: which pixels, what is taken back, what is on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from modules.tools.dataset.files import find_images
from modules.tools.dataset.mask_painting import (
    JOB,
    MaskChangedError,
    Painting,
    open_painting,
    save_painting,
)
from modules.tools.Journal import Journal
from modules.util.errors import DataError
from tests.tools.pictures import contents, picture

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24))
PLACES = st.tuples(st.floats(-8, 32), st.floats(-8, 32))


def white(width: int = 20, height: int = 12) -> Painting:
    return Painting(numpy.full((height, width), 255, numpy.uint8))


def painted(painting: Painting, *strokes: tuple[object, ...]) -> numpy.ndarray:
    painting.begin()
    for stroke in strokes:
        painting.stroke(*stroke)  # type: ignore[arg-type]
    painting.end()
    return painting.levels


@given(SIZES, PLACES, PLACES, st.floats(0.5, 12))
@example((1, 1), (0.0, 0.0), (0.0, 7.2e-50), 1.0)
@settings(max_examples=60, deadline=None)
def test_a_stroke_paints_the_pixels_near_its_line_and_no_others(
    size: tuple[int, int], start: tuple[float, float], end: tuple[float, float], radius: float
) -> None:
    width, height = size
    painting = white(width, height)
    levels = painted(painting, (start, end, radius, 0))
    along = numpy.subtract(end, start)
    for row in range(height):
        for column in range(width):
            middle = numpy.subtract((column + 0.5, row + 0.5), start)
            length = float(along @ along)
            share = min(1.0, max(0.0, float(middle @ along) / length)) if length else 0.0
            distance = float(numpy.linalg.norm(middle - share * along))
            if abs(distance - radius) > 1e-3:
                assert levels[row, column] == (0 if distance < radius else 255)


def test_a_dot_is_a_disc_of_known_pixels() -> None:
    levels = painted(white(7, 7), ((3.5, 3.5), (3.5, 3.5), 2, 0))
    wanted = [
        "       ",
        "   #   ",
        "  ###  ",
        " ##### ",
        "  ###  ",
        "   #   ",
        "       ",
    ]
    assert ["".join("#" if level == 0 else " " for level in row) for row in levels] == wanted


def test_strength_counts_once_in_a_stroke_and_again_in_the_next() -> None:
    painting = white()
    dot = ((5, 5), (5, 5), 3, 0, 0.25)
    assert painted(painting, dot, dot, dot)[5, 5] == 191
    assert painted(painting, dot)[5, 5] == 143
    assert painting.levels[0, 19] == 255


@given(st.integers(0, 2**32 - 1), st.integers(0, 15), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_filling_takes_what_hangs_together(seed: int, column: int, row: int) -> None:
    levels = numpy.random.default_rng(seed).integers(0, 2, (10, 16), dtype=numpy.uint8) * numpy.uint8(255)
    painting = Painting(levels)
    painting.begin()
    painting.fill((column + 0.5, row + 0.5), 99)
    painting.end()
    wanted, waiting = levels.copy(), [(row, column)]
    while waiting:
        y, x = waiting.pop()
        if 0 <= y < 10 and 0 <= x < 16 and wanted[y, x] == levels[row, column]:
            wanted[y, x] = 99
            waiting += [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
    assert numpy.array_equal(painting.levels, wanted)


def test_filling_outside_the_image_does_nothing() -> None:
    painting = white()
    painting.begin()
    assert painting.fill((20.5, 3), 0).empty
    painting.end()
    assert painting.undo() is None


def test_strokes_are_taken_back_and_made_again_in_order() -> None:
    painting = white()
    seen = [painting.levels.copy()]
    seen.append(painted(painting, ((3, 3), (9, 6), 2, 0), ((9, 6), (12, 3), 2, 0)).copy())
    painting.invert()
    seen.append(painting.levels.copy())
    painting.fill_all(40)
    seen.append(painting.levels.copy())
    for wanted in reversed(seen[:-1]):
        assert painting.undo() is not None
        assert numpy.array_equal(painting.levels, wanted)
    assert painting.undo() is None and not painting.changed
    for wanted in seen[1:3]:
        assert painting.redo() is not None
        assert numpy.array_equal(painting.levels, wanted)
    painted(painting, ((1, 1), (1, 1), 1, 7))
    assert painting.redo() is None, "what was taken back is gone after another stroke"


def test_a_stroke_that_changes_nothing_is_not_taken_back() -> None:
    painting = white()
    painted(painting, ((3, 3), (9, 6), 2, 255))
    assert painting.undo() is None and not painting.changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    root.mkdir()
    for name in ("a.png", "b.jpg"):
        picture(1).save(root / name)
    (root / "a.txt").write_text("fox")
    return root


def test_the_file_has_the_pixels_that_were_painted_and_undo_brings_the_old_one_back(folder: Path) -> None:
    before = contents(folder)
    one = find_images(folder, False)[0]
    opened = open_painting(folder, one)
    assert opened.painting.size == opened.image.size == (64, 48)
    assert (opened.painting.levels == 255).all(), "without a mask everything is learned"
    levels = painted(opened.painting, ((10, 10), (50, 40), 6, 0, 0.5)).copy()
    digest = save_painting(folder, one, levels, opened.digest)
    assert numpy.array_equal(numpy.asarray(Image.open(folder / "a-masklabel.png")), levels)
    again = open_painting(folder, find_images(folder, False)[0])
    assert again.digest == digest and numpy.array_equal(again.painting.levels, levels)
    again.painting.fill_all(0)
    save_painting(folder, one, again.painting.levels, again.digest)
    assert Journal(folder).undo(JOB)
    assert numpy.array_equal(numpy.asarray(Image.open(folder / "a-masklabel.png")), levels)
    assert Journal(folder).undo(JOB)
    assert contents(folder) == before


def test_a_mask_that_another_program_wrote_is_not_replaced(folder: Path) -> None:
    one = find_images(folder, False)[0]
    opened = open_painting(folder, one)
    Image.new("L", (64, 48), 9).save(folder / "a-masklabel.png")
    before = contents(folder)
    with pytest.raises(MaskChangedError) as caught:
        save_painting(folder, one, opened.painting.levels, opened.digest)
    assert contents(folder) == before
    save_painting(folder, one, opened.painting.levels, caught.value.digest)
    assert numpy.asarray(Image.open(folder / "a-masklabel.png")).min() == 255


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: Image.new("L", (30, 60)).save(path), "the shape of"),
        (lambda path: path.write_bytes(b"no image"), "is unreadable"),
        (lambda path: path.mkdir(), "is not a file"),
    ],
)
def test_masks_that_cannot_be_painted_are_named(folder: Path, make, said: str) -> None:
    make(folder / "a-masklabel.png")
    with pytest.raises(DataError, match=f"a-masklabel.png.*{said}|{said}.*a-masklabel.png"):
        open_painting(folder, find_images(folder, False)[0])


def test_a_smaller_mask_of_the_same_shape_is_painted_in_the_size_of_its_image(folder: Path) -> None:
    Image.new("L", (32, 24), 0).save(folder / "a-masklabel.png")
    opened = open_painting(folder, find_images(folder, False)[0])
    assert opened.painting.size == (64, 48) and not opened.painting.levels.any()
