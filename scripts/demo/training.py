"""Training through the command line, as a user would."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.runner.events import EventReader
from modules.util.config.config_list import save_list
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import read_json
from scripts.demo.plan import PRESETS, ROOT, Journey
from scripts.demo.sampling import Report


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Args:
        cpu_seconds: of its process, over all cores.
        validation_accuracy: the last one, where pairs were kept from training.
        rewards: mean reward of each epoch's images, where there are any.
        images: made while training.
    """

    name: str
    adapter: Path
    steps: int
    seconds: float
    cpu_seconds: float
    validation_accuracy: float | None
    rewards: tuple[float, ...] = ()
    images: int = 0

    def facts(self) -> dict[str, Any]:
        """Its facts for a report."""
        return {
            "steps": self.steps,
            "train_seconds": round(self.seconds, 1),
            "train_cpu_seconds": round(self.cpu_seconds, 1),
            "adapter": str(self.adapter),
        }


def as_settings(values: Mapping[str, Any]) -> list[str]:
    """Format values as the ``name=value`` texts of the command line."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


ONE_SIDE = {"supervised": "DPO_CHOSEN", "disliked": "DPO_REJECTED"}
"""Types of the concepts of runs on one side of pairs alone."""


def _supervised_concepts(name: str, pairs: Path, out: Path) -> Path:
    """Write a concepts file to ``out`` with one side of the pairs alone."""
    concepts = read_json(pairs / "concepts.json", "concepts")
    wanted = [{**c, "type": "STANDARD"} for c in concepts if c["type"] == ONE_SIDE[name]]
    file = out / f"{name}_concepts.json"
    save_list(TrainConfig.from_dict({"concepts": wanted}).load_concepts(), file)
    return file


def twin_settings(name: str, pairs: Path, out: Path) -> dict[str, Any]:
    """Settings of a run on all pairs of a folder, ``dpo``, or with the ordinary loss on their chosen images alone,
    ``supervised``, or on the rejected ones, ``disliked``; the file of its concepts is written to ``out``.
    """
    supervised = name in ONE_SIDE
    concepts = _supervised_concepts(name, pairs, out) if supervised else pairs / "concepts.json"
    settings: dict[str, Any] = {"concept_file_name": str(concepts), "rlhf_dpo_validation": False}
    return settings | ({"rlhf_enabled": False} if supervised else {})


def train(
    journey: Journey,
    name: str,
    changes: list[str],
    report: Report,
    environment: Mapping[str, str] | None = None,
) -> Trained:
    """Train with the preset of the journey's mode.

    Args:
        name: of the run, its log and its adapter in the journey's folder.
        changes: ``name=value`` settings; those of the journey come after them.
        environment: further variables.

    Raises:
        UserError: the training failed; the message has the end of its log.
    """
    out, run = journey.out, journey.out / f"run-{name}"
    adapter = out / f"adapter-{name}.safetensors"
    settings = {
        "base_model_name": str(journey.model),
        "workspace_dir": str(run),
        "cache_dir": str(out / "cache"),
        "output_model_destination": str(adapter),
        "seed": journey.seed,
    }
    command = [sys.executable, str(ROOT / "scripts" / "train.py")]
    command += ["--preset-path", str(PRESETS[journey.mode])]
    for text in [*as_settings(settings), *changes, *journey.overrides]:
        command += ["--set", text]
    report(f"training ({name})")
    begin, spent = time.monotonic(), seconds_of_children()
    log = out / f"train-{name}.log"
    with log.open("wb") as stream:
        status = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, check=False,
            env={**os.environ, **(environment or {})},
        ).returncode  # fmt: skip
    cpu_seconds = seconds_of_children() - spent
    if status != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise UserError(
            f"the training ended with status {status}:\n{tail}", hint=f"the whole log is in {log}"
        )
    events = EventReader(run / "events.jsonl").poll()
    validations = [e["metrics"]["dpo/val_accuracy"] for e in events if e["kind"] == "validation"]
    epochs = _epochs(events)
    return Trained(
        name,
        adapter,
        int(events[-1]["progress"]["global_step"]),
        time.monotonic() - begin,
        cpu_seconds,
        validations[-1] if validations else None,
        tuple(float(one["rl/reward_mean"]) for one in epochs),
        images_of_training(events),
    )


def seconds_of_children() -> float:
    """Processor seconds of all finished child processes."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _epochs(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Metrics of the first step of each epoch, which carries the data of its images."""
    return [e["metrics"] for e in events if e["kind"] == "step" and "rl/reward_mean" in e["metrics"]]


def images_of_training(events: Sequence[Mapping[str, Any]]) -> int:
    """Number of images made while training, by the events of a run."""
    return sum(int(one["rl/images"]) for one in _epochs(events))
