"""FLUX.2: blocks as in FLUX.1, with modulations that all blocks share and one-stream blocks that are fused here too."""

from modules.weights.keymaps.base import Rule, Table
from modules.weights.keymaps.flux import common_rules

_TWO, _ONE = "transformer_blocks.*", "single_transformer_blocks.*"
_EMBEDDERS = {
    "time_in": "time_guidance_embed.timestep_embedder",
    "guidance_in": "time_guidance_embed.guidance_embedder",
}
_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")

KEY_MAP = Table(
    *common_rules(_EMBEDDERS),
    *(Rule(f"{name}.lin", f"{name}.linear") for name in _MODULATIONS),
    Rule("double_blocks.*.img_mlp.0", f"{_TWO}.ff.linear_in"),
    Rule("double_blocks.*.img_mlp.2", f"{_TWO}.ff.linear_out"),
    Rule("double_blocks.*.txt_mlp.0", f"{_TWO}.ff_context.linear_in"),
    Rule("double_blocks.*.txt_mlp.2", f"{_TWO}.ff_context.linear_out"),
    Rule("single_blocks.*.linear1", f"{_ONE}.attn.to_qkv_mlp_proj"),
    Rule("single_blocks.*.linear2", f"{_ONE}.attn.to_out"),
)
