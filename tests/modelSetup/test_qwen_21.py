"""Qwen-Image 2.1: what the contract of all families does not cover."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.util.config.foreign.base_family import family_of_base
from modules.weights.saving import save_folder
from tests.tiny import pipeline_parts, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.qwen_21 import write
from tests.usual import usual

KEY = "QWEN_21"
PROMPTS = ["a red circle", "a large blue square on the left"]
LEVELS = (1.0, 0.75, 0.2)


def pipeline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from diffusers import QwenImage21Pipeline

    parts = pipeline_parts(KEY, folder, monkeypatch)
    made: Any = QwenImage21Pipeline.from_pretrained(str(folder), **dict.fromkeys(parts))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize(
    ("guidance", "cached"),
    usual(product((1.0, 4.0), (False, True)), (4.0, True)),
    ids=["plain-whole", "plain-cached", "guided-whole", "guided-cached"],
)
def test_images_of_another_shape_are_those_of_the_pipeline(
    guidance: float, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (32, 64)
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], steps=3, cfg=guidance, size=size)
    wanted = pipeline(tiny_folder(KEY), monkeypatch)(
        prompt=PROMPTS[:1],
        negative_prompt=["blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        true_cfg_scale=guidance,
        generator=[torch.Generator().manual_seed(7)],
        output_type="pt",
        use_kv_cache=cached,
    ).images.float()
    assert wanted.shape[1] == 4
    assert torch.allclose(ours, wanted[:, :3], atol=1e-4), float((ours - wanted[:, :3]).abs().max())


@pytest.mark.parametrize("steps", usual([3, 4], 3))
def test_noise_levels_of_the_published_model_are_taken_for_as_many_steps(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    write(folder, "flow", 4, LEVELS)
    setup = tiny_setup(KEY)
    model = setup.load(str(folder))
    ours = images(setup, model, PROMPTS[:1], "", seeds=[7], steps=steps, cfg=1.0, size=(32, 32))
    # the pipeline knows no other number of steps, unless it is given their levels
    even = {} if steps == len(LEVELS) else {"sigmas": [1.0 - step / steps for step in range(steps)]}
    wanted = pipeline(folder, monkeypatch)(
        prompt=PROMPTS[:1],
        height=32,
        width=32,
        generator=[torch.Generator().manual_seed(7)],
        output_type="pt",
        **even,
    ).images.float()
    assert torch.allclose(ours, wanted[:, :3], atol=1e-4), float((ours - wanted[:, :3]).abs().max())
    saved = tmp_path / "saved"
    save_folder(model, saved)
    assert json.loads((saved / "model_index.json").read_text())["sample_sigmas"] == list(LEVELS)


@pytest.mark.parametrize(
    "levels",
    [
        pytest.param("many", marks=pytest.mark.slow),
        [1.0, "half"],
        [0.5, 0.75],
        pytest.param([1.5, 0.5], marks=pytest.mark.slow),
        [0.5, float("nan")],
        pytest.param([1.0 - i / 2000 for i in range(1500)], marks=pytest.mark.slow),
    ],
)
def test_noise_levels_that_are_none_are_left(levels: object, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.symlink_to(tiny_folder(KEY))
    setup = tiny_setup(KEY)
    model = setup.load(str(folder))
    usual = setup.make_sampler(model, "EULER", 2, (32, 32)).sigmas
    folder.unlink()
    folder.mkdir()
    index = json.loads((tiny_folder(KEY) / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "sample_sigmas": levels}))
    assert torch.equal(setup.make_sampler(model, "EULER", 2, (32, 32)).sigmas, usual)


def test_states_are_those_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last layer without the norm, none of the system message, and those of the empty prompt too."""
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    texts = [*PROMPTS, ""]
    cond = setup.encode_text(model, texts)
    with torch.no_grad():
        wanted_BLE, mask_BL, _ = pipeline(tiny_folder(KEY), monkeypatch).encode_prompt(texts)
    assert torch.equal(cond["mask_BL"], mask_BL.bool())
    assert torch.allclose(cond["hidden_BLE"], wanted_BLE, atol=1e-5)
    normed_BLE = model.module("text_encoder").model.language_model.norm(wanted_BLE)  # type: ignore[operator, union-attr]
    assert not torch.allclose(wanted_BLE, normed_BLE, atol=0.1)


def test_the_norm_is_left_out_of_prompts_alone() -> None:
    """What else asks the text encoder gets what it always gives."""
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    encoder: Any = model.module("text_encoder").model.language_model
    ids_BL = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = encoder(ids_BL).last_hidden_state
        setup.encode_text(model, PROMPTS)
        assert torch.equal(encoder(ids_BL).last_hidden_state, before)


def test_a_prompt_that_is_cut_keeps_what_comes_behind_it() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    model.prompt_length = 24
    tokenizer = model.parts["processor"]
    states_BLE = setup.encode_text(model, ["a large blue square " * 20])["hidden_BLE"]
    assert states_BLE.shape[1] == 24
    assert setup.cut_prompts(model, ["a large blue square " * 20, "a"]) == ["a large blue square " * 20]
    assert len(tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids) == 5


def test_opaque_images_go_in_and_colours_come_out() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    rgb_BCHW = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    vae: Any = model.vae
    rgba_BCthw = torch.cat([rgb_BCHW * 2 - 1, torch.ones(2, 1, 32, 32)], dim=1)[:, :, None]
    with torch.no_grad():
        raw_BChw = vae.encode(rgba_BCthw).latent_dist.mode()[:, :, 0]
    mean, deviation = (
        torch.tensor(v)[:, None, None] for v in (vae.config.latents_mean, vae.config.latents_std)
    )
    found_BChw = setup.encode_image(model, rgb_BCHW)
    assert torch.allclose(found_BChw, (raw_BChw - mean) / deviation, atol=1e-5)
    assert setup.decode_latents(model, found_BChw).shape == (2, 3, 32, 32)


def test_a_saved_folder_has_what_shows_images(tmp_path: Path) -> None:
    """Its pipeline loads the tokenizer as a part of a processor."""
    folder = tmp_path / "model"
    write(folder, "flow", 4)
    rules = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(rules))
    saved = tmp_path / "saved"
    save_folder(tiny_setup(KEY).load(str(folder)), saved)
    assert json.loads((saved / "processor" / "preprocessor_config.json").read_text()) == rules
    index = json.loads((saved / "model_index.json").read_text())
    assert index["processor"] == ["transformers", "Qwen3VLProcessor"]
    assert tiny_setup(KEY).load(str(saved)).parts["processor"]("a red circle").input_ids


def test_settings_of_other_programs_that_name_it_are_of_this_family() -> None:
    assert family_of_base("Qwen/Qwen-Image-2.1", (), "base_model_name").value == KEY
