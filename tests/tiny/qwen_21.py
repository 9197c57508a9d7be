"""A tiny Qwen-Image 2.1 folder with random weights."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen3_vl, picture_marks, write_qwen_tokenizer
from tests.tiny.qwen_image import PictureProcessor
from tests.tiny.source_images import SIDE, source_images

TEXT_WIDTH, CHANNELS = 8, 4


def build_transformer(channels: int = CHANNELS) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21Transformer2DModel

    return QwenImage21Transformer2DModel(
        in_channels=channels,
        out_channels=channels,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=TEXT_WIDTH,
        mlp_ratio=2,
        axes_dims_rope=(4, 6, 6),
    )


def build_opaque_vae(factor: int, channels: int = CHANNELS) -> torch.nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_qwenimage21 import AutoencoderKLQwenImage21

    levels = factor.bit_length()
    return AutoencoderKLQwenImage21(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=channels,
        dim_mult=[1] * levels,
        num_res_blocks=1,
        temperal_downsample=[False, *[True] * (levels - 2)],
        latents_mean=[0.1 * index - 0.2 for index in range(channels)],
        latents_std=[0.5 + 0.3 * index for index in range(channels)],
        scale_factor_spatial=factor,
    )


def write(folder: Path, prediction: str, factor: int, levels: Sequence[float] = ()) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "processor", pictures=True)
        marks = picture_marks(folder / "processor")
        modules = {
            "transformer": build_transformer(),
            # a token of an image is one of the slots of the denoiser
            "text_encoder": build_qwen3_vl(size, TEXT_WIDTH, head=True, pictures=marks, patch=factor),
            "vae": build_opaque_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "use_dynamic_shifting": True,
            "base_image_seq_len": 256,
            "max_image_seq_len": 8192,
            "base_shift": 0.5,
            "max_shift": 0.9,
            "time_shift_type": "exponential",
        }
        write_folder(folder, "QwenImage21Pipeline", modules, {"processor": "Qwen3VLProcessor"}, scheduler)
    path = folder / "model_index.json"
    index = {**json.loads(path.read_text(encoding="utf-8")), "sample_sigmas": list(levels) or None}
    path.write_text(json.dumps(index), encoding="utf-8")
    rules = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 64,
        "max_pixels": 1 << 24,
        "patch_size": factor,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(rules), encoding="utf-8")


class WholeProcessor(PictureProcessor):
    """What the published processor does, which needs torchvision."""

    def __call__(self, text: Sequence[str], images: Any = None, **options: Any) -> Any:
        from transformers import BatchFeature

        if images is None:
            return self.tokenizer(list(text), **options)
        made = super().__call__(list(text), [image.convert("RGB") for image in images], True, "pt")
        place = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        return BatchFeature({**made, "mm_token_type_ids": (made["input_ids"] == place).int()})

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: bool) -> list[list[int]]:
        """As the template of Qwen3-VL words a message of the system."""
        texts = [f"<|im_start|>{one['role']}\n{one['content'][0]['text']}<|im_end|>\n" for one in messages]
        tokens: list[list[int]] = self.tokenizer(texts).input_ids
        return tokens


def with_processor(folder: Path, monkeypatch: Any) -> dict[str, object]:
    """The pipeline asks it for tokens while it is made, and knows the published autoencoder's factor alone."""
    from diffusers import QwenImage21Pipeline
    from diffusers.image_processor import VaeImageProcessor

    processor, original = WholeProcessor(folder), QwenImage21Pipeline.__init__
    config = json.loads((folder / "vae" / "config.json").read_text(encoding="utf-8"))

    @functools.wraps(original)
    def made(self: Any, **parts: Any) -> None:
        original(self, **{**parts, "processor": processor})
        self.vae_scale_factor = config["scale_factor_spatial"]
        self.image_processor = VaeImageProcessor(self.vae_scale_factor, vae_latent_channels=CHANNELS)

    monkeypatch.setattr(QwenImage21Pipeline, "__init__", made)
    return {"processor": processor}


def _pipeline(cfg: float) -> dict[str, object]:
    asked = {"guidance_scale": None, "true_cfg_scale": cfg, "output_resolution": SIDE}
    return {**asked, "image": source_images(3)}


FAMILIES = {"QWEN_21": write}
PIPELINE = {"QWEN_21": _pipeline}
PIPELINE_PARTS = {"QWEN_21": with_processor}
ONE_BY_ONE = ("QWEN_21",)
"""Where an image is in the sequence depends on the longest prompt of the batch there, and on its own one here."""
