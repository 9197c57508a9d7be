"""Commands to a running process: one small file each, processed exactly once.

The sender writes to a temporary name and renames the file. The trainer moves a file away before reading it.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.jsonio import write_text
from modules.util.owned_files import Owned

COMMANDS = ("stop", "backup", "sample", "save", "pause", "resume")
MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class Command:
    """One command. ``command`` events refer to its ``id``."""

    id: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


def post_command(folder: str | os.PathLike[str], kind: str, **arguments: Any) -> str:
    """Write a command to a run's ``commands`` folder. Returns its id.

    Raises:
        UserError: the command does not exist, or its arguments are too long.
    """
    if kind not in COMMANDS:
        raise UserError(f"there is no command {kind!r}", hint=f"possible: {', '.join(COMMANDS)}")
    name = f"{time.time_ns():020d}-{uuid.uuid4().hex}"
    text = json.dumps({"id": name, "kind": kind, "arguments": arguments}, allow_nan=False)
    if len(text) > MAX_BYTES:
        raise UserError(f"the arguments of {kind} are longer than {MAX_BYTES} bytes")
    write_text(Path(folder) / f"{name}.json", text)
    return name


def take_commands(folder: str | os.PathLike[str]) -> tuple[list[Command], list[str]]:
    """All commands, oldest first, and the names of invalid files, which are removed too."""
    taken: list[Command] = []
    refused: list[str] = []
    base = Path(folder)
    for path in sorted(base.glob("*.json")):
        if path.name.startswith(".") or not path.is_file():  # still being written, or not a command at all
            continue
        owned, mine = Owned(base, local=True), path.with_suffix(".taken")
        try:
            owned.move(path.name, mine.name, replace=True)
        except FileNotFoundError:
            continue
        command = _read(mine)
        owned.remove(mine.name)
        if command is None:
            refused.append(path.name)
        else:
            taken.append(command)
    return taken, refused


def _read(path: Path) -> Command | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("kind") not in COMMANDS or not isinstance(data.get("id"), str):
        return None
    arguments = data.get("arguments", {})
    return Command(data["id"], data["kind"], arguments) if isinstance(arguments, dict) else None
