"""The device of a run, and the run that is already using it. Two trainers on one device slow each other down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from modules.runner.known_runs import known_runs
from modules.runner.RunDirectory import RunDirectory
from modules.util.device_names import listed, plain

UNKNOWN = "auto"
ASKING_SECONDS, MOST_GPUS = 60, 32
_AMD = Path("/dev/kfd")
_QUESTION = "import torch\nfor n in range(torch.cuda.device_count()): print(torch.cuda.get_device_name(n))"


def starts_several(train_device: str) -> bool:
    """Return whether this process has to start those of the run: several devices are listed, and no launcher has
    started this one as a member of a group.
    """
    return len(listed(train_device)) > 1 and "WORLD_SIZE" not in os.environ


def found_gpus() -> list[str]:
    """The names of this computer's GPUs, in the order of their numbers in ``cuda:N``. PyTorch numbers them, so it
    is asked, in a separate process, which takes seconds. Empty if there are none or no driver is installed.
    """
    if shutil.which("nvidia-smi") is None and not _AMD.exists():
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUESTION], capture_output=True, text=True, encoding="utf-8",
            errors="replace", timeout=ASKING_SECONDS, check=True, stdin=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()][:MOST_GPUS]


def overlap(one: str, other: str) -> bool:
    """Return whether two values of ``train_device`` may mean the same device.

    ``auto`` may be any device until its trainer has reported which.
    """
    if UNKNOWN in (one, other):
        return True
    return not {plain(name) for name in listed(one)}.isdisjoint(plain(name) for name in listed(other))


def device_of(run: RunDirectory) -> str:
    """The device that a run uses or will use, in the notation of ``train_device``."""
    device = run.process_record().get("device") if run.trainer() is not None else None
    return device if isinstance(device, str) and device else run.wanted_device()


def run_using(device: str, besides: RunDirectory | None = None) -> RunDirectory | None:
    """A live run on this computer that uses a device; ``None`` if it is free.

    Args:
        device: a value of ``train_device``.
        besides: a run to ignore.
    """
    for path in reversed(known_runs()):
        run = RunDirectory(path)
        if besides is not None and run.path == besides.path:
            continue
        if run.is_live() and overlap(device, device_of(run)):
            return run
    return None


def waiting_for(run: RunDirectory, device: str) -> str:
    """The message for a waiting run."""
    used = device_of(run)
    shared = "the same device" if UNKNOWN in (device, used) else plain(used)
    return f"waits for the run in {run.path}, which uses {shared}"
