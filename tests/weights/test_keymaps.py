"""Names of published checkpoints, compared with the rules by which diffusers reads those checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from modules.adapter.layers import adaptable_layers
from modules.modelSetup.registry import MODEL_SETUPS
from modules.weights.keymaps import get_key_map
from tests.tiny import tiny_setup


def flux(**options: Any) -> nn.Module:
    from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel

    return FluxTransformer2DModel(num_layers=2, num_single_layers=2, guidance_embeds=True, **options)


def flux_2() -> nn.Module:
    from diffusers.models.transformers.transformer_flux2 import Flux2Transformer2DModel

    return Flux2Transformer2DModel(num_layers=2, num_single_layers=2)


def chroma() -> nn.Module:
    from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel

    return ChromaTransformer2DModel(num_layers=2, num_single_layers=2, approximator_layers=2)


def stable_diffusion_3() -> nn.Module:
    from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel

    return SD3Transformer2DModel(num_layers=2, num_attention_heads=24, dual_attention_layers=(0,))


def sana() -> nn.Module:
    from diffusers.models.transformers.sana_transformer import SanaTransformer2DModel

    return SanaTransformer2DModel(num_layers=2)


def z_image() -> nn.Module:
    from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel

    return ZImageTransformer2DModel(n_layers=2, n_refiner_layers=1)


CASES: dict[str, tuple[str, Callable[[], nn.Module], str]] = {
    "flux": ("flux", flux, "convert_flux_transformer_checkpoint_to_diffusers"),
    "chroma": ("flux", chroma, "convert_chroma_transformer_checkpoint_to_diffusers"),
    "flux-2": ("flux_2", flux_2, "convert_flux2_transformer_checkpoint_to_diffusers"),
    "sd3": ("stable_diffusion_3", stable_diffusion_3, "convert_sd3_transformer_checkpoint_to_diffusers"),
    "sana": ("sana", sana, "convert_sana_transformer_to_diffusers"),
    "z-image": ("z_image", z_image, "convert_z_image_transformer_checkpoint_to_diffusers"),
}


class Checkpoint(dict[str, torch.Tensor]):
    """A checkpoint that has something under every name, so that only the layers asked about need be given."""

    def pop(self, key: str, *default: Any) -> torch.Tensor:
        return super().pop(key) if key in self else torch.zeros(12, 1)


@pytest.mark.parametrize("case", list(CASES))
def test_rows_go_where_diffusers_puts_them(case: str) -> None:
    """Every layer's rows are numbered, put under the original names, and looked for after the conversion."""
    from diffusers.loaders import single_file_utils

    scheme, make, converter = CASES[case]
    with torch.device("meta"):
        module = make()
    key_map = get_key_map(scheme)
    numbers: dict[str, torch.Tensor] = {}
    start = 0
    for path in adaptable_layers(module):
        layer: Any = module.get_submodule(path)
        rows = int(layer.weight.shape[0])
        numbers[path] = torch.arange(start, start + rows, dtype=torch.float64)[:, None]
        start += rows
    checkpoint = Checkpoint()
    for path in numbers:
        original = key_map.original(module, path)
        value = torch.cat([numbers[piece] for piece in original.pieces])
        if original.swapped:
            value = torch.cat(value.chunk(2)[::-1])
        checkpoint[f"{original.name}.weight"] = value
        checkpoint[f"{original.name}.bias"] = value[:, 0]
    converted = getattr(single_file_utils, converter)(checkpoint)
    wrong = [path for path in numbers if not torch.equal(converted[f"{path}.weight"], numbers[path])]
    assert not wrong


@pytest.mark.parametrize("key", sorted(MODEL_SETUPS.keys()))
def test_every_family_names_a_scheme_that_exists(key: str) -> None:
    assert get_key_map(tiny_setup(key).spec.key_map)


def test_swapped_only_where_a_layer_makes_shift_and_scale() -> None:
    with torch.device("meta"):
        module = stable_diffusion_3()
    key_map = get_key_map("stable_diffusion_3")
    assert not key_map.original(module, "transformer_blocks.0.norm1_context.linear").swapped
    assert key_map.original(module, "transformer_blocks.1.norm1_context.linear").swapped
    assert key_map.original(module, "norm_out.linear").swapped


def test_pixart_names() -> None:
    from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel

    with torch.device("meta"):
        module = PixArtTransformer2DModel(num_layers=1, sample_size=128, caption_channels=4096)
    key_map = get_key_map("pixart")
    names = {key_map.original(module, path).name for path in adaptable_layers(module)}
    assert names == {
        "x_embedder.proj",
        "t_embedder.mlp.0",
        "t_embedder.mlp.2",
        "csize_embedder.mlp.0",
        "csize_embedder.mlp.2",
        "ar_embedder.mlp.0",
        "ar_embedder.mlp.2",
        "t_block.1",
        "y_embedder.y_proj.fc1",
        "y_embedder.y_proj.fc2",
        "blocks.0.attn.qkv",
        "blocks.0.attn.proj",
        "blocks.0.cross_attn.q_linear",
        "blocks.0.cross_attn.kv_linear",
        "blocks.0.cross_attn.proj",
        "blocks.0.mlp.fc1",
        "blocks.0.mlp.fc2",
        "final_layer.linear",
    }
