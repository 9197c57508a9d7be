"""FLUX.1, Chroma and LongCat-Image: two-stream and one-stream blocks, the inputs of attention in one layer."""

from collections.abc import Mapping

from modules.weights.keymaps.base import Rule, Table

_TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"
_EMBEDDERS = {
    "time_in": "time_text_embed.timestep_embedder",
    "vector_in": "time_text_embed.text_embedder",
    "guidance_in": "time_text_embed.guidance_embedder",
}


def common_rules(embedders: Mapping[str, str]) -> tuple[Rule, ...]:
    """The names that FLUX.1 and FLUX.2 share: both ends, and attention of the two-stream blocks.

    Args:
        embedders: published name -> ours, for the inputs of the modulations.
    """
    return (
        Rule("img_in", "x_embedder"),
        Rule("txt_in", "context_embedder"),
        *(Rule(f"{name}.in_layer", f"{ours}.linear_1") for name, ours in embedders.items()),
        *(Rule(f"{name}.out_layer", f"{ours}.linear_2") for name, ours in embedders.items()),
        Rule("double_blocks.*.img_attn.qkv", tuple(f"{_TWO}.attn.to_{part}" for part in "qkv")),
        Rule("double_blocks.*.txt_attn.qkv", tuple(f"{_TWO}.attn.add_{part}_proj" for part in "qkv")),
        Rule("double_blocks.*.img_attn.proj", f"{_TWO}.attn.to_out.0"),
        Rule("double_blocks.*.txt_attn.proj", f"{_TWO}.attn.to_add_out"),
        Rule("double_blocks.*.img_attn.norm.query_norm", f"{_TWO}.attn.norm_q", weight="scale"),
        Rule("double_blocks.*.img_attn.norm.key_norm", f"{_TWO}.attn.norm_k", weight="scale"),
        Rule("double_blocks.*.txt_attn.norm.query_norm", f"{_TWO}.attn.norm_added_q", weight="scale"),
        Rule("double_blocks.*.txt_attn.norm.key_norm", f"{_TWO}.attn.norm_added_k", weight="scale"),
        Rule("single_blocks.*.norm.query_norm", f"{_ONE}.attn.norm_q", weight="scale"),
        Rule("single_blocks.*.norm.key_norm", f"{_ONE}.attn.norm_k", weight="scale"),
        Rule("final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),
        Rule("final_layer.linear", "proj_out"),
    )


def streams(embedders: Mapping[str, str]) -> tuple[Rule, ...]:
    """``common_rules`` plus the specific layers of FLUX.1's blocks."""
    return (
        *common_rules(embedders),
        Rule("double_blocks.*.img_mod.lin", f"{_TWO}.norm1.linear"),
        Rule("double_blocks.*.txt_mod.lin", f"{_TWO}.norm1_context.linear"),
        Rule("double_blocks.*.img_mlp.0", f"{_TWO}.ff.net.0.proj"),
        Rule("double_blocks.*.img_mlp.2", f"{_TWO}.ff.net.2"),
        Rule("double_blocks.*.txt_mlp.0", f"{_TWO}.ff_context.net.0.proj"),
        Rule("double_blocks.*.txt_mlp.2", f"{_TWO}.ff_context.net.2"),
        Rule("single_blocks.*.modulation.lin", f"{_ONE}.norm.linear"),
        Rule(
            "single_blocks.*.linear1",
            (*(f"{_ONE}.attn.to_{part}" for part in "qkv"), f"{_ONE}.proj_mlp"),
        ),
        Rule("single_blocks.*.linear2", f"{_ONE}.proj_out"),
    )


KEY_MAP = Table(
    *streams(_EMBEDDERS),
    # Chroma has a small network in place of the modulations
    Rule("distilled_guidance_layer.layers.*.in_layer", "distilled_guidance_layer.layers.*.linear_1"),
    Rule("distilled_guidance_layer.layers.*.out_layer", "distilled_guidance_layer.layers.*.linear_2"),
    Rule("distilled_guidance_layer.norms.*", "distilled_guidance_layer.norms.*", weight="scale"),
)
