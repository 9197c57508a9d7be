"""The models people train, at their real size and without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.modelSetup.registry import create_model_setup
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.TrainConfig import TrainConfig
from modules.util.jsonio import read_json
from modules.weights.part_files import outline, shipped

Parts = dict[str, Any]
_SD15, _SDXL = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"
SCHEDULER = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def _all_shipped(key: str, denoiser: str = "", **channels: int) -> Parts:
    """Build the parts of a model from the configs that come with the program.

    Args:
        key: the family whose configs they are.
        denoiser: one of its sizes, the usual one by default.
        channels: values that differ in the config of its denoiser.
    """
    spec = create_model_setup(key).spec
    parts: Parts = {
        "scheduler": {} if spec.flow_matching else {**SCHEDULER, "prediction_type": spec.prediction}
    }
    for part in (spec.part(name) for name in spec.module_parts):
        own = part.kind == "denoiser"
        stem = denoiser if own and denoiser else "config"
        place = next((place for place in shipped(key, part.name) if place.stem == stem), None)
        if place is not None:
            parts[part.name] = outline(part, read_json(place, "model config") | (channels if own else {}))
    return parts


def _flux_2_vae() -> Any:
    from diffusers import AutoencoderKLFlux2

    made: Any = AutoencoderKLFlux2()
    return made


def _qwen3_vl(kind: Any, width: int, inner: int, vision: dict[str, int]) -> Any:
    from transformers import Qwen3VLConfig

    text = {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    }
    return kind(Qwen3VLConfig(text_config=text, vision_config=vision | {"out_hidden_size": width}))


def _klein(size: str, width: int, inner: int) -> Parts:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        # the smaller one shares one table between input and output
        tie_word_embeddings=width < 4096,
    )
    return {**_all_shipped("FLUX_2", size), "text_encoder": Qwen3ForCausalLM(config), "vae": _flux_2_vae()}


def _flux_2_dev() -> Parts:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    # the defaults of the library are the published sizes
    encoder = Mistral3ForConditionalGeneration(Mistral3Config(tie_word_embeddings=False))
    return {**_all_shipped("FLUX_2_DEV"), "text_encoder": encoder, "vae": _flux_2_vae()}


def _krea_2() -> Parts:
    from transformers import Qwen3VLModel

    vision = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096}
    return {**_all_shipped("KREA_2"), "text_encoder": _qwen3_vl(Qwen3VLModel, 2560, 9728, vision)}


def _ernie_image() -> Parts:
    from transformers import Mistral3Config
    from transformers.models.mistral3.modeling_mistral3 import Mistral3Model

    text = {
        "model_type": "mistral",
        "vocab_size": 131072,
        "hidden_size": 3072,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    encoder = Mistral3Model(Mistral3Config(text_config=text))
    return {**_all_shipped("ERNIE"), "text_encoder": encoder, "vae": _flux_2_vae()}


def _qwen_21() -> Parts:
    from diffusers import AutoencoderKLQwenImage21
    from transformers import Qwen3VLForConditionalGeneration

    vision = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}
    encoder = _qwen3_vl(Qwen3VLForConditionalGeneration, 4096, 12288, vision)
    return {**_all_shipped("QWEN_21"), "text_encoder": encoder, "vae": AutoencoderKLQwenImage21()}


def _ideogram_4() -> Parts:
    # without the head of Qwen-Image 2.1's, which is the same language model
    encoder = _qwen_21()["text_encoder"].model
    return {**_all_shipped("IDEOGRAM_4"), "text_encoder": encoder, "vae": _flux_2_vae()}


def _anima() -> Parts:
    from transformers import Qwen3Config, Qwen3Model

    encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
        )
    )
    return {**_all_shipped("ANIMA"), "text_encoder": encoder}


def _qwen_image(key: str = "QWEN", denoiser: str = "") -> Parts:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    }
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584}
    encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    return {**_all_shipped(key, denoiser), "text_encoder": encoder}


def _longcat_image(key: str = "LONGCAT_IMAGE") -> Parts:
    encoder, vae = _qwen_image()["text_encoder"], _all_shipped("FLUX_DEV_1")["vae"]
    return {**_all_shipped(key), "text_encoder": encoder, "vae": vae}


def _hidream() -> Parts:
    # the CLIPs of Stable Diffusion 3
    theirs = _all_shipped("STABLE_DIFFUSION_3")
    encoders = {name: theirs[name] for name in ("text_encoder", "text_encoder_2")}
    return {**_all_shipped("HI_DREAM_FULL"), **encoders}


def _unet_of(key: str, inputs: int = 4) -> Callable[[], Parts]:
    return lambda: _all_shipped(key, in_channels=inputs)


MODELS: Mapping[str, tuple[str, Callable[[], Parts], tuple[int, int], int]] = {
    "sd15": (_SD15, lambda: _all_shipped(_SD15), (77, 768), 0),
    "sdxl": (_SDXL, lambda: _all_shipped(_SDXL), (77, 2048), 1280),
    "sd35-medium": (
        "STABLE_DIFFUSION_35",
        lambda: _all_shipped("STABLE_DIFFUSION_35", "medium"),
        (333, 4096),
        2048,
    ),
    "flux": ("FLUX_DEV_1", lambda: _all_shipped("FLUX_DEV_1"), (512, 4096), 768),
    "kontext-dev": ("FLUX_KONTEXT_DEV_1", lambda: _all_shipped("FLUX_KONTEXT_DEV_1"), (512, 4096), 768),
    "klein-4b": ("FLUX_2", lambda: _klein("", 2560, 9728), (512, 7680), 0),
    "klein-9b": ("FLUX_2", lambda: _klein("9b", 4096, 12288), (512, 12288), 0),
    "flux-2-dev": ("FLUX_2_DEV", _flux_2_dev, (512, 15360), 0),
    "z-image": ("Z_IMAGE", lambda: _all_shipped("Z_IMAGE"), (512, 2560), 0),
    "krea-2": ("KREA_2", _krea_2, (512, 30720), 0),
    "ernie-image": ("ERNIE", _ernie_image, (512, 3072), 0),
    "longcat-image": ("LONGCAT_IMAGE", _longcat_image, (512, 3584), 0),
    # with an image of 512 pixels, shown at half of them
    "longcat-edit": (
        "LONGCAT_IMAGE_EDIT",
        lambda: _longcat_image("LONGCAT_IMAGE_EDIT"),
        (2 + 9**2 + 512, 3584),
        0,
    ),
    "qwen-21": ("QWEN_21", _qwen_21, (520, 4096), 0),
    "ideogram-4": ("IDEOGRAM_4", _ideogram_4, (512, 53248), 0),
    "anima": ("ANIMA", _anima, (512, 1024), 0),
    "hidream-full": ("HI_DREAM_FULL", _hidream, (128, 32 * 4096), 2048),
    "lumina-2": ("LUMINA_2", lambda: _all_shipped("LUMINA_2"), (256, 2304), 0),
    "sd15-inpainting": ("STABLE_DIFFUSION_15_INPAINTING", _unet_of(_SD15, 9), (77, 768), 0),
    "sd21": ("STABLE_DIFFUSION_21", _unet_of("STABLE_DIFFUSION_21"), (77, 1024), 0),
    "sdxl-inpainting": ("STABLE_DIFFUSION_XL_10_BASE_INPAINTING", _unet_of(_SDXL, 9), (77, 2048), 1280),
    "sd3-medium": ("STABLE_DIFFUSION_3", lambda: _all_shipped("STABLE_DIFFUSION_3"), (333, 4096), 2048),
    "schnell": ("FLUX_SCHNELL_1", lambda: _all_shipped("FLUX_SCHNELL_1"), (256, 4096), 768),
    "chroma": ("CHROMA_1", lambda: _all_shipped("CHROMA_1"), (512, 4096), 0),
    "pixart-alpha": ("PIXART_ALPHA", lambda: _all_shipped("PIXART_ALPHA"), (120, 4096), 0),
    "pixart-sigma": ("PIXART_SIGMA", lambda: _all_shipped("PIXART_SIGMA"), (300, 4096), 0),
    "sana": ("SANA", lambda: _all_shipped("SANA"), (300, 2304), 0),
    "qwen": ("QWEN", _qwen_image, (512, 3584), 0),
    # with an image of 512 pixels, of which each token has 28; three of 384
    "qwen-edit": ("QWEN_EDIT", lambda: _qwen_image("QWEN_EDIT"), (512 + 18**2, 3584), 0),
    "qwen-edit-2509": ("QWEN_EDIT_PLUS", lambda: _qwen_image("QWEN_EDIT_PLUS"), (512 + 3 * 14**2, 3584), 0),
    "qwen-edit-2511": (
        "QWEN_EDIT_PLUS",
        lambda: _qwen_image("QWEN_EDIT_PLUS", "2511"),
        (512 + 3 * 14**2, 3584),
        0,
    ),
}
"""Name -> model type, what makes the parts, tokens and width of the text states, width of the pooled state."""
_QWEN = ("QWEN", "QWEN_EDIT", "QWEN_EDIT_PLUS")
MASKED = (
    "Z_IMAGE",
    "KREA_2",
    "QWEN_21",
    "LUMINA_2",
    "ERNIE",
    "IDEOGRAM_4",
    "CHROMA_1",
    "PIXART_ALPHA",
    "PIXART_SIGMA",
    "SANA",
    *_QWEN,
)
"""Families whose prompts keep their own lengths; the longest is assumed."""
ALSO_READ: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "hidream-full": {"t5_BTE": (128, 4096)},
}
"""Models whose denoiser is given the states of a further text encoder."""


def real_dry_run(name: str, config: TrainConfig) -> ShapeDryRun:
    """A model of real size, ready for memory planning."""
    key, make, tokens, pooled = MODELS[name]
    setup = create_model_setup(key)
    with torch.device("meta"):
        parts = make()

    def cond(count: int) -> Conditioning:
        tensors = {"hidden_BLE": torch.empty(count, *tokens, device="meta")}
        for states, shape in ALSO_READ.get(name, {}).items():
            tensors[states] = torch.empty(count, *shape, device="meta")
        if key in MASKED:
            tensors["mask_BL"] = torch.ones(count, tokens[0], dtype=torch.bool, device="meta")
        if pooled:
            tensors["pooled_BE"] = torch.empty(count, pooled, device="meta")
        return Conditioning(tensors)

    return ShapeDryRun(setup, shape_only_model(setup, config, parts), config, cond=cond)
