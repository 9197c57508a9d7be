"""Every statistic against a computation written another way (numpy, loops, the colour formulas)."""

from __future__ import annotations

import io
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from modules.reward import builtin
from modules.reward.base import RewardError, create_reward, to_uint8
from modules.util.errors import ConfigError
from tests.reward.builders import batch_of, noise_images


def grey(image):
    r, g, b = image.double().numpy()
    return 0.299 * r + 0.587 * g + 0.114 * b


def jpeg(image, quality=95):
    stream = io.BytesIO()
    array = np.rint(image.numpy().transpose(1, 2, 0) * 255).astype(np.uint8)
    Image.fromarray(array).save(stream, "JPEG", quality=quality)
    return len(stream.getvalue()) / 1000


def colour(image):
    r, g, b = image.double().numpy()
    rg, yb = r - g, (r + g) / 2 - b
    return math.hypot(rg.std(), yb.std()) + 0.3 * math.hypot(rg.mean(), yb.mean())


def laplacian(image):
    y = grey(image)
    height, width = y.shape
    values = [
        y[i - 1, j] + y[i + 1, j] + y[i, j - 1] + y[i, j + 1] - 4 * y[i, j]
        for i in range(1, height - 1)
        for j in range(1, width - 1)
    ]
    return np.var(values)


def bits(image):
    counts = Counter(np.rint(grey(image) * 255).astype(int).ravel().tolist())
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values())


EXPECTED = {
    "brightness": lambda image: grey(image).mean(),
    "contrast": lambda image: grey(image).std(),
    "colourfulness": colour,
    "sharpness": laplacian,
    "symmetry_lr": lambda image: 1 - np.abs(image.numpy() - image.numpy()[:, :, ::-1]).mean(),
    "entropy": bits,
    "clipped": lambda image: -np.isin(np.rint(image.numpy() * 255), (0, 255)).mean(),
    "jpeg_incompressibility": jpeg,
    "jpeg_compressibility": lambda image: -jpeg(image) / 500,
}
SIGN = {"clipped": -1, "jpeg_compressibility": -500}


@pytest.mark.parametrize("key", EXPECTED)
def test_statistics_equal_another_computation(key):
    images = noise_images(3, 24)
    images[1] *= 0.3
    images[2, :, :12] = 1
    expected = [EXPECTED[key](image) for image in images]
    found = create_reward(key).score(batch_of(images))
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)
    measure = [value * SIGN.get(key, 1) for value in expected]
    target = 0.4
    found = create_reward(key, {"target": target}).score(batch_of(images))
    assert found.tolist() == pytest.approx([-abs(v - target) for v in measure], rel=1e-5, abs=1e-6)


def test_likeness_to_the_source_of_an_edit():
    images = noise_images(3)
    same, other = to_uint8(images[0]), torch.zeros(3, 8, 8, dtype=torch.uint8)
    batch = batch_of(images, sources=[(same,), (other, same), (to_uint8(images[1]),)])
    expected = [1.0, 1 - float(images[1].mean()), 1 - float((images[2] - images[1]).abs().mean())]
    assert create_reward("source_likeness").score(batch).tolist() == pytest.approx(expected, abs=3e-3)
    assert create_reward("source_likeness").score(batch.select([1])).tolist() == pytest.approx(
        expected[1:2], abs=3e-3
    )
    with pytest.raises(ConfigError, match="needs a source image, but image 1 has none"):
        create_reward("source_likeness").score(batch_of(images, sources=[(same,), (), (same,)]))
    with pytest.raises(RewardError, match="3 images but 1 source image$"):
        batch_of(images, sources=[(same,)])


@pytest.mark.parametrize("key", EXPECTED)
def test_a_score_does_not_depend_on_the_batch(key):
    images = noise_images(4)
    together = create_reward(key).score(batch_of(images))
    alone = torch.cat([create_reward(key).score(batch_of(image[None])) for image in images])
    assert torch.allclose(together, alone, atol=1e-6)


def test_known_images():
    flat = torch.full((1, 3, 8, 8), 0.5)
    checker = (torch.arange(8)[:, None] + torch.arange(8)[None, :]).remainder(2).float().expand(1, 3, 8, 8)
    assert builtin.brightness(flat).item() == pytest.approx(0.5)
    assert builtin.contrast(checker).item() == pytest.approx(0.5)
    assert builtin.entropy(flat).item() == 0
    assert builtin.entropy(checker).item() == pytest.approx(1)
    assert builtin.sharpness(checker).item() == pytest.approx(16)
    assert builtin.colourfulness(checker).item() == 0
    assert builtin.clipped(checker).item() == 1
    assert builtin.symmetry(checker).item() == 0
    red = torch.zeros(1, 3, 8, 8)
    red[:, 0] = 1
    assert builtin.colourfulness(red).item() == pytest.approx(0.3 * math.hypot(1, 0.5))
    score = create_reward("target_colour", {"colour": [0.0, 1.0, 0.0]}).score(batch_of(red))
    assert score.item() == pytest.approx(-math.sqrt(2))
    near = create_reward("target_colour", {"colour": [0.0, 1.0, 0.0], "target": 1.0}).score(batch_of(red))
    assert near.item() == pytest.approx(-(math.sqrt(2) - 1))


def test_plain_images_are_smaller_than_busy_ones():
    plain, busy = torch.full((1, 3, 32, 32), 0.5), noise_images(1, 32)
    scores = create_reward("jpeg_compressibility").score(batch_of(torch.cat([plain, busy])))
    assert scores[0] > scores[1]
    low = create_reward("jpeg_incompressibility", {"quality": 10}).score(batch_of(busy))
    assert low < create_reward("jpeg_incompressibility").score(batch_of(busy))


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("target_colour", {"colour": [0.0, 1.0]}),
        ("target_colour", {"colour": [0.0, 1.0, 2.0]}),
        ("jpeg_compressibility", {"quality": 0}),
        ("jpeg_compressibility", {"quality": 96}),
    ],
)
def test_impossible_parameters_are_refused(key, params):
    with pytest.raises(ConfigError):
        create_reward(key, params)


def test_too_small_for_a_laplacian():
    with pytest.raises(RewardError, match="3x3"):
        builtin.sharpness(torch.zeros(1, 3, 2, 9))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 12), st.integers(3, 12), st.sampled_from([0.0, 0.5, 1.0]))
def test_statistics_stay_in_their_ranges(seed, height, width, flat):
    image = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(seed))
    for picture in (image, torch.full_like(image, flat), image.round()):
        assert 0 <= builtin.brightness(picture) <= 1 + 1e-6
        assert 0 <= builtin.contrast(picture) <= 0.5 + 1e-6
        assert 0 <= builtin.entropy(picture) <= 8
        assert 0 <= builtin.clipped(picture) <= 1
        assert 0 <= builtin.symmetry(picture) <= 1
        assert builtin.sharpness(picture) >= 0 and builtin.colourfulness(picture) >= 0
