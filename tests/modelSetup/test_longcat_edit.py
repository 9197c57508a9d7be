"""LongCat-Image-Edit: what its text encoder sees, and what its denoiser is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from modules.model.batch import Sources
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.util.config.foreign.base_family import family_of_base
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images
from tests.tiny.longcat_image import editing
from tests.usual import usual

KEY = "LONGCAT_IMAGE_EDIT"
PROMPTS = ["make the sign say 'red'", "a large blue square on the left"]


def picture(height: int, width: int) -> torch.Tensor:
    """(3, H, W) uint8."""
    source = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (3, height, width), generator=source, dtype=torch.uint8)


def pipeline(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Any:
    from diffusers import LongCatImageEditPipeline

    folder = tiny_folder(KEY)
    parts = editing(folder, monkeypatch, size)
    made: Any = LongCatImageEditPipeline.from_pretrained(str(folder), **dict.fromkeys(parts))
    made.register_modules(**parts)
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize("guidance", usual([1.0, 4.5], 4.5), ids=["plain", "guided"])
def test_images_of_another_shape_are_those_of_the_pipeline(
    guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text encoder is shown more than it needs to be, so that half of the size is another image."""
    size = (128, 192)
    setup, model, source = tiny_setup(KEY), tiny_model(KEY), picture(*size)
    asked: dict[str, Any] = {"steps": 2, "cfg": guidance, "size": size, "sources": [source / 255.0]}
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], **asked)
    wanted = pipeline(size, monkeypatch)(
        image=Image.fromarray(source.permute(1, 2, 0).numpy()),
        prompt=PROMPTS[:1],
        negative_prompt=["blue"],
        height=0,
        width=0,
        num_inference_steps=2,
        guidance_scale=guidance,
        generator=torch.Generator().manual_seed(7),
        output_type="pt",
    ).images.float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())


@pytest.mark.parametrize("prompt", [*PROMPTS, ""])
def test_states_are_those_of_the_pipeline(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the mark before the image to the padding behind the prompt."""
    setup, model, source = tiny_setup(KEY), tiny_model(KEY), picture(112, 168)
    shown = Image.fromarray(source.permute(1, 2, 0).numpy()).resize((84, 56), Image.Resampling.LANCZOS)
    with torch.no_grad():
        wanted_BLE, _ = pipeline((112, 168), monkeypatch).encode_prompt([prompt], shown)
    # next to others, which have places for tokens of their own
    texts = ["a cat", prompt]
    seen = Sources([torch.stack([source.flip(-1), source])])
    found_BLE = setup.encode_text(model, texts, seen=seen)["hidden_BLE"]
    assert found_BLE.shape[1:] == wanted_BLE.shape[1:] == (2 + 2 * 3 + 512, 16)
    assert torch.allclose(found_BLE[1:], wanted_BLE, atol=1e-5)
    assert (found_BLE[0] - found_BLE[1]).abs().max() > 1e-3


def test_padding_can_be_masked_and_images_stay() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    seen = Sources([picture(112, 168)[None]])
    whole_LE = setup.encode_text(model, ["a"], seen=seen)["hidden_BLE"][0]
    model.masks_padding = True
    masked_LE = setup.encode_text(model, ["a"], seen=seen)["hidden_BLE"][0]
    used = int(masked_LE.abs().sum(1).nonzero().max()) + 1
    assert 2 + 6 < used < 2 + 6 + 20
    assert torch.equal(masked_LE[:used], whole_LE[:used]) and bool(whole_LE[used:].any())


@pytest.mark.parametrize("length", [512, 100])
def test_a_step_is_the_transformer_called_by_hand(length: int) -> None:
    """Image and source begin where the states end, whatever of the prompt is read."""
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    model.prompt_length = length
    batch = image_batch(setup, model, ["a"])
    source = torch.Generator().manual_seed(3)
    wide = Sources([torch.randn(1, model.latent_channels, 4, 6, generator=source)])
    cond = setup.condition(model, replace(batch, sources=wide))
    states = cond["hidden_BLE"].shape[1]
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=2)
    ids = [(1, row, column) for row in range(4) for column in range(4)]
    ids += [(2, row, column) for row in range(2) for column in range(3)]
    corner = torch.tensor([0, states + 512 - length, states + 512 - length])

    def packed(z_1Chw: torch.Tensor) -> torch.Tensor:
        _, channels, high, wide = z_1Chw.shape
        cut = z_1Chw.reshape(1, channels, high // 2, 2, wide // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return cut.reshape(1, high * wide // 4, 4 * channels)

    time = draw.timestep_B / 1000.0
    noisy = (1.0 - time) * batch.latents_BChw + time * draw.noise_BChw
    with torch.no_grad():
        ours = setup.predict(model, batch.latents_BChw, cond, draw, batch.size)
        theirs = model.denoiser(
            hidden_states=torch.cat([packed(noisy), packed(wide[0])], dim=1),
            timestep=time,
            encoder_hidden_states=cond["hidden_BLE"],
            txt_ids=torch.tensor([(0, place, place) for place in range(states)]).float(),
            img_ids=(torch.tensor(ids) + corner).float(),
            return_dict=False,
        )[0][:, :16]
    assert states == 2 + 4 + length
    assert torch.allclose(packed(ours.predicted), theirs, atol=1e-5)
    assert torch.allclose(ours.target, draw.noise_BChw - batch.latents_BChw)


def test_another_source_is_another_text_state() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    seen = Sources([picture(112, 112)[None]])
    own = setup.encode_text(model, ["make it red"], seen=seen)["hidden_BLE"]
    changed = setup.encode_text(model, ["make it red"], seen=Sources([seen[0].flip(-1)]))["hidden_BLE"]
    blind = setup.encode_text(model, ["make it red"])["hidden_BLE"]
    assert (own - changed).abs().max() > 1e-4
    assert (own.shape[1], blind.shape[1]) == (2 + 4 + 512, 512)


def test_guidance_is_the_plain_one() -> None:
    wanted, unwanted = torch.randn(2, 1, 16, 8, 12, generator=torch.Generator().manual_seed(3))
    guided = tiny_setup(KEY).guide(wanted, unwanted, 4.5)
    assert torch.equal(guided, BaseModelSetup.guide(tiny_setup(KEY), wanted, unwanted, 4.5))
    assert not torch.allclose(guided, tiny_setup("LONGCAT_IMAGE").guide(wanted, unwanted, 4.5), atol=0.1)


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("meituan-longcat/LongCat-Image-Edit", (), "base_model_name").value == KEY
