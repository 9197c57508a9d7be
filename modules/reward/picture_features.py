"""Features of pictures without a model: colours, and the size and position of what stands out from the rest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
SIDE = 128
"""Pictures are scaled to this square; no feature here is finer."""
VERSION = 2
"""The newest statistics; see ``describe_picture``."""


class PictureFeatures:
    """Features (B, D) float32 on the CPU of images alone.

    Args:
        size: side to which images are scaled first; 0 means the usual one.
        version: see ``describe_picture``.

    Attributes:
        parts: name and width of the parts of a row; known after the first image.
    """

    def __init__(self, size: int, version: int) -> None:
        self.size, self.version = size or SIDE, version
        self.parts: dict[str, int] = {}

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        side = (self.size, self.size)
        rgb_BCHW = interpolate(images_BCHW, side, mode="bilinear", antialias=True, align_corners=False)
        rows = describe_picture(rgb_BCHW.float().cpu(), self.version)
        self.parts = {name: row_BD.shape[1] for name, row_BD in rows.items()}
        return torch.cat(list(rows.values()), dim=1)


def describe_picture(rgb_BCHW: Tensor, version: int) -> dict[str, Tensor]:
    """``colour`` (quantiles of value, saturation and the three channels), ``extent`` and ``place``; (B, D)
    each.

    Args:
        rgb_BCHW: 0 to 1.
        version: 2 adds the colour of what stands out, ``subject_tone`` and ``subject_light``; 1 is for heads
            made before there were versions.
    """
    value_B1HW, least_B1HW = rgb_BCHW.amax(1, keepdim=True), rgb_BCHW.amin(1, keepdim=True)
    saturation_B1HW = (value_B1HW - least_B1HW) / value_B1HW.clamp(min=1e-6)
    median_BC11, apart_BHW = _apart(rgb_BCHW)
    standing_out = _moments(apart_BHW)
    made = {
        "colour": channel_quantiles(torch.cat([value_B1HW, saturation_B1HW, rgb_BCHW], dim=1)),
        "extent": standing_out[:, :4],
        "place": standing_out[:, 4:],
    }
    if version > 1:
        made["subject_tone"], made["subject_light"] = _subject(rgb_BCHW, median_BC11, apart_BHW)
    return made


def channel_quantiles(x_BCHW: Tensor) -> Tensor:
    """The quantiles of every channel, (B, 5 C)."""
    made_QBC = torch.quantile(x_BCHW.flatten(2), torch.tensor(QUANTILES, dtype=x_BCHW.dtype), dim=2)
    return made_QBC.permute(1, 2, 0).flatten(1)


def _subject(rgb_BCHW: Tensor, median_BC11: Tensor, apart_BHW: Tensor) -> tuple[Tensor, Tensor]:
    """Mean colour of what stands out: its share of red, green and blue (B, 3), and its light (B, 2).

    What stands out is farther from the median colour than half of the largest distance. The columns of its
    light are the largest of the three channels, and the mean difference to the median colour.
    """
    subject_B1HW = (apart_BHW > 0.5 * apart_BHW.amax((1, 2), keepdim=True)).to(rgb_BCHW.dtype)[:, None]
    colour_BC = (rgb_BCHW * subject_B1HW).sum((2, 3)) / subject_B1HW.sum((2, 3))
    contrast_B1 = (colour_BC - median_BC11[..., 0, 0]).abs().mean(1, keepdim=True)
    tone_BC = colour_BC / colour_BC.sum(1, keepdim=True).clamp(min=1e-3)
    return tone_BC, torch.cat([colour_BC.amax(1, keepdim=True), contrast_B1], dim=1)


def _apart(rgb_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    """The median colour (B, C, 1, 1), and the distance of every pixel to it, (B, H, W), above 0."""
    median_BC11 = rgb_BCHW.flatten(2).median(dim=2).values[..., None, None]
    return median_BC11, (rgb_BCHW - median_BC11).square().mean(dim=1).sqrt() + 1e-9


def _moments(apart_BHW: Tensor) -> Tensor:
    """Return how much stands out from the median colour, its spread along both axes, and its centre; (B, 6).

    The columns: mean distance to the median colour, the same relative to the largest distance, standard deviations
    along x and y, centre along x and y; lengths are in 0 to 1 of the image.
    """
    height, width = apart_BHW.shape[1:]
    y_H, x_W = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    mass_B = apart_BHW.sum((1, 2))
    across_BW, down_BH = apart_BHW.sum(1) / mass_B[:, None], apart_BHW.sum(2) / mass_B[:, None]
    x_B, y_B = across_BW @ x_W, down_BH @ y_H
    spread_x_B = (across_BW * (x_W - x_B[:, None]).square()).sum(1).sqrt()
    spread_y_B = (down_BH * (y_H - y_B[:, None]).square()).sum(1).sqrt()
    mean_B = apart_BHW.mean((1, 2))
    columns = [mean_B, mean_B / apart_BHW.amax((1, 2)), spread_x_B, spread_y_B, x_B, y_B]
    return torch.stack(columns, dim=1)
