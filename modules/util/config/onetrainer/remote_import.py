"""Import of training on another computer: host and user, but nothing that rents or starts a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes

Data = dict[str, Any]
_FOLDER = "tastemaker"
"""Our folder, inside the one that holds their program."""


def import_remote(given: Mapping[str, Any], full: Mapping[str, Any], notes: Notes) -> Data:
    """The computer that a OneTrainer config trains on, if any."""
    cloud = full.get("cloud")
    if not isinstance(cloud, Mapping) or not cloud.get("enabled"):
        return {}
    secrets = given.get("secrets")
    where = secrets.get("cloud") if isinstance(secrets, Mapping) else None
    where = where if isinstance(where, Mapping) else {}
    made = {name: where.get(name) for name in ("host", "port", "user", "key_file")}
    found = {name: value for name, value in made.items() if value not in (None, "", 0, "0")}
    if isinstance(port := found.get("port"), str) and port.isdecimal():
        found["port"] = int(port)
    if isinstance(folder := cloud.get("remote_dir"), str) and folder.strip():
        found["directory"] = f"{folder.rstrip('/')}/{_FOLDER}"
    if "host" in found:
        notes.say("cloud", "start it with scripts/train_remote.py; no computer is rented or switched off")
    else:
        notes.say("cloud", "no computer is rented: set remote.host, then use scripts/train_remote.py")
    return {"remote": found}
