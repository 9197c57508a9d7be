"""Names of repositories on the hub: ``owner/model``, or ``owner/model@revision`` for one state of it."""

from __future__ import annotations

import re

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[A-Za-z0-9][\w./-]*)?")


def repository(name: str) -> str:
    """A name without its revision."""
    return name.partition("@")[0] if HUB_NAME.fullmatch(name) else name


def at_revision(name: str) -> dict[str, str]:
    """The argument of the hub's functions that asks for the revision in a name; none if the name has none."""
    revision = name.partition("@")[2] if HUB_NAME.fullmatch(name) else ""
    return {"revision": revision} if revision else {}
