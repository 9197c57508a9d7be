"""Cheap rewards computed from the pixels alone.

They need no weights and no prompt, and a model quickly learns to exploit each of them. They are meant for
testing a setup and for steering a simple property, not for judging pictures. Luma is Y = 0.299 R + 0.587 G +
0.114 B; all statistics are over the pixels of one image, standard deviations with ddof 0.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor

from modules.reward.base import REWARDS, Reward, RewardBatch, RewardError, to_uint8
from modules.util.errors import ConfigError

Measure = Callable[[Tensor], Tensor]

FLOW_GRPO_JPEG_DIVISOR = 500.0


def luma(images_BCHW: Tensor) -> Tensor:
    """Y of (B, 3, H, W) -> (B, H, W)."""
    weights = images_BCHW.new_tensor([0.299, 0.587, 0.114])
    return torch.einsum("bchw,c->bhw", images_BCHW, weights)


def jpeg_kilobytes(images_BCHW: Tensor, quality: int = 95) -> Tensor:
    """Size of each image as JPEG, in thousands of bytes. The last digits depend on the JPEG library."""
    sizes = []
    for image_HWC in to_uint8(images_BCHW).permute(0, 2, 3, 1).contiguous():
        buffer = io.BytesIO()
        Image.fromarray(image_HWC.numpy()).save(buffer, format="JPEG", quality=quality)
        sizes.append(buffer.tell() / 1000)
    return torch.tensor(sizes, dtype=torch.float32)


def brightness(images_BCHW: Tensor) -> Tensor:
    """Mean luma, 0 to 1."""
    return luma(images_BCHW).mean(dim=(1, 2))


def contrast(images_BCHW: Tensor) -> Tensor:
    """Standard deviation of luma, 0 to 0.5."""
    return luma(images_BCHW).std(dim=(1, 2), correction=0)


def colourfulness(images_BCHW: Tensor) -> Tensor:
    """The colourfulness of an image (Hasler and Süsstrunk 2003), on values in [0, 1]."""
    red, green, blue = images_BCHW.unbind(1)
    rg, yb = red - green, (red + green) / 2 - blue
    spread = (rg.var(dim=(1, 2), correction=0) + yb.var(dim=(1, 2), correction=0)).sqrt()
    centre = (rg.mean(dim=(1, 2)) ** 2 + yb.mean(dim=(1, 2)) ** 2).sqrt()
    return spread + 0.3 * centre


def sharpness(images_BCHW: Tensor) -> Tensor:
    """Fine detail: variance of the 4-neighbour Laplacian of luma, without the border.

    Raises:
        RewardError: the images have fewer than 3 x 3 pixels.
    """
    if min(images_BCHW.shape[2:]) < 3:
        raise RewardError(f"sharpness needs at least 3x3 pixels, not {tuple(images_BCHW.shape[2:])}")
    y = luma(images_BCHW)
    middle = y[:, 1:-1, 1:-1]
    laplacian = y[:, :-2, 1:-1] + y[:, 2:, 1:-1] + y[:, 1:-1, :-2] + y[:, 1:-1, 2:] - 4 * middle
    return laplacian.var(dim=(1, 2), correction=0)


def symmetry(images_BCHW: Tensor) -> Tensor:
    """Likeness to the image mirrored left to right: 1 - mean |difference|; 1 is a perfect mirror."""
    return 1 - (images_BCHW - images_BCHW.flip(3)).abs().mean(dim=(1, 2, 3))


def entropy(images_BCHW: Tensor) -> Tensor:
    """Variety of luma: bits of its 256-bin histogram, 0 to 8."""
    bins = (luma(images_BCHW).clamp(0, 1) * 255).round().to(torch.int64).flatten(1)
    counts = torch.zeros(len(bins), 256).scatter_add_(1, bins, torch.ones_like(bins, dtype=torch.float32))
    share = counts / bins.shape[1]
    return -torch.xlogy(share, share).sum(dim=1) / math.log(2)


def clipped(images_BCHW: Tensor) -> Tensor:
    """Share of channel values that are 0 or 255 as bytes."""
    values = to_uint8(images_BCHW)
    return ((values == 0) | (values == 255)).float().mean(dim=(1, 2, 3))


class ImageStatistic(Reward):
    """``scale`` times a measure of the pixels, or minus its distance to a target.

    Args:
        target: with a value, the reward is -|measure - target| in the measure's own unit.
    """

    allow_black = True
    measure: Measure
    scale = 1.0

    def __init__(self, target: float | None = None) -> None:
        super().__init__()
        self.target = target

    def _score(self, batch: RewardBatch) -> Tensor:
        value_B = self.measure(batch.images_BCHW)
        if self.target is not None:
            return -(value_B - self.target).abs()
        return self.scale * value_B


def _statistic(key: str, measure: Measure, scale: float = 1.0) -> None:
    about = str(measure.__doc__)
    about = about if scale > 0 else f"Minus the {about[0].lower()}{about[1:]}"
    body = {"measure": staticmethod(measure), "scale": scale, "__doc__": about}
    REWARDS.register(key)(type(key, (ImageStatistic,), body))


_statistic("brightness", brightness)
_statistic("contrast", contrast)
_statistic("colourfulness", colourfulness)
_statistic("sharpness", sharpness)
_statistic("symmetry_lr", symmetry)
_statistic("entropy", entropy)
_statistic("clipped", clipped, scale=-1.0)


def likeness(image_CHW: Tensor, source_chw: Tensor) -> Tensor:
    """1 - mean |difference| to another image, which is scaled to the size of this one."""
    scaled = torch.nn.functional.interpolate(
        source_chw[None].float() / 255, image_CHW.shape[1:], mode="bilinear", antialias=True
    )
    return 1 - (image_CHW - scaled[0]).abs().mean()


@REWARDS.register("source_likeness")
class SourceLikeness(Reward):
    """Likeness to the (first) source image of an edit: 1 - mean difference of the pixels."""

    required_fields = ("source",)
    allow_black = True

    def _score(self, batch: RewardBatch) -> Tensor:
        pairs = zip(batch.images_BCHW, batch.sources, strict=True)
        return torch.stack([likeness(image_CHW, sources[0]) for image_CHW, sources in pairs])


class _JpegSize(ImageStatistic):
    def __init__(self, target: float | None = None, quality: int = 95) -> None:
        super().__init__(target)
        if not 1 <= quality <= 95:
            raise ConfigError(f"{quality} is not between 1 and 95", "quality")
        self.quality = quality

    def measure(self, images_BCHW: Tensor) -> Tensor:
        return jpeg_kilobytes(images_BCHW, self.quality)


@REWARDS.register("jpeg_incompressibility")
class JpegIncompressibility(_JpegSize):
    """Favours busy images: size as JPEG in thousands of bytes."""


@REWARDS.register("jpeg_compressibility")
class JpegCompressibility(_JpegSize):
    """Favours plain images: minus the size as JPEG in thousands of bytes, divided by 500."""

    scale = -1 / FLOW_GRPO_JPEG_DIVISOR


@REWARDS.register("target_colour")
class TargetColour(ImageStatistic):
    """Nearness to a colour: minus the mean Euclidean distance of the pixels to it, at most sqrt(3).

    Args:
        colour: red, green and blue in [0, 1].
        target: with a value, -|distance - target|.
    """

    scale = -1.0

    def __init__(self, colour: list[float], target: float | None = None) -> None:
        super().__init__(target)
        if len(colour) != 3 or not all(0 <= one <= 1 for one in colour):
            raise ConfigError(f"{colour} is not three numbers in [0, 1]", "colour")
        self.colour_C = torch.tensor(colour, dtype=torch.float32)

    def measure(self, images_BCHW: Tensor) -> Tensor:
        difference = images_BCHW - self.colour_C[:, None, None]
        return difference.square().sum(dim=1).sqrt().mean(dim=(1, 2))
