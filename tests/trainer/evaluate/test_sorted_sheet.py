"""The sheet of the hardest images shows them as they are trained on."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from modules.trainer.evaluate.grid_sheet import SORTED_CELL, sorted_sheet


def test_16_bit_images_are_shown_with_all_their_levels(tmp_path: Path) -> None:
    levels = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    with Image.open(io.BytesIO(sorted_sheet([(tmp_path / "deep.png", "0.1")]))) as sheet:
        shown = np.asarray(sheet.crop((0, 0, SORTED_CELL, SORTED_CELL)).convert("L"))
    assert shown[:8].mean() < 20 and 110 < shown.mean() < 145 and shown[-8:].mean() > 235
