"""Qwen-Image 2.1: the names of diffusers, with the gate of a block's network in one layer with what it gates."""

from modules.weights.keymaps.base import Rule, Table

_NETWORK = "transformer_blocks.*.img_mlp"

KEY_MAP = Table(Rule(f"{_NETWORK}.gate_up", (f"{_NETWORK}.gate_layer", f"{_NETWORK}.proj")))
