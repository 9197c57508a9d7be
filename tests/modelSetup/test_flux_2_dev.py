"""FLUX.2 dev: what the contract of all families does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.modelSetup.families.Flux2Setup import SYSTEM
from modules.spec.families.flux_2 import DEV_LAYERS
from modules.util.config.foreign.base_family import family_of_base
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.flux_2 import DEV_LENGTH

KEY = "FLUX_2_DEV"
PROMPTS = ["a red circle", "a large blue square on the left"]


# the usual run has a shape of its own in tests/contracts/test_pipeline_parity.py
@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_images_of_another_shape_are_those_of_the_pipeline(guidance: float) -> None:
    from diffusers import Flux2Pipeline

    made: Any = Flux2Pipeline.from_pretrained(str(tiny_folder(KEY)))
    made.set_progress_bar_config(disable=True)
    setup, model, size = tiny_setup(KEY), tiny_model(KEY), (32, 64)
    ours = images(setup, model, PROMPTS, "", seeds=[7, 8], steps=3, cfg=guidance, size=size)
    wanted = made(
        prompt=list(PROMPTS),
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        guidance_scale=guidance,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
        max_sequence_length=DEV_LENGTH,
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


@pytest.mark.parametrize("t", [10.0, 500.0, 990.0])
def test_a_prediction_is_the_denoiser_s_with_the_guidance_it_is_told(t: float) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw = torch.randn(2, model.latent_channels, 4, 6, generator=torch.Generator().manual_seed(1))
    text = torch.zeros(cond["hidden_BLE"].shape[1], 4)
    text[:, 3] = torch.arange(len(text))
    image = torch.tensor([[0.0, row, column, 0.0] for row in range(4) for column in range(6)])

    def predicted(guidance: float) -> torch.Tensor:
        out: torch.Tensor = model.denoiser(
            hidden_states=x_BChw.flatten(2).transpose(1, 2),
            encoder_hidden_states=cond["hidden_BLE"],
            timestep=torch.full((2,), t / 1000.0),
            guidance=torch.full((2,), guidance),
            img_ids=image,
            txt_ids=text,
            return_dict=False,
        )[0]
        return out.transpose(1, 2).unflatten(2, (4, 6))

    with torch.no_grad():
        trained = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (32, 48))
        told = cond.plus(guidance_B=torch.full((2,), 4.0))
        sampled = setup.denoise(model, x_BChw, torch.full((2,), t), told, (32, 48))
        assert torch.allclose(trained, predicted(1.0), atol=1e-6)
        assert torch.allclose(sampled, predicted(4.0), atol=1e-6)
    assert not torch.allclose(trained, sampled, atol=1e-6)


def test_the_states_are_those_of_three_depths_after_the_message_of_the_system() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, ["a [IMG]cat"])
    tokenizer, encoder = model.parts["tokenizer"], model.module("text_encoder").model.language_model
    text = f"<s>[SYSTEM_PROMPT]{SYSTEM}[/SYSTEM_PROMPT][INST]a cat[/INST]"
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    padding = DEV_LENGTH - ids.shape[1]
    padded = torch.cat([torch.full((1, padding), tokenizer.pad_token_id), ids], dim=1)
    mask = torch.arange(DEV_LENGTH)[None] >= padding
    with torch.no_grad():
        states = encoder(input_ids=padded, attention_mask=mask.long(), output_hidden_states=True)
    wanted = torch.cat([states.hidden_states[layer] for layer in DEV_LAYERS], dim=-1)
    assert cond["hidden_BLE"].shape == wanted.shape
    assert torch.allclose(cond["hidden_BLE"], wanted, atol=1e-5)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("black-forest-labs/FLUX.2-dev", (), "base_model_name").value == KEY
    assert family_of_base("black-forest-labs/FLUX.2-klein-base-4B", (), "base_model_name").value == "FLUX_2"
