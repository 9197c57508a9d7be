"""Masks take the way of their images, and white stays white on it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from modules.pipeline.loss_masks.reading import geometry_text, load_mask, mask_cells
from modules.pipeline.nodes.images import has_alpha
from modules.pipeline.nodes.transforms import Transform, apply_transform
from modules.util.errors import DataError

SIZE = (64, 48)
"""(width, height) of the image and of its mask."""


def left_half(size: tuple[int, int] = SIZE) -> Image.Image:
    levels = np.zeros((size[1], size[0]), dtype=np.float32)
    levels[:, : size[0] // 2] = 1.0
    return Image.fromarray(levels, "F")


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    grey = np.array([[0, 51, 102, 255]] * 12, dtype=np.uint8).repeat(3, 1)
    wanted = grey / np.float32(255)
    kinds = {
        "grey": Image.fromarray(grey),
        "colour": Image.fromarray(np.stack([grey] * 3, -1)),
        "palette": Image.fromarray(grey).convert("P"),
        "two": Image.fromarray(grey).convert("LA"),
        "sixteen": Image.fromarray(grey.astype(np.uint16) * 257),
    }
    for name, image in kinds.items():
        image.save(tmp_path / f"{name}.png")
        read = np.asarray(load_mask(tmp_path / f"{name}.png"))
        assert read.dtype == np.float32
        assert np.abs(read - wanted).max() < 1e-6, name
    Image.fromarray(grey > 100).save(tmp_path / "bits.png")
    assert np.array_equal(np.asarray(load_mask(tmp_path / "bits.png")), (grey > 100).astype(np.float32))
    fine = np.full((12, 12), 1000, dtype=np.uint16)
    Image.fromarray(fine).save(tmp_path / "fine.png")
    assert np.allclose(np.asarray(load_mask(tmp_path / "fine.png")), 1000 / 65535, atol=1e-7)


def test_colours_count_by_their_brightness_and_nothing_else_does(tmp_path: Path) -> None:
    red = np.zeros((12, 12, 3), dtype=np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "red.png")
    assert np.allclose(np.asarray(load_mask(tmp_path / "red.png")), 0.299, atol=0.003)


def test_the_alpha_channel_is_a_mask_and_its_absence_is_seen(tmp_path: Path) -> None:
    pixels = np.zeros((12, 16, 4), dtype=np.uint8)
    pixels[:, :4, 3] = 255
    pixels[:, 4:8, 3] = 51
    Image.fromarray(pixels, "RGBA").save(tmp_path / "cut.png")
    Image.fromarray(pixels[..., :3]).save(tmp_path / "plain.png")
    read = np.asarray(load_mask(tmp_path / "cut.png", alpha=True))
    assert read[0].tolist() == pytest.approx([1.0] * 4 + [0.2] * 4 + [0.0] * 8)
    assert has_alpha(tmp_path / "cut.png")
    assert not has_alpha(tmp_path / "plain.png")
    assert np.asarray(load_mask(tmp_path / "plain.png", alpha=True)).min() == 1.0


def test_a_turned_file_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    image = Image.fromarray((np.asarray(left_half((32, 24))) * 255).astype(np.uint8))
    image.save(tmp_path / "turned.png", exif=exif)
    read = np.asarray(load_mask(tmp_path / "turned.png"))
    assert read.shape == (32, 24)
    assert (read[:16] == 1).all() and (read[16:] == 0).all()


def test_a_damaged_file_is_a_fault(tmp_path: Path) -> None:
    Image.new("L", (64, 64), 255).save(tmp_path / "m.png")
    whole = (tmp_path / "m.png").read_bytes()
    (tmp_path / "m.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"m\.png"):
        load_mask(tmp_path / "m.png")


ANGLES = st.floats(-180, 180, allow_nan=False)
SHARES = st.floats(0, 1, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(12, 90), st.integers(12, 90), st.booleans(), st.one_of(st.just(0.0), ANGLES), SHARES, SHARES,
    st.sampled_from([(64, 64), (96, 32), (32, 96)]), st.sampled_from([8, 32]), st.integers(1, 3),
)  # fmt: skip
def test_white_stays_exactly_white(
    width: int,
    height: int,
    flip: bool,
    angle: float,
    x: float,
    y: float,
    crop: tuple[int, int],
    factor: int,
    scale: int,
) -> None:
    mask = Image.fromarray(np.ones((height * scale, width * scale), dtype=np.float32), "F")
    cells = mask_cells(mask, (width, height), Transform(crop, flip, angle, (x, y)), factor)
    assert cells.shape == (crop[0] // factor, crop[1] // factor)
    assert (cells == 1.0).all()


def test_the_left_half_is_the_right_half_after_a_flip() -> None:
    cells = mask_cells(left_half(), SIZE, Transform((48, 64)), 8)
    assert (cells[:, :4] == 1).all() and (cells[:, 4:] == 0).all()
    flipped = mask_cells(left_half(), SIZE, Transform((48, 64), flip=True), 8)
    assert np.array_equal(flipped, cells[:, ::-1])


@pytest.mark.parametrize("angle", [90.0, -90.0, 180.0])
def test_a_turned_half_is_where_it_belongs(angle: float) -> None:
    """Counter-clockwise by a quarter: the left half is the lower one."""
    square = left_half((64, 64))
    cells = mask_cells(square, (64, 64), Transform((64, 64), angle=angle), 8)
    wanted = np.zeros((8, 8), dtype=np.float32)
    wanted[{90.0: np.s_[4:, :], -90.0: np.s_[:4, :], 180.0: np.s_[:, 4:]}[angle]] = 1.0
    assert np.abs(cells - wanted).max() < 0.1


@settings(max_examples=40, deadline=None)
@given(
    st.booleans(),
    st.one_of(st.just(0.0), ANGLES),
    SHARES,
    SHARES,
    st.sampled_from([(64, 64), (64, 96), (96, 48)]),
)
def test_a_mask_takes_the_way_of_its_image(
    flip: bool, angle: float, x: float, y: float, crop: tuple[int, int]
) -> None:
    """The image of a disc, transformed and averaged over cells, is the mask of that disc to the width of a cell."""
    rows, columns = np.mgrid[0:120, 0:160]
    disc = ((rows - 50) ** 2 + (columns - 70) ** 2 < 32**2).astype(np.float32)
    image = Image.fromarray((np.stack([disc] * 3, -1) * 255).astype(np.uint8))
    transform = Transform(crop, flip, angle, (x, y), 1.3, 0.8, 0.7, 0.2)
    cells = mask_cells(Image.fromarray(disc, "F"), (160, 120), transform, 8)
    plain = Transform(crop, flip, angle, (x, y))
    seen = apply_transform(image, plain)[..., 0].reshape(crop[0] // 8, 8, crop[1] // 8, 8).mean((1, 3)) / 255
    assert np.abs(cells - seen).max() < 0.2
    assert abs(float(cells.mean() - seen.mean())) < 0.02
    assert geometry_text(transform) == geometry_text(plain)


def test_a_mask_of_another_size_says_the_same() -> None:
    for scale in (0.5, 2, 3):
        size = (round(SIZE[0] * scale), round(SIZE[1] * scale))
        for transform in (
            Transform((48, 64)),
            Transform((32, 32), offset=(0.2, 0.7)),
            Transform((48, 64), angle=30.0),
        ):
            gap = mask_cells(left_half(size), SIZE, transform, 8) - mask_cells(
                left_half(), SIZE, transform, 8
            )
            assert np.abs(gap).max() < 0.15, (scale, transform)


def test_cells_are_averages() -> None:
    levels = np.random.default_rng(0).random((48, 64)).astype(np.float32)
    cells = mask_cells(Image.fromarray(levels, "F"), SIZE, Transform((48, 64)), 8)
    assert np.allclose(cells, levels.reshape(6, 8, 8, 8).mean((1, 3)), atol=1e-6)
    assert math.isclose(float(cells.mean()), float(levels.mean()), rel_tol=1e-5)
