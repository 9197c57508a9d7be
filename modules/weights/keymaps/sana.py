"""Sana."""

from modules.weights.keymaps.base import Rule, Table
from modules.weights.keymaps.pixart import CROSS_ATTENTION, LAST, OURS, time_rules

KEY_MAP = Table(
    Rule("x_embedder.proj", "patch_embed.proj"),
    *time_rules("time_embed"),
    *CROSS_ATTENTION,
    Rule("blocks.*.mlp.inverted_conv.conv", f"{OURS}.ff.conv_inverted"),
    Rule("blocks.*.mlp.point_conv.conv", f"{OURS}.ff.conv_point"),
    Rule("attention_y_norm", "caption_norm"),
    *(
        Rule(f"blocks.*.{theirs}.{part}_norm", f"{OURS}.{ours}.norm_{part}")
        for theirs, ours in (("attn", "attn1"), ("cross_attn", "attn2"))
        for part in "qk"
    ),
    Rule("blocks.*.mlp.depth_conv.conv", f"{OURS}.ff.conv_depth"),
    *LAST,
)
