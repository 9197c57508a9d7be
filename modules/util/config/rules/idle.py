"""Settings that are set but cannot act, because others switch them off."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.rules.rules import ConfigWarning
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.settings import iter_settings, unmet
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted

_MOST_NAMED = 5
Reason = tuple[str, ...]


def idle_settings(config: TrainConfig, told: Collection[str]) -> Iterator[ConfigWarning]:
    """Name the settings with another value than the default that have no effect, together where the reason is the same.

    Args:
        told: fields that already have another finding.
    """
    reasons: dict[Reason, list[str]] = {}
    for path, reason in _all_idle(config):
        if not any(f"{path}.".startswith(f"{field}.") for field in told):
            reasons.setdefault(reason, []).append(path)
    for reason, (first, *others) in reasons.items():
        message = f"has no effect while {' and '.join(reason)}"
        if others:
            named = others[:_MOST_NAMED]
            if len(others) > _MOST_NAMED:
                named.append(counted(len(others) - _MOST_NAMED, "more setting", "more settings"))
            message += f"; the same holds for {', '.join(named)}"
        yield ConfigWarning(message, first)


def _all_idle(config: TrainConfig) -> Iterator[tuple[str, Reason]]:
    yield from _idle_in(config, TrainConfig, "")
    for number, concept in enumerate(config.concepts or ()):
        yield from _idle_in(concept, ConceptConfig, f"concepts[{number}].")
    for number, sample in enumerate(config.samples or ()):
        yield from _idle_in(sample, SampleConfig, f"samples[{number}].")


def _idle_in(part: BaseConfig, kind: type[BaseConfig], prefix: str) -> Iterator[tuple[str, Reason]]:
    """Paths of the settings of an object that have no effect, with the values that switch them off."""
    data = part.to_dict()

    def value_of(path: str) -> Any:
        found: Any = data
        for name in path.split("."):
            found = found[name]
        return found

    for one in iter_settings(kind):
        if one.visible and not one.hidden and value_of(one.path) != one.default:
            missing = unmet(one.visible, value_of)
            if missing:
                yield f"{prefix}{one.path}", tuple(f"{prefix}{name} is {_shown(value_of(name))}" for name in missing)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "empty" if value in (None, "", [], {}) else str(value)
