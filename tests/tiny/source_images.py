"""Images to edit, drawn from random numbers; the same ones every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

SIDE = 64
"""The smallest that a pipeline takes."""


def source_images(count: int, side: int = SIDE) -> list[Image]:
    """``count`` images of different content, square."""
    from PIL import Image

    numbers = np.random.default_rng(5)
    return [
        Image.fromarray(numbers.integers(0, 256, (side, side, 3), dtype=np.uint8), "RGB")
        for _ in range(count)
    ]


def source_tensors(count: int, side: int = SIDE) -> list[torch.Tensor]:
    """The same, (3, H, W) in [0, 1] each."""
    import torch

    return [
        torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255.0
        for image in source_images(count, side)
    ]
