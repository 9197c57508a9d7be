"""The trainer's command line with a watch over the other processes that loses patience after seconds.

``impatient.py SLEEPER ...``: process SLEEPER sleeps in its first step, as one that waits in a library (-1: none).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.trainer.control import PeerWatch
from modules.trainer.GenericTrainer import GenericTrainer
from scripts import train

PeerWatch.BEAT_SECONDS = 0.3
PeerWatch.SILENCE_SECONDS = 12.0
PeerWatch.LEAVING_SECONDS = 2.0

take = GenericTrainer._take_step


def asleep(self: GenericTrainer, *arguments: Any) -> dict[str, float]:
    metrics = take(self, *arguments)
    (self.run_directory.path / f"stepped{self.processes.rank}").touch()
    time.sleep(300)
    return metrics


if sys.argv[1] == os.environ["RANK"]:
    GenericTrainer._take_step = asleep  # type: ignore[method-assign]
sys.exit(train.main(sys.argv[2:]))
