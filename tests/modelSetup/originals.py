"""Denoisers in the layout they were published in, written down independently of the program's own tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """A layout.

    Args:
        fused: what comes before the names, the names whose rows follow each other, the name of all of them.
        renamed: regular expressions and what they become, in this order.
        swapped: regular expression of published names whose halves of rows are the other way round.
        flat: the same of those whose numbers are in one row.
    """

    fused: Sequence[tuple[str, tuple[str, ...], str]]
    renamed: Sequence[tuple[str, str]]
    swapped: str = "(?!)"
    flat: str = "(?!)"


_QKV = ("to_q", "to_k", "to_v")
_ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")
_FLUX_ENDS = (
    (r"^x_embedder\.", "img_in."),
    (r"^context_embedder\.", "txt_in."),
    (r"^time_text_embed\.timestep_embedder\.", "time_in."),
    (r"^time_text_embed\.text_embedder\.", "vector_in."),
    (r"^time_text_embed\.guidance_embedder\.", "guidance_in."),
    (r"(time_in|vector_in|guidance_in)\.linear_1\.", r"\1.in_layer."),
    (r"(time_in|vector_in|guidance_in)\.linear_2\.", r"\1.out_layer."),
    (r"^norm_out\.linear\.", "final_layer.adaLN_modulation.1."),
    (r"^proj_out\.", "final_layer.linear."),
    (r"^distilled_guidance_layer\.norms\.(\d+)\.weight", r"distilled_guidance_layer.norms.\1.scale"),
    (r"^(distilled_guidance_layer\.layers\.\d+)\.linear_1\.", r"\1.in_layer."),
    (r"^(distilled_guidance_layer\.layers\.\d+)\.linear_2\.", r"\1.out_layer."),
)
FLUX = Layout(
    fused=(
        (r"^transformer_blocks\.\d+\.attn\.", _QKV, "img_qkv"),
        (r"^transformer_blocks\.\d+\.attn\.", _ADDED, "txt_qkv"),
        (
            r"^single_transformer_blocks\.\d+\.",
            ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
            "linear1",
        ),
    ),
    renamed=(
        (r"^single_transformer_blocks\.(\d+)\.norm\.linear\.", r"single_blocks.\1.modulation.lin."),
        (r"^single_transformer_blocks\.(\d+)\.proj_out\.", r"single_blocks.\1.linear2."),
        (
            r"^single_transformer_blocks\.(\d+)\.attn\.norm_q\.weight",
            r"single_blocks.\1.norm.query_norm.scale",
        ),
        (r"^single_transformer_blocks\.(\d+)\.attn\.norm_k\.weight", r"single_blocks.\1.norm.key_norm.scale"),
        (r"^single_transformer_blocks\.", "single_blocks."),
        (r"^transformer_blocks\.", "double_blocks."),
        (r"\.attn\.(img|txt)_qkv\.", r".\1_attn.qkv."),
        (r"\.attn\.norm_q\.weight", ".img_attn.norm.query_norm.scale"),
        (r"\.attn\.norm_k\.weight", ".img_attn.norm.key_norm.scale"),
        (r"\.attn\.norm_added_q\.weight", ".txt_attn.norm.query_norm.scale"),
        (r"\.attn\.norm_added_k\.weight", ".txt_attn.norm.key_norm.scale"),
        (r"\.attn\.to_out\.0\.", ".img_attn.proj."),
        (r"\.attn\.to_add_out\.", ".txt_attn.proj."),
        (r"\.norm1\.linear\.", ".img_mod.lin."),
        (r"\.norm1_context\.linear\.", ".txt_mod.lin."),
        (r"\.ff\.net\.0\.proj\.", ".img_mlp.0."),
        (r"\.ff\.net\.2\.", ".img_mlp.2."),
        (r"\.ff_context\.net\.0\.proj\.", ".txt_mlp.0."),
        (r"\.ff_context\.net\.2\.", ".txt_mlp.2."),
        *_FLUX_ENDS,
    ),
    swapped=r"final_layer\.adaLN_modulation\.1\..*",
)
LONGCAT_IMAGE = Layout(
    FLUX.fused,
    (
        *FLUX.renamed,
        (r"^time_embed\.timestep_embedder\.linear_1\.", "time_in.in_layer."),
        (r"^time_embed\.timestep_embedder\.linear_2\.", "time_in.out_layer."),
    ),
    FLUX.swapped,
)
STABLE_DIFFUSION_3 = Layout(
    fused=(
        (r"^transformer_blocks\.\d+\.attn2?\.", _QKV, "qkv"),
        (r"^transformer_blocks\.\d+\.attn\.", _ADDED, "context_qkv"),
    ),
    renamed=(
        (r"^pos_embed\.proj\.", "x_embedder.proj."),
        (r"^pos_embed\.pos_embed$", "pos_embed"),
        (r"^time_text_embed\.timestep_embedder\.linear_1\.", "t_embedder.mlp.0."),
        (r"^time_text_embed\.timestep_embedder\.linear_2\.", "t_embedder.mlp.2."),
        (r"^time_text_embed\.text_embedder\.linear_1\.", "y_embedder.mlp.0."),
        (r"^time_text_embed\.text_embedder\.linear_2\.", "y_embedder.mlp.2."),
        (r"^norm_out\.linear\.", "final_layer.adaLN_modulation.1."),
        (r"^proj_out\.", "final_layer.linear."),
        (r"^transformer_blocks\.(\d+)\.attn\.context_qkv\.", r"joint_blocks.\1.context_block.attn.qkv."),
        (
            r"^transformer_blocks\.(\d+)\.attn\.norm_added_([qk])\.",
            r"joint_blocks.\1.context_block.attn.ln_\2.",
        ),
        (r"^transformer_blocks\.(\d+)\.attn\.to_add_out\.", r"joint_blocks.\1.context_block.attn.proj."),
        (
            r"^transformer_blocks\.(\d+)\.norm1_context\.linear\.",
            r"joint_blocks.\1.context_block.adaLN_modulation.1.",
        ),
        (
            r"^transformer_blocks\.(\d+)\.ff_context\.net\.0\.proj\.",
            r"joint_blocks.\1.context_block.mlp.fc1.",
        ),
        (r"^transformer_blocks\.(\d+)\.ff_context\.net\.2\.", r"joint_blocks.\1.context_block.mlp.fc2."),
        (r"^transformer_blocks\.(\d+)\.norm1\.linear\.", r"joint_blocks.\1.x_block.adaLN_modulation.1."),
        (r"^transformer_blocks\.(\d+)\.ff\.net\.0\.proj\.", r"joint_blocks.\1.x_block.mlp.fc1."),
        (r"^transformer_blocks\.(\d+)\.ff\.net\.2\.", r"joint_blocks.\1.x_block.mlp.fc2."),
        (r"^transformer_blocks\.(\d+)\.(attn2?)\.norm_([qk])\.", r"joint_blocks.\1.x_block.\2.ln_\3."),
        (r"^transformer_blocks\.(\d+)\.(attn2?)\.to_out\.0\.", r"joint_blocks.\1.x_block.\2.proj."),
        (r"^transformer_blocks\.(\d+)\.", r"joint_blocks.\1.x_block."),
    ),
    # of the tiny models, whose last block is number 1
    swapped=r"final_layer\.adaLN_modulation\.1\..*|joint_blocks\.1\.context_block\.adaLN_modulation\.1\..*",
)
_BLOCKS = (
    (r"\.attn1\.norm_([qk])\.", r".attn.\1_norm."),
    (r"\.attn2\.norm_([qk])\.", r".cross_attn.\1_norm."),
    (r"\.attn1\.to_out\.0\.", ".attn.proj."),
    (r"\.attn1\.", ".attn."),
    (r"\.attn2\.to_q\.", ".cross_attn.q_linear."),
    (r"\.attn2\.to_out\.0\.", ".cross_attn.proj."),
    (r"\.attn2\.", ".cross_attn."),
    (r"^transformer_blocks\.", "blocks."),
    (r"^scale_shift_table", "final_layer.scale_shift_table"),
    (r"^proj_out\.", "final_layer.linear."),
    (r"^caption_projection\.linear_(\d)\.", r"y_embedder.y_proj.fc\1."),
    (r"\.timestep_embedder\.linear_1\.", ".timestep_embedder.mlp.0."),
    (r"\.timestep_embedder\.linear_2\.", ".timestep_embedder.mlp.2."),
    (r"^[a-z_]+\.emb\.timestep_embedder\.", "t_embedder."),
)
_BLOCK_FUSED = (
    (r"^transformer_blocks\.\d+\.attn1\.", _QKV, "qkv"),
    (r"^transformer_blocks\.\d+\.attn2\.", ("to_k", "to_v"), "kv_linear"),
)
PIXART = Layout(
    fused=_BLOCK_FUSED,
    renamed=(
        *_BLOCKS,
        (r"^adaln_single\.emb\.resolution_embedder\.linear_1\.", "csize_embedder.mlp.0."),
        (r"^adaln_single\.emb\.resolution_embedder\.linear_2\.", "csize_embedder.mlp.2."),
        (r"^adaln_single\.emb\.aspect_ratio_embedder\.linear_1\.", "ar_embedder.mlp.0."),
        (r"^adaln_single\.emb\.aspect_ratio_embedder\.linear_2\.", "ar_embedder.mlp.2."),
        (r"^adaln_single\.linear\.", "t_block.1."),
        (r"^pos_embed\.proj\.", "x_embedder.proj."),
        (r"\.ff\.net\.0\.proj\.", ".mlp.fc1."),
        (r"\.ff\.net\.2\.", ".mlp.fc2."),
    ),
)
SANA = Layout(
    fused=_BLOCK_FUSED,
    renamed=(
        *_BLOCKS,
        (r"^time_embed\.linear\.", "t_block.1."),
        (r"^caption_norm\.", "attention_y_norm."),
        (r"^patch_embed\.proj\.", "x_embedder.proj."),
        (r"\.ff\.conv_(inverted|depth|point)\.", r".mlp.\1_conv.conv."),
        (r"\.mlp\.(inverted|depth|point)_conv", r".mlp.\1_conv"),
    ),
)
Z_IMAGE = Layout(
    fused=((r"^[a-z_]+\.\d+\.attention\.", _QKV, "qkv"),),
    renamed=(
        (r"^all_x_embedder\.2-1\.", "x_embedder."),
        (r"^all_final_layer\.2-1\.", "final_layer."),
        (r"\.attention\.norm_([qk])\.", r".attention.\1_norm."),
        (r"\.attention\.to_out\.0\.", ".attention.out."),
    ),
)
FLUX_2 = Layout(
    fused=(
        (r"^transformer_blocks\.\d+\.attn\.", _QKV, "img_qkv"),
        (r"^transformer_blocks\.\d+\.attn\.", _ADDED, "txt_qkv"),
    ),
    renamed=(
        (r"^single_transformer_blocks\.(\d+)\.attn\.to_qkv_mlp_proj\.", r"single_blocks.\1.linear1."),
        (r"^single_transformer_blocks\.(\d+)\.attn\.to_out\.", r"single_blocks.\1.linear2."),
        (
            r"^single_transformer_blocks\.(\d+)\.attn\.norm_q\.weight",
            r"single_blocks.\1.norm.query_norm.scale",
        ),
        (r"^single_transformer_blocks\.(\d+)\.attn\.norm_k\.weight", r"single_blocks.\1.norm.key_norm.scale"),
        (r"\.ff\.linear_in\.", ".img_mlp.0."),
        (r"\.ff\.linear_out\.", ".img_mlp.2."),
        (r"\.ff_context\.linear_in\.", ".txt_mlp.0."),
        (r"\.ff_context\.linear_out\.", ".txt_mlp.2."),
        (r"^time_guidance_embed\.", "time_text_embed."),
        (r"^(double|single)_stream_modulation(\w*)\.linear\.", r"\1_stream_modulation\2.lin."),
        *FLUX.renamed,
    ),
    swapped=FLUX.swapped,
)
KREA_2 = Layout(
    fused=(),
    renamed=(
        (r"^img_in\.", "first."),
        (r"^time_embed\.linear_1\.", "tmlp.0."),
        (r"^time_embed\.linear_2\.", "tmlp.2."),
        (r"^time_mod_proj\.", "tproj.1."),
        (r"^txt_in\.norm\.weight", "txtmlp.0.scale"),
        (r"^txt_in\.linear_1\.", "txtmlp.1."),
        (r"^txt_in\.linear_2\.", "txtmlp.3."),
        (r"^text_fusion\.", "txtfusion."),
        (r"^transformer_blocks\.", "blocks."),
        (r"^final_layer\.linear\.", "last.linear."),
        (r"^final_layer\.norm\.weight", "last.norm.scale"),
        (r"^final_layer\.scale_shift_table", "last.modulation.lin"),
        (r"\.attn\.to_([qkv])\.", r".attn.w\1."),
        (r"\.attn\.to_out\.0\.", ".attn.wo."),
        (r"\.attn\.to_gate\.", ".attn.gate."),
        (r"\.attn\.norm_([qk])\.weight", r".attn.qknorm.\1norm.scale"),
        (r"\.ff\.", ".mlp."),
        (r"\.norm1\.weight", ".prenorm.scale"),
        (r"\.norm2\.weight", ".postnorm.scale"),
        (r"\.scale_shift_table", ".mod.lin"),
    ),
    flat=r"blocks\.\d+\.mod\.lin",
)
LUMINA_2 = Layout(
    fused=((r"^[a-z_]+\.\d+\.attn\.", _QKV, "qkv"),),
    renamed=(
        (r"^time_caption_embed\.caption_embedder\.", "cap_embedder."),
        (r"^time_caption_embed\.timestep_embedder\.linear_1\.", "t_embedder.mlp.0."),
        (r"^time_caption_embed\.timestep_embedder\.linear_2\.", "t_embedder.mlp.2."),
        (r"^norm_out\.linear_1\.", "final_layer.adaLN_modulation.1."),
        (r"^norm_out\.linear_2\.", "final_layer.linear."),
        (r"\.attn\.to_out\.0\.", ".attn.out."),
        (r"\.attn\.norm_([qk])\.", r".attn.\1_norm."),
        (r"\.attn\.", ".attention."),
        (r"\.feed_forward\.linear_(\d)\.", r".feed_forward.w\1."),
        (r"\.norm1\.linear\.", ".adaLN_modulation.1."),
        (r"^context_refiner\.(\d+)\.norm1\.", r"context_refiner.\1.attention_norm1."),
        (r"\.norm1\.norm\.", ".attention_norm1."),
        (r"(\d)\.norm2\.", r"\1.attention_norm2."),
    ),
)
QWEN_21 = Layout(((r"^transformer_blocks\.\d+\.img_mlp\.", ("gate_layer", "proj"), "gate_up"),), ())
ANIMA = Layout(
    fused=(),
    renamed=(
        (r"^patch_embed\.proj\.", "x_embedder.proj.1."),
        (r"^time_embed\.t_embedder\.", "t_embedder.1."),
        (r"^time_embed\.norm\.", "t_embedding_norm."),
        (r"^transformer_blocks\.", "blocks."),
        (r"\.norm1\.linear_([12])\.", r".adaln_modulation_self_attn.\1."),
        (r"\.norm2\.linear_([12])\.", r".adaln_modulation_cross_attn.\1."),
        (r"\.norm3\.linear_([12])\.", r".adaln_modulation_mlp.\1."),
        (r"\.attn1\.", ".self_attn."),
        (r"\.attn2\.", ".cross_attn."),
        (r"_attn\.to_([qkv])\.", r"_attn.\1_proj."),
        (r"\.to_out\.0\.", ".output_proj."),
        (r"\.norm_([qk])\.", r".\1_norm."),
        (r"\.ff\.net\.0\.proj\.", ".mlp.layer1."),
        (r"\.ff\.net\.2\.", ".mlp.layer2."),
        (r"^norm_out\.linear_([12])\.", r"final_layer.adaln_modulation.\1."),
        (r"^proj_out\.", "final_layer.linear."),
    ),
)
IDEOGRAM_4 = Layout(
    fused=((r"^layers\.\d+\.attention\.", _QKV, "qkv"),),
    renamed=((r"\.attention\.to_out\.0\.", ".attention.o."),),
)
SAME = Layout((), ())
LAYOUTS = {
    "FLUX_DEV_1": FLUX,
    "FLUX_SCHNELL_1": FLUX,
    "FLUX_KONTEXT_DEV_1": FLUX,
    "CHROMA_1": FLUX,
    "STABLE_DIFFUSION_3": STABLE_DIFFUSION_3,
    "STABLE_DIFFUSION_35": STABLE_DIFFUSION_3,
    "PIXART_ALPHA": PIXART,
    "PIXART_SIGMA": PIXART,
    "SANA": SANA,
    "Z_IMAGE": Z_IMAGE,
    "QWEN": SAME,
    "QWEN_21": QWEN_21,
    "ANIMA": ANIMA,
    "QWEN_EDIT": SAME,
    "QWEN_EDIT_PLUS": SAME,
    "FLUX_2": FLUX_2,
    "FLUX_2_DEV": FLUX_2,
    "KREA_2": KREA_2,
    "LUMINA_2": LUMINA_2,
    "ERNIE": SAME,
    "HI_DREAM_FULL": SAME,
    "LONGCAT_IMAGE": LONGCAT_IMAGE,
    "LONGCAT_IMAGE_EDIT": LONGCAT_IMAGE,
    "IDEOGRAM_4": IDEOGRAM_4,
}
"""By model type; the UNets are in the tests of the latent-diffusion layout."""
COMPUTED = {
    "PIXART_ALPHA": {"y_embedder.y_embedding": (5, 20)},
    "PIXART_SIGMA": {"y_embedder.y_embedding": (5, 20)},
    "SANA": {"y_embedder.y_embedding": (5, 20), "pos_embed": (1, 64, 24)},
    "Z_IMAGE": {"norm_final.weight": (32,)},
    "LUMINA_2": {"norm_final.weight": (32,)},
}
"""Tensors the published files have besides those of the module, by name: shapes in the tiny models."""


def to_original(state: Mapping[str, torch.Tensor], layout: Layout) -> State:
    """The tensors of a denoiser, renamed, joined and turned round."""
    made: State = {}
    for key, tensor in state.items():
        name = key
        for before, pieces, joined in layout.fused:
            head = re.match(before, key)
            rest = key[head.end() :] if head else ""
            piece = next((piece for piece in pieces if rest.startswith(f"{piece}.")), None)
            if head and piece is not None:
                tail = rest.removeprefix(piece)
                tensor = torch.cat([state[f"{head[0]}{each}{tail}"] for each in pieces])
                name = f"{head[0]}{joined}{tail}"
        for old, new in layout.renamed:
            name = re.sub(old, new, name)
        if re.fullmatch(layout.swapped, name):
            tensor = torch.cat(tensor.chunk(2)[::-1])
        made[name] = (tensor.flatten() if re.fullmatch(layout.flat, name) else tensor).contiguous()
    return made
