"""Images above 1.5 megapixels are encoded and decoded in tiles, others as ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.model import memory
from modules.model.noising.schedule import FlowSchedule
from modules.model.patches import wrap_edges
from modules.modelSetup.registry import create_model_setup
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.shape_only import ShapeOnlyModel
from modules.util.config.TrainConfig import TrainConfig
from scripts.benchmarks._real_models import MODELS
from tests.tiny import tiny_model, tiny_setup
from tests.usual import usual

KINDS = {
    "STABLE_DIFFUSION_15": (0.15, 0.25),
    "FLUX_2": (0.03, 0.45),
    "QWEN": (0.1, 0.02),
    "QWEN_21": (0.06, 0.15),
    "SANA": (0.05, 0.05),
}
"""A family for each kind of autoencoder: how far latents and images may be from those made at once. Weights are random;
what differs is the normalisation, which sees a tile instead of the whole."""
SIDE = 128


def picture() -> torch.Tensor:
    """Waves that repeat within a tile, (1, 3, SIDE, SIDE): norms over a tile are then as those over the image."""
    turn = torch.arange(SIDE) * (2.0 * torch.pi / 32.0)
    waves_HW = torch.sin(turn)[:, None] * torch.cos(2.0 * turn)[None]
    return 0.5 + 0.4 * torch.stack([waves_HW, waves_HW.T, waves_HW.roll(8, 0)])[None]


def small_tiles(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for name, value in (("MOST_PIXELS", most), ("TILE", 96), ("STRIDE", 64)):
        monkeypatch.setattr(memory, name, value)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Root of the mean squared difference, as a share of how far the second spreads."""
    assert one.shape == other.shape
    return float((one - other).square().mean().sqrt() / other.std())


@pytest.mark.parametrize("key", KINDS)
def test_tiles_make_nearly_the_same_and_small_images_the_same(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    before = {name: value for name, value in vars(model.vae).items() if "til" in name}
    latents = setup.encode_image(model, picture())
    image = setup.decode_latents(model, latents)
    small_tiles(monkeypatch, SIDE * SIDE)
    assert torch.equal(setup.encode_image(model, picture()), latents)
    assert torch.equal(setup.decode_latents(model, latents), image)
    small_tiles(monkeypatch, SIDE * SIDE - 1)
    tiled, shown = setup.encode_image(model, picture()), setup.decode_latents(model, latents)
    assert not torch.equal(tiled, latents) and not torch.equal(shown, image)
    most_of_latents, most_of_images = KINDS[key]
    assert distance(tiled, latents) < most_of_latents and distance(shown, image) < most_of_images
    # no other tile reaches into the corner
    corner = setup.encode_image(model, picture()[..., :96, :96])
    side = 64 // model.latent_factor
    assert torch.allclose(tiled[..., :side, :side], corner[..., :side, :side], atol=1e-5)
    first = setup.decode_latents(model, latents[..., : 96 // model.latent_factor, : 96 // model.latent_factor])
    assert torch.allclose(shown[..., :64, :64], first[..., :64, :64], atol=1e-4)
    assert {name: value for name, value in vars(model.vae).items() if "til" in name} == before


def test_an_image_whose_edges_are_wrapped_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile would be wrapped around itself."""
    setup, model = tiny_setup(), tiny_model()
    assert wrap_edges(model.vae)
    latents = setup.encode_image(model, picture())
    small_tiles(monkeypatch, SIDE * SIDE - 1)
    assert torch.equal(setup.encode_image(model, picture()), latents)


def test_the_limit_is_one_and_a_half_megapixels(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model()
    seen = []
    for size in ((1024, 1536), (1024, 1544), (1280, 1280)):
        with memory.in_tiles_if_large(model.vae, size):
            seen.append(model.vae.use_tiling)
    assert seen == [False, True, True] and not model.vae.use_tiling


# the autoencoders of SD 1.5 and SDXL have the same layers, and the other parts of SD 1.5 are made sooner
@pytest.mark.slow
@pytest.mark.parametrize("name", usual(["sd15", "sdxl", "klein-4b", "qwen"], "sd15"))
def test_large_images_take_little_more_than_their_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is predicted for autoencoders of real size; the same code runs on tensors without contents."""
    key, make, *_ = MODELS[name]
    with torch.device("meta"):
        parts = {part: made for part, made in make().items() if part in ("vae", "scheduler")}
    setup = create_model_setup(key)
    config = TrainConfig.from_dict({"model_type": key})
    model = ShapeOnlyModel(setup.spec, "", parts, FlowSchedule(), device=torch.device("meta"))
    setup._set_latents(model)
    dry_run = ShapeDryRun(setup, model, config)
    tile = (dry_run.images(1, (1024, 1024)), dry_run.samples(1, (1024, 1024)))
    large = (dry_run.images(1, (2048, 2048)), dry_run.samples(1, (2048, 2048)))
    monkeypatch.setattr(memory, "MOST_PIXELS", 2048 * 2048)
    whole = (dry_run.images(1, (2048, 2048)), dry_run.samples(1, (2048, 2048)))
    for one, some, all_ in zip(tile, large, whole, strict=True):
        assert some < 1.25 * one < 0.5 * all_
