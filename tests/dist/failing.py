"""The trainer's command line in which a process fails at its second step.

``failing.py RANK KIND ...``: KIND is ``memory`` or ``user``; with ``asleep-memory`` the others wait in a library.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from modules.trainer.control import PeerWatch
from modules.trainer.GenericTrainer import GenericTrainer
from modules.util.errors import DataError
from scripts import train

PeerWatch.BEAT_SECONDS = 0.3
PeerWatch.LEAVING_SECONDS = 2.0

take = GenericTrainer._take_step


def failing(self: GenericTrainer, *arguments: Any) -> dict[str, float]:
    if self.progress.global_step == 1:
        if sys.argv[1] != os.environ["RANK"]:
            time.sleep(300 if sys.argv[2].startswith("asleep") else 0)
        elif sys.argv[2] == "user":
            raise DataError("an image is damaged", "concepts", "remove it")
        else:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    return take(self, *arguments)


GenericTrainer._take_step = failing  # type: ignore[method-assign]
sys.exit(train.main(sys.argv[3:]))
