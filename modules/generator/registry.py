"""Generators by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from modules.generator.A1111 import A1111
from modules.generator.ComfyUi import ComfyUi
from modules.generator.Generator import Generator
from modules.generator.OwnSampler import OwnSampler
from modules.generator.SwarmUi import SwarmUi
from modules.util.errors import ConfigError

Settings = Mapping[str, Any]
GENERATORS: dict[str, Callable[[Settings], Generator]] = {
    "own": OwnSampler,
    "comfyui": ComfyUi,
    "swarmui": SwarmUi,
    "a1111": A1111,
}
"""Key, as in ``project.json``, to the factory of the generator."""


def make_generator(key: str, settings: Settings) -> Generator:
    """Create the generator of a project. Raises ``ConfigError`` for an unknown key."""
    if key not in GENERATORS:
        raise ConfigError(f"there is no generator {key!r}", "--generator", f"known: {', '.join(GENERATORS)}")
    return GENERATORS[key](settings)
