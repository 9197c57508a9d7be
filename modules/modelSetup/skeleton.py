"""Models without values: names and shapes of the layers, from a folder's configs or as a family was published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from modules.model.family import FamilySpec, PartSpec
from modules.model.Model import Model
from modules.model.schedule import DiscreteSchedule, FlowSchedule
from modules.model.single_file import SCHEDULER
from modules.modelSetup.part_files import outline
from modules.util.errors import UnsupportedError, UserError
from modules.util.jsonio import read_json

_Parts = Mapping[str, Mapping[str, Any]]
_CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_CLIP_H = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
_CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
_T5_XXL = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
_SD1: _Parts = {"unet": {"cross_attention_dim": 768}, "text_encoder": _CLIP_L}
_SD2: _Parts = {
    "unet": {
        "cross_attention_dim": 1024,
        "attention_head_dim": (5, 10, 20, 20),
        "use_linear_projection": True,
    },
    "text_encoder": _CLIP_H,
}
_SDXL: _Parts = {
    "unet": {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2, 10),
        "attention_head_dim": (5, 10, 20),
        "cross_attention_dim": 2048,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    "text_encoder": _CLIP_L,
    "text_encoder_2": _CLIP_G,
}
_SD3: _Parts = {
    "transformer": {
        "num_layers": 24,
        "num_attention_heads": 24,
        "caption_projection_dim": 1536,
        "pos_embed_max_size": 192,
    },
    "text_encoder": _CLIP_L,
    "text_encoder_2": _CLIP_G,
    "text_encoder_3": _T5_XXL,
}
_PIXART = {"num_layers": 28, "caption_channels": 4096, "sample_size": 128}
PUBLISHED: dict[str, _Parts] = {
    "STABLE_DIFFUSION_15": _SD1,
    **dict.fromkeys(("STABLE_DIFFUSION_20", "STABLE_DIFFUSION_20_BASE"), _SD2),
    **dict.fromkeys(("STABLE_DIFFUSION_21", "STABLE_DIFFUSION_21_BASE"), _SD2),
    "STABLE_DIFFUSION_XL_10_BASE": _SDXL,
    "STABLE_DIFFUSION_3": _SD3,
    "FLUX_DEV_1": {
        "transformer": {"guidance_embeds": True},
        "text_encoder": _CLIP_L,
        "text_encoder_2": _T5_XXL,
    },
    "FLUX_SCHNELL_1": {"transformer": {}, "text_encoder": _CLIP_L, "text_encoder_2": _T5_XXL},
    "CHROMA_1": {"transformer": {}, "text_encoder": _T5_XXL},
    "PIXART_ALPHA": {"transformer": _PIXART, "text_encoder": _T5_XXL},
    "PIXART_SIGMA": {"transformer": _PIXART | {"use_additional_conditions": False}, "text_encoder": _T5_XXL},
}
"""Family -> part -> what differs from the defaults of its class, of families published in one size."""


def skeleton(spec: FamilySpec, folder: Path | None = None) -> Model:
    """Denoiser and text encoders of a family on the ``meta`` device; no weights are read.

    Args:
        folder: a diffusers folder whose configs decide the shapes; the family's published ones without it.

    Raises:
        UserError: a config that is missing or unfit. UnsupportedError: a family that has no one size.
    """
    if folder is None and spec.key not in PUBLISHED:
        raise UnsupportedError(
            f"{spec.label} was published in several sizes: the adapter alone does not say which",
            field="--base",
            hint="give the model folder the adapter is for; only its config files are read",
        )
    parts: dict[str, Any] = {}
    for part in (*spec.of_kind("denoiser"), *spec.of_kind("text_encoder")):
        if folder is None:
            parts[part.name] = _build(part, PUBLISHED[spec.key][part.name])
            continue
        place = folder / part.name / "config.json"
        if place.is_file():
            config = read_json(place, "model config")
            if not isinstance(config, dict):
                raise UserError(f"{place} is not a JSON object", field="--base")
            parts[part.name] = _build(part, config, place)
    if spec.denoiser not in parts:
        raise UserError(f"{folder} has no {spec.denoiser}/config.json", field="--base")
    discrete = {**SCHEDULER, "prediction_type": spec.prediction}
    schedule = FlowSchedule() if spec.prediction == "flow" else DiscreteSchedule.from_config(discrete)
    return Model(spec, str(folder or spec.label), parts, schedule)


def _build(part: PartSpec, config: Mapping[str, Any], place: Path | None = None) -> nn.Module:
    try:
        return outline(part, config)
    except UserError as error:
        raise UserError(f"{place or part.name}: {error}", field="--base") from error
