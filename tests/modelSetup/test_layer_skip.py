"""Text states of an earlier layer: those that diffusers takes, from a cache of their own, and within the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.modelSetup import training
from modules.util.config.load import find_problems, read_config
from modules.util.errors import ConfigError
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.trainer.builders import run_here, write_config, write_pairs

PROMPTS = ["a red house", "two small dogs on a hill"]


def pipeline(name: str, folder: Path) -> Any:
    import diffusers

    return getattr(diffusers, name).from_pretrained(str(folder))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("STABLE_DIFFUSION_XL_10_BASE", "StableDiffusionXLPipeline"),
        ("STABLE_DIFFUSION_3", "StableDiffusion3Pipeline"),
    ],
)
def test_the_states_are_those_of_the_pipeline(key: str, name: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    usual = setup.encode_text(model, PROMPTS)
    model.layer_skips = {"text_encoder": 1, "text_encoder_2": 1}
    skipped = setup.encode_text(model, PROMPTS)
    more = (
        {} if name.endswith("XLPipeline") else {"prompt_2": None, "prompt_3": None, "max_sequence_length": 12}
    )
    hidden_BLE, _, pooled_BE, _ = pipeline(name, tiny_folder(key)).encode_prompt(
        PROMPTS, do_classifier_free_guidance=False, clip_skip=1, **more
    )
    tokens = len(model.parts["tokenizer"]("", padding="max_length").input_ids)
    torch.testing.assert_close(skipped["hidden_BLE"][:, :tokens], hidden_BLE[:, :tokens], atol=1e-6, rtol=0)
    # a T5 behind them is read as ever
    assert torch.equal(skipped["hidden_BLE"][:, tokens:], usual["hidden_BLE"][:, tokens:])
    torch.testing.assert_close(skipped["pooled_BE"], pooled_BE, atol=1e-6, rtol=0)
    assert torch.equal(skipped["pooled_BE"], usual["pooled_BE"])
    assert not torch.equal(skipped["hidden_BLE"], usual["hidden_BLE"])


def test_one_clip_has_its_final_norm_after_the_layer() -> None:
    setup, model = tiny_setup(), tiny_model()
    model.layer_skips = {"text_encoder": 1}
    encoder, tokenizer = model.module("text_encoder"), model.parts["tokenizer"]
    ids = tokenizer(PROMPTS, padding="max_length", truncation=True, return_tensors="pt").input_ids
    with torch.no_grad():
        layers = encoder(ids, output_hidden_states=True).hidden_states
        expected = encoder.final_layer_norm(layers[-2])
    torch.testing.assert_close(setup.encode_text(model, PROMPTS)["hidden_BLE"], expected, atol=1e-6, rtol=0)


def test_more_layers_than_there_are_and_other_families_are_refused() -> None:
    model = tiny_model()
    config = read_config({"__version": 1, "text_encoder": {"layer_skip": 2}})
    with pytest.raises(ConfigError, match="2 layers") as caught:
        training.read_as_told(model, config)
    assert caught.value.field == "text_encoder.layer_skip"
    for family, part in (("FLUX_DEV_1", "text_encoder"), ("SANA", "text_encoder")):
        values = {"__version": 1, "model_type": family, part: {"layer_skip": 1}}
        with pytest.raises(Exception, match=f"{part}.layer_skip"):
            read_config(values)
    values = {"__version": 1, "model_type": "STABLE_DIFFUSION_3", "text_encoder_2": {"layer_skip": 1}}
    assert find_problems(read_config(values)).errors == []


def test_another_skip_encodes_prompts_again_and_no_image(tmp_path: Path) -> None:
    concepts = write_pairs(tmp_path / "data", 2)
    cached: list[set[str]] = []
    weights = []
    for number, skip in enumerate((0, 0, 1)):
        config = write_config(
            tmp_path / str(number), concepts=concepts, max_steps=2, cache_dir=str(tmp_path / "cache"),
            text_encoder={"layer_skip": skip}, output_model_destination=str(tmp_path / str(number) / "out.safetensors"),
        )  # fmt: skip
        parts = run_here(config).parts
        weights.append([p.detach().clone() for p in parts.parameters])
        files = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
        cached.append({str(path.relative_to(tmp_path / "cache")) for path in files})
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights[1], weights[2], strict=True))
    new = cached[2] - cached[1]
    assert new
    assert all("text" in name for name in new), new
