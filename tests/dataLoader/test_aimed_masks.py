"""Random changes to images that follow their masks."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.pipeline.loss_masks.aiming import aimed, outline, shrunk
from modules.pipeline.loss_masks.reading import mask_cells
from modules.pipeline.nodes.transforms import Transform, apply_transform, crop_box
from modules.util.config.ConceptConfig import ConceptImageConfig
from tests.dataLoader.builders import AveragingModel
from tests.dataLoader.test_loss_masks import batches, masked

CROP = {"enable_crop_jitter": False, "enable_random_mask_rotate_crop": True}
DISC = {"enable_crop_jitter": False, "enable_random_circular_mask_shrink": True}


CROPPED = ConceptImageConfig.from_dict({"enable_random_mask_rotate_crop": True})


def spotted(root: Path, size: tuple[int, int] = (192, 128), spot: tuple[int, ...] = (40, 40, 72, 72)) -> Path:
    """An image that is white where its mask is."""
    (root / "pets").mkdir()
    levels = np.zeros((size[1], size[0]), dtype=np.uint8)
    left, top, right, bottom = spot
    levels[top:bottom, left:right] = 255
    Image.fromarray(np.stack([levels] * 3, -1)).save(root / "pets/a.png")
    Image.fromarray(levels).save(root / "pets/a-masklabel.png")
    (root / "pets/a.txt").write_text("a spot")
    return root / "pets"


@pytest.mark.parametrize("caching", [True, False])
def test_the_crop_follows_the_mask_and_takes_the_image_along(tmp_path: Path, caching: bool) -> None:
    place = spotted(tmp_path)
    kept = {"image": {**CROP, "enable_random_flip": True}, "image_variations": 8}
    made = masked(tmp_path, place, kept, epochs=8, batch_size=1, resolution="64", latent_caching=caching)
    looks = batches(made)
    for batch in looks:
        cells = batch.loss_mask_B1hw[0, 0]
        assert float((cells - batch.latents_BChw[0, 0]).abs().max()) < 0.25
        # 32 x 32 pixels, all of them in a crop of 80 x 56 at most 1.6 times their own box
        share = float(cells.mean()) * batch.size[0] * batch.size[1] / 1024
        assert 0.6 < share < 1.1
    assert len({batch.loss_mask_B1hw.numpy().tobytes() for batch in looks}) == 8
    again = batches(made)
    assert all(torch.equal(a.latents_BChw, b.latents_BChw) for a, b in zip(looks, again, strict=True))


def test_outlines_are_read_once_and_another_mask_crops_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.pipeline.loss_masks import MaskOutlines

    read: list[str] = []
    original = MaskOutlines.load_mask
    monkeypatch.setattr(
        MaskOutlines, "load_mask", lambda path, alpha: (read.append(path), original(path, alpha))[1]
    )
    place = spotted(tmp_path)
    made = masked(tmp_path, place, {"image": CROP, "image_variations": 4}, epochs=4, resolution="64")
    first, second = AveragingModel(), AveragingModel()
    batches(made, first)
    batches(made, second)
    assert len(read) == 1 and sum(first.images_encoded) == 4 and second.images_encoded == []


def test_a_disc_changes_masks_and_no_image(tmp_path: Path) -> None:
    place = spotted(tmp_path, (128, 128), (0, 0, 96, 128))
    plain, model = AveragingModel(), AveragingModel()
    (whole,) = batches(masked(tmp_path, place, resolution="128"), plain)
    made = masked(
        tmp_path, place, {"image": DISC, "image_variations": 6}, epochs=6, batch_size=1, resolution="128"
    )
    found = [batch.loss_mask_B1hw for batch in batches(made, model)]
    assert model.images_encoded == []
    assert all(bool((mask <= whole.loss_mask_B1hw).all()) and float(mask.sum()) > 0 for mask in found)
    sums = {float(mask.sum()) for mask in found}
    assert len(sums) == 6 and max(sums) < float(whole.loss_mask_B1hw.sum())


@given(st.floats(0, 0.999), st.floats(0.2, 1))
def test_a_disc_lies_around_a_white_point(which: float, radius: float) -> None:
    levels = np.zeros((40, 60), dtype=np.float32)
    levels[5:15, 20:50] = 1
    disc = shrunk(levels, (which, radius))
    ys, xs = np.nonzero(disc)
    assert set(np.unique(disc)) <= {0, 1} and (disc <= levels).all() and len(ys)
    white = np.argwhere(levels)
    y, x = white[int(which * len(white))]
    reach = math.sqrt(((white - (y, x)) ** 2).sum(1).max())
    assert disc[y, x] == 1
    assert math.sqrt(((ys - y) ** 2 + (xs - x) ** 2).max()) <= radius * reach + 1e-6
    assert (shrunk(levels, (which, 1.0)) == levels).all()


def test_a_disc_of_a_large_mask_takes_little_memory() -> None:
    levels = np.ones((2000, 3000), dtype=np.float32)
    tracemalloc.start()
    try:
        disc = shrunk(levels, (0.5, 0.5))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # the centre is the first pixel of row 1000, and the farthest one the last of row 0
    rows, columns = np.ogrid[:2000, :3000]
    assert (disc == ((rows - 1000) ** 2 + columns**2 <= 0.25 * (1000**2 + 2999**2))).all()
    assert peak < 3 * levels.nbytes


def with_spot(size: tuple[int, int], spot: tuple[int, int, int, int]) -> Any:
    levels = np.zeros((size[1], size[0]), dtype=np.float32)
    levels[spot[1] : spot[3], spot[0] : spot[2]] = 1
    return levels


SIDES = st.integers(60, 400)


@given(SIDES, SIDES, st.tuples(*[st.floats(0, 0.9)] * 4), st.integers(0, 1000), st.booleans())
def test_no_corner_of_a_crop_is_empty(
    width: int, height: int, at: tuple[float, ...], variation: int, flip: bool
) -> None:
    left, top = int(at[0] * width), int(at[1] * height)
    right, bottom = left + 1 + int(at[2] * (width - left)), top + 1 + int(at[3] * (height - top))
    white = outline(with_spot((width, height), (left, top, right, bottom)))
    plain = Transform((32, 48), flip=flip)
    found = aimed(plain, CROPPED, white, (width, height), 1.0, (1, "x", variation))
    box = crop_box((width, height), found)
    assert abs(found.angle) <= 20
    assert (box[2] - box[0]) / (box[3] - box[1]) == pytest.approx(1.5, rel=1e-6)
    assert apply_transform(Image.new("RGB", (width, height), (255, 255, 255)), found).min() > 200


@pytest.mark.parametrize("flip", [False, True])
def test_all_of_the_mask_is_in_the_crop_with_room_around_it(flip: bool) -> None:
    size, spot = (400, 300), (80, 100, 180, 160)
    levels = with_spot(size, spot)
    widths = []
    for variation in range(40):
        plain = Transform((32, 48), flip=flip)
        found = aimed(plain, CROPPED, outline(levels), size, 1.0, (1, "x", variation))
        box = crop_box(size, found)
        cells = mask_cells(Image.fromarray(levels, "F"), size, found, 1)
        scale = 48 / (box[2] - box[0])
        assert float(cells.sum()) == pytest.approx(100 * 60 * scale**2, rel=0.03)
        assert max(cells[0].max(), cells[-1].max(), cells[:, 0].max(), cells[:, -1].max()) < 0.5
        widths.append(box[2] - box[0])
    # 1.2 to 1.6 times the box of the turned mask
    assert 120 <= min(widths) < max(widths) <= 240


def test_a_crop_is_never_smaller_than_the_smallest_resolution() -> None:
    white = outline(with_spot((400, 300), (150, 150, 156, 156)))
    for least in (1.0, 0.5):
        found = aimed(Transform((32, 48)), CROPPED, white, (400, 300), least, (1, "x", 0))
        left, top, right, bottom = crop_box((400, 300), found)
        assert (right - left, bottom - top) == pytest.approx((48 * least, 32 * least))


def test_what_has_no_white_is_left_alone() -> None:
    image = ConceptImageConfig.from_dict(
        {"enable_random_mask_rotate_crop": True, "enable_random_circular_mask_shrink": True}
    )
    black = np.zeros((20, 20), dtype=np.float32)
    assert outline(black) == []
    plain = Transform((16, 16))
    assert aimed(plain, image, outline(black), (20, 20), 1.0, (1, "x", 0)) == plain
    assert (shrunk(black, (0.5, 0.5)) == black).all()
    assert plain.text() == "1:((16, 16), False, 0.0, (0.5, 0.5), 1.0, 1.0, 1.0, 0.0)"
