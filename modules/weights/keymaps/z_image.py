"""Z-Image: the names of diffusers but for attention and the ends."""

from modules.weights.keymaps.base import Rule, Table

_BLOCKS = ("layers.*", "context_refiner.*", "noise_refiner.*")

KEY_MAP = Table(
    # its library has a pair of these for each patch size
    Rule("x_embedder", "all_x_embedder.2-1"),
    Rule("final_layer.linear", "all_final_layer.2-1.linear"),
    Rule("final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1"),
    *(
        Rule(f"{block}.attention.qkv", tuple(f"{block}.attention.to_{part}" for part in "qkv"))
        for block in _BLOCKS
    ),
    *(
        Rule(f"{block}.attention.{part}_norm", f"{block}.attention.norm_{part}")
        for block in _BLOCKS
        for part in "qk"
    ),
    *(Rule(f"{block}.attention.out", f"{block}.attention.to_out.0") for block in _BLOCKS),
)
