"""Selects the layers of a part that an adapter is attached to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from modules.model.compact import MAIN_MEMORY
from modules.model.dtypes import GGUF, NFLOAT_4
from modules.util.errors import ConfigError, UnsupportedError, list_offenders

CUSTOM = "custom"
FIELD = "layer_filter"


def adaptable_layers(module: nn.Module, convolutions: bool = True) -> list[str]:
    """Paths of the linear (and 2-d convolution) layers, in module order, looking through attached adapters.
    Grouped convolutions are left out, because they are already small and low rank means little for them.
    """
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d) if convolutions else (nn.Linear,)
    found: list[str] = []
    for name, layer in module.named_modules():
        if isinstance(layer, kinds) and getattr(layer, "groups", 1) == 1:
            path = name.removesuffix(".base_layer")
            if not any(piece.startswith(("lora_", "hada_", "lokr_", "oft_")) for piece in path.split(".")):
                found.append(path)
    return found


def check_readable(
    part: str, layers: Iterable[nn.Module], kind: str, decompose: bool, field: str = ""
) -> None:
    """Raise ``UnsupportedError`` if adapters of a type would read weights that are rounded, packed or
    elsewhere.

    DoRA uses the norms of the base's weights, and peft derives the shapes of LoHa and LoKr from them.

    Args:
        field: config field that requests the type, if it is not the usual one.
    """
    kept = {getattr(layer, "kept_as", "") for layer in layers} - {""}
    what = "DoRA has" if decompose else f"{kind} has"
    if not decompose:
        kept = kept & {NFLOAT_4, GGUF} if kind in ("LOHA", "LOKR") else set()
    for where in sorted(kept):
        settings = {MAIN_MEMORY: "offload_fraction", GGUF: "model_name to a file in 8 or 16 bits"}
        setting = settings.get(where, "weight_dtype")
        raise UnsupportedError(
            f"{what} to read the base's weights, which {part} keeps in {where}",
            field=field or ("lora_decompose" if decompose else "peft_type"),
            hint=f"change {part}.{setting}, or train a plain LORA",
        )


def filter_patterns(
    preset: str, custom: str, presets: Mapping[str, Sequence[str]], field: str = FIELD
) -> list[str]:
    """The patterns of a preset, or the entries of a comma-separated list for the preset ``custom``.

    Args:
        field: the setting with that list, for errors; the preset's is called the same with ``_preset``.

    Raises:
        ConfigError: the preset is unknown, or ``custom`` has no entry.
    """
    if preset == CUSTOM:
        entries = [entry.strip() for entry in custom.split(",") if entry.strip()]
        if not entries:
            raise ConfigError(
                "the custom layer filter is empty",
                field=field,
                hint="name parts of layer names, separated by commas, or choose a preset",
            )
        return entries
    if preset not in presets:
        raise ConfigError(
            f"unknown layer preset {preset!r} for this model",
            field=f"{field}_preset",
            hint=f"known: {', '.join([*presets, CUSTOM])}",
        )
    return list(presets[preset])


def select_layers(
    names: Sequence[str], patterns: Sequence[str], regex: bool = False, field: str = FIELD
) -> list[str]:
    """The names that contain (with ``regex``: match somewhere) at least one pattern; all without patterns.

    Args:
        field: the setting with the patterns, for errors.

    Raises:
        ConfigError: a pattern is not a regular expression, or matches nothing.
    """
    if not patterns:
        return list(names)
    matchers = _matchers(names, patterns, regex, field, "entries match no layer")
    return [name for name in names if any(matcher.search(name) for matcher in matchers.values())]


def by_pattern(
    names: Sequence[str], values: Mapping[str, float], regex: bool, field: str
) -> dict[str, float]:
    """The value of each name that contains (with ``regex``: matches somewhere) a pattern; the first one
    counts.

    Args:
        values: pattern -> value.
        field: their setting, for messages.

    Raises:
        ConfigError: a pattern is not a regular expression, or matches no name.
    """
    matchers = _matchers(names, list(values), regex, field, "patterns match no layer that is trained")
    found: dict[str, float] = {}
    for name in names:
        pattern = next((p for p, matcher in matchers.items() if matcher.search(name)), None)
        if pattern is not None:
            found[name] = values[pattern]
    return found


def _matchers(
    names: Sequence[str], patterns: Sequence[str], regex: bool, field: str, fault: str
) -> dict[str, re.Pattern[str]]:
    """The compiled patterns. Raises ``ConfigError`` if one is not a regular expression, or matches no name."""
    matchers = {pattern: _compile(pattern if regex else re.escape(pattern), field) for pattern in patterns}
    useless = [one for one in patterns if not any(matchers[one].search(name) for name in names)]
    if useless:
        raise ConfigError(
            f"these {fault}:\n{list_offenders(useless)}",
            field=field,
            hint=f"layer names look like {names[0]} or {names[-1]}" if names else None,
        )
    return matchers


def _compile(pattern: str, field: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}", field=field) from error
