"""Qwen-Image 2.1 as a model that edits: what its text encoder sees, and what its denoiser is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from modules.model.batch import Conditioning, Sources
from modules.model.noising.noise import NoiseOptions
from modules.util.errors import UserError
from tests.modelSetup.test_qwen_21 import pipeline
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images
from tests.usual import usual

KEY = "QWEN_21"
PROMPTS = ["make it red", "a large blue square on the left"]
SIZES = ((64, 64), (32, 128))
"""(height, width) of two images to edit, of the area that the pipeline is asked for."""


def pictures(flipped: bool = False) -> list[torch.Tensor]:
    """(3, H, W) uint8 each."""
    source = torch.Generator().manual_seed(4)
    made = [torch.randint(0, 256, (3, *size), generator=source, dtype=torch.uint8) for size in SIZES]
    return [made[0].flip(-1), made[1]] if flipped else made


def pillow(rgb_CHW: torch.Tensor) -> Image.Image:
    return Image.fromarray(rgb_CHW.permute(1, 2, 0).numpy())


def seen(count: int = 1, flipped: bool = False) -> Sources:
    return Sources(one[None].expand(count, -1, -1, -1) for one in pictures(flipped))


@pytest.mark.parametrize("guidance", usual([1.0, 4.0], 4.0), ids=["plain", "guided"])
def test_images_from_sources_of_two_shapes_are_those_of_the_pipeline(
    guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, model, size = tiny_setup(KEY), tiny_model(KEY), (32, 96)
    asked: dict[str, Any] = {"steps": 3, "cfg": guidance, "size": size}
    sources = [one / 255.0 for one in pictures()]
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], sources=sources, **asked)
    wanted = pipeline(tiny_folder(KEY), monkeypatch)(
        prompt=PROMPTS[:1],
        negative_prompt=["blue"],
        image=[pillow(one) for one in pictures()],
        height=size[0],
        width=size[1],
        output_resolution=64,
        num_inference_steps=3,
        true_cfg_scale=guidance,
        generator=[torch.Generator().manual_seed(7)],
        output_type="pt",
    ).images.float()
    assert torch.allclose(ours, wanted[:, :3], atol=1e-4), float((ours - wanted[:, :3]).abs().max())


@pytest.mark.parametrize("prompt", [*PROMPTS, ""])
def test_states_are_those_of_the_pipeline_without_those_of_images(
    prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    shown = [pillow(one) for one in pictures()]
    with torch.no_grad():
        wanted_BLE, _, place_BL = pipeline(tiny_folder(KEY), monkeypatch).encode_prompt([prompt], shown)
    cond = setup.encode_text(model, [prompt], seen=seen())
    words_LE = wanted_BLE[0][~place_BL[0]]
    assert torch.allclose(cond["hidden_BLE"][0], words_LE, atol=1e-5) and bool(cond["mask_BL"].all())
    counts = cond["slots_BL"][0].tolist()
    assert [count for count in counts if count] == [8 * 8, 4 * 16]
    layout = [place for count in counts for place in (*[True] * count, False)]
    assert layout == place_BL[0].tolist()


def test_the_sequence_is_texts_with_latents_between_them_and_the_image_last() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    batch = image_batch(setup, model, ["a"])
    latents = torch.Generator().manual_seed(3)
    sources = Sources(torch.randn(1, 4, high // 4, wide // 4, generator=latents) for high, wide in SIZES)
    own = setup.encode_text(model, ["make it red"], seen=seen())
    cond = setup.condition(model, replace(batch, cond=own, sources=sources))
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=2)
    counts = own["slots_BL"][0].tolist()
    places = [place for count in counts for place in (*[True] * count, False)]
    states_BLE = torch.zeros(1, len(places), own["hidden_BLE"].shape[2])
    # what is where images are does not count
    states_BLE[:, torch.tensor(places)] = 7.0
    states_BLE[:, ~torch.tensor(places)] = own["hidden_BLE"]
    time = draw.timestep_B / 1000.0
    noisy = (1.0 - time) * batch.latents_BChw + time * draw.noise_BChw
    with torch.no_grad():
        ours = setup.predict(model, batch.latents_BChw, cond, draw, batch.size)
        theirs = model.denoiser(
            hidden_states=torch.cat([one.flatten(2).transpose(1, 2) for one in (*sources, noisy)], dim=1),
            encoder_hidden_states=states_BLE,
            timestep=time,
            img_shapes=[[(1, 16, 16), (1, 8, 32), (1, 8, 8)]],
            img_mask=torch.tensor([[*places, *[True] * 16]]),
            return_dict=False,
        )[0][:, -64:]
    assert torch.allclose(ours.predicted.flatten(2).transpose(1, 2), theirs, atol=1e-5)
    assert torch.allclose(ours.target, draw.noise_BChw - batch.latents_BChw)


def test_prompts_of_unlike_length_do_not_change_each_other() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    together = setup.encode_text(model, PROMPTS, seen=seen(2))
    alone = [setup.encode_text(model, [prompt], seen=seen()) for prompt in PROMPTS]
    stacked = Conditioning.stack([row for one in alone for row in one.unbind()])
    for name, tensor in together.tensors.items():
        assert torch.allclose(stacked[name].float(), tensor.float(), atol=1e-5), name
    x_BChw = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    latents = Sources(torch.randn(2, 4, high // 4, wide // 4) for high, wide in SIZES)
    t_B = torch.full((2,), 400.0)
    with torch.no_grad():
        both = setup.denoise(model, x_BChw, t_B, together.editing(latents), (32, 32))
        rows = [
            setup.denoise(
                model,
                x_BChw[[row]],
                t_B[:1],
                alone[row].editing(Sources(one[[row]] for one in latents)),
                (32, 32),
            )
            for row in range(2)
        ]
    assert torch.allclose(both, torch.cat(rows), atol=1e-5)


def test_another_source_or_order_is_another_text_state() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    own = setup.encode_text(model, ["make it red"], seen=seen())["hidden_BLE"]
    changed = setup.encode_text(model, ["make it red"], seen=seen(flipped=True))["hidden_BLE"]
    turned = setup.encode_text(model, ["make it red"], seen=Sources(seen()[::-1]))["hidden_BLE"]
    assert (own - changed).abs().max() > 1e-4
    assert (own - turned).abs().max() > 1e-4
    blind = setup.encode_text(model, ["make it red"])
    assert "slots_BL" not in blind.tensors and blind["hidden_BLE"].shape[1] < own.shape[1]


def test_a_prompt_that_is_cut_keeps_its_images_and_what_comes_behind_it() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    model.prompt_length = 24
    short, long = (
        setup.encode_text(model, [prompt], seen=seen()) for prompt in ("", "a large blue square " * 20)
    )
    blank = setup.encode_text(model, [""])["hidden_BLE"].shape[1]
    marks = short["hidden_BLE"].shape[1] - blank
    assert long["hidden_BLE"].shape[1] == 24 + marks
    assert int(long["slots_BL"].sum()) == int(short["slots_BL"].sum()) == 8 * 8 + 4 * 16


def test_an_encoder_whose_tokens_are_no_slots_is_an_error() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    model.latent_factor = 8
    with pytest.raises(UserError, match="makes a token of 8 pixels, and the denoiser one of 16"):
        setup.encode_text(model, ["a"], seen=seen())
