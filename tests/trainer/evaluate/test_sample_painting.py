"""Samples of inpainting models that are painted into an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.modelSetup.sample_images import SampleRequest, sample
from modules.trainer.assembly import check_settings
from modules.trainer.evaluate.sample_painting import check_painting, painting
from modules.util.config.load import load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.errors import ConfigError
from tests.tiny import tiny_model, tiny_setup
from tests.trainer.builders import write_config

KEY = "STABLE_DIFFUSION_15_INPAINTING"


def written(folder: Path) -> tuple[str, str]:
    """An image of 128 x 128 pixels, and its mask, which is white on the left."""
    pixels = np.random.default_rng(1).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    mask = np.zeros((128, 128), dtype=np.uint8)
    mask[:, :64] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    return str(folder / "image.png"), str(folder / "mask.png")


def wanted(image: str, mask: str) -> SampleConfig:
    shared = {"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 2, "cfg_scale": 3.0}
    return SampleConfig.from_dict({**shared, "base_image_path": image, "mask_image_path": mask})


def test_the_denoiser_sees_the_mask_and_what_is_kept(tmp_path: Path) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    filled = wanted(*written(tmp_path)).filled(model.spec)
    into = painting(filled, model.latent_factor)
    assert into is not None
    half = into.mask_hw.shape[1] // 2
    assert into.mask_hw[:, :half].eq(1).all() and into.mask_hw[:, half:].eq(0).all()
    assert torch.allclose(into.kept_CHW[:, :, :32], torch.tensor(0.5), atol=1e-6)
    assert into.kept_CHW[:, :, 32:].std() > 0.05
    given: list[torch.Tensor] = []
    model.denoiser.conv_in.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach()))
    made = sample(setup, model, SampleRequest.of(filled, 1, (), into))
    kept_1Chw = setup.encode_image(model, into.kept_CHW[None])
    # for the prompt and for the negative prompt
    assert all(len(one) == 2 for one in given)
    for seen in given:
        assert torch.equal(seen[:, 4:5], into.mask_hw.expand(2, 1, -1, -1))
        assert torch.allclose(seen[:, 5:], kept_1Chw.expand(2, -1, -1, -1))
    whole = sample(setup, model, SampleRequest.of(wanted("", "").filled(model.spec), 1))
    assert not torch.allclose(made, whole, atol=1e-4)


def test_what_cannot_be_painted_is_refused_before_a_sample(tmp_path: Path) -> None:
    image, mask = written(tmp_path)
    spec, other = tiny_setup(KEY).spec, tiny_setup().spec
    check_painting(spec, [wanted(image, mask), wanted("", "")])
    check_painting(other, [wanted("", "")])
    Image.new("L", (128, 64)).save(tmp_path / "wide.png")
    (tmp_path / "text.png").write_text("no image")
    for family, one, field, words in (
        (other, wanted(image, mask), "base_image_path", "makes whole images"),
        (spec, wanted(image, ""), "mask_image_path", "its mask is missing"),
        (spec, wanted("", mask), "base_image_path", "the image it belongs to is missing"),
        (spec, wanted(image, str(tmp_path / "wide.png")), "mask_image_path", "128x128 and 128x64"),
        (spec, wanted(str(tmp_path / "text.png"), mask), "base_image_path", "not an image"),
        (spec, wanted(image, str(tmp_path / "none.png")), "mask_image_path", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            check_painting(family, [one])
        assert caught.value.field == f"samples.{field}"


def test_it_is_refused_before_the_model_is_looked_at(tmp_path: Path) -> None:
    image, mask = written(tmp_path)
    sample = {"prompt": "a cat", "width": 64, "height": 64, "base_image_path": image, "mask_image_path": mask}
    nowhere = str(tmp_path / "no model")
    path = write_config(tmp_path, samples=[sample], sample_before_training=True, base_model_name=nowhere)
    with pytest.raises(ConfigError, match="makes whole images"):
        check_settings(load_config(path))
