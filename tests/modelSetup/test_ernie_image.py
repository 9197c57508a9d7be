"""ERNIE-Image: what the contract of all families does not cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.util.config.foreign.base_family import family_of_base
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.ernie_image import write_ministral_tokenizer

KEY = "ERNIE"
PROMPTS = ["a red circle", "a large blue square on the left"]


# the usual run has a shape of its own in tests/contracts/test_pipeline_parity.py
@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 4.0], ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(guidance: float) -> None:
    from diffusers import ErnieImagePipeline

    size = (32, 64)
    made: Any = ErnieImagePipeline.from_pretrained(str(tiny_folder(KEY)))
    made.set_progress_bar_config(disable=True)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=guidance, size=size)
    wanted = made(
        prompt=list(PROMPTS),
        negative_prompt=["blue", "blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        guidance_scale=guidance,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


@pytest.mark.parametrize("t", [10.0, 500.0, 990.0])
def test_a_prediction_is_the_denoiser_s_at_the_same_time(t: float) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw = torch.randn(2, model.latent_channels, 4, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (32, 48))
        out: torch.Tensor = model.denoiser(
            hidden_states=x_BChw,
            timestep=torch.full((2,), t),
            text_bth=cond["hidden_BLE"],
            text_lens=cond["mask_BL"].sum(dim=1),
            return_dict=False,
        )[0]
    assert torch.allclose(found, out, atol=1e-6) and float(out.abs().max()) > 1e-3


def test_states_are_those_of_the_last_layer_but_one_without_padding() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    tokenizer, encoder = model.parts["tokenizer"], model.module("text_encoder")
    cond = setup.encode_text(model, [*PROMPTS, ""])
    for row, text in enumerate([*PROMPTS, ""]):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            wanted = encoder(input_ids=ids, output_hidden_states=True).hidden_states[-2][0]
        length = int(cond["mask_BL"][row].sum())
        assert length == len(wanted) >= 1
        assert torch.allclose(cond["hidden_BLE"][row, :length], wanted, atol=1e-5)


def test_an_empty_prompt_is_a_start_mark_where_the_tokenizer_adds_none(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    setup, model = tiny_setup(KEY), tiny_model(KEY)
    wanted = setup.encode_text(model, [""])["hidden_BLE"]
    write_ministral_tokenizer(tmp_path, starts=False)
    model.parts["tokenizer"] = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert model.parts["tokenizer"]("").input_ids == []
    assert torch.allclose(setup.encode_text(model, [""])["hidden_BLE"], wanted, atol=1e-6)


def test_latents_are_normalised_as_in_training_whatever_the_config_says() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    vae: Any = model.vae
    rgb_BCHW = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    before = setup.encode_image(model, rgb_BCHW)
    vae.register_to_config(batch_norm_eps=0.5)
    assert torch.equal(setup.encode_image(model, rgb_BCHW), before)
    spread_C = (vae.bn.running_var + 1e-5).sqrt()
    raw_BChw = before * spread_C[:, None, None] + vae.bn.running_mean[:, None, None]
    with torch.no_grad():
        z_BChw = vae.encode(rgb_BCHW * 2 - 1).latent_dist.mode()
    patches = z_BChw.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    assert torch.allclose(raw_BChw, patches, atol=1e-4)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("baidu/ERNIE-Image", (), "base_model_name").value == KEY
