"""Stable Diffusion 3 and 3.5: joint blocks of an image (x) and a text (context) stream."""

from modules.weights.keymaps.base import Rule, Table

_OURS, _IMAGE, _TEXT = "transformer_blocks.*", "joint_blocks.*.x_block", "joint_blocks.*.context_block"

KEY_MAP = Table(
    Rule("x_embedder.proj", "pos_embed.proj"),
    Rule("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
    Rule("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
    Rule("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
    Rule("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
    Rule(f"{_IMAGE}.attn.qkv", tuple(f"{_OURS}.attn.to_{part}" for part in "qkv")),
    Rule(f"{_IMAGE}.attn2.qkv", tuple(f"{_OURS}.attn2.to_{part}" for part in "qkv")),
    Rule(f"{_TEXT}.attn.qkv", tuple(f"{_OURS}.attn.add_{part}_proj" for part in "qkv")),
    Rule(f"{_IMAGE}.attn.proj", f"{_OURS}.attn.to_out.0"),
    Rule(f"{_IMAGE}.attn2.proj", f"{_OURS}.attn2.to_out.0"),
    Rule(f"{_TEXT}.attn.proj", f"{_OURS}.attn.to_add_out"),
    Rule(f"{_IMAGE}.adaLN_modulation.1", f"{_OURS}.norm1.linear"),
    # the last block's text stream only has a shift and a scale
    Rule(f"{_TEXT}.adaLN_modulation.1", f"{_OURS}.norm1_context.linear", swapped=True),
    Rule(f"{_IMAGE}.attn.ln_q", f"{_OURS}.attn.norm_q"),
    Rule(f"{_IMAGE}.attn.ln_k", f"{_OURS}.attn.norm_k"),
    Rule(f"{_TEXT}.attn.ln_q", f"{_OURS}.attn.norm_added_q"),
    Rule(f"{_TEXT}.attn.ln_k", f"{_OURS}.attn.norm_added_k"),
    Rule(f"{_IMAGE}.attn2.ln_q", f"{_OURS}.attn2.norm_q"),
    Rule(f"{_IMAGE}.attn2.ln_k", f"{_OURS}.attn2.norm_k"),
    Rule("pos_embed", "pos_embed.pos_embed"),
    Rule(f"{_IMAGE}.mlp.fc1", f"{_OURS}.ff.net.0.proj"),
    Rule(f"{_IMAGE}.mlp.fc2", f"{_OURS}.ff.net.2"),
    Rule(f"{_TEXT}.mlp.fc1", f"{_OURS}.ff_context.net.0.proj"),
    Rule(f"{_TEXT}.mlp.fc2", f"{_OURS}.ff_context.net.2"),
    Rule("final_layer.adaLN_modulation.1", "norm_out.linear", swapped=True),
    Rule("final_layer.linear", "proj_out"),
)
