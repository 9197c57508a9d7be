"""Size limits for both sides of a connection."""

from __future__ import annotations

import re

MARK = b"tastemaker far side 1"
"""First line of the far side. Anything a login shell prints comes before it."""
MAX_GREETING = 64 * 1024
MAX_MESSAGE = 64 << 20
"""Maximum length of a line of JSON in either direction, in bytes."""
MAX_PIECE = 4 << 20
"""Bytes of a file sent at once. A smaller file is sent whole."""
MAX_FILES = 200_000
MAX_FILE = 1 << 40
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
SHA256 = re.compile(r"[0-9a-f]{64}")
EVENTS, LOG = "events.jsonl", "log.txt"
GROWING = (EVENTS, LOG)
"""Append-only files of a run."""
