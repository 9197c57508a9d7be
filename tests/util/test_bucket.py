from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.util.bucket import ASPECTS, aspect_label, bucket_of, nearest_aspect, size_multiple

sides = st.integers(1, 20_000)
resolutions = st.sampled_from([64, 128, 256, 320, 512, 768, 1024, 1536])


@given(sides, sides, resolutions, st.sampled_from([4, 8, 16, 32]))
def test_bucket_is_a_multiple_of_the_right_area_and_aspect(
    width: int, height: int, resolution: int, multiple: int
) -> None:
    h, w = bucket_of(width, height, resolution, multiple)
    step = size_multiple(resolution, multiple)
    assert h % step == 0 and w % step == 0 and step % multiple == 0
    assert abs(math.log(w * h / resolution**2)) < 0.35 or resolution < 8 * step
    aspect = nearest_aspect(width, height)
    assert (w >= h) if aspect > 1 else (h >= w)


@given(sides, sides, resolutions)
def test_turning_the_image_turns_the_bucket(width: int, height: int, resolution: int) -> None:
    h, w = bucket_of(width, height, resolution)
    turned = bucket_of(height, width, resolution)
    if abs(math.log(width / height)) < math.log(4):
        # exactly between two aspects the narrower one is taken both ways round
        assert turned == (w, h) or any(
            math.isclose((width / height) ** 2, a * b) for a, b in pairwise(ASPECTS)
        )


@pytest.mark.parametrize(
    ("size", "resolution", "bucket"),
    [
        ((512, 512), 512, (512, 512)),
        ((1024, 1024), 512, (512, 512)),
        ((1152, 896), 1024, (896, 1152)),
        ((896, 1152), 1024, (1152, 896)),
        ((64, 64), 64, (64, 64)),
        ((10_000, 10), 512, (256, 1024)),
    ],
)
def test_known_buckets(size: tuple[int, int], resolution: int, bucket: tuple[int, int]) -> None:
    assert bucket_of(*size, resolution) == bucket


def test_without_bucketing_everything_is_square() -> None:
    assert bucket_of(1000, 300, 512, bucketing=False) == (512, 512)


def test_labels_do_not_depend_on_resolution() -> None:
    assert aspect_label(1200, 800) == aspect_label(600, 400) == "3:2"
    assert aspect_label(800, 1200) == "2:3"
    assert {aspect_label(a.numerator * 100, a.denominator * 100) for a in ASPECTS} == {
        f"{a.numerator}:{a.denominator}" for a in ASPECTS
    }


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="0x5"):
        nearest_aspect(0, 5)


@pytest.mark.child
def test_needs_no_torch() -> None:
    code = "import sys, modules.util.bucket; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
