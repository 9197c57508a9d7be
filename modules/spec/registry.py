"""Finds the specs in their folders: one file for each new thing, no list to maintain."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from modules.spec.FamilySpec import FamilySpec
from modules.spec.ModeSpec import ModeSpec

T = TypeVar("T")


def found_in(package: str, kind: type[T]) -> Iterator[tuple[str, T]]:
    """(name, value) of every public constant of a type in the modules of a package, files by name, each in its order.
    """
    path = importlib.import_module(package).__path__
    for module in sorted(each.name for each in pkgutil.iter_modules(path)):
        for name, value in vars(importlib.import_module(f"{package}.{module}")).items():
            if isinstance(value, kind) and not name.startswith("_"):
                yield name, value


def _families() -> Mapping[str, FamilySpec]:
    found: dict[str, FamilySpec] = {}
    for name, spec in found_in("modules.spec.families", FamilySpec):
        if spec.key != name or found.get(name, spec) is not spec:
            raise RuntimeError(f"the family {spec.key} is called {name}; name it once, by its key")
        found[name] = spec
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: item[1].order)))


FAMILIES = _families()
"""Model type -> spec, in display order."""
DENOISERS = tuple(sorted({spec.denoiser for spec in FAMILIES.values()}, reverse=True))
TEXT_ENCODERS = tuple(sorted({name for spec in FAMILIES.values() for name in spec.text_encoders}))
PARTS = (*DENOISERS, *TEXT_ENCODERS, *sorted({spec.vae for spec in FAMILIES.values()}))
"""The names of parts with weights in any family. A config has a section for each."""


def _modes() -> Mapping[str, ModeSpec]:
    found = sorted(
        (spec for _, spec in found_in("modules.spec.modes", ModeSpec)), key=lambda m: (m.order, m.key)
    )
    made = {spec.key: spec for spec in found}
    if len(made) < len(found):
        raise RuntimeError(f"two modes have one key: {[spec.key for spec in found]}")
    return MappingProxyType(made)


MODES = _modes()
"""Value of ``rlhf_mode`` -> spec, in display order."""


def modes_with(rows: str) -> tuple[str, ...]:
    """The keys of the modes that show a group of settings, see ``ModeSpec.shows``.

    Raises:
        KeyError: no mode does.
    """
    keys = tuple(key for key, mode in MODES.items() if mode.shows(rows))
    if not keys:
        raise KeyError(f"no mode in modules/spec/modes shows the settings {rows!r}")
    return keys
