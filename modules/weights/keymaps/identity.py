"""Families published with diffusers' names."""

from modules.weights.keymaps.base import Table

KEY_MAP = Table()
