"""Folders of drawn images with captions and masks."""

from __future__ import annotations

from pathlib import Path

import numpy
from PIL import Image


def picture(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    """Coarse noise, different for each seed."""
    small = numpy.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=numpy.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def damaged_avif(path: Path) -> Path:
    """An AVIF file whose list of items is lost, for which Pillow raises an error of its own kind."""
    picture(1).save(path)
    path.write_bytes(path.read_bytes().replace(b"pitm", b"free"))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a person in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".tastemaker-tools" not in path.parts
    }
