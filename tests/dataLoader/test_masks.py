"""What models that paint into images are shown of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.dataLoader.mixin.DataLoaderText2ImageMixin import MASKS
from modules.pipeline.nodes.masks import Mask, decide_mask
from tests.dataLoader.builders import (
    AveragingModel,
    AveragingSetup,
    at,
    concept,
    config,
    dpo_config,
    loader,
    write_image,
)

torch.set_num_threads(1)


class PaintingSetup(AveragingSetup):
    """The averaging setup as a family that sees masks."""

    spec = replace(AveragingSetup.spec, inpainting=True)


@given(st.text(max_size=8), st.integers(0, 50), st.integers(1, 40), st.integers(1, 40))
def test_every_mask_covers_something_and_is_always_the_same(
    name: str, number: int, height: int, width: int
) -> None:
    mask = decide_mask(name, number)
    assert mask == decide_mask(name, number)
    assert all(0 <= t < b <= 1 and 0 <= l < r <= 1 for t, l, b, r in mask.boxes)  # noqa: E741
    cells = mask.cells(height, width)
    assert cells.shape == (height, width) and cells.any()


def test_masks_differ_and_some_cover_everything() -> None:
    masks = [decide_mask(f"image {n}", v) for n in range(100) for v in range(3)]
    whole = sum(mask.cells(8, 8).all() for mask in masks)
    assert 45 <= whole <= 110
    assert len({mask.text() for mask in masks if len(mask.boxes[0]) and not mask.cells(64, 64).all()}) > 180


def test_what_is_covered_is_grey_and_nothing_else() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 32, 3), dtype=np.uint8)
    mask = Mask(((0.0, 0.25, 0.5, 0.75),))
    assert mask.cells(2, 4).tolist() == [[False, True, True, False], [False] * 4]
    hidden = mask.hide(pixels, 8)
    assert (hidden[:8, 8:24] == 127.5).all()
    hidden[:8, 8:24] = pixels[:8, 8:24]
    assert (hidden == pixels).all()


def images(root: Path, **more: Any) -> Any:
    for number in range(3):
        write_image(root / "pets" / f"{number}.png", (64, 64), number)
    return config(root, [concept(root / "pets")], batch_size=3, **more)


def expected(batch: Any, row: int) -> torch.Tensor:
    """The masked image of an uncropped 64 x 64 image, block by block."""
    mask, clean = batch.inpaint_BChw[row, :1], batch.latents_BChw[row]
    return torch.where(mask.bool(), torch.tensor(0.5), clean)


@pytest.mark.parametrize("caching", [True, False])
def test_batches_hold_masks_and_masked_images(tmp_path: Path, caching: bool) -> None:
    made = images(tmp_path, epochs=2 * MASKS, latent_caching=caching)
    model = AveragingModel()
    batches = [b for g in loader(made, model, setup=PaintingSetup()).accumulation_groups(at()) for b in g]
    seen: dict[str, dict[int, torch.Tensor]] = {}
    for batch in batches:
        assert batch.inpaint_BChw.shape == (3, 5, 8, 8) and batch.inpaint_BChw.dtype == torch.float32
        for row, (name, visit) in enumerate(zip(batch.ids, batch.visits, strict=True)):
            number = visit % MASKS if caching else visit
            mask = torch.from_numpy(decide_mask(name, number).cells(8, 8)).float()
            assert torch.equal(batch.inpaint_BChw[row, 0], mask)
            assert torch.allclose(batch.inpaint_BChw[row, 1:], expected(batch, row), atol=1e-6)
            seen.setdefault(name, {})[visit] = batch.inpaint_BChw[row]
    assert len(seen) == 3 and all(len(visits) == 2 * MASKS for visits in seen.values())
    if caching:
        assert sum(model.images_encoded) == 3 * (1 + MASKS)
        again = AveragingModel()
        loader(made, again, setup=PaintingSetup())
        assert again.images_encoded == []


def test_both_sides_of_a_pair_have_the_same_mask(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, epochs=MASKS)
    batches = [b for g in loader(made, setup=PaintingSetup()).accumulation_groups(at()) for b in g]
    for batch in batches:
        assert torch.equal(batch.chosen.inpaint_BChw[:, 0], batch.rejected.inpaint_BChw[:, 0])
        for side in (batch.chosen, batch.rejected):
            for row in range(len(batch)):
                assert torch.allclose(side.inpaint_BChw[row, 1:], expected(side, row), atol=1e-6)
    assert len({m.numpy().tobytes() for b in batches for m in b.chosen.inpaint_BChw[:, 0]}) > 6


def test_pairs_whose_reference_is_kept_have_one_mask(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, epochs=MASKS, rlhf_dpo_reference_cache=True)
    masks: dict[str, set[bytes]] = {}
    for group in loader(made, setup=PaintingSetup()).accumulation_groups(at()):
        for batch in group:
            for row, name in enumerate(batch.pair_ids):
                masks.setdefault(name, set()).add(batch.chosen.inpaint_BChw[row].numpy().tobytes())
    assert masks and all(len(found) == 1 for found in masks.values())


def test_other_families_see_none(tmp_path: Path) -> None:
    model = AveragingModel()
    (group,) = loader(images(tmp_path, epochs=1), model).accumulation_groups(at())
    assert group[0].inpaint_BChw is None and sum(model.images_encoded) == 3
