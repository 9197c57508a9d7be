"""Fair comparison of alternatives in one process, and the table they are printed in."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

Work = Callable[[], object]


def run_child(
    script: str, *given: str, env: Mapping[str, str] | None = None, seconds: float | None = 600.0
) -> dict[str, Any]:
    """Run a script next to this one in a separate process, and return the object that it prints in its last line.

    Raises:
        RuntimeError: it failed, or it says that it imported ``heavy`` packages, which a window must not.
    """
    command = [sys.executable, str(Path(__file__).with_name(script)), *given]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found.get("heavy"):
        raise RuntimeError(f"{script} imported {', '.join(found['heavy'])}")
    return found


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of repeated measurements."""

    low: float
    middle: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Quartiles:
        """Quartiles of at least one value, by linear interpolation."""
        low, middle, high = quantiles(values, method="inclusive") if len(values) > 1 else 3 * [*values]
        return Quartiles(low, middle, high)


@dataclass(frozen=True)
class Result:
    """One line of a benchmark.

    Args:
        case: what was done.
        ratio: its cost as a multiple of the benchmark's baseline (1.0 for the baseline itself).
        limit: highest allowed ``ratio``; ``None`` without a goal.
        memory_ratio: memory as a multiple of the baseline's, if it was measured.
        memory_limit: highest allowed ``memory_ratio``.
        extra: further figures for the JSON file; those named in ``columns`` of the table are shown.
    """

    model: str
    case: str
    ratio: float
    limit: float | None = None
    memory_ratio: float | None = None
    memory_limit: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def within(self) -> bool:
        """True if no limit is exceeded."""
        time_ok = self.limit is None or self.ratio <= self.limit
        memory_ok = (
            self.memory_limit is None or self.memory_ratio is None or self.memory_ratio <= self.memory_limit
        )
        return time_ok and memory_ok

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "case": self.case,
            "ratio": self.ratio,
            "limit": self.limit,
            "memory_ratio": self.memory_ratio,
            "memory_limit": self.memory_limit,
            "within": self.within,
            **self.extra,
        }


def interleave(
    cases: Mapping[str, Work],
    rounds: int,
    *,
    warmup: int = 1,
    clock: Callable[[], float] = time.process_time,
    prepare: Work = lambda: None,
    settle: Work = lambda: None,
) -> dict[str, list[float]]:
    """Time every case once per round, so that drift of the machine affects all cases equally.

    The order is shuffled in every round: what runs before a case leaves its traces in caches and
        allocators.

    Args:
        cases: what to run, by name.
        rounds: measured rounds.
        warmup: rounds before them that are not measured.
        clock: seconds; processor time by default, which a busy machine disturbs less than wall time.
        prepare: run before each case, outside the time.
        settle: run before every clock reading, to synchronise with a device.

    Returns:
        Seconds of each case by round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(-warmup, rounds):
        names = list(cases)
        random.Random(index).shuffle(names)
        for name in names:
            prepare()
            settle()
            start = clock()
            cases[name]()
            settle()
            if index >= 0:
                seconds[name].append(clock() - start)
    return seconds


def ratios(seconds: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Quartiles]:
    """Quartiles of each case's time over the baseline's of the same round."""
    return {
        name: Quartiles.of([own / base for own, base in zip(values, seconds[baseline], strict=True)])
        for name, values in seconds.items()
    }


def table(results: Sequence[Result]) -> str:
    """Plain text: one line per result, with its figure and limit."""
    header = ["model", "case", "ratio", "quartiles", "limit", "memory", "limit", ""]
    counted = any("predicted_bytes" in result.extra for result in results)
    if counted:
        header[3:3] = ["predicted", "measured"]
    rows = [header]
    for result in results:
        quartiles = result.extra.get("quartiles")
        rows.append(
            [
                result.model,
                result.case,
                f"{result.ratio:.3f}",
                *(_mebibytes(result) if counted else ()),
                f"{quartiles[0]:.3f}-{quartiles[1]:.3f}" if quartiles else "",
                "" if result.limit is None else f"<= {result.limit:.3f}",
                "" if result.memory_ratio is None else f"{result.memory_ratio:.3f}",
                "" if result.memory_limit is None else f"<= {result.memory_limit:.3f}",
                _verdict(result),
            ]
        )
    return in_columns(rows)


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """Plain text of rows whose first is the heads of their columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lined = [rows[0], ["-" * width for width in widths], *rows[1:]]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in lined)
    return "\n".join(line.rstrip() for line in lines)


def _mebibytes(result: Result) -> list[str]:
    sizes = (result.extra.get(name) for name in ("predicted_bytes", "measured_bytes"))
    return ["" if size is None else f"{size / 2**20:.1f} MiB" for size in sizes]


def _verdict(result: Result) -> str:
    if result.limit is None and result.memory_limit is None:
        return ""
    return "ok" if result.within else "OVER"
