"""Krea 2: what the contract of all families does not cover."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import COMFY, read_adapter, save_adapter
from modules.adapter.PeftAdapter import attach
from modules.model.batch import Conditioning
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.families.Krea2Setup import AFTER, BEFORE
from modules.spec.families.krea_2 import LAYERS
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.usual import usual

KEY = "KREA_2"
PROMPTS = ["a red circle", "a large blue square on the left"]


def pipeline(folder: Path) -> Any:
    from diffusers import Krea2Pipeline

    made = Krea2Pipeline.from_pretrained(str(folder))
    made.set_progress_bar_config(disable=True)
    return made


def theirs(made: Any, size: tuple[int, int], guidance: float) -> torch.Tensor:
    return made(
        prompt=list(PROMPTS),
        negative_prompt=["blue", "blue"],
        height=size[0],
        width=size[1],
        num_inference_steps=3,
        guidance_scale=guidance,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        output_type="pt",
        max_sequence_length=64,
    ).images


def distilled_folder(folder: Path) -> Path:
    shutil.copytree(tiny_folder(KEY), folder)
    index = folder / "model_index.json"
    index.write_text(
        json.dumps(json.loads(index.read_text(encoding="utf-8")) | {"is_distilled": True}), encoding="utf-8"
    )
    return folder


# the base is in tests/contracts/test_pipeline_parity.py
@pytest.mark.parametrize("distilled", usual([False, True], True), ids=["base", "distilled"])
def test_images_of_another_shape_are_those_of_the_pipeline(distilled: bool, tmp_path: Path) -> None:
    folder = distilled_folder(tmp_path / "turbo") if distilled else tiny_folder(KEY)
    setup, size = tiny_setup(KEY), (32, 64)
    model = setup.load(str(folder))
    cfg = 1.0 if distilled else 3.5
    ours = images(setup, model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=cfg, size=size)
    wanted = theirs(pipeline(folder), size, cfg - 1.0).float()
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())
    assert model.published is None or model.published.distilled is distilled


def test_a_distilled_model_is_sampled_with_its_steps_and_another_shift(tmp_path: Path) -> None:
    setup = tiny_setup(KEY)
    base, turbo = tiny_model(KEY), setup.load(str(distilled_folder(tmp_path / "turbo")))
    published = turbo.published
    assert published is not None and (published.steps, published.cfg) == (8, 1.0)
    steps = [setup.make_sampler(model, "EULER", 4, SIZE).timesteps.tolist() for model in (base, turbo)]
    assert steps[0] != steps[1]
    wide = [setup.make_sampler(turbo, "EULER", 4, size).timesteps.tolist() for size in (SIZE, (512, 512))]
    assert wide[0] == wide[1], "whatever the size"
    by_size = NoiseOptions(shifts_by_size=True)
    shifts = [[setup.level_shift(model, (4, n, n), by_size) for n in (8, 64)] for model in (base, turbo)]
    assert shifts[0][0] < shifts[0][1] and shifts[1] == [pytest.approx(math.exp(1.15))] * 2
    assert setup.level_shift(turbo, (4, 8, 8), NoiseOptions()) is None


@pytest.mark.parametrize("t", [10.0, 500.0, 990.0])
def test_a_prediction_is_the_denoiser_s_with_the_arguments_of_the_pipeline(t: float) -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    x_BChw = torch.randn(2, model.latent_channels, 8, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = setup.denoise(model, x_BChw, torch.full((2,), t), cond, (32, 48))
        rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
        image = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
        text = torch.zeros(cond["hidden_BLE"].shape[1], 3)
        patches = x_BChw.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(2, 24, -1)
        out: torch.Tensor = model.denoiser(
            hidden_states=patches,
            encoder_hidden_states=cond["hidden_BLE"].unflatten(2, (12, -1)),
            timestep=torch.full((2,), t / 1000.0),
            position_ids=torch.cat([text, image]),
            encoder_attention_mask=cond["mask_BL"],
            return_dict=False,
        )[0]
    back = out.reshape(2, 4, 6, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(x_BChw.shape)
    assert torch.allclose(found, back, atol=1e-6)


def test_the_states_are_those_of_the_twelve_depths_and_of_real_tokens_alone() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    tokenizer, encoder = model.parts["tokenizer"], model.module("text_encoder").language_model
    counts = []
    for row, prompt in enumerate(PROMPTS):
        ids = tokenizer(f"{BEFORE}{prompt}{AFTER}", return_tensors="pt").input_ids
        with torch.no_grad():
            states = encoder(input_ids=ids, output_hidden_states=True).hidden_states
        wanted = torch.cat([states[layer][0, 34:] for layer in LAYERS], dim=-1)
        length = int(cond["mask_BL"][row].sum())
        counts.append(length)
        assert length == len(wanted)
        assert torch.allclose(cond["hidden_BLE"][row, :length], wanted, atol=1e-5)
        assert not cond["hidden_BLE"][row, length:].any()
    assert counts[0] < counts[1] == cond["hidden_BLE"].shape[1]
    # what is kept of each is its own length
    assert [len(row["mask_BL"]) for row in cond.unbind()] == counts
    again = Conditioning.stack(cond.unbind())
    assert torch.equal(again["hidden_BLE"], cond["hidden_BLE"])


def test_the_suffix_follows_a_prompt_that_is_cut() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    long = setup.encode_text(model, ["a " * 2000])
    assert int(long["mask_BL"].sum()) == 512
    assert setup.cut_prompts(model, ["a " * 2000, "a"]) == ["a " * 2000]


def test_a_published_lora_without_alpha_means_the_same_to_diffusers(tmp_path: Path) -> None:
    """Named as in ComfyUI: ``diffusion_model.blocks.0.attn.wq.lora_A.weight``."""
    handle = attach(tiny_model(KEY), AdapterOptions(rank=2, alpha=2.0, parts=("transformer",)))
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    path = save_adapter(handle, tmp_path / "a.safetensors", COMFY)
    published = {name: value for name, value in load_file(path).items() if not name.endswith(".alpha")}
    assert "diffusion_model.blocks.0.attn.wq.lora_A.weight" in published
    save_file(published, path)
    model, made = tiny_model(KEY), pipeline(tiny_folder(KEY))
    attach(model, AdapterOptions(), read_adapter(path, model))
    made.load_lora_weights(str(path))
    ours = images(tiny_setup(KEY), model, PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=1.0, size=SIZE)
    bare = images(
        tiny_setup(KEY), tiny_model(KEY), PROMPTS, "blue", seeds=[7, 8], steps=3, cfg=1.0, size=SIZE
    )
    wanted = theirs(made, SIZE, 0.0)
    assert torch.allclose(ours, wanted, atol=1e-4), float((ours - wanted).abs().max())
    assert float((ours - bare).abs().max()) > 1e-3
