"""Runs of a copy of OneTrainer in its own environment next to runs of this program: same data, same settings.

Written from the default settings of its config, version 11. It has never been run against a real copy.
"""

from __future__ import annotations

import argparse
import bisect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from modules.util.errors import UserError
from modules.util.jsonio import write_json
from scripts.benchmarks._measure import Quartiles, Result
from scripts.benchmarks._plain_step import (
    BATCH,
    CHANNELS,
    FACTOR,
    IMAGES,
    LIMIT,
    RATE,
    ROOT,
    SIDE,
    described,
    settings,
    verdict,
    write_images,
    write_model,
)

OPTION = "--with-onetrainer"
CONFIG_VERSION, CONCEPT_VERSION = 11, 2
RUNS = 4
GOALS = {"processor time of a step": 0.85, "processor time to the first step": 0.8, "peak memory": 0.75}
LOOK_SECONDS = 0.02
TAG = "loss/train_step"
_PARTS = ("scripts/train.py", "modules/trainer/GenericTrainer.py", "modules/util/config/TrainConfig.py")
_PYTHONS = ("venv/bin/python", ".venv/bin/python", "venv/Scripts/python.exe", ".venv/Scripts/python.exe")


@dataclass(frozen=True)
class Observed:
    """The time and memory that one run took.

    Args:
        step: processor seconds of a step, after the first one.
        first: processor seconds from the start of the process to the end of the first step.
        peak: bytes of memory of the process and its children.
    """

    step: float
    first: float
    peak: float

    @property
    def figures(self) -> tuple[float, float, float]:
        return self.step, self.first, self.peak


def check_folder(folder: Path) -> Path:
    """The Python of a copy of OneTrainer.

    Raises:
        UserError: the folder is not one, or has no environment of its own.
    """
    missing = [part for part in _PARTS if not (folder / part).is_file()]
    if missing:
        raise UserError(
            f"{folder} is not a copy of OneTrainer: {missing[0]} is missing",
            OPTION,
            "name the folder that has its start-ui.sh",
        )
    python = next((folder / name for name in _PYTHONS if (folder / name).is_file()), None)
    if python is None:
        raise UserError(
            f"{folder} has no environment: there is none of {', '.join(_PYTHONS)}",
            OPTION,
            "run its install script",
        )
    return python


def their_settings(folder: Path, rank: int, steps: int) -> dict[str, Any]:
    """The same run as its config says it."""
    never = {f"{what}_unit": "NEVER" for what in ("backup_after", "sample_after", "save_every")}
    concept = {
        "__version": CONCEPT_VERSION, "name": "images", "path": str(folder / "images"), "seed": 1, "type": "STANDARD",
    }  # fmt: skip
    return {
        "__version": CONFIG_VERSION, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15",
        "base_model_name": str(folder / "model"), "concepts": [concept], "samples": [],
        "workspace_dir": str(folder / "their-run"), "cache_dir": str(folder / "their-cache"),
        "output_model_destination": str(folder / "theirs.safetensors"), "output_dtype": "FLOAT_32",
        "resolution": str(SIDE * FACTOR), "batch_size": BATCH, "epochs": epochs_of(steps), "learning_rate": RATE,
        "learning_rate_warmup_steps": 0.0, "clip_grad_norm": LIMIT, "dataloader_threads": 1, "train_device": "cpu",
        "temp_device": "cpu", "train_dtype": "FLOAT_32", "lora_rank": rank, "lora_alpha": float(rank),
        "layer_filter_preset": "full", "tensorboard": True, "backup_before_save": False,
        "unet": {"train": True, "gradient_checkpointing": False}, "text_encoder": {"train": False}, **never,
    }  # fmt: skip


def our_settings(folder: Path, rank: int, steps: int) -> dict[str, Any]:
    """The run of this program."""
    made = settings(folder, rank)
    return {**made, "epochs": epochs_of(steps), "dataloader_threads": 1, "tensorboard": True}


