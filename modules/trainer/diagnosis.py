"""Facts about the machine, and the cause of an unexpected error."""

from __future__ import annotations

import errno
import traceback

import torch

from modules.runner.outcome import Outcome, explain
from modules.trainer.control.PeerWatch import PeerLost
from modules.util.errors import UserError


def memory(device: torch.device) -> dict[str, float]:
    """Memory metrics of the accelerator; empty without one."""
    if device.type != "cuda":
        return {}
    return {"memory/gpu_peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}


def fault_of(error: Exception) -> Outcome:
    """Return what people are told about the error that ends a run, by whichever process reports it."""
    if isinstance(error, UserError):
        where = f"{error.field}: " if error.field else ""
        return Outcome("user", f"{where}{error.message}", error.hint or "")
    if isinstance(error, PeerLost):
        return error.fault
    category, hint = _diagnosis(error, "".join(traceback.format_exception(error)))
    return Outcome(category, f"{type(error).__name__}: {error}", hint)


def _diagnosis(error: Exception, trace: str) -> tuple[str, str]:
    """(category, hint) of an unexpected error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk", "free some space (old backups, caches), then resume with continue_last_backup"
    found = explain(trace)
    if found is not None:
        return found.category, found.hint
    return "bug", "this is a bug of the program: please report it with the log of the run"
