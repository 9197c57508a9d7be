"""Damaged and hostile input for every reader: drawn from its name and a number, so that each can be made again.

Bytes are flipped, cut, repeated and spliced; JSON is changed by its grammar too: such inputs reach further.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from tests.guard import Guard

LONGEST_S, MOST_MIB = 2.0, 256
_TOKENS = (
    b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"[", b"{", b'"', b"]}", b",", b"NaN", b"1e999", b"9" * 400, b"-1",
    b'{"a":' * 40, b"[" * 3000, b"\\ud800", b"\\u0000", b"null", b"true", b"../", b"/dev/zero", b"\n", b"\xef\xbb\xbf",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**400, -0.5, 1e308, "", "x" * 5000, "..", "../../x", "/dev/zero", "C:\\x",
    "a\0b",
    "\u202etxt.png", "CON", [], {}, [[]] * 3, {"a": {"b": []}}, "NaN", ["x"] * 300, -(10**400), "\n",
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """What is fuzzed.

    Args:
        seeds: sound inputs.
        read: reads the file; raises what it raises.
        expected: what it may raise.
        grammar: whether the seeds are JSON, which is then changed as such in half of the inputs.
    """

    seeds: tuple[bytes, ...]
    read: Callable[[Path], object]
    expected: tuple[type[Exception], ...] = (UserError,)
    grammar: bool = False


@dataclass
class Tally:
    """What a reader did with its inputs."""

    name: str
    inputs: int = 0
    accepted: int = 0
    crashes: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    peak_mib: float = 0.0
    seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        large = [f"{self.name}: {self.peak_mib:.0f} MiB more"] if self.peak_mib > MOST_MIB else []
        return [*self.crashes, *self.slow, *self.outside, *large]


def damaged(seed: bytes, seeds: tuple[bytes, ...], draw: random.Random) -> bytes:
    """Bytes changed in a few places."""
    data = bytearray(seed)
    for _ in range(draw.choice((1, 1, 2, 3, 8, 30))):
        at, action = draw.randrange(len(data) + 1), draw.randrange(6)
        if action == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif action == 1:
            data[at:at] = draw.choice(_TOKENS)
        elif action == 2:
            del data[at : at + draw.choice((1, 2, 4, 16, 300))]
        elif action == 3:
            data[at:at] = data[at : at + draw.choice((4, 40, 400))] * draw.choice((2, 3, 50))
        elif action == 4:
            other = draw.choice(seeds)
            start = draw.randrange(len(other) + 1)
            data[at:at] = other[start : start + 400]
        elif draw.random() < 0.3:
            del data[at:]
    return bytes(data[: 1 << 20])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def regrown(seed: bytes, draw: random.Random) -> bytes:
    """JSON with some values replaced, taken away, renamed or doubled."""
    lines = seed.splitlines() if b"\n{" in seed else [seed]
    made = []
    for line in lines:
        holder = [json.loads(line)]
        for _ in range(draw.choice((1, 1, 2, 5))):
            container, key = draw.choice(list(_places(holder)))
            action = draw.randrange(5)
            if action < 3 or container is holder:
                container[key] = copy.deepcopy(draw.choice(_VALUES))
            elif action == 3:
                del container[key]
            elif isinstance(container, dict):
                container[str(draw.choice(_VALUES))[:300]] = container.pop(key)
            else:
                container.append(json.loads(json.dumps(container[key])))
        made.append(json.dumps(holder[0], ensure_ascii=draw.random() < 0.5).encode())
    return b"\n".join(made)


def made(reader: Reader, name: str, number: int) -> bytes:
    """The input of a number."""
    draw = random.Random(f"{name} {number}")
    seed = draw.choice(reader.seeds)
    return regrown(seed, draw) if reader.grammar and number % 2 else damaged(seed, reader.seeds, draw)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(
    folder: Path, name: str, reader: Reader, numbers: Iterator[int] | range, until: float = 0.0
) -> Tally:
    """Have a reader read its inputs.

    Args:
        until: of ``time.process_time``; 0 for all numbers.
    """
    tally, path = Tally(name), folder / "case" / "input.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in reader.seeds:
        path.write_bytes(seed)
        read_input(reader, path, f"{name} sound input", Tally(name))
    guard, before, start = Guard(folder / f"person-{name.replace(' ', '-')}"), _peak(), time.process_time()
    for number in numbers:
        if until and time.process_time() > until:
            break
        path.write_bytes(made(reader, name, number))
        read_input(reader, path, f"{name} {number}", tally)
        tally.inputs += 1
    tally.seconds, tally.peak_mib = time.process_time() - start, _peak() - before
    try:
        guard.check()
    except AssertionError as error:
        tally.outside.append(f"{name}: {error}")
    return tally


def read_input(reader: Reader, path: Path, label: str, tally: Tally) -> None:
    """Read a file, and count what came of it."""
    start = time.process_time()
    try:
        reader.read(path)
        tally.accepted += 1
    except reader.expected:
        pass
    except Exception:  # noqa: BLE001 - anything at all is what is looked for
        tally.crashes.append(f"{label}: {traceback.format_exc()[-900:]}")
    if (took := time.process_time() - start) > LONGEST_S:
        tally.slow.append(f"{label}: {took:.1f} s")
