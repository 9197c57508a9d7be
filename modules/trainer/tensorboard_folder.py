"""Folders of a run's curves: one for each new start; a resumed run uses the last one."""

from __future__ import annotations

import time
from pathlib import Path


def log_folder(root: Path, resumes: bool) -> Path:
    """The folder for this process's event file, below the run's ``tensorboard`` folder."""
    former = sorted(path for path in root.glob("*") if path.is_dir())
    return former[-1] if resumes and former else root / time.strftime("%Y-%m-%d_%H-%M-%S")
