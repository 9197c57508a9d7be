"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5, a flow-matching transformer, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from modules.model.batch import Conditioning
from modules.model.family import FamilySpec, PartSpec
from modules.model.Model import Model
from modules.model.text import clip_states, t5_states
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup

T5_TOKENS = 256
_CLIP = ("CLIPTextModelWithProjection",), "transformers.models.clip.modeling_clip"
_CLIP_TOKENIZER = ("CLIPTokenizer", "CLIPTokenizerFast"), "transformers.models.clip.tokenization_clip"


@model_setup
class StableDiffusion3Setup(BaseModelSetup):
    spec = FamilySpec(
        key="STABLE_DIFFUSION_3",
        label="Stable Diffusion 3",
        pipeline_class="StableDiffusion3Pipeline",
        prediction="flow",
        parts=(
            PartSpec(
                "transformer",
                "denoiser",
                ("SD3Transformer2DModel",),
                "diffusers.models.transformers.transformer_sd3",
                kohya_prefix="lora_unet",
            ),
            PartSpec(
                "text_encoder",
                "text_encoder",
                *_CLIP,
                kohya_prefix="lora_te1",
                comfy_name="clip_l",
                file_root="text_model",
            ),
            PartSpec(
                "text_encoder_2",
                "text_encoder",
                *_CLIP,
                kohya_prefix="lora_te2",
                comfy_name="clip_g",
                file_root="text_model",
            ),
            PartSpec(
                "text_encoder_3",
                "text_encoder",
                ("T5EncoderModel",),
                "transformers.models.t5.modeling_t5",
                kohya_prefix="lora_te3",
                comfy_name="t5xxl",
                optional=True,
            ),
            PartSpec("vae", "vae", ("AutoencoderKL",), "diffusers.models.autoencoders.autoencoder_kl"),
            PartSpec("tokenizer", "tokenizer", *_CLIP_TOKENIZER),
            PartSpec("tokenizer_2", "tokenizer", *_CLIP_TOKENIZER),
            PartSpec(
                "tokenizer_3",
                "tokenizer",
                ("T5TokenizerFast", "T5Tokenizer"),
                "transformers.models.t5",
                optional=True,
            ),
            PartSpec("scheduler", "scheduler", ()),
        ),
        layer_presets={
            "attn-mlp": ("attn", "ff"),
            "attn-only": ("attn",),
            "blocks": ("transformer_blocks",),
            "full": (),
        },
        lora_architecture="stable-diffusion-3-medium/lora",
        model_architecture="stable-diffusion-3-medium",
        prompt_weighting=True,
        default_resolution=1024,
        prompt_tokens=T5_TOKENS,
        size_multiple=16,
        key_map="stable-diffusion-3",
        default_steps=28,
        default_cfg=7.0,
        default_sampler="EULER",
    )

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """The two CLIP states side by side, padded to the width of T5's, which follow along the tokens."""
        parts = model.parts
        first_BLE, first_BE = clip_states(model.module("text_encoder"), parts["tokenizer"], prompts, layer=-2)
        second_BLE, second_BE = clip_states(
            model.module("text_encoder_2"), parts["tokenizer_2"], prompts, layer=-2
        )
        clip_BLE = torch.cat([first_BLE, second_BLE], dim=-1)
        if "text_encoder_3" in parts:
            t5_BLE, _ = t5_states(model.module("text_encoder_3"), parts["tokenizer_3"], prompts, T5_TOKENS)
        else:
            # published to be used without its largest encoder too: its tokens are then all zero
            width = model.denoiser.config.joint_attention_dim  # type: ignore[union-attr]
            t5_BLE = clip_BLE.new_zeros(len(clip_BLE), T5_TOKENS, width)  # type: ignore[arg-type]
        clip_BLE = torch.nn.functional.pad(clip_BLE, (0, t5_BLE.shape[-1] - clip_BLE.shape[-1]))
        return Conditioning(
            {
                "hidden_BLE": torch.cat([clip_BLE, t5_BLE.to(clip_BLE.dtype)], dim=1),
                "pooled_BE": torch.cat([first_BE, second_BE], dim=-1),
            }
        )

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        return model.denoiser(  # type: ignore[no-any-return]
            hidden_states=x_BChw,
            timestep=t_B,
            encoder_hidden_states=cond["hidden_BLE"].to(x_BChw.dtype),
            pooled_projections=cond["pooled_BE"].to(x_BChw.dtype),
            return_dict=False,
        )[0]


@model_setup
class StableDiffusion35Setup(StableDiffusion3Setup):
    """The same parts; size, dual attention and normalised queries come with the model's config."""

    spec = replace(
        StableDiffusion3Setup.spec,
        key="STABLE_DIFFUSION_35",
        label="Stable Diffusion 3.5",
        lora_architecture="stable-diffusion-3.5-large/lora",
        model_architecture="stable-diffusion-3.5-large",
        default_cfg=4.5,
    )
