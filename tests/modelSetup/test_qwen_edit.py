"""Qwen-Image-Edit: what its text encoder sees, and what its denoiser is given."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.batch import Sources
from modules.model.noising.noise import NoiseOptions
from modules.model.text import vision
from modules.model.text.vision import PLACE, PatchRules, scaled_to_area
from modules.trainer.evaluate.sample_texts import keep_sample_texts
from modules.util.config.SampleConfig import SampleConfig
from modules.util.errors import UserError
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images, seen_images
from tests.tiny.qwen import write_qwen_tokenizer
from tests.tiny.source_images import source_images, source_tensors

KEYS = ("QWEN_EDIT", "QWEN_EDIT_PLUS")


def noise(height: int, width: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=source, dtype=torch.uint8)


def test_a_processor_in_one_file_is_read_like_one_of_its_own(tmp_path: Path) -> None:
    """Newer transformers write the rules for images into ``processor_config.json``."""
    folder = shutil.copytree(tiny_folder(KEYS[0]), tmp_path / "model")
    place = folder / "processor"
    rules = json.loads((place / "preprocessor_config.json").read_text("utf-8")) | {"max_pixels": 4321}
    (place / "preprocessor_config.json").unlink()
    whole = {"image_processor": rules, "processor_class": "Qwen2_5_VLProcessor"}
    (place / "processor_config.json").write_text(json.dumps(whole), encoding="utf-8")
    assert tiny_setup(KEYS[0]).load(str(folder)).parts["processor"] == rules


@pytest.mark.parametrize("size", [(64, 64), (40, 200), (30, 33), (420, 140)])
def test_patches_are_those_of_the_published_processor(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    config = json.loads((tiny_folder(KEYS[0]) / "processor" / "preprocessor_config.json").read_text("utf-8"))
    for limits in ({}, {"min_pixels": 56 * 84, "max_pixels": 20000}):
        theirs = Qwen2VLImageProcessorPil(**{**config, **limits})(
            [noise(*size).permute(1, 2, 0).numpy()], return_tensors="pt"
        )
        patches, grid = PatchRules.of({**config, **limits}).patches(noise(*size))
        assert theirs["image_grid_thw"].tolist() == [[1, *grid]]
        assert torch.allclose(patches, theirs["pixel_values"], atol=1e-5)
    assert PatchRules.of({}) == PatchRules.of(config)
    edges = {"shortest_edge": 7, "longest_edge": 900}
    assert (PatchRules.of({"size": edges}).least, PatchRules.of({"size": edges}).most) == (7, 900)


def test_positions_are_those_of_the_language_model() -> None:
    encoder: Any = tiny_model(KEYS[1]).module("text_encoder").model
    place = encoder.config.image_token_id
    grids = [(2, 3), (5, 1)]
    first = [1, 2, *[place] * 6, 3, *[place] * 5, 4]
    ids = torch.tensor([[*first, 7, 8, 9]])
    theirs, _ = encoder.get_rope_index(
        ids, (ids == place).int(), image_grid_thw=torch.tensor([(1, 4, 6), (1, 10, 2)])
    )
    assert torch.equal(vision._positions(first, place, grids, ids.shape[1]), theirs[:, 0])


@pytest.mark.parametrize(("size", "wanted"), [((768, 768), (384, 384)), ((512, 1024), (256, 544))])
def test_the_text_encoder_of_plus_sees_the_area_the_pipeline_shows(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import (
        CONDITION_IMAGE_SIZE,
        calculate_dimensions,
    )

    assert calculate_dimensions(CONDITION_IMAGE_SIZE, size[1] / size[0]) == wanted[::-1]
    shown = tiny_setup("QWEN_EDIT_PLUS")._shown(Sources([noise(*size)[None]]))  # type: ignore[attr-defined]
    assert shown[0].shape == (1, 3, *wanted)
    grey = scaled_to_area(torch.full((1, 3, *size), 77, dtype=torch.uint8), 384**2, 32)
    assert bool((grey == 77).all())


@pytest.mark.parametrize("key", KEYS)
def test_another_source_is_another_text_state(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    seen = seen_images(setup, ["a"])
    own = setup.encode_text(model, ["make it red"], seen=seen)["hidden_BLE"]
    assert torch.equal(own, setup.encode_text(model, ["make it red"], seen=seen)["hidden_BLE"])
    changed = Sources([seen[0].flip(-1), *seen[1:]])
    assert (own - setup.encode_text(model, ["make it red"], seen=changed)["hidden_BLE"]).abs().max() > 1e-4
    blind = setup.encode_text(model, ["make it red"])["hidden_BLE"]
    assert blind.shape[1] < own.shape[1]
    if len(seen) > 1:
        turned = setup.encode_text(model, ["make it red"], seen=Sources(seen[::-1]))["hidden_BLE"]
        assert (own - turned).abs().max() > 1e-4
        fewer = setup.encode_text(model, ["make it red"], seen=Sources(seen[:2]))["hidden_BLE"]
        assert fewer.shape[1] < own.shape[1]


def test_a_tokenizer_without_images_is_an_error(tmp_path: Path) -> None:
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    setup, model = tiny_setup(KEYS[0]), tiny_model(KEYS[0])
    write_qwen_tokenizer(tmp_path)
    model.parts["tokenizer"] = Qwen2Tokenizer.from_pretrained(str(tmp_path))
    with pytest.raises(UserError, match="the tokenizer has no") as caught:
        setup.encode_text(model, ["a cat"], seen=seen_images(setup, ["a"]))
    assert PLACE in str(caught.value)


def folder_of_2511(tmp_path: Path) -> Path:
    """The same weights with what the config of 2511 says."""
    folder = Path(shutil.copytree(tiny_folder("QWEN_EDIT_PLUS"), tmp_path / "2511"))
    place = folder / "transformer" / "config.json"
    config = json.loads(place.read_text("utf-8"))
    place.write_text(json.dumps({**config, "zero_cond_t": True}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("newer", [False, True], ids=["2509", "2511"])
def test_a_step_is_the_transformer_called_by_hand(newer: bool, tmp_path: Path) -> None:
    from diffusers import QwenImageTransformer2DModel

    folder = folder_of_2511(tmp_path) if newer else tiny_folder("QWEN_EDIT_PLUS")
    setup = tiny_setup("QWEN_EDIT_PLUS")
    model = setup.load(str(folder))
    batch = image_batch(setup, model, ["a"])
    source = torch.Generator().manual_seed(3)
    two = Sources(torch.randn(1, 4, *size, generator=source) for size in ((4, 6), (2, 8)))
    cond = setup.condition(model, replace(batch, sources=two))
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=2)
    by_hand: Any = QwenImageTransformer2DModel.from_pretrained(str(folder / "transformer"))
    assert by_hand.config.zero_cond_t == newer

    def packed(z_1Chw: torch.Tensor) -> torch.Tensor:
        _, channels, high, wide = z_1Chw.shape
        cut = z_1Chw.reshape(1, channels, high // 2, 2, wide // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return cut.reshape(1, high * wide // 4, 4 * channels)

    time = draw.timestep_B / 1000.0
    noisy = (1.0 - time) * batch.latents_BChw + time * draw.noise_BChw
    with torch.no_grad():
        ours = setup.predict(model, batch.latents_BChw, cond, draw, batch.size)
        theirs = by_hand(
            hidden_states=torch.cat([packed(one) for one in (noisy, *two)], dim=1),
            timestep=time,
            encoder_hidden_states=cond["hidden_BLE"],
            img_shapes=[[(1, 4, 4), (1, 2, 3), (1, 1, 4)]],
            return_dict=False,
        )[0][:, :16]
    assert torch.allclose(packed(ours.predicted), theirs, atol=1e-5)
    assert torch.allclose(ours.target, draw.noise_BChw - batch.latents_BChw)


def test_noise_free_sources_of_2511_are_another_prediction(tmp_path: Path) -> None:
    setup, plain = tiny_setup("QWEN_EDIT_PLUS"), tiny_model("QWEN_EDIT_PLUS")
    newer = setup.load(str(folder_of_2511(tmp_path)))
    batch = image_batch(setup, plain, ["a"])
    draw = setup.draw_noise(plain, batch, NoiseOptions(), seed=2)
    with torch.no_grad():
        losses = [setup.calculate_loss(model, batch, draw) for model in (plain, newer)]
    assert (losses[0] - losses[1]).abs().min() > 1e-6


@pytest.mark.parametrize("key", KEYS)
def test_dropped_captions_need_the_empty_prompt_of_their_images(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    batch = replace(image_batch(setup, model, ["a"]), blank=None)
    with pytest.raises(RuntimeError, match="no states of the empty prompt"):
        setup.text_condition(model, batch, torch.tensor([True]))


def test_texts_of_samples_are_kept_with_their_images(tmp_path: Path) -> None:
    setup, model = tiny_setup(KEYS[0]), tiny_model(KEYS[0])
    samples, made = [], []
    for number, image in enumerate(source_images(2)):
        image.save(tmp_path / f"{number}.png")
        samples.append(
            SampleConfig(
                prompt="a cat",
                width=64,
                height=64,
                cfg_scale=1.0,
                source_path=str(tmp_path / f"{number}.png"),
            )
        )
    given = source_tensors(2)
    live = [images(setup, model, ["a cat"], steps=2, cfg=1.0, size=(64, 64), sources=[one]) for one in given]
    keep_sample_texts(setup, model, [*samples, samples[0]], lambda *_: True)
    assert len(model.kept_texts) == 2
    model.parts.pop("text_encoder")
    for one in given:
        request = {"steps": 2, "cfg": 1.0, "size": (64, 64), "sources": [one]}
        made.append(images(setup, model, ["a cat"], **request))
    assert all(torch.equal(kept, fresh) for kept, fresh in zip(made, live, strict=True))
    assert not torch.equal(made[0], made[1])
