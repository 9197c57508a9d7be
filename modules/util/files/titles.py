"""The title that a file of weights has inside, which it keeps when it gets another name."""

from __future__ import annotations

import functools
import stat
from pathlib import Path

from modules.util.errors import UserError
from modules.util.jsonio import parse_json

TITLE = "modelspec.title"
_MOST_HEADER_BYTES = 16 << 20
_MOST_LETTERS = 200


def title_of(path: Path) -> str:
    """The title in the metadata of a safetensors file; empty where there is none that can be read, which loading
    reports. A file is read again only once it has changed.
    """
    if path.suffix.lower() != ".safetensors":
        return ""
    try:
        about = path.stat()
    except (OSError, ValueError):
        # a name on the hub, or no path at all
        return ""
    if not stat.S_ISREG(about.st_mode):
        # opening a FIFO would wait for somebody who writes
        return ""
    return _read(path, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _read(path: Path, size: int, changed: int) -> str:
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MOST_HEADER_BYTES, size - 8):
                return ""
            header = parse_json(stream.read(length), "header of a model")
    except (OSError, UserError):
        return ""
    facts = header.get("__metadata__") if isinstance(header, dict) else None
    title = facts.get(TITLE) if isinstance(facts, dict) else None
    return title[:_MOST_LETTERS] if isinstance(title, str) else ""
