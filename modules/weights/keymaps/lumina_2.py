"""Lumina 2: query, key and value in one layer, of which the query has more rows than the others."""

from modules.weights.keymaps.base import Rule, Table

_MODULATED = ("layers.*", "noise_refiner.*")
_BLOCKS = (*_MODULATED, "context_refiner.*")

KEY_MAP = Table(
    Rule("cap_embedder.0", "time_caption_embed.caption_embedder.0"),
    Rule("cap_embedder.1", "time_caption_embed.caption_embedder.1"),
    Rule("t_embedder.mlp.0", "time_caption_embed.timestep_embedder.linear_1"),
    Rule("t_embedder.mlp.2", "time_caption_embed.timestep_embedder.linear_2"),
    Rule("final_layer.adaLN_modulation.1", "norm_out.linear_1"),
    Rule("final_layer.linear", "norm_out.linear_2"),
    *(
        Rule(f"{block}.attention.qkv", tuple(f"{block}.attn.to_{part}" for part in "qkv"))
        for block in _BLOCKS
    ),
    *(
        Rule(f"{block}.attention.{part}_norm", f"{block}.attn.norm_{part}")
        for block in _BLOCKS
        for part in "qk"
    ),
    *(Rule(f"{block}.attention.out", f"{block}.attn.to_out.0") for block in _BLOCKS),
    *(
        Rule(f"{block}.feed_forward.w{number}", f"{block}.feed_forward.linear_{number}")
        for block in _BLOCKS
        for number in (1, 2, 3)
    ),
    *(Rule(f"{block}.adaLN_modulation.1", f"{block}.norm1.linear") for block in _MODULATED),
    *(Rule(f"{block}.attention_norm1", f"{block}.norm1.norm") for block in _MODULATED),
    Rule("context_refiner.*.attention_norm1", "context_refiner.*.norm1"),
    *(Rule(f"{block}.attention_norm2", f"{block}.norm2") for block in _BLOCKS),
)
