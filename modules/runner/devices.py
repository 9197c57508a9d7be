"""Which device a run uses, and which run is already using it. Two trainers on one device slow each other down."""

from __future__ import annotations

from modules.runner.known_runs import known_runs
from modules.runner.RunDirectory import RunDirectory

UNKNOWN = "auto"


def overlap(one: str, other: str) -> bool:
    """Whether two values of ``train_device`` may mean the same device.

    ``auto`` may be any device until its trainer has reported which.
    """
    if UNKNOWN in (one, other):
        return True
    return _plain(one) == _plain(other)


def _plain(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


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
        if (run.trainer() or run.launched()) is not None and overlap(device, device_of(run)):
            return run
    return None


def waiting_for(run: RunDirectory, device: str) -> str:
    """The message for a waiting run."""
    return f"waits for the training in {run.path}, which uses {_words(device, device_of(run))}"


def _words(wanted: str, used: str) -> str:
    return "the same device" if UNKNOWN in (wanted, used) else _plain(used)
