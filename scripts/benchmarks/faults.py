"""Injected faults (kills, full disks, damage, hostile names and input): what came of them, and what is allowed."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks._measure import Result

STRICT = True
"""A figure above its limit makes the command exit with 1, even without ``--check``."""
SIZES = {"usual": (), "long": (2000, 1000, 60, 20, 20_000, 1, 500, 100), "quick": (4, 4, 0, 1, 10, 40, 4, 0)}
"""Numbers of kills, full disks, kills of training, seeds of damage, inputs of a reader, the share of names, small
disks, and signals to training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=sorted(SIZES), default="usual", help="number of cases that are tried")
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases")


def run(options: argparse.Namespace) -> list[Result]:
    made = _campaign()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        rows, faults = made.campaign(Path(name), made.Size(*SIZES[options.size]), options.seed, _report)
    for fault in faults:
        print(fault, file=sys.stderr)
    extra = {"seed": options.seed, "size": options.size}
    return [Result("faults", row.figure, row.value, row.allowed, extra=extra) for row in rows]


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> str:
    """One line per figure, with its limit."""
    made = _campaign()
    return str(made.table([made.Row(result.case, result.ratio, result.limit) for result in results]))


def _campaign() -> Any:
    # the cases are tests: they come with the source, and the program does not need them
    return importlib.import_module("tests.faults.campaign")
