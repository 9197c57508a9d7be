"""FLUX.2: blocks as in FLUX.1, with modulations that all blocks share and one-stream blocks that are fused here too."""

from modules.adapter.keymaps.base import Rule, Table

_TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"
_EMBEDDERS = {
    "time_in": "time_guidance_embed.timestep_embedder",
    "guidance_in": "time_guidance_embed.guidance_embedder",
}
_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")

KEY_MAP = Table(
    (
        Rule("img_in", "x_embedder"),
        Rule("txt_in", "context_embedder"),
        *(Rule(f"{name}.in_layer", f"{ours}.linear_1") for name, ours in _EMBEDDERS.items()),
        *(Rule(f"{name}.out_layer", f"{ours}.linear_2") for name, ours in _EMBEDDERS.items()),
        *(Rule(f"{name}.lin", f"{name}.linear") for name in _MODULATIONS),
        Rule("double_blocks.*.img_attn.qkv", tuple(f"{_TWO}.attn.to_{part}" for part in "qkv")),
        Rule("double_blocks.*.txt_attn.qkv", tuple(f"{_TWO}.attn.add_{part}_proj" for part in "qkv")),
        Rule("double_blocks.*.img_attn.proj", f"{_TWO}.attn.to_out.0"),
        Rule("double_blocks.*.txt_attn.proj", f"{_TWO}.attn.to_add_out"),
        Rule("double_blocks.*.img_mlp.0", f"{_TWO}.ff.linear_in"),
        Rule("double_blocks.*.img_mlp.2", f"{_TWO}.ff.linear_out"),
        Rule("double_blocks.*.txt_mlp.0", f"{_TWO}.ff_context.linear_in"),
        Rule("double_blocks.*.txt_mlp.2", f"{_TWO}.ff_context.linear_out"),
        Rule("single_blocks.*.linear1", f"{_ONE}.attn.to_qkv_mlp_proj"),
        Rule("single_blocks.*.linear2", f"{_ONE}.attn.to_out"),
        Rule("final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),
        Rule("final_layer.linear", "proj_out"),
        Rule("double_blocks.*.img_attn.norm.query_norm", f"{_TWO}.attn.norm_q"),
        Rule("double_blocks.*.img_attn.norm.key_norm", f"{_TWO}.attn.norm_k"),
        Rule("double_blocks.*.txt_attn.norm.query_norm", f"{_TWO}.attn.norm_added_q"),
        Rule("double_blocks.*.txt_attn.norm.key_norm", f"{_TWO}.attn.norm_added_k"),
        Rule("single_blocks.*.norm.query_norm", f"{_ONE}.attn.norm_q"),
        Rule("single_blocks.*.norm.key_norm", f"{_ONE}.attn.norm_k"),
    )
)
