"""Families published with the names diffusers has."""

from modules.adapter.keymaps.base import Table

KEY_MAP = Table(())
