"""Adapter files of families whose kohya layout has the original names of the denoiser's layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import DIFFUSERS, KOHYA, adapter_tensors, read_adapter, save_adapter
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from tests.tiny import SIZE, tiny_setup
from tests.tiny.batches import images
from tests.tiny.copies import Original
from tests.tiny.stable_diffusion_xl import write_levels
from tests.usual import usual

KEY = "STABLE_DIFFUSION_XL_10_BASE"
PARTS = ("unet", "text_encoder", "text_encoder_2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("xl") / "model"
    write_levels(path)
    return path


@cache
def _loaded(folder: Path) -> Original:
    model = tiny_setup(KEY).load(str(folder))
    return Original(model, model.spec)


def load(folder: Path) -> Model:
    """A model of its own for the caller."""
    model: Model = _loaded(folder).copy()
    return model


@cache
def trained(folder: Path, **options: Any) -> AdapterHandle:
    """An adapter with all tensors away from zero, only to be read."""
    model = load(folder)
    handle = attach(model, AdapterOptions(**({"rank": 2, "alpha": 1.0, "parts": PARTS} | options)))
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return handle


def image(model: Model) -> torch.Tensor:
    return images(tiny_setup(KEY), model, ["a red cat"], "blue", seeds=[2], steps=2, cfg=3.0, size=SIZE)


def reread(folder: Path, path: Path) -> tuple[Model, AdapterHandle]:
    model = load(folder)
    return model, attach(model, AdapterOptions(), read_adapter(path, model))


def test_golden_kohya_keys(folder: Path) -> None:
    tensors = adapter_tensors(trained(folder), KOHYA)
    layers = {key.split(".", 1)[0] for key in tensors}
    assert {key.split(".", 1)[1] for key in tensors} == {"lora_down.weight", "lora_up.weight", "alpha"}
    assert {
        "lora_unet_input_blocks_0_0",
        "lora_unet_input_blocks_1_0_in_layers_2",
        "lora_unet_input_blocks_3_0_op",
        "lora_unet_input_blocks_4_0_emb_layers_1",
        "lora_unet_input_blocks_4_0_skip_connection",
        "lora_unet_input_blocks_4_1_proj_in",
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_k",
        "lora_unet_input_blocks_8_1_transformer_blocks_1_ff_net_0_proj",
        "lora_unet_middle_block_1_transformer_blocks_1_attn2_to_out_0",
        "lora_unet_output_blocks_0_1_transformer_blocks_1_attn2_to_v",
        "lora_unet_output_blocks_2_2_conv",
        "lora_unet_output_blocks_5_1_proj_out",
        "lora_unet_label_emb_0_0",
        "lora_unet_time_embed_2",
        "lora_unet_out_2",
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
        "lora_te2_text_model_encoder_layers_1_mlp_fc2",
    } <= layers
    assert not any("down_blocks" in layer or "up_blocks" in layer for layer in layers)
    assert tensors["lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_k.lora_up.weight"].shape == (
        16,
        2,
    )
    assert float(tensors["lora_unet_label_emb_0_0.alpha"]) == 1.0


def test_golden_diffusers_keys(folder: Path) -> None:
    tensors = adapter_tensors(trained(folder), DIFFUSERS)
    assert {
        "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_k.lora_A.weight",
        "unet.up_blocks.0.attentions.2.transformer_blocks.1.ff.net.2.lora_B.weight",
        "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight",
        "text_encoder_2.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight",
    } <= set(tensors)
    assert not any("alpha" in key for key in tensors)


def legacy(folder: Path) -> dict[str, torch.Tensor]:
    """The same tensors with the denoiser's layers under their diffusers names."""
    handle = trained(folder)
    tensors = adapter_tensors(handle, DIFFUSERS)
    made: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        part, name = key.split(".", 1)
        prefix = {"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}[part]
        layer, suffix = name.split(".lora_")
        suffix = {"A.weight": "lora_down.weight", "B.weight": "lora_up.weight"}[suffix]
        made[f"{prefix}_{layer.replace('.', '_')}.{suffix}"] = tensor
    return made


def comfy(folder: Path) -> dict[str, torch.Tensor]:
    from modules.weights.keymaps.latent_diffusion import ldm_name

    handle = trained(folder)
    made: dict[str, torch.Tensor] = {}
    for key, tensor in adapter_tensors(handle, DIFFUSERS).items():
        part, name = key.split(".", 1)
        layer, suffix = name.split(".lora_")
        if part == "unet":
            layer = f"diffusion_model.{ldm_name(handle.model.denoiser, layer)}"
        else:
            layer = f"text_encoders.clip_{'l' if part == 'text_encoder' else 'g'}.transformer.{layer}"
        made[f"{layer}.lora_{suffix}"] = tensor
    return made


def test_legacy_names_are_those_of_other_programs(folder: Path) -> None:
    assert {
        "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_k.lora_down.weight",
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight",
        "lora_te2_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight",
    } <= set(legacy(folder))


@pytest.mark.parametrize("spelled", usual([legacy, comfy], comfy))
def test_other_spellings_are_read(folder: Path, tmp_path: Path, spelled: Any) -> None:
    path = tmp_path / "adapter.safetensors"
    save_file(spelled(folder), path)
    model, again = reread(folder, path)
    expected = trained(folder)
    assert set(again.layers) == set(expected.layers)
    assert torch.allclose(image(model), image(expected.model), atol=1e-6)


@pytest.mark.slow
def test_diffusers_makes_the_same_image(folder: Path, tmp_path: Path) -> None:
    from diffusers import StableDiffusionXLPipeline

    handle = trained(folder, patterns=("attentions",))
    ours = image(handle.model)
    pipe = StableDiffusionXLPipeline.from_pretrained(str(folder))
    pipe.set_progress_bar_config(disable=True)

    def theirs() -> torch.Tensor:
        return pipe(
            "a red cat",
            negative_prompt="blue",
            num_inference_steps=2,
            guidance_scale=3.0,
            height=SIZE[0],
            width=SIZE[1],
            generator=torch.Generator().manual_seed(2),
            output_type="pt",
        ).images

    assert not torch.allclose(ours, theirs(), atol=1e-2)
    for layout in (KOHYA, DIFFUSERS):
        path = save_adapter(handle, tmp_path / f"{layout}.safetensors", layout)
        again, _ = reread(folder, path)
        assert torch.allclose(image(again), ours, atol=1e-6), layout
        pipe.load_lora_weights(str(path))
        assert torch.allclose(theirs(), ours, atol=1e-4), layout
        pipe.unload_lora_weights()


def test_metadata_names_the_family(folder: Path, tmp_path: Path) -> None:
    path = save_adapter(trained(folder, parts=("unet",)), tmp_path / "adapter.safetensors")
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.architecture"] == "stable-diffusion-xl-v1-base/lora"
    assert metadata["ss_base_model_version"] == "sdxl_"
    assert metadata["modelspec.prediction_type"] == "epsilon"
    assert load_file(path)["lora_unet_input_blocks_0_0.lora_down.weight"].shape == (2, 4, 3, 3)
