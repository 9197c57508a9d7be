"""Small runs of online training: a tiny model, four prompts, a cheap reward."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.trainer.callbacks import Callback
from modules.util.TrainProgress import TrainProgress
from tests.tiny import small_folder
from tests.trainer.builders import write_config

PROMPTS = "# four of them\na red circle\n\na blue square\na green triangle\n  a large cat  \n"
SGD: dict[str, Any] = {"optimizer": {"optimizer": "SGD"}, "learning_rate": 1.0, "clip_grad_norm": 0.0}
"""Weights in proportion to gradients: equal gradients show as equal weights."""


def write_online(folder: Path, mode: str = "GRPO", **changes: Any) -> Path:
    """A config of two epochs of two prompts with four images each, a step for each prompt."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.txt"
    prompts.write_text(PROMPTS, encoding="utf-8")
    made: dict[str, Any] = {
        "base_model_name": str(small_folder(prediction="v_prediction")),
        "concepts": [],
        "rlhf_mode": mode,
        "rlhf_prompts_file": str(prompts),
        "rlhf_prompts_per_epoch": 2,
        "rlhf_group_size": 4,
        "rlhf_rollout_steps": 3,
        "rlhf_reward": "brightness",
        "rlhf_clip_range_low": 1e-3,
        "rlhf_clip_range_high": 1e-3,
        "batch_size": 4,
        "epochs": 2,
    }
    return write_config(folder, **{**made, **changes})


class Listening(Callback):
    """Keeps what is told, and asks for an end when a step or a phase is reached.

    Args:
        stop_at: step after which to stop.
        stop_in: phase (the beginning of its name) in which to stop, once.
    """

    def __init__(self, stop_at: int = 0, stop_in: str = "") -> None:
        self.stop_at, self.stop_in = stop_at, stop_in
        self.metrics: list[dict[str, float]] = []
        self.warnings: list[str] = []
        self.phases: list[str] = []

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        self.metrics.append(dict(metrics))
        if progress.global_step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def phase(self, name: str, done: int, total: int) -> None:
        self.phases.append(name)
        if self.stop_in and name.startswith(self.stop_in):
            self.stop_in = ""
            os.kill(os.getpid(), signal.SIGTERM)

    def warning(self, message: str) -> None:
        self.warnings.append(message)
