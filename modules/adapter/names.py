"""How adapter files spell the layers of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from modules.adapter.layers import adaptable_layers
from modules.model.family import PartSpec
from modules.model.ldm_keys import unet_to_ldm
from modules.model.Model import Model

Place = tuple[str, str]
LATENT_DIFFUSION = "latent-diffusion"
"""The ``key_map`` of families whose kohya files have the original names of the denoiser's layers."""
OLD_ATTENTION = re.compile(r"\.processor\.to_(q|k|v|out)_lora\.(down|up)\.weight$")
SUFFIX = re.compile(
    r"^(?P<name>.+?)\.(?P<kind>lora_down|lora_up|lora_A|lora_B|lora\.down|lora\.up|lora_linear_layer\.down|"
    r"lora_linear_layer\.up|alpha|dora_scale|lora_magnitude_vector|hada_[wt][12](?:_[ab])?|"
    r"lokr_[wt][12](?:_[ab])?|oft_R)(?:\.default)?(?:\.weight)?$"
)
SAME = {
    "lora_down": "lora_A",
    "lora_up": "lora_B",
    "lora.down": "lora_A",
    "lora.up": "lora_B",
    "lora_linear_layer.down": "lora_A",
    "lora_linear_layer.up": "lora_B",
    "lora_magnitude_vector": "dora_scale",
}


def split_key(key: str) -> tuple[str, str] | None:
    """A key of an adapter file as (layer as spelled there, canonical tensor name); ``None`` if it is none.

    Canonical names are ``lora_A``, ``lora_B``, ``alpha``, ``dora_scale``, ``hada_*``, ``lokr_*``, ``oft_R``.
    """
    key = key.replace("base_model.model.", "")
    if old := OLD_ATTENTION.search(key):
        out = "to_out.0" if old[1] == "out" else f"to_{old[1]}"
        key = f"{key[: old.start()]}.{out}.lora_{old[2]}.weight"
    match = SUFFIX.match(key)
    if not match:
        return None
    return match["name"], SAME.get(match["kind"], match["kind"])


def rooted(part: PartSpec, module: nn.Module, path: str) -> str:
    """The path as files write it, with the level that newer libraries dropped."""
    if part.file_root and not hasattr(module, part.file_root):
        return f"{part.file_root}.{path}"
    return path


def kohya_name(model: Model, part: str, path: str) -> str:
    """``lora_unet_down_blocks_0_...``, without the tensor's name."""
    spec = model.spec.part(part)
    if spec.kind == "denoiser" and model.spec.key_map == LATENT_DIFFUSION:
        return f"{spec.kohya_prefix}_{ldm_name(model.module(part), path)}".replace(".", "_")
    return f"{spec.kohya_prefix}_{rooted(spec, model.module(part), path)}".replace(".", "_")


def diffusers_name(model: Model, part: str, path: str) -> str:
    """``unet.down_blocks.0....``, without the tensor's name."""
    return f"{part}.{rooted(model.spec.part(part), model.module(part), path)}"


def spellings(model: Model) -> dict[str, Place]:
    """Every known spelling of every layer -> (part, path)."""
    known: dict[str, Place] = {}
    for part in (model.spec.denoiser, *model.text_encoders):
        for path in adaptable_layers(model.module(part)):
            for spelling in _spell(model, part, path):
                known.setdefault(spelling, (part, path))
    return known


def _spell(model: Model, part: str, path: str) -> Iterator[str]:
    spec, module = model.spec.part(part), model.module(part)
    flat = rooted(spec, module, path).replace(".", "_")
    yield kohya_name(model, part, path)
    yield diffusers_name(model, part, path)
    yield f"{part}.{path}"
    if spec.kind == "denoiser":
        yield path
        yield f"lycoris_{flat}"
        yield f"lora_transformer_{flat}"
        yield f"{spec.kohya_prefix}_{flat}"
        if model.spec.ldm_layout:
            original = ldm_name(module, path)
            yield original
            yield f"diffusion_model.{original}"
            yield f"{spec.kohya_prefix}_{original}".replace(".", "_")
        return
    index = model.spec.text_encoders.index(part)
    yield f"lora_te{index + 1}_{flat}"
    yield f"lycoris_{part}_{flat}"
    yield f"text_encoders.clip_{'lg'[index] if index < 2 else index}.transformer.{rooted(spec, module, path)}"


def ldm_name(unet: nn.Module, path: str) -> str:
    """The latent-diffusion name of a layer of a UNet."""
    config = unet.config
    attention = tuple("Attn" in kind for kind in config.up_block_types)  # type: ignore[union-attr]
    return unet_to_ldm(path, config.layers_per_block, attention)  # type: ignore[union-attr, arg-type]
