"""The models people train, at their real size and without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

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


def _vae(channels: int) -> Any:
    from diffusers import AutoencoderKL

    made: Any = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=channels,
        use_quant_conv=channels == 4,
        use_post_quant_conv=channels == 4,
    )
    return made


def _clip(width: int, layers: int, heads: int, projected: bool) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        projection_dim=width,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def _t5() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(
        T5Config(
            d_model=4096, d_ff=10240, num_layers=24, num_heads=64, d_kv=64, feed_forward_proj="gated-gelu"
        )
    )


def _sd15() -> Parts:
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8)
    return {"unet": unet, "text_encoder": _clip(768, 12, 12, False), "vae": _vae(4), "scheduler": SCHEDULER}


def _sdxl() -> Parts:
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    encoders = {"text_encoder": _clip(768, 12, 12, False), "text_encoder_2": _clip(1280, 32, 20, True)}
    return {"unet": unet, **encoders, "vae": _vae(4), "scheduler": SCHEDULER}


def _sd35_medium() -> Parts:
    from diffusers import SD3Transformer2DModel

    transformer = SD3Transformer2DModel(
        sample_size=128,
        num_layers=24,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        pos_embed_max_size=384,
        dual_attention_layers=tuple(range(13)),
        qk_norm="rms_norm",
        in_channels=16,
        out_channels=16,
    )
    encoders = {
        "text_encoder": _clip(768, 12, 12, True),
        "text_encoder_2": _clip(1280, 32, 20, True),
        "text_encoder_3": _t5(),
    }
    return {"transformer": transformer, **encoders, "vae": _vae(16), "scheduler": {}}


def _flux() -> Parts:
    from diffusers import FluxTransformer2DModel

    parts = {"transformer": FluxTransformer2DModel(guidance_embeds=True), "text_encoder_2": _t5()}
    return {**parts, "text_encoder": _clip(768, 12, 12, False), "vae": _vae(16), "scheduler": {}}


def _shipped(key: str, stem: str = "config", part: str = "") -> nn.Module:
    """Build a part from the config that comes with the program; by default the denoiser."""
    spec = create_model_setup(key).spec
    described = spec.part(part or spec.denoiser)
    place = next(place for place in shipped(key, described.name) if place.stem == stem)
    return outline(described, read_json(place, "model config"))


def _qwen3(width: int, inner: int, head: bool) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

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
    return Qwen3ForCausalLM(config) if head else Qwen3Model(config)


def _flux_2_vae() -> Any:
    from diffusers import AutoencoderKLFlux2

    made: Any = AutoencoderKLFlux2()
    return made


def _klein_4b() -> Parts:
    parts = {"transformer": _shipped("FLUX_2"), "text_encoder": _qwen3(2560, 9728, True)}
    return {**parts, "vae": _flux_2_vae(), "scheduler": {}}


def _klein_9b() -> Parts:
    parts = {"transformer": _shipped("FLUX_2", "9b"), "text_encoder": _qwen3(4096, 12288, True)}
    return {**parts, "vae": _flux_2_vae(), "scheduler": {}}


def _flux_2_dev() -> Parts:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    # the defaults of the library are the published sizes
    encoder = Mistral3ForConditionalGeneration(Mistral3Config(tie_word_embeddings=False))
    parts = {"transformer": _shipped("FLUX_2_DEV"), "text_encoder": encoder}
    return {**parts, "vae": _flux_2_vae(), "scheduler": {}}


def _z_image() -> Parts:
    parts = {"transformer": _shipped("Z_IMAGE"), "text_encoder": _qwen3(2560, 9728, False)}
    return {**parts, "vae": _vae(16), "scheduler": {}}


def _krea_2() -> Parts:
    from diffusers import AutoencoderKLQwenImage
    from transformers import Qwen3VLConfig, Qwen3VLModel

    text = {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    }
    vision = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560}
    encoder = Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision))
    parts = {"transformer": _shipped("KREA_2"), "text_encoder": encoder}
    return {**parts, "vae": AutoencoderKLQwenImage(), "scheduler": {}}


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
    return {
        "transformer": _shipped("ERNIE"),
        "text_encoder": encoder,
        "vae": _flux_2_vae(),
        "scheduler": {},
    }


def _qwen_21() -> Parts:
    from diffusers import AutoencoderKLQwenImage21
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    }
    vision = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096}
    encoder = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision))
    parts = {"transformer": _shipped("QWEN_21"), "text_encoder": encoder}
    return {**parts, "vae": AutoencoderKLQwenImage21(), "scheduler": {}}


def _ideogram_4() -> Parts:
    # without the head of Qwen-Image 2.1's, which is the same language model
    encoder: Any = _qwen_21()["text_encoder"]
    return {
        "transformer": _shipped("IDEOGRAM_4"),
        "text_encoder": encoder.model,
        "vae": _flux_2_vae(),
        "scheduler": {},
    }


def _anima() -> Parts:
    from diffusers import AutoencoderKLQwenImage
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
    parts = {
        "transformer": _shipped("ANIMA"),
        "text_encoder": encoder,
        "text_encoder_2": _shipped("ANIMA", part="text_encoder_2"),
    }
    return {**parts, "vae": AutoencoderKLQwenImage(), "scheduler": {}}


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
    parts = {"transformer": _shipped(key), "text_encoder": _qwen_image()["text_encoder"]}
    return {**parts, "vae": _vae(16), "scheduler": {}}


def _hidream() -> Parts:
    encoders = {"text_encoder": _clip(768, 12, 12, True), "text_encoder_2": _clip(1280, 32, 20, True)}
    return {**_all_shipped("HI_DREAM_FULL"), **encoders}


def _unet_of(key: str, inputs: int = 4) -> Callable[[], Parts]:
    return lambda: _all_shipped(key, in_channels=inputs)


MODELS: Mapping[str, tuple[str, Callable[[], Parts], tuple[int, int], int]] = {
    "sd15": ("STABLE_DIFFUSION_15", _sd15, (77, 768), 0),
    "sdxl": ("STABLE_DIFFUSION_XL_10_BASE", _sdxl, (77, 2048), 1280),
    "sd35-medium": ("STABLE_DIFFUSION_35", _sd35_medium, (333, 4096), 2048),
    "flux": ("FLUX_DEV_1", _flux, (512, 4096), 768),
    "kontext-dev": ("FLUX_KONTEXT_DEV_1", lambda: _all_shipped("FLUX_KONTEXT_DEV_1"), (512, 4096), 768),
    "klein-4b": ("FLUX_2", _klein_4b, (512, 7680), 0),
    "klein-9b": ("FLUX_2", _klein_9b, (512, 12288), 0),
    "flux-2-dev": ("FLUX_2_DEV", _flux_2_dev, (512, 15360), 0),
    "z-image": ("Z_IMAGE", _z_image, (512, 2560), 0),
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
