"""Models that paint into images: what their denoiser is given, and that they are distinguished from others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modules.model.batch import ImageBatch, PairBatch
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.util.errors import UserError
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, pair_batch

KEYS = (
    "STABLE_DIFFUSION_15_INPAINTING",
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING",
    "STABLE_DIFFUSION_20_INPAINTING",
)


def seen(batch: ImageBatch, seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(batch), 1, *batch.latents_BChw.shape[2:])
    mask[:, :, 2:6, 1:5] = 1.0
    return torch.cat([mask, torch.randn(batch.latents_BChw.shape, generator=source)], dim=1)


@pytest.mark.parametrize("key", KEYS)
def test_the_denoiser_gets_latents_mask_and_masked_image_in_this_order(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    batch = image_batch(setup, model, ["a", "b"])
    batch = replace(batch, inpaint_BChw=seen(batch, 1))
    given: list[torch.Tensor] = []
    model.denoiser.conv_in.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    times = torch.tensor([10, 900])
    with torch.no_grad():
        setup.denoise(model, batch.latents_BChw, times, setup.condition(model, batch), SIZE)
        setup.denoise(model, batch.latents_BChw, times, batch.cond, SIZE)
    assert torch.equal(given[0], torch.cat([batch.latents_BChw, batch.inpaint_BChw], dim=1))
    grey = setup.encode_image(model, torch.full((1, 3, *SIZE), 0.5))
    blank = torch.cat([torch.ones(2, 1, 8, 8), grey.expand(2, -1, -1, -1)], dim=1)
    assert torch.equal(given[1], torch.cat([batch.latents_BChw, blank], dim=1))


@pytest.mark.parametrize("key", KEYS)
def test_pairs_are_scored_with_their_masks(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    pair: Any = pair_batch(setup, model, ["p1", "p2"])
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    masked = PairBatch(
        pair.pair_ids,
        replace(pair.chosen, inpaint_BChw=seen(pair.chosen, 1)),
        replace(pair.rejected, inpaint_BChw=seen(pair.rejected, 2)),
    )
    with torch.no_grad():
        scorer = ModelPairScorer(setup, model, masked, draws)
        both, alone = scorer("both").score_B, [scorer(side).score_B for side in ("chosen", "rejected")]
        unmasked = ModelPairScorer(setup, model, pair, draws)("both").score_B
    assert torch.allclose(both, torch.cat(alone), rtol=1e-5)
    assert (both - unmasked).abs().min() > 1e-5


def test_batches_of_which_some_are_masked_are_not_joined() -> None:
    key = KEYS[0]
    batch = image_batch(tiny_setup(key), tiny_model(key), ["a", "b"])
    masked = replace(batch, inpaint_BChw=seen(batch, 1))
    assert torch.equal(ImageBatch.cat([masked, masked]).select([3]).inpaint_BChw, masked.inpaint_BChw[1:])
    with pytest.raises(ValueError, match="what is masked"):
        ImageBatch.cat([masked, batch])
    with pytest.raises(ValueError, match="differ in length"):
        replace(batch, inpaint_BChw=masked.inpaint_BChw[:1])


@pytest.mark.parametrize(
    ("wanted", "given", "channels"),
    [
        ("STABLE_DIFFUSION_15", KEYS[0], 9),
        pytest.param(KEYS[0], "STABLE_DIFFUSION_15", 4, marks=pytest.mark.slow),
        pytest.param("STABLE_DIFFUSION_XL_10_BASE", KEYS[1], 9, marks=pytest.mark.slow),
        (KEYS[1], "STABLE_DIFFUSION_XL_10_BASE", 4),
        ("STABLE_DIFFUSION_20_BASE", KEYS[2], 9),
        pytest.param(KEYS[2], "STABLE_DIFFUSION_20_BASE", 4, marks=pytest.mark.slow),
    ],
)
def test_models_of_the_other_sort_are_refused(wanted: str, given: str, channels: int) -> None:
    with pytest.raises(UserError, match=f"takes {channels} channels") as caught:
        tiny_setup(wanted).load(str(tiny_folder(given)))
    assert caught.value.field == "base_model_name" and "model type" in str(caught.value.hint)
