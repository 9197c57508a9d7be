"""Names of repositories on the hub: ``owner/model``, or ``owner/model@revision`` for one state of it."""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w./-]*)?")

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
"""What reading a damaged or hostile model ends with; no pickle is run."""


def repository(name: str) -> str:
    """A name without its revision."""
    return name.partition("@")[0] if HUB_NAME.fullmatch(name) else name


def at_revision(name: str) -> dict[str, str]:
    """The argument of the hub's functions that asks for the revision in a name; none if the name has none."""
    revision = name.partition("@")[2] if HUB_NAME.fullmatch(name) else ""
    return {"revision": revision} if revision else {}


def fetched(kind: Any, source: str, **options: Any) -> Any:
    """A part of a model from a folder, or from a repository at the revision its name may have.

    Args:
        kind: a class of transformers with ``from_pretrained``.
    """
    if not Path(source).exists():
        options |= at_revision(source)
        source = repository(source)
    return kind.from_pretrained(source, **options)
