"""The window: seconds from the start of the program to the window, to each page, and to the help of the scripts.

Every round starts the program in a new process, on a virtual screen where there is no other. A
figure is the median of the rounds as a share of what is allowed; processor time is also in the JSON file,
because other work on the machine disturbs it less.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from scripts.benchmarks._measure import Quartiles, Result, run_child

ROOT = Path(__file__).resolve().parents[2]
WINDOW_SECONDS = 1.0
PAGE_SECONDS = 0.15
KEY_SECONDS = 0.016
HELP_SECONDS = 1.0
SCRIPTS = ("train_ui.py", "train.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7, help="measured starts (7)")


@contextmanager
def screen() -> Iterator[dict[str, str]]:
    """Environment for a child process that opens windows.

    Raises:
        UserError: there is neither a display nor Xvfb.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not sys.platform.startswith("linux") or env.get("DISPLAY"):
        yield env
        return
    program = shutil.which("Xvfb")
    if program is None:
        raise UserError("there is no display and no Xvfb", hint="install xvfb")
    read, write = os.pipe()
    command = [program, "-displayfd", str(write), "-screen", "0", "1280x720x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as stream:
        number = stream.readline().strip()
    try:
        yield {**env, "DISPLAY": f":{number}"}
    finally:
        server.terminate()
        server.wait(10)


def start_once(env: dict[str, str]) -> dict[str, Any]:
    """Start the window once."""
    return run_child("_startup_child.py", repr(time.time()), env=env)


def help_seconds(script: str) -> float:
    """Wall time of ``--help``."""
    start = time.perf_counter()
    command = [sys.executable, str(ROOT / "scripts" / script), "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    return time.perf_counter() - start


def _result(case: str, values: list[float], allowed: float, **extra: Any) -> Result:
    spread = Quartiles.of(values)
    shares = [spread.low / allowed, spread.high / allowed]
    shown = {"seconds": spread.middle, "seconds_allowed": allowed, "quartiles": shares, **extra}
    return Result(
        "1280 x 720", f"{case}, as share of {allowed:g} s", spread.middle / allowed, 1.0, extra=shown
    )


def run(arguments: argparse.Namespace) -> list[Result]:
    """Start the window several times; the first start only fills the system's caches."""
    with screen() as env:
        start_once(env)
        starts = [start_once(env) for _ in range(arguments.rounds)]
    helps = {name: [help_seconds(name) for _ in range(arguments.rounds + 1)][1:] for name in SCRIPTS}

    def middle(values: list[float]) -> float:
        return Quartiles.of(values).middle

    titles = list(starts[0]["pages"])
    pages = {title: [start["pages"][title] for start in starts] for title in titles}
    summary = {
        "window_seconds": middle([start["window"] for start in starts]),
        "window_cpu_seconds": middle([start["window_cpu"] for start in starts]),
        "pages": {title: middle(values) for title, values in pages.items()},
        "pages_cpu": {title: middle([start["pages_cpu"][title] for start in starts]) for title in titles},
        "help_seconds": {name: middle(values) for name, values in helps.items()},
        "rounds": arguments.rounds,
    }
    results = [_result("window", [start["window"] for start in starts], WINDOW_SECONDS, **summary)]
    results += [_result(f"page {title}", values, PAGE_SECONDS) for title, values in pages.items()]
    results.append(_result("key in a field to redraw", [start["key"] for start in starts], KEY_SECONDS))
    results += [_result(f"{name} --help", values, HELP_SECONDS) for name, values in helps.items()]
    return results
