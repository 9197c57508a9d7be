"""A tiny Stable Diffusion folder with random weights, built from configs; loads like a real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

WORDS = ("a red blue green large small circle square triangle on the left right of background photo cat dog",)
CONTEXT = 16


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """A byte-pair vocabulary: all bytes, and the words above merged letter by letter."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(letter + "</w>" for letter in letters)]
    merges: list[str] = []
    for word in WORDS[0].split():
        pieces = [*word[:-1], word[-1] + "</w>"]
        while len(pieces) > 1:
            pair = f"{pieces[0]} {pieces[1]}"
            pieces[:2] = [pieces[0] + pieces[1]]
            if pair not in merges:
                merges.append(pair)
            if pieces[0] not in tokens:
                tokens.append(pieces[0])
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: index for index, token in enumerate(tokens)}, merges


def write_tokenizer(folder: Path, **options: str) -> int:
    """Write a CLIP tokenizer; returns the size of its vocabulary.

    Args:
        options: further arguments of the tokenizer, such as ``pad_token``.
    """
    from transformers.models.clip.tokenization_clip import CLIPTokenizer

    vocab, merges = vocabulary()
    tokenizer = CLIPTokenizer(
        vocab=vocab,
        merges=[tuple(merge.split(" ")) for merge in merges],
        model_max_length=CONTEXT,
        **options,
    )
    tokenizer.save_pretrained(str(folder))
    # the plain files too, which other programs look for
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return len(vocab)


def build_unet(
    channels: tuple[int, ...] = (16, 32),
    context: int = 24,
    heads: int | tuple[int, ...] = 2,
    groups: int = 8,
    inputs: int = 4,
    linear: bool = False,
) -> torch.nn.Module:
    """A UNet with the block types of SD 1.5.

    Args:
        linear: as SD 2 has it: inputs and outputs of attention are not convolutions.
    """
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    levels = len(channels)
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=inputs,
        out_channels=4,
        block_out_channels=channels,
        layers_per_block=1,
        cross_attention_dim=context,
        attention_head_dim=heads,
        norm_num_groups=groups,
        use_linear_projection=linear,
        down_block_types=(*["CrossAttnDownBlock2D"] * (levels - 1), "DownBlock2D"),
        up_block_types=("UpBlock2D", *["CrossAttnUpBlock2D"] * (levels - 1)),
    )


def build_small_unet(context: int = 24) -> torch.nn.Module:
    """A UNet of one level without a middle, with layers of the same kinds: half the work of ``build_unet``."""
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16,),
        layers_per_block=1,
        cross_attention_dim=context,
        attention_head_dim=2,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("CrossAttnUpBlock2D",),
    )


def build_vae(factor: int, width: int = 8, groups: int = 4, scaling: float = 0.5) -> torch.nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    levels = factor.bit_length()
    return AutoencoderKL(
        block_out_channels=(width,) * levels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=groups,
        sample_size=32,
        scaling_factor=scaling,
    )


def build_text_encoder(
    vocabulary_size: int, width: int = 24, heads: int = 2, act: str = "quick_gelu"
) -> torch.nn.Module:
    from transformers.models.clip.configuration_clip import CLIPTextConfig
    from transformers.models.clip.modeling_clip import CLIPTextModel

    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocabulary_size,
            hidden_size=width,
            intermediate_size=2 * width,
            hidden_act=act,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=CONTEXT,
            projection_dim=width,
            bos_token_id=vocabulary_size - 2,
            eos_token_id=vocabulary_size - 1,
            pad_token_id=vocabulary_size - 1,
        )
    )


def scheduler_config(prediction: str) -> dict[str, object]:
    return {
        "_class_name": "DDIMScheduler",
        "_diffusers_version": "0.36.0",
        "num_train_timesteps": 1000,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "clip_sample": False,
        "set_alpha_to_one": False,
        "steps_offset": 1,
        "prediction_type": prediction,
    }


def write_pipeline(
    folder: Path,
    prediction: str = "epsilon",
    factor: int = 4,
    seed: int = 0,
    channels: tuple[int, ...] = (16, 32),
    dtype: torch.dtype = torch.float32,
    inputs: int = 4,
    second: bool = False,
    small: bool = False,
) -> Path:
    """Write a whole pipeline folder; the same seed gives the same weights.

    Args:
        second: with what SD 2 has else: heads of one width, linear projections, OpenCLIP's activation, padding by "!".
        small: with the UNet of ``build_small_unet``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = write_tokenizer(folder / "tokenizer", **({"pad_token": "!"} if second else {}))
        heads = tuple(width // 8 for width in channels) if second else 2
        unet = (
            build_small_unet() if small else build_unet(channels, heads=heads, inputs=inputs, linear=second)
        )
        parts = {"unet": unet}
        parts["vae"] = build_vae(factor)
        parts["text_encoder"] = build_text_encoder(size, act="gelu" if second else "quick_gelu")
        return _write_parts(folder, parts, prediction, dtype)


def write_standard_pipeline(folder: Path, seed: int = 0, inputs: int = 4) -> Path:
    """One whose head counts, norm groups and scaling are those of SD 1.x, which single files do not state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = write_tokenizer(folder / "tokenizer")
        parts = {
            "unet": build_unet((32, 64), context=64, heads=8, groups=32, inputs=inputs),
            "vae": build_vae(4, width=32, groups=32, scaling=0.18215),
            "text_encoder": build_text_encoder(size, width=64, heads=1),
        }
        return _write_parts(folder, parts, "epsilon", torch.float32)


def _write_parts(
    folder: Path, parts: dict[str, torch.nn.Module], prediction: str, dtype: torch.dtype
) -> Path:
    from transformers.utils import logging

    logging.disable_progress_bar()
    # fresh models have output layers near zero; a little life makes differences visible
    for part in parts.values():
        for parameter in part.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    for name, part in parts.items():
        (part if dtype == torch.float32 else part.to(dtype)).save_pretrained(str(folder / name))
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(
        json.dumps(scheduler_config(prediction), indent=2), encoding="utf-8"
    )
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.36.0",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return folder


SECOND = (
    "STABLE_DIFFUSION_20",
    "STABLE_DIFFUSION_20_BASE",
    "STABLE_DIFFUSION_21",
    "STABLE_DIFFUSION_21_BASE",
)
FAMILIES: dict[str, Callable[[Path, str, int], object]] = {
    "STABLE_DIFFUSION_15": write_pipeline,
    "STABLE_DIFFUSION_15_INPAINTING": partial(write_pipeline, inputs=9),
    "STABLE_DIFFUSION_20_INPAINTING": partial(write_pipeline, inputs=9, second=True),
    **dict.fromkeys(SECOND, partial(write_pipeline, second=True)),
}


def paint_everything(key: str, size: tuple[int, int]) -> dict[str, object]:
    """Options of an inpainting pipeline that is given nothing to start from, for a size (height, width)."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    from tests.tiny import tiny_folder

    vae = AutoencoderKL.from_pretrained(str(tiny_folder(key) / "vae"))
    with torch.no_grad():
        grey_BChw = vae.encode(torch.zeros(1, 3, *size)).latent_dist.mode() * vae.config.scaling_factor
    return {
        "image": torch.zeros(1, 3, *size),
        "mask_image": torch.ones(1, 1, *size),
        # the pipeline would take a random sample of what the encoder says
        "masked_image_latents": grey_BChw,
        "strength": 1.0,
    }


SIZED = {
    key: partial(paint_everything, key)
    for key in ("STABLE_DIFFUSION_15_INPAINTING", "STABLE_DIFFUSION_20_INPAINTING")
}
