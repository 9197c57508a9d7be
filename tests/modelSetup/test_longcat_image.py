"""LongCat-Image: what the contract of all families does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.model.text.quotation import quotations
from modules.util.config.foreign.base_family import family_of_base
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images

KEY = "LONGCAT_IMAGE"
PROMPTS = ["a red circle", "a sign that says 'red' next to the artist's \"blue square\""]


def pipeline() -> Any:
    from diffusers import LongCatImagePipeline

    made: Any = LongCatImagePipeline.from_pretrained(str(tiny_folder(KEY)), text_processor=None)
    made.set_progress_bar_config(disable=True)
    return made


# the usual run has a shape of its own in tests/contracts/test_pipeline_parity.py
@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 4.5], ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(guidance: float) -> None:
    size = (32, 64)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=guidance, size=size)
    wanted = pipeline()(
        prompt=list(PROMPTS),
        negative_prompt=["blue", "blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        guidance_scale=guidance,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
        enable_prompt_rewrite=False,
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


def test_states_are_those_of_the_pipeline_padding_included() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    texts = [*PROMPTS, "", "\u201cred\u201d and \u2018blue\u2019", "it's 'it's'"]
    with torch.no_grad():
        wanted_BLE, _ = pipeline().encode_prompt(texts)
    found_BLE = setup.encode_text(model, texts)["hidden_BLE"]
    assert found_BLE.shape == wanted_BLE.shape == (5, 512, 16)
    assert torch.allclose(found_BLE, wanted_BLE, atol=1e-5)


@pytest.mark.parametrize("t", [10.0, 500.0, 990.0])
def test_a_prediction_is_the_denoiser_s_at_the_same_time(t: float) -> None:
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import prepare_pos_ids

    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw = torch.randn(2, model.latent_channels, 8, 12, generator=torch.Generator().manual_seed(1))
    tokens_BLE = x_BChw.unflatten(3, (6, 2)).unflatten(2, (4, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3)
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (32, 48))
        out: torch.Tensor = model.denoiser(
            hidden_states=tokens_BLE.flatten(1, 2),
            timestep=torch.full((2,), t / 1000.0),
            encoder_hidden_states=cond["hidden_BLE"],
            txt_ids=prepare_pos_ids(0, "text", num_token=512),
            img_ids=prepare_pos_ids(1, "image", start=(512, 512), height=4, width=6),
            return_dict=False,
        )[0]
    patches = out.unflatten(2, (model.latent_channels, 2, 2)).unflatten(1, (4, 6))
    wanted = patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    assert torch.allclose(found, wanted, atol=1e-6) and float(out.abs().max()) > 1e-3


def test_guidance_lengthens_no_patch() -> None:
    setup = tiny_setup(KEY)
    wanted, unwanted = torch.randn(2, 2, 16, 8, 12, generator=torch.Generator().manual_seed(3))

    def lengths(x_BChw: torch.Tensor) -> torch.Tensor:
        return x_BChw.unflatten(3, (6, 2)).unflatten(2, (4, 2)).square().sum(dim=(1, 3, 5)).sqrt()

    guided = setup.guide(wanted, unwanted, 4.5)
    plain = unwanted + 4.5 * (wanted - unwanted)
    shorter = torch.minimum(lengths(plain), lengths(wanted))
    assert torch.allclose(lengths(guided), shorter, atol=1e-5)
    assert not torch.allclose(guided, wanted, atol=0.1)


@pytest.mark.parametrize(
    ("prompt", "quoted"),
    [
        ("write 'Hello' on it", ["'Hello'"]),
        ('a sign "50 % OFF" and "open"', ['"50 % OFF"', '"open"']),
        ("\u201c\u4f60\u597d\u201d on a wall", ["\u201c\u4f60\u597d\u201d"]),
        (
            "\u2018\u043f\u0440\u0438\u0432\u0435\u0442\u2019",
            ["\u2018\u043f\u0440\u0438\u0432\u0435\u0442\u2019"],
        ),
        ("the artist's and the boy's hat", []),
        ("'it's open'", ["'it's open'"]),
        ("an open ' mark", []),
        ("''", ["''"]),
    ],
)
def test_quotations(prompt: str, quoted: list[str]) -> None:
    assert [text for text, found in quotations(prompt) if found] == quoted


@given(st.text(alphabet="ab'\" \u2018\u2019\u201c\u201d\u4f60", max_size=30))
def test_nothing_of_a_prompt_is_lost(prompt: str) -> None:
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import split_quotation

    pieces = list(quotations(prompt))
    assert "".join(text for text, _ in pieces) == prompt
    assert pieces == split_quotation(prompt)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("meituan-longcat/LongCat-Image", (), "base_model_name").value == KEY
