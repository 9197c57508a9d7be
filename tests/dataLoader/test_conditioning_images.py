"""Pictures that inpainting models are shown instead of the masked image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.dataLoader.preflight import inspect_data
from modules.util.config.load import check_config
from modules.util.errors import DataError
from tests.dataLoader.builders import AveragingModel, concept, config
from tests.dataLoader.test_loss_masks import batches, folder
from tests.dataLoader.test_masks import PaintingSetup, expected

INPAINTING = {"model_type": "STABLE_DIFFUSION_15_INPAINTING", "custom_conditioning_image": True}


def flat(path: Path, level: int, size: tuple[int, int] = (64, 64)) -> None:
    """Level on the left half, black on the right."""
    levels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    levels[:, : size[0] // 2] = level
    Image.fromarray(levels).save(path)


def pictures(root: Path, shown: int = 2) -> Path:
    """Three images with masks, some of them with a picture of their own level."""
    place = folder(root)
    for number in range(shown):
        flat(place / f"{number}-condlabel.png", 50 * (number + 1), (64, 64) if number else (128, 128))
    return place


def made(root: Path, place: Path, kept: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {"masked_training": True, "unmasked_probability": 0.0, "batch_size": 3, "epochs": 1}
    return config(root, [concept(place, **(kept or {}))], **{**given, **INPAINTING, **more})


def picture(level: int) -> torch.Tensor:
    values = torch.zeros(4, 8, 8)
    values[:, :, :4] = level / 255
    return values


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("masks", [True, False])
def test_the_picture_is_shown_with_the_mask_of_the_image(tmp_path: Path, caching: bool, masks: bool) -> None:
    place = pictures(tmp_path)
    given = {} if masks else {"masked_training": False, "epochs": 4}
    model = AveragingModel()
    seen = set()
    for batch in batches(
        made(tmp_path, place, latent_caching=caching, **given), model, setup=PaintingSetup()
    ):
        for row, name in enumerate(batch.ids):
            number, shown = int(name[-5]), batch.inpaint_BChw[row, 1:]
            blank = bool((shown == 0.5).all())
            assert blank == (bool(batch.inpaint_BChw[row, 0].all()) and not masks) or number == 2
            wanted = expected(batch, row) if number == 2 or blank else picture(50 * (number + 1))
            assert torch.allclose(shown, wanted, atol=2e-2)
            seen.add((number, blank))
            if masks:
                assert torch.equal(batch.inpaint_BChw[row, 0], batch.loss_mask_B1hw[row, 0])
    assert {(0, False), (1, False), (2, False)} <= seen
    again = AveragingModel()
    batches(made(tmp_path, place, latent_caching=caching, **given), again, setup=PaintingSetup())
    assert not caching or again.images_encoded == []


def test_a_visit_without_mask_shows_a_blank_picture(tmp_path: Path) -> None:
    given = made(tmp_path, pictures(tmp_path, 3), unmasked_probability=1.0)
    (batch,) = batches(given, setup=PaintingSetup())
    assert bool((batch.inpaint_BChw[:, 0] == 1).all())
    assert torch.allclose(batch.inpaint_BChw[:, 1:], torch.tensor(0.5), atol=1e-6)


def test_a_white_mask_shows_the_picture_all_the_same(tmp_path: Path) -> None:
    place = pictures(tmp_path, 3)
    (place / "1-masklabel.png").unlink()
    (batch,) = batches(made(tmp_path, place), setup=PaintingSetup())
    row = batch.ids.index("pets/1.png")
    assert bool((batch.inpaint_BChw[row, 0] == 1).all())
    assert torch.allclose(batch.inpaint_BChw[row, 1:], picture(100), atol=1e-2)


def test_the_picture_is_flipped_and_cropped_with_its_image(tmp_path: Path) -> None:
    place = pictures(tmp_path, 3)
    image = {"enable_crop_jitter": False, "enable_fixed_flip": True}
    (batch,) = batches(made(tmp_path, place, {"image": image}), setup=PaintingSetup())
    row = batch.ids.index("pets/1.png")
    assert torch.allclose(batch.inpaint_BChw[row, 1:], picture(100).flip(-1), atol=1e-2)


def test_another_picture_is_encoded_and_nothing_else(tmp_path: Path) -> None:
    place, model = pictures(tmp_path), AveragingModel()
    batches(made(tmp_path, place), setup=PaintingSetup())
    flat(place / "1-condlabel.png", 200)
    (batch,) = batches(made(tmp_path, place), model, setup=PaintingSetup())
    assert sum(model.images_encoded) == 1
    assert torch.allclose(batch.inpaint_BChw[batch.ids.index("pets/1.png"), 1:], picture(200), atol=1e-2)


def test_missing_pictures_are_counted_and_none_at_all_is_refused(tmp_path: Path) -> None:
    report = inspect_data(made(tmp_path, pictures(tmp_path)))
    assert report.faults == []
    assert any("1 image has no conditioning image" in warning for warning in report.warnings)
    for path in (tmp_path / "pets").glob("*-condlabel.png"):
        path.unlink()
    (fault,) = inspect_data(made(tmp_path, tmp_path / "pets")).faults
    assert "none of the 3 images has a conditioning image" in fault.message
    assert fault.field == "custom_conditioning_image"


@pytest.mark.parametrize("how", ["damaged", "another shape"])
def test_pictures_that_cannot_be_used_are_faults(tmp_path: Path, how: str) -> None:
    place = pictures(tmp_path)
    if how == "damaged":
        (place / "1-condlabel.png").write_bytes(b"no picture")
    else:
        flat(place / "1-condlabel.png", 50, (64, 80))
    (fault,) = inspect_data(made(tmp_path, place)).faults
    assert isinstance(fault, DataError)
    assert "1 conditioning image cannot be used" in fault.message and "1-condlabel.png" in fault.message


def test_it_is_refused_where_there_is_no_masked_image() -> None:
    from modules.util.config.TrainConfig import TrainConfig
    from modules.util.errors import UserError

    with pytest.raises(UserError, match="custom_conditioning_image") as caught:
        check_config(TrainConfig.from_dict({"custom_conditioning_image": True, "rlhf_enabled": False}))
    assert "inpainting model" in str(caught.value)
