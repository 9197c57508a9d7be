"""Stable Diffusion XL against diffusers' own pipeline: text states, size conditioning, parameterisations."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.batch import PairBatch
from modules.model.dtypes import PartDtypes
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.modelSetup.ModelFamily import LoadOptions
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images, pair_batch
from tests.usual import usual

KEY = "STABLE_DIFFUSION_XL_10_BASE"
PROMPTS = ["a red circle", "a large blue square on the left of a photo of a cat and a dog on the right"]


def pipeline(folder: Path) -> Any:
    from diffusers import StableDiffusionXLPipeline

    made = StableDiffusionXLPipeline.from_pretrained(str(folder))
    made.set_progress_bar_config(disable=True)
    return made


def theirs(pipe: Any, seed: int = 7, **options: Any) -> torch.Tensor:
    return pipe(
        prompt=PROMPTS[0],
        negative_prompt="blue",
        num_inference_steps=3,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(seed),
        height=SIZE[0],
        width=SIZE[1],
        output_type="pt",
        **options,
    ).images


def test_text_states_are_those_of_the_pipeline() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    cond = setup.encode_text(model, PROMPTS)
    hidden_BLE, _, pooled_BE, _ = pipeline(tiny_folder(KEY)).encode_prompt(
        PROMPTS, do_classifier_free_guidance=False
    )
    assert torch.allclose(cond["hidden_BLE"], hidden_BLE, atol=1e-6)
    assert torch.allclose(cond["pooled_BE"], pooled_BE, atol=1e-6)
    assert cond["hidden_BLE"].shape[-1] == 48 and cond["pooled_BE"].shape[-1] == 24


def test_the_denoiser_is_told_size_and_crop_in_the_pipeline_s_order() -> None:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    batch = image_batch(setup, model, ["a", "b"])
    geometry = torch.tensor([[1000.0, 700, 16, 0, 32, 32], [333, 444, 0, 8, 32, 32]])
    cond = setup.condition(model, replace(batch, geometry_B6=geometry))
    assert torch.equal(cond["geometry_B6"], geometry)
    times = torch.tensor([10, 900])
    pipe = pipeline(tiny_folder(KEY))
    with torch.no_grad():
        ours = setup.denoise(model, batch.latents_BChw, times, cond, SIZE)
        untold = setup.denoise(model, batch.latents_BChw, times, batch.cond, SIZE)
        told = [
            pipe._get_add_time_ids(original, corner, SIZE, torch.float32, text_encoder_projection_dim=24)
            for original, corner in (((1000, 700), (16, 0)), ((333, 444), (0, 8)))
        ]
        expected = pipe.unet(
            batch.latents_BChw,
            times,
            encoder_hidden_states=batch.cond["hidden_BLE"],
            added_cond_kwargs={"text_embeds": batch.cond["pooled_BE"], "time_ids": torch.cat(told)},
        ).sample
        plain = setup.denoise(
            model,
            batch.latents_BChw,
            times,
            cond.plus(geometry_B6=torch.tensor([[32.0, 32, 0, 0, 32, 32]] * 2)),
            SIZE,
        )
    assert torch.allclose(ours, expected, atol=1e-6)
    assert not torch.allclose(ours, untold, atol=1e-4)
    assert torch.equal(untold, plain), "an image nothing is known of counts as made in this size"


def test_size_and_crop_make_the_pipeline_s_image() -> None:
    """The same numbers in the pipeline's words: a default image is one of its own size, uncropped."""
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], steps=3, cfg=3.0, size=SIZE)
    pipe = pipeline(tiny_folder(KEY))
    told = theirs(pipe, original_size=SIZE, crops_coords_top_left=(0, 0), target_size=SIZE)
    assert torch.allclose(ours, told, atol=1e-4)
    assert not torch.allclose(ours, theirs(pipe, original_size=(512, 512)), atol=1e-4)


