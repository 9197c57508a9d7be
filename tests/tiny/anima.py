"""A tiny Anima folder with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.tiny.pieces import write_folder, write_t5_tokenizer
from tests.tiny.qwen import build_qwen3, write_qwen_tokenizer
from tests.tiny.qwen_image import build_video_vae

TEXT_WIDTH, LENGTH = 16, 512


def build_transformer(channels: int = 4) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_cosmos import CosmosTransformer3DModel

    return CosmosTransformer3DModel(
        in_channels=channels,
        out_channels=channels,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        mlp_ratio=2.0,
        text_embed_dim=TEXT_WIDTH,
        adaln_lora_dim=4,
        max_size=(4, 64, 64),
        rope_scale=(1.0, 4.0, 4.0),
        extra_pos_embed_type=None,
    )


def build_conditioner(vocabulary_size: int) -> torch.nn.Module:
    from diffusers.models.condition_embedders.condition_embedder_anima import AnimaTextConditioner

    return AnimaTextConditioner(
        source_dim=TEXT_WIDTH,
        target_dim=TEXT_WIDTH,
        model_dim=TEXT_WIDTH,
        num_layers=2,
        num_attention_heads=2,
        target_vocab_size=vocabulary_size,
        min_sequence_length=LENGTH,
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer")
        places = write_t5_tokenizer(folder / "t5_tokenizer", LENGTH)
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_qwen3(size, TEXT_WIDTH),
            "text_conditioner": build_conditioner(places),
            "vae": build_video_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 3.0,
        }
        tokenizers = {"tokenizer": "Qwen2Tokenizer", "t5_tokenizer": "T5TokenizerFast"}
        write_folder(folder, "AnimaModularPipeline", modules, tokenizers, scheduler)


class Blocks:
    """The modular pipeline of the family, called as those of other families are."""

    def __init__(self, folder: Path) -> None:
        from diffusers.modular_pipelines.anima.modular_blocks_anima import AnimaAutoBlocks

        from modules.modelSetup.families.AnimaSetup import _resize_without_torchvision

        self.made: Any = AnimaAutoBlocks().init_pipeline(str(folder))
        self.made.load_components(torch_dtype=torch.float32)
        _resize_without_torchvision()  # the pipeline uses torchvision too
        self.components: dict[str, object] = {}

    @classmethod
    def from_pretrained(cls, folder: str, **_parts: object) -> Blocks:
        return cls(Path(folder))

    def register_modules(self, **_parts: object) -> None:
        """There are none besides its own."""

    def set_progress_bar_config(self, **options: bool) -> None:
        self.made.set_progress_bar_config(**options)

    def __call__(self, prompt: Sequence[str], guidance_scale: float, **options: Any) -> Any:
        from diffusers.guiders import ClassifierFreeGuidance

        self.made.update_components(guider=ClassifierFreeGuidance(guidance_scale=guidance_scale))
        return SimpleNamespace(images=self.made(prompt=list(prompt), output="images", **options))


FAMILIES = {"ANIMA": write}
PIPELINE_CLASS = {"ANIMA": Blocks}
