"""Families published with the names diffusers has."""

from modules.weights.keymaps.base import Table

KEY_MAP = Table(())