@pytest.mark.parametrize("zero_snr", usual([False, True], True), ids=["v", "v-zero-snr"])
def test_v_prediction_models_make_the_pipeline_s_image(tmp_path: Path, zero_snr: bool) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(KEY, "v_prediction"), folder)
    path = folder / "scheduler" / "scheduler_config.json"
    if zero_snr:
        extra = {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        path.write_text(json.dumps(json.loads(path.read_text()) | extra), encoding="utf-8")
    setup = tiny_setup(KEY)
    model = setup.load(str(folder))
    assert model.schedule.prediction == "v_prediction"
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], steps=3, cfg=3.0, size=SIZE)
    assert torch.allclose(ours, theirs(pipeline(folder)), atol=1e-4)


def test_parameterisation_can_be_overruled(tmp_path: Path) -> None:
    setup = tiny_setup(KEY)
    options = LoadOptions(prediction="v_prediction", zero_terminal_snr=True)
    model = setup.load(str(tiny_folder(KEY)), options=options)
    assert model.schedule.prediction == "v_prediction"
    last_BChw = torch.ones(1, 4, 8, 8)
    noisy = model.schedule.add_noise(last_BChw, torch.zeros(1, 4, 8, 8), torch.tensor([999]))
    assert not noisy.any(), "the last step is pure noise"
    training.save(model, tmp_path / "out", "DIFFUSERS")
    ours = images(setup, model, PROMPTS[:1], "blue", seeds=[7], steps=3, cfg=3.0, size=SIZE)
    assert torch.allclose(ours, theirs(pipeline(tmp_path / "out")), atol=1e-4)


def told_pairs(encoded: bool) -> tuple[Any, Any, PairBatch]:
    setup, model = tiny_setup(KEY), tiny_model(KEY)
    pair = pair_batch(setup, model, ["p1", "p2"], encoded=encoded)
    chosen = replace(
        pair.chosen, geometry_B6=torch.tensor([[64.0, 64, 0, 0, 32, 32], [32, 80, 0, 24, 32, 32]])
    )
    rejected = replace(
        pair.rejected, geometry_B6=torch.tensor([[900.0, 900, 0, 0, 32, 32], [640, 320, 16, 0, 32, 32]])
    )
    return setup, model, PairBatch(pair.pair_ids, chosen, rejected)


@pytest.mark.parametrize("trains_text", [False, True])
def test_sides_of_a_pair_are_told_apart(trains_text: bool) -> None:
    setup, model, pair = told_pairs(encoded=not trains_text)
    model.trains_text = trains_text
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    scorer = ModelPairScorer(setup, model, pair, draws)
    with torch.no_grad():
        both = scorer("both").score_B
        apart = torch.cat([scorer("chosen").score_B, scorer("rejected").score_B])
        same = PairBatch(
            pair.pair_ids, pair.chosen, replace(pair.rejected, geometry_B6=pair.chosen.geometry_B6)
        )
        other = ModelPairScorer(setup, model, same, draws)("both").score_B
    assert torch.allclose(both, apart, rtol=1e-5)
    assert torch.allclose(both[:2], other[:2], rtol=1e-5)
    assert not torch.allclose(both[2:], other[2:], rtol=1e-5)


def test_geometry_survives_a_dropped_caption() -> None:
    setup, model, pair = told_pairs(encoded=True)
    draw = setup.draw_noise(model, pair.chosen, NoiseOptions(caption_dropout=1.0), seed=3)
    cond = setup.condition(model, pair.chosen, draw)
    assert torch.equal(cond["geometry_B6"], pair.chosen.geometry_B6)
    assert torch.equal(cond["pooled_BE"][1], setup.encode_text(model, [""])["pooled_BE"][0])


@pytest.mark.parametrize(("upcast", "expected"), [(True, torch.float32), (False, torch.float16)])
def test_an_autoencoder_that_overflows_stays_in_full_precision(
    tmp_path: Path, upcast: bool, expected: torch.dtype
) -> None:
    shutil.copytree(tiny_folder(KEY), tmp_path / "model")
    path = tmp_path / "model" / "vae" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"force_upcast": upcast}), encoding="utf-8")
    model = tiny_setup(KEY).load(str(tmp_path / "model"), PartDtypes(default=torch.float16))
    assert {p.dtype for p in model.vae.parameters()} == {expected}
    assert {p.dtype for p in model.denoiser.parameters()} == {torch.float16}
