"""A tiny Ideogram 4 folder with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from modules.spec.families.ideogram_4 import LAYERS
from tests.tiny.flux_2 import build_patch_vae
from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen3_vl, write_qwen_tokenizer

TEXT_WIDTH = 8
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for one in message['content'] %}{{ one['text'] }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""How Qwen3-VL wraps messages, in so far as texts of the user are concerned."""


def build_transformer(channels: int = 8) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_ideogram4 import Ideogram4Transformer2DModel

    return Ideogram4Transformer2DModel(
        in_channels=channels,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        intermediate_size=48,
        adaln_dim=16,
        llm_features_dim=len(LAYERS) * TEXT_WIDTH,
        mrope_section=(4, 2, 2),
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer", chat=CHAT)
        modules = {
            "transformer": build_transformer(),
            "unconditional_transformer": build_transformer(),
            # read at the depths of the real one
            "text_encoder": build_qwen3_vl(size, TEXT_WIDTH, layers=LAYERS[-1] + 1),
            "vae": build_patch_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 1.0,
        }
        write_folder(folder, "Ideogram4Pipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)


def _pipeline(cfg: float) -> dict[str, Any]:
    """This pipeline has no negative prompts, and takes a scale for each step."""
    return {
        "negative_prompt": None,
        "guidance_scale": None,
        "guidance_schedule": [cfg] * 3,
        "max_sequence_length": 64,
    }


FAMILIES = {"IDEOGRAM_4": write}
PIPELINE = {"IDEOGRAM_4": _pipeline}
