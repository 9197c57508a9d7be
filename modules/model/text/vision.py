"""Images next to the text in the prompts of Qwen2.5-VL and Qwen3-VL: splits them into patches as their
processors do, and computes their states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.model.batch import Sources
from modules.model.text.encoding import tokenize
from modules.util.errors import UserError

START, PLACE, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
"""Marks around an image in a text, and the placeholder of each of its tokens."""
PICTURE = f"{START}{PLACE}{END}"


@dataclass(frozen=True)
class PatchRules:
    """The rules by which images are split into patches. The defaults are those published with Qwen2.5-VL.

    Args:
        patch: side of a patch in pixels.
        merge: number of patches per side that are merged into one token.
        frames: how often an image is repeated, because the model is made for videos.
        least, most: limits of the pixels of an image; others are scaled to them.
        mean, std: mean and standard deviation of red, green and blue, by which they are normalised.
    """

    patch: int = 14
    merge: int = 2
    frames: int = 2
    least: int = 56 * 56
    most: int = 16384 * 28 * 28
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PatchRules:
        """The rules in a ``preprocessor_config.json``. Missing values are as published."""
        usual, size = cls(), config.get("size") or {}
        return cls(
            int(config.get("patch_size", usual.patch)),
            int(config.get("merge_size", usual.merge)),
            int(config.get("temporal_patch_size", usual.frames)),
            int(config.get("min_pixels") or size.get("shortest_edge") or usual.least),
            int(config.get("max_pixels") or size.get("longest_edge") or usual.most),
            tuple(config.get("image_mean") or usual.mean),
            tuple(config.get("image_std") or usual.std),
        )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) to which an image is scaled: whole tokens, with as many pixels as allowed."""
        unit = self.patch * self.merge
        high, wide = round(height / unit) * unit, round(width / unit) * unit
        if high * wide > self.most:
            ratio = math.sqrt(height * width / self.most)
            return max(unit, int(height / ratio / unit) * unit), max(unit, int(width / ratio / unit) * unit)
        if high * wide < self.least:
            ratio = math.sqrt(self.least / (height * width))
            return math.ceil(height * ratio / unit) * unit, math.ceil(width * ratio / unit) * unit
        return high, wide

    def patches(self, rgb_CHW: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
        """The patches of a uint8 image, (N, E) float32 on the CPU, token by token, and their rows and columns."""
        pixels = Image.fromarray(rgb_CHW.permute(1, 2, 0).cpu().contiguous().numpy())
        high, wide = self.size(pixels.height, pixels.width)
        scaled = np.asarray(pixels.resize((wide, high), Image.Resampling.BICUBIC), dtype=np.float32) / 255.0
        normal = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        rows, columns = high // self.patch, wide // self.patch
        cut = torch.from_numpy(normal).reshape(
            rows // self.merge, self.merge, self.patch, columns // self.merge, self.merge, self.patch, 3
        )
        # token row, token column, row and column in it, colour, pixels
        cut = cut.permute(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
        repeated = cut.expand(-1, -1, -1, -1, -1, self.frames, -1, -1)
        return repeated.reshape(rows * columns, -1), (rows, columns)


def scaled_to_area(rgb_BCHW: torch.Tensor, area: int, multiple: int) -> torch.Tensor:
    """Scale uint8 images of one size to about ``area`` pixels, with sides that are multiples of ``multiple``."""
    ratio = rgb_BCHW.shape[-1] / rgb_BCHW.shape[-2]
    exact = math.sqrt(area * ratio)
    wide, high = (max(multiple, round(side / multiple) * multiple) for side in (exact, exact / ratio))
    return scaled(rgb_BCHW, high, wide)


def scaled(rgb_BCHW: torch.Tensor, high: int, wide: int) -> torch.Tensor:
    """Scale uint8 images of one size to (high, wide)."""
    if (high, wide) == tuple(rgb_BCHW.shape[-2:]):
        return rgb_BCHW
    images = [Image.fromarray(one.permute(1, 2, 0).cpu().contiguous().numpy()) for one in rgb_BCHW]
    made = [np.array(one.resize((wide, high), Image.Resampling.LANCZOS)) for one in images]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Pictures:
    """Images shown with every prompt of a batch.

    Args:
        patches_NE: patches of all images of the first sample, then of the second.
        shapes: (1, rows, columns) of the patches of each of them.
        grids: rows and columns of the tokens of each image of one sample.
    """

    patches_NE: torch.Tensor
    shapes: tuple[tuple[int, int, int], ...]
    grids: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, seen: Sources, rules: PatchRules) -> Pictures:
        """The images, at least one (B, 3, H, W) uint8 tensor."""
        cut = [[rules.patches(place[row]) for place in seen] for row in range(len(seen[0]))]
        return cls(
            torch.cat([patches for row in cut for patches, _ in row]),
            tuple((1, *grid) for row in cut for _, grid in row),
            tuple((rows // rules.merge, columns // rules.merge) for _, (rows, columns) in cut[0]),
        )

    def named_in(self, text: str) -> str:
        """Repeat each ``PLACE`` in a text, one per image, as often as the image has tokens."""
        counts = [rows * columns for rows, columns in self.grids]
        pieces = zip(text.split(PLACE), [*counts, 0], strict=True)
        return "".join(piece + PLACE * count for piece, count in pieces)

    def inputs(
        self, encoder: Any, tokenizer: Any, first: Sequence[int], mask_BL: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The encoder's inputs besides tokens.

        Args:
            encoder: without its head.
            first: the tokens with which all texts begin, including all images.
            mask_BL: which tokens are not padding, if its content is available; padding has position 0.

        Raises:
            UserError: the tokenizer does not support images.
        """
        place = _place(tokenizer, encoder)
        device = next(encoder.parameters()).device
        run_3L = _positions(first, place, self.grids, mask_BL.shape[1])
        at_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
        positions_3BL = run_3L[:, at_BL].masked_fill(~mask_BL, 0)
        return {
            "pixel_values": self.patches_NE.to(device),
            # the number of tokens of an image is read from tensors with values
            "image_grid_thw": torch.tensor(self.shapes, device="cpu" if device.type == "meta" else device),
            "position_ids": positions_3BL.to(device),
        }


@contextmanager
def countable(tensor: torch.Tensor, encoder: Any) -> Iterator[None]:
    """Let the encoder compute patch positions from tensors with values, even in a forecast, whose other
    tensors have none.

    Args:
        tensor: tells whether this is a forecast.
        encoder: without its head; if it adds features of images to the states of their tokens in several
            layers, a forecast takes the copy of the states that this needs, without knowing which these are.
    """
    if not tensor.is_meta:
        yield
        return
    inner = encoder.language_model
    adds = hasattr(inner, "_deepstack_process")
    if adds:
        inner._deepstack_process = lambda states_BLE, *_: states_BLE.clone()
    try:
        with torch.device("cpu"):
            yield
    finally:
        if adds:
            # the class's own attribute is visible again
            del inner._deepstack_process


def picture_states(
    encoder: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    template: tuple[str, str],
    limit: int,
    seen: Sources,
    config: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden states (B, L, E) of Qwen2.5-VL and which tokens are not padding (B, L, bool). States of
    padding are zeros.

    Images have positions in two dimensions, as in training. (Pipelines of diffusers 0.42 with transformers 5
    leave them out, see "Prompts" in docs/models.md.)

    Args:
        encoder: without its head.
        template: the texts before the prompts, with ``PLACE`` once per image, and after them.
        limit: maximum number of tokens of a prompt and the text after it.
        seen: the images, (B, 3, H, W) uint8 each.
        config: how they are split into patches, see ``PatchRules.of``.

    Raises:
        UserError: the tokenizer does not support images.
    """
    pictures = Pictures.of(seen, PatchRules.of(config)) if seen else None
    before = template[0] if pictures is None else pictures.named_in(template[0])
    first = tokenizer(before).input_ids
    texts = [f"{before}{prompt}{template[1]}" for prompt in prompts]
    ids_BL, mask_BL = tokenize(tokenizer, texts, encoder, len(first) + limit, side="right", fill=False)
    shown = {}
    if pictures is not None:
        whole_BL = torch.ones(ids_BL.shape, dtype=torch.bool, device="cpu")
        # padding follows the text, where nothing attends to its positions
        shown = pictures.inputs(encoder, tokenizer, first, whole_BL)
    with countable(ids_BL, encoder):
        out = encoder(
            input_ids=ids_BL,
            attention_mask=mask_BL.long(),
            output_hidden_states=True,
            use_cache=False,
            **shown,
        )
    return out.hidden_states[-1].masked_fill(~mask_BL[..., None], 0.0), mask_BL


def _place(tokenizer: Any, encoder: Any) -> int:
    """The image token, on which tokenizer and encoder must agree.

    Raises:
        UserError: they do not agree.
    """
    place = int(encoder.config.image_token_id)
    if tokenizer.convert_tokens_to_ids(PLACE) != place:
        raise UserError(
            f"the tokenizer has no {PLACE} where the text encoder expects it, and cannot show it images",
            field="base_model_name",
            hint="use the tokenizer the model was published with",
        )
    return place


def _positions(
    first: Sequence[int], place: int, grids: Sequence[tuple[int, int]], length: int
) -> torch.Tensor:
    """(3, L) time, row and column of each token. Text tokens are consecutive, an image has a single time, and
    the text after it starts after its longer side (Wang et al. 2024, arXiv 2409.12191, section 2.1).

    Args:
        first: the tokens with which all texts begin, including all images.
        place: the image token.
        grids: rows and columns of tokens of each image.
    """
    made: list[tuple[int, int, int]] = []
    at, images = 0, iter(grids)
    while len(made) < length:
        if len(made) < len(first) and first[len(made)] == place:
            rows, columns = next(images)
            made += [(at, at + row, at + column) for row in range(rows) for column in range(columns)]
            at += max(rows, columns)
        else:
            made.append((at, at, at))
            at += 1
    return torch.tensor(made, device="cpu").T
