"""Spellings of a model's layers in adapter files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from modules.adapter.layers import adaptable_layers
from modules.model.Model import Model
from modules.spec.FamilySpec import PartSpec
from modules.util.errors import UnsupportedError
from modules.weights.keymaps import get_key_map
from modules.weights.keymaps.base import Original

Place = tuple[str, str]
"""(part, path)"""
OLD_ATTENTION = re.compile(r"\.processor\.to_(q|k|v|out)_lora\.(down|up)\.weight$")
OWN_ROOT = re.compile(r"^(model\.)?(language_model\.)?")
"""Module that contains the layers of a language model, with and without the rest of the model."""
COMFY_PREFIXES = ("diffusion_model.", "model.diffusion_model.")
"""Prefixes of published names, and of those of diffusers in files of ai-toolkit."""
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


@dataclass(frozen=True)
class Spelled:
    """The meaning of a name in an adapter file.

    Args:
        places: one layer, or those whose rows form it.
        swapped: see ``keymaps.base.Original``.
    """

    places: tuple[Place, ...]
    swapped: bool = False


def split_key(key: str) -> tuple[str, str] | None:
    """Split a key of an adapter file into (layer as spelled there, canonical tensor name); ``None`` if it is
    not such a key.

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


def diffusers_original(model: Model, part: str, path: str) -> Original:
    """A layer under its name in diffusers."""
    return Original(rooted(model.spec.part(part), model.module(part), path), (path,))


def checkpoint_original(model: Model, part: str, path: str) -> Original:
    """The layer of the published checkpoint that ``path`` is, or is part of. Text encoders keep their names."""
    if model.spec.part(part).kind != "denoiser":
        return diffusers_original(model, part, path)
    return get_key_map(model.spec.key_map).in_adapter(model.module(part), path)


def kohya_original(model: Model, part: str, path: str) -> Original:
    """A layer in kohya's form."""
    named = checkpoint_original if model.spec.kohya_original else diffusers_original
    return named(model, part, path)


def kohya_name(model: Model, part: str, name: str) -> str:
    """``lora_unet_down_blocks_0_...`` for a dotted name, without the tensor's name."""
    return f"{model.spec.part(part).kohya_prefix}_{name}".replace(".", "_")


def legacy_name(model: Model, part: str, name: str) -> str:
    """As ``kohya_name``, with ``lora_transformer_`` for transformer denoisers."""
    is_denoiser = model.spec.part(part).kind == "denoiser"
    prefix = f"lora_{part}" if is_denoiser else model.spec.part(part).kohya_prefix
    return f"{prefix}_{name}".replace(".", "_")


def diffusers_name(model: Model, part: str, name: str) -> str:
    """``unet.down_blocks.0....``, without the tensor's name."""
    return f"{part}.{name}"


def comfy_name(model: Model, part: str, name: str) -> str:
    """``diffusion_model.input_blocks.1....`` or ``text_encoders.clip_l.transformer....``.

    Raises:
        UnsupportedError: the text encoder has no name there.
    """
    spec = model.spec.part(part)
    if spec.kind == "denoiser":
        return f"diffusion_model.{name}"
    if not spec.comfy_name:
        raise UnsupportedError(
            f"ComfyUI's name for {part} of {model.spec.label} is not known",
            field="output_model_format",
            hint="use KOHYA_LORA",
        )
    if spec.comfy_root:
        name = f"{spec.comfy_root}.{OWN_ROOT.sub('', name)}"
    config: Any = getattr(model.module(part), "config", None)
    known = dict(spec.comfy_sizes).get(getattr(config, "hidden_size", 0), spec.comfy_name)
    return f"text_encoders.{known}.transformer.{name}"


def spellings(model: Model) -> dict[str, Spelled]:
    """Every known spelling of every layer, in model order."""
    known: dict[str, Spelled] = {}
    encoders = (name for name in model.spec.trained_encoders if name in model.text_encoders)
    for part in (model.spec.denoiser, *encoders):
        for path in adaptable_layers(model.module(part)):
            for spelling in _own_spellings(model, part, path):
                known.setdefault(spelling, Spelled(((part, path),)))
            if part != model.spec.denoiser:
                continue
            original = checkpoint_original(model, part, path)
            spelled = Spelled(tuple((part, piece) for piece in original.pieces), original.swapped)
            for spelling in _original_spellings(model, original.name):
                known.setdefault(spelling, spelled)
    # last, so that a published name keeps its meaning
    for path in adaptable_layers(model.denoiser):
        for prefix in COMFY_PREFIXES:
            known.setdefault(f"{prefix}{path}", Spelled(((model.spec.denoiser, path),)))
    return known


def _own_spellings(model: Model, part: str, path: str) -> Iterator[str]:
    """Spellings of a layer under its own name."""
    spec, module = model.spec.part(part), model.module(part)
    name = rooted(spec, module, path)
    flat = name.replace(".", "_")
    yield diffusers_name(model, part, name)
    yield f"{part}.{path}"
    yield kohya_name(model, part, name)
    yield legacy_name(model, part, name)
    if spec.kind == "denoiser":
        yield path
        yield f"unet.{path}"
        yield f"lycoris_{flat}"
        yield f"lora_transformer_{flat}"
        return
    index = model.spec.text_encoders.index(part)
    yield f"lora_te{index + 1}_{flat}"
    if spec.comfy_name == "t5xxl":
        # the third by number, even if there is no second
        yield f"lora_te3_{flat}"
    yield f"lycoris_{part}_{flat}"
    yield f"lycoris_{part}_{path}".replace(".", "_")
    if spec.comfy_name:
        yield comfy_name(model, part, name)


def _original_spellings(model: Model, name: str) -> Iterator[str]:
    """Spellings of a denoiser layer under its name in the published checkpoint."""
    yield name
    for prefix in COMFY_PREFIXES:
        yield f"{prefix}{name}"
    yield kohya_name(model, model.spec.denoiser, name)
    yield f"lycoris_{name}".replace(".", "_")
