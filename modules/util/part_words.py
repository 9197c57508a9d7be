"""Words of a command line that set something of single parts of a model: ``transformer=FILE``."""

from __future__ import annotations

from collections.abc import Sequence

from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError


def part_settings(words: Sequence[str], option: str, setting: str, family: str) -> dict[str, str]:
    """Part name -> value, of ``PART=VALUE`` or, as configs call it, ``PART.setting=VALUE``.

    Args:
        option: they were given with, for errors.
        setting: the name of that setting in a part of a config.
        family: the model type that says which parts there are.

    Raises:
        ConfigError: not such a word, a part the family has not, or one that is set twice.
    """
    known = ModelType(family).parts
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        part = name.strip().removesuffix(f".{setting}")
        hint = f"parts of {ModelType(family).label}: {', '.join(known)}"
        if not equals or not value.strip():
            raise ConfigError(f"{word!r} is not PART=VALUE", option, hint)
        if part not in known:
            raise ConfigError(f"there is no part {part!r}", option, hint)
        if part in found:
            raise ConfigError(f"{part} is given twice", option)
        found[part] = value.strip()
    return found
