"""PixArt alpha and Sigma, and the layers that Sana shares with them."""

from modules.weights.keymaps.base import Rule, Table

OURS = "transformer_blocks.*"


def time_rules(embedding: str) -> tuple[Rule, ...]:
    """Noise level and caption; ``embedding`` is our name of the first."""
    return (
        Rule("t_embedder.mlp.0", f"{embedding}.emb.timestep_embedder.linear_1"),
        Rule("t_embedder.mlp.2", f"{embedding}.emb.timestep_embedder.linear_2"),
        Rule("t_block.1", f"{embedding}.linear"),
        Rule("y_embedder.y_proj.fc1", "caption_projection.linear_1"),
        Rule("y_embedder.y_proj.fc2", "caption_projection.linear_2"),
    )


CROSS_ATTENTION = (
    Rule("blocks.*.attn.qkv", tuple(f"{OURS}.attn1.to_{part}" for part in "qkv")),
    Rule("blocks.*.attn.proj", f"{OURS}.attn1.to_out.0"),
    Rule("blocks.*.cross_attn.q_linear", f"{OURS}.attn2.to_q"),
    Rule("blocks.*.cross_attn.kv_linear", (f"{OURS}.attn2.to_k", f"{OURS}.attn2.to_v")),
    Rule("blocks.*.cross_attn.proj", f"{OURS}.attn2.to_out.0"),
)
LAST = (
    Rule("blocks.*.scale_shift_table", f"{OURS}.scale_shift_table"),
    Rule("final_layer.scale_shift_table", "scale_shift_table"),
    Rule("final_layer.linear", "proj_out"),
)
_SIZES = (("csize_embedder", "resolution_embedder"), ("ar_embedder", "aspect_ratio_embedder"))
"""Alpha's larger models also get the size of the image."""

KEY_MAP = Table(
    Rule("x_embedder.proj", "pos_embed.proj"),
    Rule("pos_embed", "pos_embed.pos_embed"),
    *time_rules("adaln_single"),
    *(
        Rule(f"{theirs}.mlp.{2 * number}", f"adaln_single.emb.{ours}.linear_{number + 1}")
        for theirs, ours in _SIZES
        for number in (0, 1)
    ),
    *CROSS_ATTENTION,
    Rule("blocks.*.mlp.fc1", f"{OURS}.ff.net.0.proj"),
    Rule("blocks.*.mlp.fc2", f"{OURS}.ff.net.2"),
    *LAST,
)
