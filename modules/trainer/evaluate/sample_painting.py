"""Images that samples of inpainting models are painted into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from modules.modelSetup.sample_images import PaintedInto
from modules.pipeline.loss_masks.reading import load_mask, mask_cells
from modules.pipeline.nodes.images import load_rgb, read_size
from modules.pipeline.nodes.masks import HALF, CellMask
from modules.pipeline.nodes.sources import same_aspect
from modules.pipeline.nodes.transforms import Transform, apply_transform
from modules.spec.FamilySpec import FamilySpec
from modules.trainer.evaluate.sample_sources import size_of
from modules.util.config.SampleConfig import FilledSample, SampleConfig
from modules.util.errors import ConfigError

IMAGE, MASK = "samples.base_image_path", "samples.mask_image_path"


def check_painting(spec: FamilySpec, samples: Sequence[SampleConfig]) -> None:
    """Check the headers of the images and masks of samples.

    Raises:
        ConfigError: the family paints no parts of images, one of both is missing or unreadable, or their shapes
            differ.
    """
    wanted = {(one.base_image_path, one.mask_image_path): None for one in samples if one.enabled}
    for image, mask in wanted:
        if not image and not mask:
            continue
        if not spec.inpainting:
            raise ConfigError(
                f"{image or mask}: {spec.label} makes whole images",
                IMAGE if image else MASK,
                "remove the image and its mask, or choose an inpainting model",
            )
        if not image or not mask:
            there, missing = (image, MASK) if image else (mask, IMAGE)
            what = "its mask" if image else "the image it belongs to"
            raise ConfigError(f"{there}: {what} is missing", missing, "set both fields, or clear both")
        sizes = [size_of(Path(image), IMAGE), size_of(Path(mask), MASK)]
        if not same_aspect(*sizes):
            shapes = " and ".join(f"{width}x{height}" for width, height in sizes)
            raise ConfigError(
                f"{mask}: image and mask differ in shape, {shapes}",
                MASK,
                "draw the mask over the image itself",
            )


def painting(sample: FilledSample, factor: int) -> PaintedInto | None:
    """Return the image that a sample is painted into, cropped to its size; ``None`` for a whole image.

    Args:
        factor: side of a latent cell in pixels.

    Raises:
        DataError: a file is no longer readable.
    """
    config = sample.config
    if not config.base_image_path:
        return None
    transform = Transform(sample.size)
    size = read_size(config.base_image_path)
    levels = mask_cells(load_mask(config.mask_image_path), size, transform, factor)
    mask = CellMask(levels >= HALF)
    kept = mask.hide(apply_transform(load_rgb(config.base_image_path), transform), factor)
    rgb_CHW = torch.from_numpy(kept).permute(2, 0, 1).contiguous() / 255.0
    return PaintedInto(rgb_CHW, torch.from_numpy(mask.covered.astype(np.float32)))
