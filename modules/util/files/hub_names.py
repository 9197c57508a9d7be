"""Names of hub repositories: ``owner/model``, or ``owner/model@revision`` for a certain revision."""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

_SEGMENT = r"[A-Za-z0-9][\w.-]*"
HUB_NAME = re.compile(rf"{_SEGMENT}/{_SEGMENT}(@[A-Za-z0-9][\w./-]*)?")
_FILE = re.compile(rf"({_SEGMENT}/{_SEGMENT})((?:/{_SEGMENT})*)")

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    TypeError,
    AttributeError,
    EOFError,
    UnpicklingError,
)
"""Exceptions raised on reading a damaged or hostile model. No pickle is run."""


def repository(name: str) -> str:
    """The name without its revision."""
    return name.partition("@")[0] if HUB_NAME.fullmatch(name) else name


def at_revision(name: str) -> dict[str, str]:
    """The keyword argument of hub functions for the revision in a name; empty if it has none."""
    revision = name.partition("@")[2] if HUB_NAME.fullmatch(name) else ""
    return {"revision": revision} if revision else {}


def file_on_hub(name: str) -> tuple[str, str]:
    """The repository and file on the hub that a name can refer to; both empty for a local path.

    Args:
        name: ``owner/name/file``, or ``owner/name`` of a repository with one file.
    """
    match = _FILE.fullmatch(name)
    path = Path(name)
    if match is None or path.is_dir() or path.parent.is_dir():
        return "", ""
    return match[1], match[2].removeprefix("/")


def fetched(kind: Any, source: str, **options: Any) -> Any:
    """Load a part of a model from a folder, or from a repository at the revision in its name.

    Args:
        kind: a class of transformers with ``from_pretrained``.
    """
    if not Path(source).exists():
        options |= at_revision(source)
        source = repository(source)
    return kind.from_pretrained(source, **options)
