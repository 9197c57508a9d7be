"""A run in which the first process is slow to write the best weights and fails to write a backup that is ordered."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.runner.RunDirectory import RunDirectory
from modules.trainer import GenericTrainer as trainer_module
from modules.trainer.callbacks import Callbacks, EventLog
from modules.trainer.distributed import Processes
from modules.trainer.evaluate import best
from modules.util.config.load import load_config
from modules.util.errors import UserError

SLOW_SECONDS = 1.0


class Ordering(EventLog):
    """Orders a backup at the first step."""

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        super().step(progress, metrics, total, eta)
        if progress.global_step == 1:
            RunDirectory(self._root).post("backup")


def _slowly(*arguments: Any) -> None:
    time.sleep(SLOW_SECONDS)
    write_tensors(*arguments)


def _fails(*arguments: Any) -> Path:
    raise UserError("no room")


write_tensors = best.write_tensors
best.write_tensors = _slowly
trainer_module.write_backup = _fails

config = load_config(sys.argv[1])
processes = Processes.start("cpu")
run = RunDirectory(config.workspace_dir)
if processes.first:
    run.lock()
members = [Ordering(run.writer(), run.path)] if processes.first else []
trainer_module.GenericTrainer(config, run, Callbacks(members), processes).run()
processes.stop()
run.unlock()
