"""All randomness of the program: independent streams named by purpose.

A stream is a CPU generator seeded with a blake2b digest of its name and its key, never with a counter and
never on an accelerator. The same run therefore draws the same numbers on any device, in any process layout
and after any resume. If more numbers are needed than a CPU can draw, ``hashed_bits`` computes them on the
device with integers only, so they too are the same everywhere.
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
    # called several times for each item of a run; one call is faster than one for each part
    joined = b"".join([_key_part(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


def _key_part(part: Key) -> bytes:
    kind = type(part)
    if kind is str:
        raw = part.encode()  # type: ignore[union-attr]
        return b"str:%d:%b" % (len(raw), raw)
    if not isinstance(part, (int, str, bool, float, bytes)):
        raise TypeError(f"a stream key is made of int, str, bool, float and bytes, not {kind.__name__}")
    text = part.hex() if isinstance(part, float) else part if isinstance(part, bytes) else str(part)
    raw = text if isinstance(text, bytes) else text.encode()
    return b"%b:%d:%b" % (kind.__name__.encode(), len(raw), raw)


def generator(stream: str, seed: int, *key: Key) -> torch.Generator:
    """A fresh CPU ``torch.Generator`` for stream ``stream`` of run ``seed`` at ``key``."""
    import torch

    made = torch.Generator(device="cpu")
    made.manual_seed(digest64(stream, seed, *key) & 0x7FFF_FFFF_FFFF_FFFF)
    return made


def seed_torch(seed: int) -> None:
    """Seed torch's own streams, on the CPU and on every accelerator there is.

    ``torch.manual_seed`` takes a thousand times as long on a machine without accelerators: for each kind of them it
    keeps the call and the stack of callers until one appears.
    """
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def python_random(stream: str, seed: int, *key: Key) -> random.Random:
    """A fresh ``random.Random`` for stream ``stream`` of run ``seed`` at ``key`` (no torch import)."""
    return random.Random(digest64(stream, seed, *key))


_32_BITS = 0xFFFFFFFF


def hashed_bits(
    key: int, start: int, count: int, bits: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Random integers below 2 ** ``bits``, (count,) int64: the sequence of a key from index ``start`` on.

    Args:
        key: 64 bits, for example a ``digest64``.
        bits: at most 24.
    """
    import torch

    place = torch.arange(start, start + count, dtype=torch.int64, device=device)
    mixed = _mixed((place + (key & _32_BITS)) & _32_BITS)
    mixed = _mixed(mixed ^ (key >> 32 & _32_BITS))
    return (mixed >> 8) & ((1 << bits) - 1)


def _mixed(value: torch.Tensor) -> torch.Tensor:
    """A bijection on 32 bits in which each output bit depends on all input bits (T. Mueller's integer hash)."""
    for _ in range(2):
        # the factor has 27 bits, so that no product exceeds 63
        value = (value ^ (value >> 16)) * 0x45D9F3B & _32_BITS
    return value ^ (value >> 16)
