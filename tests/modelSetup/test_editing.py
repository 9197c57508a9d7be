"""Models that edit images: what their denoiser is given of the source images, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from modules.model.batch import Conditioning, ImageBatch, Sources
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.spec.registry import FAMILIES
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch, pair_batch
from tests.usual import usual

KEYS = sorted(key for key, spec in FAMILIES.items() if spec.sources)


def other(sources: Sources) -> Sources:
    """Images of the same sizes with other content."""
    source = torch.Generator().manual_seed(9)
    return Sources(torch.randn(one.shape, generator=source) for one in sources)


def losses(key: str, batch: ImageBatch) -> torch.Tensor:
    setup, model = tiny_setup(key), tiny_model(key)
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    with torch.no_grad():
        return setup.calculate_loss(model, batch, draw)


# the others show their sources as FLUX_2 and as QWEN_EDIT_PLUS
USUAL = [key for key in KEYS if key not in ("FLUX_2_DEV", "QWEN_EDIT")]


@pytest.mark.parametrize("key", usual(KEYS, *USUAL))
def test_another_source_is_another_prediction(key: str) -> None:
    batch = image_batch(tiny_setup(key), tiny_model(key), ["a", "b"])
    assert len(batch.sources) == tiny_setup(key).spec.sources
    changed = replace(batch, sources=other(batch.sources))
    assert (losses(key, batch) - losses(key, changed)).abs().min() > 1e-6
    assert torch.equal(losses(key, batch), losses(key, replace(batch)))


@pytest.mark.parametrize("key", ["FLUX_2", "QWEN_EDIT_PLUS", "QWEN_21"])
def test_the_order_of_sources_matters(key: str) -> None:
    batch = image_batch(tiny_setup(key), tiny_model(key), ["a", "b"])
    turned = replace(batch, sources=Sources(batch.sources[::-1]))
    assert (losses(key, batch) - losses(key, turned)).abs().min() > 1e-6


def test_klein_s_sources_are_behind_the_image_ten_steps_apart() -> None:
    setup, model = tiny_setup("FLUX_2"), tiny_model("FLUX_2")
    batch = image_batch(setup, model, ["a"])
    given: list[dict[str, Any]] = []
    model.denoiser.register_forward_pre_hook(lambda _, __, named: given.append(named), with_kwargs=True)
    two = Sources(torch.randn(1, model.latent_channels, *size) for size in ((2, 3), (3, 1)))
    cond = setup.condition(model, replace(batch, sources=two))
    with torch.no_grad():
        setup.denoise(model, batch.latents_BChw, torch.tensor([500.0]), cond, batch.size)
    grids = ((0, *batch.latents_BChw.shape[-2:]), (10, 2, 3), (20, 3, 1))
    wanted = [
        (time, row, column, 0) for time, high, wide in grids for row in range(high) for column in range(wide)
    ]
    assert [tuple(int(one) for one in ids) for ids in given[0]["img_ids"]] == wanted
    assert torch.equal(given[0]["hidden_states"][0, -1], two[1][0, :, 2, 0])


@pytest.mark.parametrize("key", usual(KEYS, *USUAL))
def test_what_becomes_of_the_source_s_tokens_has_no_loss(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    batch = image_batch(setup, model, ["a", "b"])
    own = setup.image_tokens(model, batch.size)
    lengths: list[int] = []

    def disturb(_: object, __: object, out: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        lengths.append(out[0].shape[1])
        tokens_BLE = out[0].clone()
        # in one family, the image comes after the sources and the texts
        rest = slice(-own) if key == "QWEN_21" else slice(own, None)
        tokens_BLE[:, rest] += 100.0
        return (tokens_BLE,)

    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    with torch.no_grad():
        plain = setup.calculate_loss(model, batch, draw)
        model.denoiser.register_forward_hook(disturb)
        disturbed = setup.calculate_loss(model, batch, draw)
    texts = lengths[-1] - own * (1 + len(batch.sources))
    assert texts > 0 if key == "QWEN_21" else (len(lengths), texts) == (1, 0)
    assert torch.equal(plain, disturbed)


@pytest.mark.parametrize("key", usual(KEYS, *USUAL))
def test_pairs_are_scored_with_their_sources(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    pair = pair_batch(setup, model, ["p1", "p2"])
    assert pair.rejected is not None
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    changed = replace(pair, rejected=replace(pair.rejected, sources=other(pair.rejected.sources)))
    with torch.no_grad():
        scorer = ModelPairScorer(setup, model, pair, draws)
        both, alone = scorer("both").score_B, [scorer(side).score_B for side in ("chosen", "rejected")]
        another = ModelPairScorer(setup, model, changed, draws)("both").score_B
    assert torch.allclose(both, torch.cat(alone), rtol=1e-5)
    assert torch.allclose(both[:2], another[:2], rtol=1e-5)
    assert (both[2:] - another[2:]).abs().min() > 1e-6


def test_kontext_s_source_is_behind_the_image_and_numbered_1() -> None:
    key = "FLUX_KONTEXT_DEV_1"
    setup, model = tiny_setup(key), tiny_model(key)
    batch = image_batch(setup, model, ["a"])
    given: list[dict[str, Any]] = []
    model.denoiser.register_forward_pre_hook(lambda _, __, named: given.append(named), with_kwargs=True)
    wide = Sources([torch.randn(1, model.latent_channels, 4, 6)])
    cond = setup.condition(model, replace(batch, sources=wide))
    with torch.no_grad():
        out_BChw = setup.denoise(model, batch.latents_BChw, torch.tensor([500.0]), cond, batch.size)
    height, width = (side // 2 for side in batch.latents_BChw.shape[-2:])
    image = [(0, row, column) for row in range(height) for column in range(width)]
    source = [(1, row, column) for row in range(2) for column in range(3)]
    assert [tuple(int(one) for one in ids) for ids in given[0]["img_ids"]] == image + source
    assert given[0]["hidden_states"].shape[1] == len(image) + len(source)
    # the first source token: the four cells of a patch of every channel
    patch_E = wide[0][0, :, :2, :2].reshape(-1)
    assert torch.equal(given[0]["hidden_states"][0, len(image)], patch_E)
    assert out_BChw.shape == batch.latents_BChw.shape


def test_batches_with_different_sources_are_not_joined() -> None:
    key = KEYS[0]
    batch = image_batch(tiny_setup(key), tiny_model(key), ["a", "b"])
    joined = ImageBatch.cat([batch, replace(batch, sources=other(batch.sources))])
    assert torch.equal(joined.select([1]).sources[0], batch.sources[0][1:])
    assert torch.equal(joined.select(slice(2, 4)).sources[0], other(batch.sources)[0])
    with pytest.raises(ValueError, match="different source images"):
        ImageBatch.cat([batch, replace(batch, sources=Sources())])
    with pytest.raises(ValueError, match="differ in length"):
        replace(batch, sources=Sources(one[:1] for one in batch.sources))
    rows = Conditioning({"hidden_BLE": torch.zeros(2, 3, 4)}).editing(batch.sources)
    assert torch.equal(rows.select([1]).to("cpu", torch.float64).sources[0], batch.sources[0][1:].double())
