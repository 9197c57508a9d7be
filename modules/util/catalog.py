"""Names of rewards and accelerators, for forms and checks that must not load torch.

``scripts/generate_docs.py`` writes the list from the registries. Files in ``modules/reward`` and
``modules/accelerator`` may add more, so an unlisted name is not necessarily wrong.
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
    """One reward or accelerator.

    Args:
        name: its name in configs.
        about: a short description.
        params: the parameters it takes, required ones first.
        required: the parameters without a default.
        slot: for accelerators, the list they belong to: ``shared`` or ``rollout``.
        needs: what must be installed or downloaded; empty for nothing.
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
    """The built-in rewards by name. Those without requirements come first."""
    return _entries("rewards")


@lru_cache
def accelerators() -> Mapping[str, Entry]:
    """The built-in accelerators by name. Parameters of single cache methods are not listed."""
    return _entries("accelerators")


def _entries(what: str) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in read_json(CATALOG, "catalog")[what]:
        lists = {name: tuple(entry[name]) for name in ("params", "required")}
        found[entry["name"]] = Entry(**{**entry, **lists})
    return MappingProxyType(found)


def unknown_name(name: str, known: Mapping[str, Entry]) -> str:
    """Return the reason why a name is suspicious, with the nearest known one; empty for a known name."""
    if name in known:
        return ""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"{name!r} does not come with the program" + (f"; did you mean {near[0]!r}?" if near else "")
