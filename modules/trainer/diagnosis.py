"""Facts about the machine, and the cause of an unexpected error."""

from __future__ import annotations

import errno

import torch

from modules.runner.outcome import explain


def memory(device: torch.device) -> dict[str, float]:
    """Memory metrics of the accelerator; empty without one."""
    if device.type != "cuda":
        return {}
    return {"memory/gpu_peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}


def diagnosis(error: Exception, trace: str) -> tuple[str, str]:
    """(category, hint) of an unexpected error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk", "free some space (old backups, caches), then resume with continue_last_backup"
    found = explain(trace)
    if found is not None:
        return found.category, found.hint
    return "bug", "this is a bug of the program: please report it with the log of the run"
