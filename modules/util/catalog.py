"""Names that configs may hold for what lives where torch is: rewards and accelerators, for forms and checks.

``scripts/generate_docs.py`` writes the list from the registries. Files in ``modules/reward`` and
``modules/accelerator`` may add more, so a name that is not here is not wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from modules.util.jsonio import read_json
from modules.util.program_files import RESOURCES

CATALOG = RESOURCES / "schema" / "catalog.json"


@dataclass(frozen=True)
class Entry:
    """One thing with a name.

    Args:
        name: as configs have it.
        about: what it is, in a few words.
        params: the parameters it takes, required ones first.
        required: those without a default.
        slot: of an accelerator, the list it belongs to: ``shared`` or ``rollout``.
        needs: what has to be installed or downloaded for it; empty for nothing.
    """

    name: str
    about: str
    params: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    slot: str = ""
    needs: str = ""

    def help(self) -> str:
        """One or two sentences about it and its parameters."""
        about = f"{self.about}. Needs {self.needs}." if self.needs else f"{self.about}."
        if not self.params:
            return f"{about} It has no parameters."
        names = ", ".join(f"{name} (required)" if name in self.required else name for name in self.params)
        return f"{about} Parameters: {names}."


@lru_cache
def rewards() -> Mapping[str, Entry]:
    """The rewards that come with the program, by name; those that need nothing first."""
    return _entries("rewards")


@lru_cache
def accelerators() -> Mapping[str, Entry]:
    """The accelerators that come with the program, by name; parameters of single cache methods are not listed."""
    return _entries("accelerators")


def _entries(what: str) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in read_json(CATALOG, "catalog")[what]:
        lists = {name: tuple(entry[name]) for name in ("params", "required")}
        found[entry["name"]] = Entry(**{**entry, **lists})
    return MappingProxyType(found)


def unknown_name(name: str, known: Mapping[str, Entry]) -> str:
    """Why a name is suspicious, with the nearest known one; empty if it is known."""
    if name in known:
        return ""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"{name!r} does not come with the program" + (f"; did you mean {near[0]!r}?" if near else "")
