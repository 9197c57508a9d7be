"""The protocol between trainer and reward server: JSON, images as base64 PNG, nothing that can run code.

``GET /health`` answers ``{"status": "ok", "version": 1, "name", "kind", "required_fields", "max_images",
"max_body_bytes"}``. ``POST /reward`` takes ``{"version": 1, "kind", "prompts", "images", "metadata", "group_ids"}``,
for edits also ``"sources"`` with a list of images for each image, and answers
``{"rewards": [...], "extra": {}}`` with one finite number per image, in order.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import struct
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.reward.base import RewardBatch, RewardError, to_uint8
from modules.util.errors import UserError
from modules.util.jsonio import parse_json

VERSION = 1
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
MAX_IMAGE_PIXELS = 4096 * 4096


def encode_image(image_CHW: Tensor) -> str:
    """One image in [0, 1] as base64 PNG of 8 bits a channel."""
    buffer = io.BytesIO()
    Image.fromarray(to_uint8(image_CHW).permute(1, 2, 0).contiguous().numpy()).save(
        buffer, format="PNG", compress_level=1
    )
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def decode_image(text: str, max_pixels: int = MAX_IMAGE_PIXELS) -> Tensor:
    """Decode untrusted base64 PNG to (3, H, W) float32 in [0, 1].

    The size is read from the header before any pixel is decoded.

    Raises:
        RewardError: it is not base64, not a PNG, damaged, or has more than ``max_pixels`` pixels.
    """
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise RewardError("an image is not base64 text") from error
    if len(data) < 33 or not data.startswith(PNG_MAGIC) or data[12:16] != b"IHDR":
        raise RewardError("an image is not a PNG file")
    width, height = struct.unpack(">II", data[16:24])
    if width * height > max_pixels or width * height == 0:
        raise RewardError(f"an image of {width}x{height} is not between 1 and {max_pixels} pixels")
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.size != (width, height):
                raise RewardError(
                    f"an image says {width}x{height} first and {image.width}x{image.height} later"
                )
            array = np.asarray(image.convert("RGB"))
    except (
        OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError,
    ) as error:  # fmt: skip
        raise RewardError(f"an image is damaged: {error}") from error
    return torch.from_numpy(array.copy()).permute(2, 0, 1).float() / 255


def is_length(text: str, most: int) -> bool:
    """Return whether ``text``, an untrusted Content-Length, is a number of bytes of at most ``most``."""
    return text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) <= most


def encode_request(batch: RewardBatch, kind: str) -> bytes:
    """The body of a request.

    Raises:
        RewardError: the metadata cannot be represented in JSON.
    """
    content = {
        "version": VERSION,
        "kind": kind,
        "prompts": batch.prompts,
        "images": [encode_image(image_CHW) for image_CHW in batch.images_BCHW],
        "metadata": [dict(one) for one in batch.metadata],
        "group_ids": batch.groups.tolist(),
    }
    if any(batch.sources):
        # images of prompts alone are sent as ever, to servers of any age
        made = {id(one): encode_image(one.float() / 255) for images in batch.sources for one in images}
        content["sources"] = [[made[id(one)] for one in images] for images in batch.sources]
    try:
        return json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise RewardError(f"the metadata of an image cannot be sent: {error}") from error


def decode_answer(data: bytes, count: int, where: str) -> Tensor:
    """Decode the body of an answer to (count,) float32.

    Raises:
        RewardError: anything but ``count`` finite numbers under ``rewards``.
    """
    try:
        content: Any = parse_json(data, f"answer of {where}")
    except UserError as error:
        raise RewardError(error.message) from error
    rewards = content.get("rewards") if isinstance(content, dict) else None
    if not isinstance(rewards, list):
        raise RewardError(f"the answer of {where} has no list 'rewards'")
    if len(rewards) != count:
        raise RewardError(f"{where} answered {len(rewards)} rewards for {count} images")
    for place, value in enumerate(rewards):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _float32(value):
            raise RewardError(f"{where} answered {value!r:.40} for image {place}, not a finite number")
    return torch.tensor(rewards, dtype=torch.float32)


def _float32(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= torch.finfo(torch.float32).max
