"""Folders of images as contestants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.arena.folders import contestants_of_folders


def grey(path: Path, level: int) -> None:
    path.parent.mkdir(exist_ok=True)
    kept = PngInfo()
    kept.add_text("parameters", "a fox\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 8x8")
    Image.fromarray(np.full((8, 8), level, np.uint16)).save(path, pnginfo=kept)


@pytest.mark.parametrize(("level", "replaced"), [(9000, False), (50000, True)])
def test_images_of_16_bits_are_told_apart(tmp_path: Path, level: int, replaced: bool) -> None:
    named = [(name, tmp_path / name) for name in ("before", "after")]
    for _, folder in named:
        grey(folder / "1.png", 9000)
    told: list[str] = []
    first = contestants_of_folders(named, tmp_path / "votes", told.append)
    grey(tmp_path / "after" / "1.png", level)
    second = contestants_of_folders(named, tmp_path / "votes", told.append)
    assert (first[1].key != second[1].key, bool(told)) == (replaced, replaced)
