"""Facts of published models that tiny ones do not show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from modules.adapter.layers import adaptable_layers, select_layers
from modules.model.dtypes import PartDtypes
from modules.util.jsonio import read_json
from modules.weights.part_files import outline
from tests.tiny import tiny_folder, tiny_model, tiny_setup

CONFIGS = Path(__file__).parents[2] / "resources" / "model_config"


def denoiser_layers(key: str) -> list[str]:
    """Of the published size."""
    spec = tiny_setup(key).spec
    config = read_json(CONFIGS / key / spec.denoiser / "config.json", "model config")
    return adaptable_layers(outline(spec.part(spec.denoiser), config))


@pytest.mark.parametrize(("key", "limit"), [("FLUX_DEV_1", 512), ("FLUX_SCHNELL_1", 256)])
def test_tokens_of_flux(key: str, limit: int) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    model.parts["tokenizer_2"].model_max_length = 512
    assert (
        setup.encode_text(model, ["a red circle"])["hidden_BLE"].shape[1] == limit == setup.spec.prompt_tokens
    )


@pytest.mark.parametrize("key", ["FLUX_DEV_1", "CHROMA_1"])
def test_the_layer_that_makes_the_image_is_in_no_block(key: str) -> None:
    names = denoiser_layers(key)
    chosen = select_layers(names, tiny_setup(key).spec.layer_presets["attn-mlp"])
    assert "proj_out" in names and "proj_out" not in chosen
    assert "single_transformer_blocks.37.proj_out" in chosen
    assert all("transformer_blocks." in name for name in chosen)


@pytest.mark.parametrize(("upcast", "expected"), [(True, torch.float32), (False, torch.float16)])
def test_pixart_sigma_keeps_its_autoencoder_out_of_half_precision(
    tmp_path: Path, upcast: bool, expected: torch.dtype
) -> None:
    folder = Path(shutil.copytree(tiny_folder("PIXART_SIGMA"), tmp_path / "model"))
    place = folder / "vae" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"force_upcast": upcast}))
    model = tiny_setup("PIXART_SIGMA").load(str(folder), PartDtypes(default=torch.float16), ["vae"])
    assert {p.dtype for p in model.vae.parameters()} == {expected}
