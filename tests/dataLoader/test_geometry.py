"""What models with size conditioning are told about their images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from modules.pipeline.nodes.transforms import Transform, crop_geometry
from tests.dataLoader.builders import AveragingSetup, at, concept, config, loader, write_image, write_pairs

torch.set_num_threads(1)


class ToldSetup(AveragingSetup):
    """The averaging setup as a family with size conditioning."""

    spec = replace(AveragingSetup.spec, size_conditioning=True)


def test_offsets_count_pixels_of_the_scaled_image() -> None:
    assert crop_geometry((128, 64), Transform((64, 64))) == (64, 128, 0, 32, 64, 64)
    assert crop_geometry((256, 128), Transform((64, 64))) == (128, 256, 0, 32, 64, 64)
    assert crop_geometry((256, 128), Transform((64, 64), offset=(1.0, 0.0))) == (128, 256, 0, 64, 64, 64)
    assert crop_geometry((32, 64), Transform((64, 64), offset=(0.5, 0.25))) == (64, 32, 16, 0, 64, 64)
    assert crop_geometry((64, 48), Transform((48, 64))) == (48, 64, 0, 0, 48, 64)


@pytest.mark.parametrize("caching", [True, False])
def test_every_image_has_its_own(tmp_path: Path, caching: bool) -> None:
    write_image(tmp_path / "pets" / "wide.png", (128, 64), 1)
    write_image(tmp_path / "pets" / "large.png", (160, 160), 2)
    made = config(
        tmp_path,
        [concept(tmp_path / "pets")],
        epochs=1,
        batch_size=2,
        aspect_ratio_bucketing=False,
        latent_caching=caching,
    )
    (group,) = loader(made, setup=ToldSetup()).accumulation_groups(at())
    (batch,) = group
    found = dict(zip(batch.ids, batch.geometry_B6.tolist(), strict=True))
    assert batch.geometry_B6.dtype == torch.float32
    assert found == {
        "pets/wide.png": [64.0, 128.0, 0.0, 32.0, 64.0, 64.0],
        "pets/large.png": [160.0, 160.0, 0.0, 0.0, 64.0, 64.0],
    }


def test_jitter_moves_the_crop_that_is_told(tmp_path: Path) -> None:
    write_image(tmp_path / "pets" / "0.png", (128, 64))
    jitter = {"image": {"enable_crop_jitter": True}, "image_variations": 3}
    made = config(tmp_path, [concept(tmp_path / "pets", **jitter)], epochs=6, aspect_ratio_bucketing=False)
    groups = loader(made, setup=ToldSetup()).accumulation_groups(at())
    batches = [group[0] for group in groups]
    offsets = [float(batch.geometry_B6[0, 3]) for batch in batches]
    assert offsets[:3] == offsets[3:] and len(set(offsets[:3])) == 3
    with Image.open(tmp_path / "pets" / "0.png") as image:
        for batch, offset in zip(batches, offsets, strict=True):
            crop = image.crop((int(offset), 0, int(offset) + 64, 64)).resize((8, 8), Image.Resampling.BOX)
            pixels = torch.tensor(list(crop.getdata()), dtype=torch.float32).T.reshape(3, 8, 8) / 255
            assert (batch.latents_BChw[0, :3] - pixels).abs().max() < 0.06


def test_both_sides_of_a_pair_have_their_own(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2)
    for path in rejected.glob("*.png"):
        write_image(path, (128, 128), 9, None)
    both = [concept(chosen, "DPO_CHOSEN"), concept(rejected, "DPO_REJECTED")]
    made = config(tmp_path, both, rlhf_enabled=True, epochs=1)
    batches = [b for group in loader(made, setup=ToldSetup()).accumulation_groups(at()) for b in group]
    for batch in batches:
        assert batch.chosen.geometry_B6.tolist() == [[64, 64, 0, 0, 64, 64]] * len(batch)
        assert batch.rejected.geometry_B6.tolist() == [[128, 128, 0, 0, 64, 64]] * len(batch)
    assert sum(map(len, batches)) == 2


def test_other_families_are_told_nothing(tmp_path: Path) -> None:
    write_image(tmp_path / "pets" / "0.png")
    made = config(tmp_path, [concept(tmp_path / "pets")], epochs=1)
    (group,) = loader(made).accumulation_groups(at())
    assert group[0].geometry_B6 is None
