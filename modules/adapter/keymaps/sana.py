"""Sana."""

from modules.adapter.keymaps.base import Rule, Table

_OURS = "transformer_blocks.*"

KEY_MAP = Table(
    (
        Rule("x_embedder.proj", "patch_embed.proj"),
        Rule("t_embedder.mlp.0", "time_embed.emb.timestep_embedder.linear_1"),
        Rule("t_embedder.mlp.2", "time_embed.emb.timestep_embedder.linear_2"),
        Rule("t_block.1", "time_embed.linear"),
        Rule("y_embedder.y_proj.fc1", "caption_projection.linear_1"),
        Rule("y_embedder.y_proj.fc2", "caption_projection.linear_2"),
        Rule("blocks.*.attn.qkv", tuple(f"{_OURS}.attn1.to_{part}" for part in "qkv")),
        Rule("blocks.*.attn.proj", f"{_OURS}.attn1.to_out.0"),
        Rule("blocks.*.cross_attn.q_linear", f"{_OURS}.attn2.to_q"),
        Rule("blocks.*.cross_attn.kv_linear", (f"{_OURS}.attn2.to_k", f"{_OURS}.attn2.to_v")),
        Rule("blocks.*.cross_attn.proj", f"{_OURS}.attn2.to_out.0"),
        Rule("blocks.*.mlp.inverted_conv.conv", f"{_OURS}.ff.conv_inverted"),
        Rule("blocks.*.mlp.point_conv.conv", f"{_OURS}.ff.conv_point"),
        Rule("attention_y_norm", "caption_norm"),
        *(
            Rule(f"blocks.*.{theirs}.{part}_norm", f"{_OURS}.{ours}.norm_{part}")
            for theirs, ours in (("attn", "attn1"), ("cross_attn", "attn2"))
            for part in "qk"
        ),
        Rule("blocks.*.mlp.depth_conv.conv", f"{_OURS}.ff.conv_depth"),
        Rule("blocks.*.scale_shift_table", f"{_OURS}.scale_shift_table"),
        Rule("final_layer.scale_shift_table", "scale_shift_table"),
        Rule("final_layer.linear", "proj_out"),
    )
)
