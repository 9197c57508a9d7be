"""Single files in the latent-diffusion layout: which model they hold, and its parts as diffusers has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.ldm_keys import TEXT_PREFIX, UNET_PREFIX, VAE_PREFIX, unet_to_ldm, vae_to_ldm
from modules.model.loading import FIELD
from modules.util.errors import UserError, list_offenders

State = dict[str, torch.Tensor]
# what SD 1.x files leave unsaid
SCALING_FACTOR = 0.18215
HEADS = 8
TEXT_HEAD_WIDTH = 64
SCHEDULER: Mapping[str, Any] = {
    "_class_name": "DDIMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}
_VAE_ATTENTION = re.compile(r"mid_block\.attentions\.0\.to_(q|k|v|out\.0)\.weight$")


def to_ldm(kind: str, module: nn.Module, key: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Name (without prefix) and value of one tensor of a part in the latent-diffusion layout."""
    path, _, leaf = key.rpartition(".")
    config: Any = module.config
    if kind == "denoiser":
        attention = tuple("Attn" in block for block in config.up_block_types)
        return f"{unet_to_ldm(path, config.layers_per_block, attention)}.{leaf}", tensor
    if kind == "vae":
        if _VAE_ATTENTION.search(key):
            # the original attention is made of 1x1 convolutions
            tensor = tensor[:, :, None, None]
        return f"{vae_to_ldm(path, len(config.block_out_channels))}.{leaf}", tensor
    return key, tensor


def read_single_file(path: Path) -> tuple[dict[str, State], dict[str, str]]:
    """The tensors of a file by part (``unet``, ``vae``, ``text_encoder``; no prefixes), and its metadata.

    Raises:
        UserError: damaged, or not in the latent-diffusion layout of SD 1.x.
    """
    from safetensors import SafetensorError, safe_open

    prefixes = {"unet": UNET_PREFIX, "vae": VAE_PREFIX, "text_encoder": TEXT_PREFIX}
    found: dict[str, State] = {part: {} for part in prefixes}
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            for name in names:
                for part, prefix in prefixes.items():
                    if name.startswith(prefix):
                        found[part][name.removeprefix(prefix)] = file.get_tensor(name)
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: {error}", field=FIELD, hint="copy or download it again"
        ) from error
    missing = [part for part, state in found.items() if not state]
    if missing:
        raise UserError(
            f"{path} is not a Stable Diffusion 1.5 checkpoint: it holds no {' and no '.join(missing)}",
            field=FIELD,
            hint=f"its keys look like {names[0]}" if names else "it is empty",
        )
    return found, metadata


def unet_config(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config of a UNet in the latent-diffusion layout, read off its shapes."""
    blocks = sorted({int(m[1]) for k in state if (m := re.match(r"input_blocks\.(\d+)\.", k))})
    downs = [i for i in blocks if f"input_blocks.{i}.0.op.weight" in state]
    per_block = downs[0] if downs else len(blocks)
    channels: list[int] = []
    attention: list[bool] = []
    for first in range(1, len(blocks), per_block):
        channels.append(state[f"input_blocks.{first}.0.out_layers.3.weight"].shape[0])
        attention.append(f"input_blocks.{first}.1.norm.weight" in state)
    first_attention = next(k for k in state if k.endswith("attn2.to_k.weight"))
    projection = next(k for k in state if k.endswith(".1.proj_in.weight"))
    return {
        "in_channels": state["input_blocks.0.0.weight"].shape[1],
        "out_channels": state["out.2.weight"].shape[0],
        "block_out_channels": channels,
        "layers_per_block": per_block - 1,
        "cross_attention_dim": state[first_attention].shape[1],
        "attention_head_dim": HEADS,
        "use_linear_projection": state[projection].dim() == 2,
        "down_block_types": ["CrossAttnDownBlock2D" if a else "DownBlock2D" for a in attention],
        "up_block_types": ["CrossAttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attention)],
        "sample_size": 64,
    }


def vae_config(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config of an autoencoder in the latent-diffusion layout, read off its shapes."""
    levels = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.down\.(\d+)\.", k)))
    layers = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.down\.0\.block\.(\d+)\.", k)))
    return {
        "block_out_channels": [
            state[f"encoder.down.{i}.block.0.conv2.weight"].shape[0] for i in range(levels)
        ],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "latent_channels": state["post_quant_conv.weight"].shape[0],
        "layers_per_block": layers,
        "scaling_factor": SCALING_FACTOR,
        "sample_size": 512,
    }


def text_config(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config of a CLIP text encoder, read off its shapes."""
    tokens, width = state["embeddings.token_embedding.weight"].shape
    layers = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.layers\.(\d+)\.", k)))
    return {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": state["encoder.layers.0.mlp.fc1.weight"].shape[0],
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // TEXT_HEAD_WIDTH),
        "max_position_embeddings": state["embeddings.position_embedding.weight"].shape[0],
        "projection_dim": width,
        "bos_token_id": tokens - 2,
        "eos_token_id": tokens - 1,
        "pad_token_id": tokens - 1,
    }


def fill(
    kind: str, make: Callable[[], nn.Module], state: Mapping[str, torch.Tensor], source: Path
) -> nn.Module:
    """Make a part and give it the tensors of a file.

    Raises:
        UserError: tensors that are missing or of another shape.
    """
    module = make()
    own = module.state_dict()
    rooted = "text_model." if any(name.startswith("text_model.") for name in own) else ""
    filled: State = {}
    faults: list[str] = []
    for key, tensor in own.items():
        name, like = to_ldm(kind, module, key.removeprefix(rooted), tensor)
        value = state.get(name)
        if value is None and key.endswith("position_ids"):
            filled[key] = tensor
        elif value is None or value.numel() != tensor.numel():
            faults.append(name if value is None else f"{name}: {tuple(value.shape)} for {tuple(like.shape)}")
        else:
            filled[key] = value.reshape(tensor.shape).to(tensor.dtype)
    if faults:
        raise UserError(
            f"{source} does not hold a whole {kind} of this family; missing or of another shape:\n"
            f"{list_offenders(faults)}",
            field=FIELD,
        )
    module.load_state_dict(filled)
    return module.eval().requires_grad_(False)


def find_tokenizer(path: Path, name: str) -> Any:
    """The CLIP tokenizer for a single file, which has none in it.

    Looked for in a folder ``tokenizer`` beside the file, then by its hub name in the local cache or online.

    Raises:
        UserError: found nowhere.
    """
    from transformers.models.clip.tokenization_clip import CLIPTokenizer

    beside = path.parent / "tokenizer"
    if beside.is_dir():
        return CLIPTokenizer.from_pretrained(str(beside), local_files_only=True)
    try:
        return CLIPTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} needs the tokenizer {name}, which is not in the local hub cache, and the hub cannot be "
            "reached",
            field=FIELD,
            hint=f"put a tokenizer folder at {beside}, or connect once",
        ) from error
