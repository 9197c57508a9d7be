"""Ideogram 4: the names of diffusers, with query, key and value in one layer."""

from modules.weights.keymaps.base import Rule, Table

KEY_MAP = Table(
    Rule("layers.*.attention.qkv", tuple(f"layers.*.attention.to_{part}" for part in "qkv")),
    Rule("layers.*.attention.o", "layers.*.attention.to_out.0"),
)
