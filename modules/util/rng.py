"""All randomness of the program: independent streams named by what they are for.

A stream is a CPU generator seeded with a blake2b digest of its name and its key, never with a counter and
never on an accelerator, so the same run draws the same numbers on any device, in any process layout and after
any resume.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Key = int | str | bool | float | bytes


def digest64(*parts: Key) -> int:
    """A stable unsigned 64-bit number for a tuple; types matter (1, "1", True and 1.0 all differ)."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        if not isinstance(part, (int, str, bool, float, bytes)):
            raise TypeError(
                f"a stream key is made of int, str, bool, float and bytes, not {type(part).__name__}"
            )
        raw = (
            part
            if isinstance(part, bytes)
            else (part.hex() if isinstance(part, float) else str(part)).encode()
        )
        hasher.update(f"{type(part).__name__}:{len(raw)}:".encode())
        hasher.update(raw)
    return int.from_bytes(hasher.digest(), "big")


def generator(stream: str, seed: int, *key: Key) -> torch.Generator:
    """A fresh CPU ``torch.Generator`` for stream ``stream`` of run ``seed`` at ``key``."""
    import torch

    made = torch.Generator(device="cpu")
    made.manual_seed(digest64(stream, seed, *key) & 0x7FFF_FFFF_FFFF_FFFF)
    return made


def python_random(stream: str, seed: int, *key: Key) -> random.Random:
    """A fresh ``random.Random`` for stream ``stream`` of run ``seed`` at ``key`` (no torch import)."""
    return random.Random(digest64(stream, seed, *key))
