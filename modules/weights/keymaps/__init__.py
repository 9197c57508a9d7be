"""Names of a denoiser's layers in the published checkpoints of its family, one module per scheme."""

from __future__ import annotations

import importlib

from modules.weights.keymaps.base import KeyMap

SCHEMES = {
    "": "identity",
    "anima": "anima",
    "latent-diffusion": "latent_diffusion",
    "flux": "flux",
    "flux-2": "flux_2",
    "ideogram-4": "ideogram_4",
    "krea-2": "krea_2",
    "longcat-image": "longcat_image",
    "lumina-2": "lumina_2",
    "qwen-2.1": "qwen_21",
    "stable-diffusion-3": "stable_diffusion_3",
    "pixart": "pixart",
    "sana": "sana",
    "z-image": "z_image",
}
"""``FamilySpec.key_map`` -> module here with a ``KEY_MAP``."""


def get_key_map(name: str) -> KeyMap:
    """The naming scheme in a family's spec; the empty name keeps diffusers' names. Raises ``KeyError`` if unknown."""
    module = importlib.import_module(f"modules.weights.keymaps.{SCHEMES[name]}")
    return module.KEY_MAP  # type: ignore[no-any-return]
