"""The model in the repository: what it is, and that it does what its page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from scripts.demo.denoiser import measure
from scripts.demo.judge import fidelity, read_image
from scripts.demo.sampling import DEMO_MODEL, load_model, sample_pixels
from scripts.demo.vae import round_trip
from scripts.demo.world import combinations


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_it_is_small_half_precision_and_safe() -> None:
    files = [path for path in DEMO_MODEL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 15 * 1000 * 1000
    assert {path.suffix for path in files} <= {".json", ".txt", ".safetensors", ".md"}
    weights = [path for path in files if path.suffix == ".safetensors"]
    assert len(weights) == 3
    for path in weights:
        with safe_open(path, framework="pt") as opened:
            kinds = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 - not a dict
        assert "F16" in kinds and "F32" not in kinds


@pytest.mark.slow
def test_diffusers_makes_the_images_we_make() -> None:
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(str(DEMO_MODEL), torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    wishes = combinations(held_out=False)[:12:2]
    made = pipeline(
        [wish.caption() for wish in wishes],
        num_inference_steps=20,
        guidance_scale=2.5,
        height=64,
        width=64,
        generator=[torch.Generator().manual_seed(i) for i in range(len(wishes))],
        output_type="np",
    ).images
    theirs = [read_image((image * 255).round().astype("uint8")) for image in made]
    assert fidelity(theirs, wishes)["background"] == 1.0
    assert fidelity(theirs, wishes)["colour"] >= 0.8
    ours = sample_pixels(load_model(), [w.caption() for w in wishes], list(range(len(wishes))))
    for image, own in zip(made, ours, strict=True):
        assert abs(image * 255 - own).mean() < 1.5


@pytest.mark.slow
def test_images_show_what_held_out_prompts_say() -> None:
    model = load_model()
    scores = measure(model, seed=3, count=64)
    assert scores["colour"] >= 0.9 and scores["background"] >= 0.9 and scores["shape"] >= 0.8


def test_the_autoencoder_keeps_what_matters() -> None:
    scores = round_trip(load_model().vae, seed=4, count=150)
    assert min(scores["colour"], scores["shape"], scores["background"]) >= 0.97


def test_config_files_name_no_machine() -> None:
    for path in Path(DEMO_MODEL).rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        assert "_name_or_path" not in text or "/" not in json.loads(text).get("_name_or_path", "")
