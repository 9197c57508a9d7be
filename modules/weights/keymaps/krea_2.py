"""Krea 2: short names, and the six vectors of a block's modulation in one row."""

from modules.weights.keymaps.base import Rule, Table

_BLOCKS = (
    ("blocks.*", "transformer_blocks.*"),
    ("txtfusion.layerwise_blocks.*", "text_fusion.layerwise_blocks.*"),
    ("txtfusion.refiner_blocks.*", "text_fusion.refiner_blocks.*"),
)
_ATTENTION = (("wq", "to_q"), ("wk", "to_k"), ("wv", "to_v"), ("wo", "to_out.0"), ("gate", "to_gate"))

KEY_MAP = Table(
    Rule("first", "img_in"),
    Rule("tmlp.0", "time_embed.linear_1"),
    Rule("tmlp.2", "time_embed.linear_2"),
    Rule("tproj.1", "time_mod_proj"),
    Rule("txtmlp.0", "txt_in.norm", weight="scale"),
    Rule("txtmlp.1", "txt_in.linear_1"),
    Rule("txtmlp.3", "txt_in.linear_2"),
    Rule("txtfusion.projector", "text_fusion.projector"),
    *(
        Rule(f"{theirs}.attn.{name}", f"{ours}.attn.{own}")
        for theirs, ours in _BLOCKS
        for name, own in _ATTENTION
    ),
    *(
        Rule(f"{theirs}.attn.qknorm.{part}norm", f"{ours}.attn.norm_{part}", weight="scale")
        for theirs, ours in _BLOCKS
        for part in "qk"
    ),
    *(
        Rule(f"{theirs}.mlp.{part}", f"{ours}.ff.{part}")
        for theirs, ours in _BLOCKS
        for part in ("gate", "up", "down")
    ),
    *(Rule(f"{theirs}.prenorm", f"{ours}.norm1", weight="scale") for theirs, ours in _BLOCKS),
    *(Rule(f"{theirs}.postnorm", f"{ours}.norm2", weight="scale") for theirs, ours in _BLOCKS),
    Rule("blocks.*.mod.lin", "transformer_blocks.*.scale_shift_table", flat=True),
    Rule("last.linear", "final_layer.linear"),
    Rule("last.norm", "final_layer.norm", weight="scale"),
    Rule("last.modulation.lin", "final_layer.scale_shift_table"),
)
