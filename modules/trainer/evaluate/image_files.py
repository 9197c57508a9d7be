"""Sample images on disk: their folders, names and the prompt inside them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from modules.util.config.SampleConfig import FilledSample
from modules.util.jsonio import write_bytes

if TYPE_CHECKING:
    import torch

_UNSAFE = re.compile(r"[^\w ,.()-]+")
_EXIF, _USER_COMMENT = 0x8769, 0x9286
JPEG_QUALITY = 95


def sample_folder(root: Path, number: int, prompt: str, suffix: str = "") -> Path:
    """``<number> - <prompt>``, valid as a folder name on every system."""
    cleaned = _UNSAFE.sub("", " ".join(prompt.split()))[:60].strip(" .")
    return root / ((f"{number} - {cleaned}" if cleaned else str(number)) + suffix)


def parameters_text(sample: FilledSample, seed: int, model: str = "", adapter: str = "") -> str:
    """The text from which other programs, and the pair tool, read how an image was made."""
    lines = [sample.prompt]
    if sample.negative_prompt:
        lines.append(f"Negative prompt: {sample.negative_prompt}")
    facts = [
        f"Steps: {sample.diffusion_steps}",
        f"Sampler: {sample.noise_scheduler.value}",
        f"CFG scale: {sample.cfg_scale:g}",
        f"Seed: {seed}",
        f"Size: {sample.width}x{sample.height}",
    ]
    if model:
        facts.append(f"Model: {model}")
    if adapter:
        facts.append(f"Adapter: {adapter}")
    return "\n".join([*lines, ", ".join(facts)])


def encode_image(rgb_CHW: torch.Tensor, ending: str, text: str) -> bytes:
    """Encode an image with values in [0, 1] as PNG or JPEG.

    Args:
        ending: ``.png``, or anything else for JPEG.
        text: how it was made; stored as ``parameters`` of a PNG or as user comment of a JPEG. A PNG needs none.
    """
    import torch
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    pixels = (rgb_CHW.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    stream = io.BytesIO()
    if ending.lower() == ".png":
        info = PngInfo()
        if text:
            info.add_itxt("parameters", text) if not text.isascii() else info.add_text("parameters", text)
        image.save(stream, format="PNG", pnginfo=info)
    else:
        exif = Image.Exif()
        exif.get_ifd(_EXIF)[_USER_COMMENT] = b"UNICODE\x00" + text.encode("utf-16-be")
        image.save(stream, format="JPEG", quality=JPEG_QUALITY, exif=exif)
    return stream.getvalue()


def save_image(rgb_CHW: torch.Tensor, path: Path, text: str) -> None:
    """Write an image with values in [0, 1] atomically, as PNG or JPEG by its extension; see ``encode_image``."""
    write_bytes(path, encode_image(rgb_CHW, path.suffix, text))
