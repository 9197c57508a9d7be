"""Z-Image: Qwen3 text encoder, a single-stream flow transformer over image and text, 16-channel autoencoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import causal_states, chat_messages
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.FamilySpec import FamilySpec, block_presets
from modules.spec.parts import kl_autoencoder, language_encoder, qwen_tokenizer, scheduler, transformer

TOKENS = 512
TEMPLATE_TOKENS = 8
"""What the chat template puts around a prompt."""
LAYER = -2


@model_setup
class ZImageSetup(BaseModelSetup):
    """The defaults are those of the step-distilled Turbo; the undistilled model wants about 50 steps at cfg 5.

    Other programs count guidance from 0 here: their scale is ours less one.
    """

    spec = FamilySpec(
        key="Z_IMAGE",
        label="Z-Image",
        pipeline_class="ZImagePipeline",
        prediction="flow",
        parts=(
            transformer("transformer_z_image", "ZImageTransformer2DModel"),
            language_encoder("qwen3_4b", "qwen3", "Qwen3Model", "Qwen3ForCausalLM"),
            kl_autoencoder(),
            qwen_tokenizer(),
            scheduler(),
        ),
        layer_presets=block_presets(("attention",), ("feed_forward",), ("layers.", "refiner.")),
        lora_architecture="Z-Image/lora",
        model_architecture="Z-Image",
        default_resolution=1024,
        size_multiple=16,
        key_map="z-image",
        even_steps=True,
        prompt_tokens=TOKENS - TEMPLATE_TOKENS,
        default_steps=8,
        default_cfg=1.0,
        default_sampler="EULER",
    )

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer = model.parts["tokenizer"]
        texts = chat_messages(tokenizer, prompts, enable_thinking=True)
        hidden_BLE, mask_BL = causal_states(
            model.module("text_encoder"), tokenizer, texts, TOKENS, layers=(LAYER,)
        )
        return Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        lengths = cond["mask_BL"].sum(dim=1).tolist()
        hidden_BLE = cond["hidden_BLE"].to(x_BChw.dtype)
        # this model counts time from noise to image, and its velocity points that way
        out = model.denoiser(
            list(x_BChw.unsqueeze(2)),
            (1000.0 - t_B) / 1000.0,
            [hidden_LE[:length] for hidden_LE, length in zip(hidden_BLE, lengths, strict=True)],
            return_dict=False,
        )[0]
        return -torch.stack(out).squeeze(2)
