from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.pipeline.nodes.transforms import Transform, apply_transform, crop_box, decide_transform
from modules.util.config.ConceptConfig import ConceptImageConfig


def settings_of(**values: Any) -> ConceptImageConfig:
    return ConceptImageConfig.from_dict({"enable_crop_jitter": False, **values})


def gradient(width: int, height: int) -> Image.Image:
    x = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    y = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    return Image.fromarray(np.stack([x, y, np.full_like(x, 128)], -1).astype(np.uint8))


def test_without_settings_nothing_is_random() -> None:
    wild = settings_of(enable_random_flip=True, enable_crop_jitter=True)
    assert decide_transform((64, 64), None, 1, "a", 0) == Transform((64, 64))
    assert decide_transform((64, 64), settings_of(), 1, "a", 0) == Transform((64, 64))
    assert decide_transform((64, 64), wild, 1, "a", 0) != Transform((64, 64))


def test_decisions_belong_to_seed_item_and_variation() -> None:
    wild = settings_of(
        enable_crop_jitter=True, enable_random_rotate=True, random_rotate_max_angle=20.0,
        enable_random_brightness=True, random_brightness_max_strength=0.3,
    )  # fmt: skip
    keys = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1)]
    made = [decide_transform((64, 64), wild, *key) for key in keys]
    assert made == [decide_transform((64, 64), wild, *key) for key in keys]
    assert len({t.text() for t in made}) == 4
    assert all(-20 <= t.angle <= 20 and 0.7 <= t.brightness <= 1.3 for t in made)
    less = settings_of(enable_crop_jitter=True)
    assert [decide_transform((64, 64), less, *key).offset for key in keys] == [t.offset for t in made]


def test_fixed_augmentations_are_fixed() -> None:
    fixed = settings_of(
        enable_fixed_flip=True, enable_fixed_rotate=True, random_rotate_max_angle=30.0, enable_fixed_hue=True,
        random_hue_max_strength=0.5, enable_fixed_contrast=True, random_contrast_max_strength=-0.25,
        enable_fixed_saturation=True, random_saturation_max_strength=-1.0,
    )  # fmt: skip
    made = {decide_transform((64, 64), fixed, seed, "a", seed).text() for seed in range(5)}
    assert made == {Transform((64, 64), True, 30.0, (0.5, 0.5), 1.0, 0.75, 0.0, 0.25).text()}


def test_about_half_are_flipped() -> None:
    flips = [
        decide_transform((8, 8), settings_of(enable_random_flip=True), 0, str(i), 0).flip for i in range(400)
    ]
    assert 150 < sum(flips) < 250


@given(
    st.integers(8, 3000),
    st.integers(8, 3000),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.floats(-180, 180),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_crop_lies_inside_and_has_the_bucket_s_aspect(
    width: int, height: int, size: tuple[int, int], angle: float, offset: tuple[float, float]
) -> None:
    box = crop_box((width, height), Transform(size, angle=angle, offset=offset))
    left, top, right, bottom = box
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert math.isclose((right - left) / (bottom - top), size[1] / size[0], rel_tol=1e-6)


def test_crop_and_scale() -> None:
    image = gradient(200, 100)
    middle = apply_transform(image, Transform((50, 50)))
    assert middle.shape == (50, 50, 3) and middle.dtype == np.uint8
    assert abs(int(middle[25, 0, 0]) - 64) <= 2 and abs(int(middle[25, -1, 0]) - 191) <= 2
    left = apply_transform(image, Transform((50, 50), offset=(0.0, 0.5)))
    assert left[25, 0, 0] <= 2 and abs(int(left[25, -1, 0]) - 127) <= 2
    flipped = apply_transform(image, Transform((50, 50), flip=True))
    assert np.array_equal(flipped, apply_transform(image, Transform((50, 50)))[:, ::-1])


def test_an_image_of_the_right_size_is_left_alone() -> None:
    image = gradient(64, 48)
    assert np.array_equal(apply_transform(image, Transform((48, 64))), np.asarray(image))


@pytest.mark.parametrize("angle", [5.0, 30.0, 45.0, 90.0, -120.0])
def test_a_turned_image_has_no_empty_corners(angle: float) -> None:
    white = Image.new("RGB", (120, 80), (255, 255, 255))
    assert apply_transform(white, Transform((40, 40), angle=angle)).min() >= 250


def test_colours() -> None:
    image = Image.new("RGB", (16, 16), (200, 40, 40))
    brighter = apply_transform(image, Transform((16, 16), brightness=1.2))
    assert brighter[0, 0].tolist() == [240, 48, 48]
    grey = apply_transform(image, Transform((16, 16), saturation=0.0))[0, 0]
    assert len(set(grey.tolist())) == 1
    turned = apply_transform(image, Transform((16, 16), hue=1 / 3))[0, 0]
    assert turned.argmax() == 1
    flat = apply_transform(gradient(16, 16), Transform((16, 16), contrast=0.0))
    assert flat.std(axis=(0, 1)).max() < 1
