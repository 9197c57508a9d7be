"""Lumina 2: what the contract of all families does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import COMFY, DIFFUSERS, adapter_tensors
from modules.adapter.PeftAdapter import attach
from modules.model.text.NegativePrompt import NegativePrompt
from modules.modelSetup.sample_images import SampleRequest, kept_name, sample, sample_texts
from modules.util.config.foreign.base_family import family_of_base
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.lumina_2 import INSTRUCTION, sized_as_the_vae

KEY = "LUMINA_2"
PROMPTS = ["a red circle", "a large blue square on the left"]


# the usual run has a shape of its own in tests/contracts/test_pipeline_parity.py
@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 4.0], ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(
    guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import Lumina2Pipeline

    folder, size = tiny_folder(KEY), (32, 64)
    sized_as_the_vae(folder, monkeypatch)
    made: Any = Lumina2Pipeline.from_pretrained(str(folder))
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
def test_a_prediction_is_the_denoiser_s_the_other_way_round(t: float) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw = torch.randn(2, model.latent_channels, 8, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (32, 48))
        out: torch.Tensor = model.denoiser(
            hidden_states=x_BChw,
            timestep=torch.full((2,), 1.0 - t / 1000.0),
            encoder_hidden_states=cond["hidden_BLE"],
            encoder_attention_mask=cond["mask_BL"],
            return_dict=False,
        )[0]
    assert torch.allclose(found, -out, atol=1e-6) and float(out.abs().max()) > 1e-3


def test_prompts_are_read_after_the_instruction_and_what_is_unwanted_without() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    texts = ["a red circle", NegativePrompt("a blue square"), ""]
    cond = setup.encode_text(model, texts)
    tokenizer, encoder = model.parts["tokenizer"], model.module("text_encoder")
    for row, text in enumerate([f"{INSTRUCTION}a red circle", "a blue square", ""]):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            wanted = encoder(input_ids=ids, output_hidden_states=True).hidden_states[-2][0]
        length = int(cond["mask_BL"][row].sum())
        assert length == len(wanted)
        assert torch.allclose(cond["hidden_BLE"][row, :length], wanted, atol=1e-5)


def test_what_is_encoded_ahead_for_a_negative_prompt_is_not_taken_for_a_prompt() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    asked = SampleRequest(PROMPTS, seeds=[1, 2], steps=1, cfg=1.0, size=(32, 32))
    before = sample(setup, model, asked)
    texts = sample_texts(model, PROMPTS[:1], PROMPTS[1:], 4.0)
    model.kept_texts[kept_name(model, texts, ())] = setup.encode_text(model, texts)
    assert torch.equal(sample(setup, model, asked), before)


def test_steps_are_shifted_by_channels_whatever_the_size() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    steps = [
        setup.make_sampler(model, "EULER", 4, size).timesteps.tolist() for size in ((32, 32), (256, 256))
    ]
    assert steps[0] == steps[1] and steps[0] != [1000.0, 750.0, 500.0, 250.0]


def test_guidance_keeps_the_length_of_each_row() -> None:
    setup = tiny_setup(KEY)
    wanted, unwanted = torch.randn(2, 2, 4, 8, 12, generator=torch.Generator().manual_seed(3))
    guided = setup.guide(wanted, unwanted, 4.0)
    assert torch.allclose(guided.norm(dim=-1), wanted.norm(dim=-1), atol=1e-5)
    assert not torch.allclose(guided, wanted, atol=0.1)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("Alpha-VLLM/Lumina-Image-2.0", (), "base_model_name").value == KEY


def test_diffusers_knows_the_names_of_the_published_layers_but_refuses_alpha() -> None:
    """``COMFY_LORA`` is as published, and ``DIFFUSERS_LORA`` is what that becomes; query, key and value are cut by the
    rows of the published size.
    """
    from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_lumina2_lora_to_diffusers

    blocks = ("layers.", "refiner.")
    handle = attach(
        tiny_model(KEY), AdapterOptions(rank=2, alpha=2.0, parts=("transformer",), patterns=blocks)
    )
    state = {
        name: torch.zeros(2304 + 2 * 768, 6) if name.endswith("qkv.lora_B.weight") else tensor
        for name, tensor in adapter_tensors(handle, COMFY).items()
    }
    with pytest.raises(ValueError, match="alpha"):
        _convert_non_diffusers_lumina2_lora_to_diffusers(dict(state))
    found = _convert_non_diffusers_lumina2_lora_to_diffusers(
        {name: tensor for name, tensor in state.items() if not name.endswith(".alpha")}
    )
    assert found.keys() == adapter_tensors(handle, DIFFUSERS).keys()
