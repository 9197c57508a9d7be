"""The trainer's command line on two cards, the second of which has little free memory.

Every process writes the execution mode that it trains in to ``modeRANK`` of the run's folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.trainer import assembly
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from scripts import train

RANK = int(os.environ["RANK"])
build = assembly._run


def choose(config: TrainConfig, _device: object) -> tuple[TrainConfig, str]:
    mode = (DPOExecutionMode.FULL_CONCURRENT, DPOExecutionMode.SEQUENTIAL)[RANK]
    return config.model_copy(update={"rlhf_dpo_execution_mode": mode}), f"card {RANK}: {mode.value}"


def built(*arguments: Any) -> Any:
    made = build(*arguments)
    folder = Path(made.config.workspace_dir)
    (folder / f"mode{RANK}").write_text(made.config.rlhf_dpo_execution_mode.value, encoding="utf-8")
    return made


assembly.choose_execution_mode = choose  # type: ignore[assignment]
assembly._run = built
sys.exit(train.main(sys.argv[1:]))
