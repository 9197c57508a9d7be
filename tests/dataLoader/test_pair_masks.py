"""Which part of a pair counts, from files or from where its images differ."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.dataLoader.preflight import inspect_data
from modules.pipeline.loss_masks.difference import differing_cells
from modules.util.errors import DataError
from tests.dataLoader.builders import AveragingModel, at, concept, config, loader
from tests.dataLoader.test_loss_masks import half

torch.set_num_threads(1)


def edited(root: Path, boxes: list[tuple[slice, slice] | None], spread: int = 0) -> list[Any]:
    """Pairs of which the rejected side is changed in a box, and everywhere by up to ``spread`` levels."""
    rng = np.random.default_rng(0)
    for number, box in enumerate(boxes):
        pixels = rng.integers(40, 200, (64, 64, 3), dtype=np.uint8)
        other = pixels + rng.integers(0, spread + 1, pixels.shape, dtype=np.uint8)
        if box is not None:
            other[box] = 255 - pixels[box] // 4
        for side, image in (("chosen", pixels), ("rejected", other)):
            (root / side).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / side / f"{number}.png")
            (root / side / f"{number}.txt").write_text(f"prompt {number}")
    return [concept(root / "chosen", "DPO_CHOSEN"), concept(root / "rejected", "DPO_REJECTED")]


BOX = (slice(16, 32), slice(24, 40))
"""Cells 2 and 3 of the rows, 3 and 4 of the columns."""


def pairs(root: Path, boxes: list[Any], spread: int = 0, **more: Any) -> Any:
    given = {
        "rlhf_enabled": True,
        "rlhf_dpo_mask": "DIFFERENCE",
        "batch_size": len(boxes),
        "epochs": 1,
        **more,
    }
    return config(root, edited(root, boxes, spread), **given)


def batches(made: Any, model: Any = None) -> list[Any]:
    return [batch for group in loader(made, model).accumulation_groups(at()) for batch in group]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("dilate", [0, 1])
def test_a_difference_is_found_in_its_cells_and_around_them(
    tmp_path: Path, dilate: int, caching: bool
) -> None:
    made = pairs(tmp_path, [BOX, BOX], 8, rlhf_dpo_mask_dilate=dilate, latent_caching=caching)
    (batch,) = batches(made)
    wanted = torch.zeros(8, 8)
    wanted[2 - dilate : 4 + dilate, 3 - dilate : 5 + dilate] = 1.0
    assert batch.mask_B1hw.shape == (2, 1, 8, 8) and batch.mask_B1hw.dtype == torch.float32
    assert all(torch.equal(mask[0], wanted) for mask in batch.mask_B1hw)
    assert batch.chosen.loss_mask_B1hw is None


def test_a_pair_without_mask_is_kept_by_the_size_of_cells(tmp_path: Path) -> None:
    """One cache for two families: one has cells of 8 pixels, the other of 16."""
    made = pairs(tmp_path, [BOX, BOX], rlhf_dpo_mask="FILE")
    half().save(tmp_path / "chosen" / "0-masklabel.png")
    coarse = AveragingModel()
    coarse.latent_factor = 16
    for model, side in ((None, 8), (coarse, 4)):
        shares = loader(made, model)
        shares.check_pair_masks()
        masks = [shares.dataset.pipeline.get("pair_mask", 0, number) for number in range(2)]
        assert {mask.shape for mask in masks} == {(side, side)}


def test_single_pixels_and_small_differences_are_noise() -> None:
    chosen = np.full((64, 64, 3), 100, dtype=np.uint8)
    rejected = chosen.copy()
    rejected[::5, ::5] = 200
    rejected[:, 40:] += 8
    assert differing_cells(chosen, rejected, 8, 1).max() == 0
    rejected[9:12, 9:12, 2] = 109
    found = differing_cells(chosen, rejected, 8, 0)
    assert found[1, 1] == 1 and found.sum() == 1


def test_off_reads_no_masks(tmp_path: Path) -> None:
    (batch,) = batches(pairs(tmp_path, [BOX], rlhf_dpo_mask="OFF"))
    assert batch.mask_B1hw is None


def test_the_masks_of_both_sides_are_joined_and_pairs_without_one_are_white(tmp_path: Path) -> None:
    made = pairs(tmp_path, [BOX, BOX, BOX], rlhf_dpo_mask="FILE")
    half().save(tmp_path / "chosen/0-masklabel.png")
    half(white=8).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "rejected/0-masklabel.png")
    half(white=8).save(tmp_path / "rejected/1-masklabel.png")
    model = AveragingModel()
    (batch,) = batches(made, model)
    rows = {name: mask[0, 0].tolist() for name, mask in zip(batch.pair_ids, batch.mask_B1hw, strict=True)}
    assert sorted(rows.values()) == sorted([[1.0] * 4 + [0.0] * 3 + [1.0], [1.0] + [0.0] * 7, [1.0] * 8])
    told = [text for text in inspect_data(made).warnings if "mask" in text]
    assert len(told) == 1 and told[0].startswith("1 pair has no mask")
    half(white=16).save(tmp_path / "rejected/1-masklabel.png")
    again = AveragingModel()
    (batch,) = batches(made, again)
    assert again.images_encoded == [] and sum(batch.mask_B1hw[:, 0, 0].sum(1)) == 5.0 + 2.0 + 8.0


def test_no_mask_at_all_is_a_fault(tmp_path: Path) -> None:
    (fault,) = inspect_data(pairs(tmp_path, [BOX], rlhf_dpo_mask="FILE")).faults
    assert "none of the 1 pair has a mask" in str(fault) and "rlhf_dpo_mask" in str(fault)


def test_an_empty_mask_is_a_fault_and_odd_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError, match="the mask of 1 pair is empty:\n.*1"):
        loader(pairs(tmp_path / "empty", [BOX, None], 4))
    everything = (slice(0, 64), slice(0, 64))
    with caplog.at_level(logging.WARNING):
        loader(pairs(tmp_path / "odd", [BOX, everything]))
    (text,) = [record.getMessage() for record in caplog.records if "masks of" in record.getMessage()]
    assert "1 of 2 pairs cover more than 90% of the image" in text
