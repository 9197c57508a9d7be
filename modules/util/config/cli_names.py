"""Command line arguments that are names, or settings of single model parts (``transformer=FILE``)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence

from modules.util.config.faults import did_you_mean
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError


def known_word(word: str | None, known: Iterable[str], option: str, what: str) -> None:
    """Refuse an unknown name; ``None`` means that no name was given.

    Args:
        option: the option it was given with.
        what: what it names.

    Raises:
        ConfigError: the name is unknown. It suggests the nearest known one.
    """
    names = [str(name) for name in known]
    if word is not None and word not in names:
        likely = did_you_mean(word, names, listed=0)
        hint = f"{likely} " if likely else ""
        raise ConfigError(f"unknown {what} {word}", option, f"{hint}known: {', '.join(names)}")


def add_part_option(parser: ArgumentParser) -> None:
    """Add the repeatable option ``--part``. Read it with ``part_settings``."""
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="PART=SOURCE",
        help="take a part from elsewhere, like PART.model_name in a config: a file, a folder or a hub name",
    )


def part_settings(words: Sequence[str], option: str, setting: str, family: str) -> dict[str, str]:
    """Parse ``PART=VALUE`` or, as in configs, ``PART.setting=VALUE``. Returns part name -> value.

    Args:
        option: the option they were given with, for errors.
        setting: the name of that setting in a part of a config.
        family: the model type, which determines the parts.

    Raises:
        ConfigError: the argument is malformed, or names a part that the family lacks or that is set twice.
    """
    known = ModelType(family).spec.weight_parts
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
