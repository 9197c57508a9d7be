"""How much of each image is learned, from files to batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.dataLoader.preflight import inspect_data
from modules.util.errors import DataError
from tests.dataLoader.builders import (
    AveragingModel,
    at,
    concept,
    config,
    loader,
    write_image,
)
from tests.dataLoader.test_masks import PaintingSetup

torch.set_num_threads(1)


def half(size: tuple[int, int] = (64, 64), white: int = 32) -> Image.Image:
    """White on the left."""
    levels = np.zeros((size[1], size[0]), dtype=np.uint8)
    levels[:, :white] = 255
    return Image.fromarray(levels)


def folder(root: Path, count: int = 3, masked: int = 3) -> Path:
    """Images of which the first have a mask next to them."""
    for number in range(count):
        write_image(root / "pets" / f"{number}.png", (64, 64), number)
        if number < masked:
            half().save(root / "pets" / f"{number}-masklabel.png")
    return root / "pets"


def masked(root: Path, place: Path, kept: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {"masked_training": True, "unmasked_probability": 0.0, "batch_size": 3, "epochs": 1, **more}
    return config(root, [concept(place, **(kept or {}))], **given)


def batches(made: Any, model: Any = None, **more: Any) -> list[Any]:
    return [batch for group in loader(made, model, **more).accumulation_groups(at()) for batch in group]


LEFT = torch.tensor([1.0] * 4 + [0.0] * 4).expand(1, 8, 8)


@pytest.mark.parametrize("caching", [True, False])
def test_batches_hold_masks_and_images_without_one_are_white(tmp_path: Path, caching: bool) -> None:
    (batch,) = batches(masked(tmp_path, folder(tmp_path, masked=2), latent_caching=caching))
    assert batch.loss_mask_B1hw.shape == (3, 1, 8, 8)
    by_name = dict(zip(batch.ids, batch.loss_mask_B1hw, strict=True))
    assert torch.equal(by_name["pets/0.png"], LEFT) and torch.equal(by_name["pets/1.png"], LEFT)
    assert (by_name["pets/2.png"] == 1).all()


def test_no_masks_no_field(tmp_path: Path) -> None:
    (batch,) = batches(masked(tmp_path, folder(tmp_path), masked_training=False))
    assert batch.loss_mask_B1hw is None


def test_another_mask_encodes_no_image_again(tmp_path: Path) -> None:
    made, first, again = masked(tmp_path, folder(tmp_path)), AveragingModel(), AveragingModel()
    batches(made, first)
    half(white=8).save(tmp_path / "pets/0-masklabel.png")
    (batch,) = batches(made, again)
    assert sum(first.images_encoded) == 3 and again.images_encoded == []
    assert float(batch.loss_mask_B1hw[batch.ids.index("pets/0.png")].sum()) == 8.0


def test_masks_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules.pipeline.loss_masks import MaskCells

    read: list[str] = []
    original = MaskCells.load_mask
    monkeypatch.setattr(
        MaskCells, "load_mask", lambda path, alpha: (read.append(path), original(path, alpha))[1]
    )
    made = masked(tmp_path, folder(tmp_path), epochs=3)
    for number in range(3):
        half(white=8 * number).save(tmp_path / f"pets/{number}-masklabel.png")
    assert len(batches(made)) == 3 and len(read) == 3
    batches(made)
    assert len(read) == 3


def test_a_mask_is_flipped_and_cropped_with_its_image(tmp_path: Path) -> None:
    """The latents of an image that is its own mask say what the mask has to be."""
    place = tmp_path / "pets"
    for number, size in enumerate(((64, 64), (96, 64), (64, 128))):
        place.mkdir(exist_ok=True)
        rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
        level = (255 * ((columns // 8 + 2 * (rows // 8)) % 5 == 0)).astype(np.uint8)
        Image.fromarray(np.stack([level] * 3, -1)).save(place / f"{number}.png")
        Image.fromarray(level).save(place / f"{number}-masklabel.png")
        (place / f"{number}.txt").write_text("a pattern")
    image = {"enable_crop_jitter": True, "enable_random_flip": True, "enable_random_brightness": False}
    made = masked(tmp_path, place, {"image": image, "image_variations": 4}, epochs=4, batch_size=1)
    seen: dict[str, set[bytes]] = {}
    for batch in batches(made):
        gap = (batch.loss_mask_B1hw[0, 0] - batch.latents_BChw[0, 0]).abs()
        assert float(gap.max()) < 0.2 and float(gap.mean()) < 0.03
        seen.setdefault(batch.ids[0], set()).add(batch.loss_mask_B1hw.numpy().tobytes())
    assert len(seen) == 3 and any(len(found) > 1 for found in seen.values())


def test_the_chance_of_a_visit_without_mask_is_fixed_by_seed_item_and_visit(tmp_path: Path) -> None:
    place = folder(tmp_path, count=6, masked=6)

    def white(**more: Any) -> list[bool]:
        made = masked(tmp_path, place, epochs=25, batch_size=3, **more)
        return [bool((mask == 1).all()) for batch in batches(made) for mask in batch.loss_mask_B1hw]

    some = white(unmasked_probability=0.3)
    assert 0.2 < sum(some) / len(some) < 0.4
    assert some == white(unmasked_probability=0.3)
    assert some != white(unmasked_probability=0.3, seed=7)
    assert all(white(unmasked_probability=1.0)) and not any(white(unmasked_probability=0.0))


def test_masks_from_the_alpha_channel(tmp_path: Path) -> None:
    place = tmp_path / "pets"
    for number in range(3):
        image = Image.open(write_image(place / f"{number}.png", (64, 64), number))
        if number:
            image.putalpha(half())
            image.save(place / f"{number}.png")
    (batch,) = batches(masked(tmp_path, place, mask_source="ALPHA"))
    found = {name: float(mask.sum()) for name, mask in zip(batch.ids, batch.loss_mask_B1hw, strict=True)}
    assert found == {"pets/0.png": 64.0, "pets/1.png": 32.0, "pets/2.png": 32.0}


def test_masks_from_a_folder(tmp_path: Path) -> None:
    place, masks = folder(tmp_path, masked=0), tmp_path / "masks"
    masks.mkdir()
    half().save(masks / "1.png")
    half((32, 32), 8).save(masks / "2.webp", lossless=True)
    (batch,) = batches(masked(tmp_path, place, {"mask_path": str(masks)}, mask_source="FOLDER"))
    found = {name: float(mask.sum()) for name, mask in zip(batch.ids, batch.loss_mask_B1hw, strict=True)}
    assert found == {"pets/0.png": 64.0, "pets/1.png": 32.0, "pets/2.png": 16.0}


def test_concepts_of_one_folder_have_masks_of_their_own(tmp_path: Path) -> None:
    place = folder(tmp_path, count=2, masked=0)
    for name, white in (("wide", 32), ("narrow", 8)):
        (tmp_path / name).mkdir()
        for number in range(2):
            half(white=white).save(tmp_path / name / f"{number}.png")
    own = [
        concept(place, name=name, **({"mask_path": str(tmp_path / name)} if name != "bare" else {}))
        for name in ("wide", "narrow", "bare")
    ]
    given = {"masked_training": True, "unmasked_probability": 0.0, "mask_source": "FOLDER", "epochs": 1}
    found: dict[str, set[float]] = {}
    for batch in batches(config(tmp_path, own, batch_size=1, **given)):
        found.setdefault(batch.ids[0].split("/")[0], set()).add(float(batch.loss_mask_B1hw.sum()))
    assert found == {"wide": {32.0}, "narrow": {8.0}, "bare": {64.0}}


def test_missing_masks_are_counted_and_none_at_all_is_refused(tmp_path: Path) -> None:
    report = inspect_data(masked(tmp_path, folder(tmp_path, masked=2)))
    assert report.faults == []
    assert [text for text in report.warnings if "mask" in text] == [
        "1 image has no mask and is learned in full:\n    pets/2.png"
    ]
    bare = masked(tmp_path / "bare", folder(tmp_path / "bare", masked=0))
    (fault,) = inspect_data(bare).faults
    assert "none of the 3 images has a mask" in str(fault) and "-masklabel.png" in str(fault)
    with pytest.raises(DataError, match="none of the 3 images has a mask"):
        loader(bare)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: half((64, 48)).save(path), "64x48, a different shape from its image of 64x64"),
        (lambda path: path.write_bytes(path.read_bytes()[:80]), "cannot be decoded"),
        (lambda path: path.write_bytes(b"no image"), "not an image"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is not a file"),
        (lambda path: (path.unlink(), path.symlink_to("gone.png")), "cannot be read"),
    ],
)
def test_masks_that_do_not_fit_are_faults_before_training(tmp_path: Path, spoil: Any, told: str) -> None:
    place = folder(tmp_path)
    spoil(place / "1-masklabel.png")
    (fault,) = inspect_data(masked(tmp_path, place)).faults
    assert "1 mask cannot be used" in str(fault) and told in str(fault) and "1-masklabel.png" in str(fault)


def test_a_folder_in_place_of_a_mask_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "masks" / "1.png").mkdir(parents=True)
    half().save(tmp_path / "masks" / "0.png")
    given = {"mask_path": str(tmp_path / "masks")}
    (fault,) = inspect_data(masked(tmp_path, folder(tmp_path), given, mask_source="FOLDER")).faults
    assert "1 mask cannot be used" in str(fault) and "1.png: is not a file" in str(fault)


def test_a_folder_of_masks_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    given = {"mask_path": str(tmp_path / "nowhere")}
    (fault,) = inspect_data(masked(tmp_path, folder(tmp_path), given, mask_source="FOLDER")).faults
    assert "nowhere does not exist" in str(fault)


def test_the_digest_of_the_data_knows_the_masks(tmp_path: Path) -> None:
    made = masked(tmp_path, folder(tmp_path))
    before, without = (
        loader(made).data_digest(),
        loader(masked(tmp_path, tmp_path / "pets", masked_training=False)),
    )
    half(white=8).save(tmp_path / "pets/0-masklabel.png")
    assert loader(made).data_digest() != before != without.data_digest()


@pytest.mark.parametrize("caching", [True, False])
def test_models_that_paint_see_the_mask_or_paint_everything(tmp_path: Path, caching: bool) -> None:
    made = masked(tmp_path, folder(tmp_path), epochs=12, unmasked_probability=0.5, latent_caching=caching)
    model, painted = AveragingModel(), {0: 0, 1: 0}
    for batch in batches(made, model, setup=PaintingSetup()):
        for row, mask in enumerate(batch.loss_mask_B1hw):
            whole = bool((mask == 1).all())
            painted[whole] += 1
            wanted = torch.ones(1, 8, 8) if whole else LEFT
            assert torch.equal(batch.inpaint_BChw[row, :1], wanted)
            clean = batch.latents_BChw[row]
            shown = torch.where(wanted.bool(), torch.tensor(0.5), clean)
            assert torch.allclose(batch.inpaint_BChw[row, 1:], shown, atol=1e-6)
    assert min(painted.values()) > 8
    if caching:
        assert sum(model.images_encoded) == 3 * 3  # the image, without its left half, and all grey
        again = AveragingModel()
        loader(made, again, setup=PaintingSetup())
        assert again.images_encoded == []
