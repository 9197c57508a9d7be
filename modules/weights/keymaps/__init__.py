"""Names of a denoiser's layers in the published checkpoints of its family, one module per scheme."""

from __future__ import annotations

import importlib

from modules.weights.keymaps.base import KeyMap, Table


def get_key_map(name: str) -> KeyMap:
    """The naming scheme in a family's spec: the ``KEY_MAP`` of the module here with this name. The empty name keeps
    diffusers' names.
    """
    return importlib.import_module(f"{__name__}.{name}").KEY_MAP if name else Table()
