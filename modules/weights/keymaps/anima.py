"""Anima: the names of NVIDIA's Cosmos Predict2."""

from modules.weights.keymaps.base import Rule, Table

_OURS = "transformer_blocks.*"
_ATTENTION = (
    ("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("output_proj", "to_out.0"), ("q_norm", "norm_q"),
    ("k_norm", "norm_k"),
)  # fmt: skip
_MODULATED = (("self_attn", "norm1"), ("cross_attn", "norm2"), ("mlp", "norm3"))

KEY_MAP = Table(
    Rule("x_embedder.proj.1", "patch_embed.proj"),
    Rule("t_embedder.1.linear_1", "time_embed.t_embedder.linear_1"),
    Rule("t_embedder.1.linear_2", "time_embed.t_embedder.linear_2"),
    Rule("t_embedding_norm", "time_embed.norm"),
    *(
        Rule(f"blocks.*.{theirs}.{name}", f"{_OURS}.{ours}.{own}")
        for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for name, own in _ATTENTION
    ),
    *(
        Rule(f"blocks.*.adaln_modulation_{theirs}.{number}", f"{_OURS}.{ours}.linear_{number}")
        for theirs, ours in _MODULATED
        for number in (1, 2)
    ),
    Rule("blocks.*.mlp.layer1", f"{_OURS}.ff.net.0.proj"),
    Rule("blocks.*.mlp.layer2", f"{_OURS}.ff.net.2"),
    Rule("final_layer.adaln_modulation.1", "norm_out.linear_1"),
    Rule("final_layer.adaln_modulation.2", "norm_out.linear_2"),
    Rule("final_layer.linear", "proj_out"),
)
