"""Names of the original latent-diffusion layout for the modules of a diffusers UNet, autoencoder and CLIP."""

from __future__ import annotations

import re

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_ENDS = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def unet_to_ldm(path: str, layers_per_block: int, attention_up: tuple[bool, ...]) -> str:
    """The latent-diffusion name of a UNet module, without prefix.

    Args:
        path: dotted diffusers path of a module (``down_blocks.0.resnets.1.conv1``).
        layers_per_block: of the UNet's config.
        attention_up: for each up block, whether it has attention (it moves the upsampler by one).

    Raises:
        KeyError: such a UNet has no such module.
    """
    if path in _ENDS:
        return _ENDS[path]
    if match := re.fullmatch(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)", path):
        kind, index, rest = match[1], int(match[2]), match[3]
        return f"middle_block.{2 * index}.{_RESNET[rest]}" if kind == "resnets" else f"middle_block.1.{rest}"
    match = re.fullmatch(
        r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)", path
    )
    if not match:
        raise KeyError(path)
    side, block, kind, index, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
    per_block = layers_per_block + 1
    if kind == "downsamplers":
        return f"input_blocks.{per_block * (block + 1)}.0.op"
    if kind == "upsamplers":
        return f"output_blocks.{per_block * (block + 1) - 1}.{2 if attention_up[block] else 1}.conv"
    place = (
        f"input_blocks.{1 + per_block * block + index}"
        if side == "down"
        else (f"output_blocks.{per_block * block + index}")
    )
    return f"{place}.0.{_RESNET[rest]}" if kind == "resnets" else f"{place}.1.{rest}"


def vae_to_ldm(path: str, levels: int) -> str:
    """The latent-diffusion name of an autoencoder module, without prefix. Raises ``KeyError`` if there is none."""
    if path in ("quant_conv", "post_quant_conv"):
        return path
    match = re.fullmatch(r"(encoder|decoder)\.(.+)", path)
    if not match:
        raise KeyError(path)
    side, rest = match[1], match[2]
    if rest in ("conv_in", "conv_out"):
        return path
    if rest == "conv_norm_out":
        return f"{side}.norm_out"
    if match := re.fullmatch(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)", rest):
        if match[1] == "attentions":
            return f"{side}.mid.attn_1.{_VAE_ATTENTION[match[3]]}"
        return f"{side}.mid.block_{int(match[2]) + 1}.{_vae_resnet(match[3])}"
    match = re.fullmatch(r"(down|up)_blocks\.(\d+)\.(resnets|downsamplers|upsamplers)\.(\d+)\.(.+)", rest)
    if not match:
        raise KeyError(path)
    block = int(match[2]) if match[1] == "down" else levels - 1 - int(match[2])
    if match[3] == "resnets":
        return f"{side}.{match[1]}.{block}.block.{match[4]}.{_vae_resnet(match[5])}"
    return f"{side}.{match[1]}.{block}.{match[1]}sample.conv"


def _vae_resnet(name: str) -> str:
    return "nin_shortcut" if name == "conv_shortcut" else name
