"""PixArt alpha and Sigma."""

from modules.adapter.keymaps.base import Rule, Table

_OURS, _TIME = "transformer_blocks.*", "adaln_single.emb"

KEY_MAP = Table(
    (
        Rule("x_embedder.proj", "pos_embed.proj"),
        Rule("pos_embed", "pos_embed.pos_embed"),
        Rule("t_embedder.mlp.0", f"{_TIME}.timestep_embedder.linear_1"),
        Rule("t_embedder.mlp.2", f"{_TIME}.timestep_embedder.linear_2"),
        # alpha's larger models are told the size of the image as well
        Rule("csize_embedder.mlp.0", f"{_TIME}.resolution_embedder.linear_1"),
        Rule("csize_embedder.mlp.2", f"{_TIME}.resolution_embedder.linear_2"),
        Rule("ar_embedder.mlp.0", f"{_TIME}.aspect_ratio_embedder.linear_1"),
        Rule("ar_embedder.mlp.2", f"{_TIME}.aspect_ratio_embedder.linear_2"),
        Rule("t_block.1", "adaln_single.linear"),
        Rule("y_embedder.y_proj.fc1", "caption_projection.linear_1"),
        Rule("y_embedder.y_proj.fc2", "caption_projection.linear_2"),
        Rule("blocks.*.attn.qkv", tuple(f"{_OURS}.attn1.to_{part}" for part in "qkv")),
        Rule("blocks.*.attn.proj", f"{_OURS}.attn1.to_out.0"),
        Rule("blocks.*.cross_attn.q_linear", f"{_OURS}.attn2.to_q"),
        Rule("blocks.*.cross_attn.kv_linear", (f"{_OURS}.attn2.to_k", f"{_OURS}.attn2.to_v")),
        Rule("blocks.*.cross_attn.proj", f"{_OURS}.attn2.to_out.0"),
        Rule("blocks.*.mlp.fc1", f"{_OURS}.ff.net.0.proj"),
        Rule("blocks.*.mlp.fc2", f"{_OURS}.ff.net.2"),
        Rule("blocks.*.scale_shift_table", f"{_OURS}.scale_shift_table"),
        Rule("final_layer.scale_shift_table", "scale_shift_table"),
        Rule("final_layer.linear", "proj_out"),
    )
)
