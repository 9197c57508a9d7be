"""The trainer's command line in which the first process is asked to stop, as by Ctrl+C or a system that shuts down.

``stopped.py CONFIG STEP``: a real signal comes at the end of this optimizer step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.trainer.callbacks import EventLog
from scripts import train

log = EventLog.step


def step(self: EventLog, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
    log(self, progress, metrics, total, eta)
    if progress.global_step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGTERM)


EventLog.step = step  # type: ignore[method-assign]
sys.exit(train.main(["--config-path", sys.argv[1]]))