def epochs_of(steps: int) -> int:
    """Whole epochs with at least this many steps."""
    return -(-steps * BATCH // IMAGES)


def observed(command: Sequence[str], cwd: Path, workspace: Path, log: Path) -> Observed:
    """Start a run, look at its processor time and memory until it ends, and read from its curves when steps ended.

    Raises:
        RuntimeError: it failed, or wrote fewer than three losses.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    env["XDG_CONFIG_HOME"] = str(workspace.parent)
    looks: list[tuple[float, float]] = []
    peak = 0
    with log.open("wb") as out, subprocess.Popen(command, cwd=cwd, env=env, stdout=out, stderr=out) as child:
        process = psutil.Process(child.pid)
        while child.poll() is None:
            seconds, held = _of_tree(process)
            if seconds:
                looks.append((time.time(), seconds))
            peak = max(peak, held)
            time.sleep(LOOK_SECONDS)
    if child.returncode:
        text = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with status {child.returncode}:\n{text}")
    ends = [processor_at(moment, looks) for moment in step_times(workspace)]
    if len(ends) < 3:
        raise RuntimeError(f"{' '.join(command)} wrote {len(ends)} losses under {TAG}")
    return Observed((ends[-1] - ends[0]) / (len(ends) - 1), ends[0], float(peak))


def _of_tree(process: psutil.Process) -> tuple[float, int]:
    """Processor seconds and bytes of a process and its children; zeros where it has just ended."""
    try:
        found = process.cpu_times()
        seconds, held = sum(found[:4]), process.memory_info().rss
        for one in process.children(recursive=True):
            seconds, held = seconds + sum(one.cpu_times()[:2]), held + one.memory_info().rss
    except psutil.Error:
        return 0.0, 0
    return seconds, held


def step_times(workspace: Path) -> list[float]:
    """Return the times at which each loss was written to the newest TensorBoard file below a folder, in seconds
    since 1970.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = sorted(workspace.rglob("events.out.tfevents*"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        return []
    events = EventAccumulator(str(files[-1]), size_guidance={"scalars": 0})
    events.Reload()
    return [event.wall_time for event in events.Scalars(TAG)] if TAG in events.Tags()["scalars"] else []


def processor_at(moment: float, looks: Sequence[tuple[float, float]]) -> float:
    """Processor seconds at a moment, from looks before and after it.

    Raises:
        RuntimeError: nobody looked.
    """
    if not looks:
        raise RuntimeError("the run ended before anything could be measured")
    place = bisect.bisect_left(looks, (moment, 0.0))
    if place in (0, len(looks)):
        return looks[min(place, len(looks) - 1)][1]
    (before, low), (after, high) = looks[place - 1], looks[place]
    return low + (high - low) * (moment - before) / (after - before)


def measure(options: argparse.Namespace) -> list[Result]:
    """Runs of both programs, one after the other."""
    copy = Path(options.with_onetrainer).expanduser().absolute()
    python = check_folder(copy)
    found: dict[str, list[Observed]] = {"ours": [], "theirs": []}
    for number in range(RUNS):
        for name in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                write_model(folder / "model", CHANNELS)
                write_images(folder / "images", SIDE * FACTOR)
                own = name == "ours"
                made = (our_settings if own else their_settings)(folder, options.rank, options.rounds)
                write_json(folder / "config.json", made)
                command = [sys.executable if own else str(python), "scripts/train.py", "--config-path"]
                found[name].append(
                    observed(
                        [*command, str(folder / "config.json")],
                        ROOT if own else copy,
                        Path(made["workspace_dir"]),
                        folder / "log.txt",
                    )
                )
    return rows(copy, found)


def rows(copy: Path, found: Mapping[str, Sequence[Observed]]) -> list[Result]:
    """A line for each of the three ratios."""
    made = []
    for place, (case, goal) in enumerate(GOALS.items()):
        ours, theirs = ([run.figures[place] for run in found[name]] for name in ("ours", "theirs"))
        # bytes in MiB, so that the line can be read
        unit = 2**20 if case == "peak memory" else 1
        own, other = ([value / unit for value in values] for values in (ours, theirs))
        said = described(case, own, other, f"OneTrainer in {copy}", "MiB" if unit > 1 else "s")
        quartiles = Quartiles.of([value / median(other) for value in own])
        extra = {
            "quartiles": [quartiles.low, quartiles.high], "ours": ours, "theirs": theirs,
            "verdict": verdict(ours, theirs), "said": [said],
        }  # fmt: skip
        made.append(Result("OneTrainer", case, median(own) / median(other), goal, extra=extra))
    return made
