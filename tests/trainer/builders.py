"""A whole training job on a tiny model: pairs on disk, a config, and ways to run it as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.util.config.load import load_config
from tests.children.warm import WarmProcess, run_warm, start_warm
from tests.tiny import small_folder

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ("a red circle", "a blue square", "a green triangle", "a large cat", "a small dog")
FEW_LAYERS = {"layer_filter_preset": "custom", "layer_filter": "attn1.to_q,attn2.to_v,attn2.to_out"}
"""A quarter of the layers that adapters get by default: most of the time of a tiny run is spent on making them."""


def write_pairs(
    root: Path, count: int = 6, sizes: tuple[tuple[int, int], ...] = ((32, 32),), edited: bool = False
) -> list[dict[str, Any]]:
    """Noise images, chosen ones brighter; returns the concepts.

    Args:
        edited: with the images both sides were made from.
    """
    rng = np.random.default_rng(1)
    for side, low in (("chosen", 100), ("rejected", 0), *([("source", 50)] if edited else [])):
        (root / side).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            width, height = sizes[i % len(sizes)]
            pixels = rng.integers(low, low + 150, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / side / f"{i:03d}.png")
            (root / side / f"{i:03d}.txt").write_text(PROMPTS[i % len(PROMPTS)], encoding="utf-8")
    before = {"source_path": str(root / "source")} if edited else {}
    return [
        {"name": side, "path": str(root / side), "type": f"DPO_{side.upper()}", **more}
        for side, more in (("chosen", before), ("rejected", {}))
    ]


def write_likes(root: Path) -> list[dict[str, Any]]:
    """As ``write_pairs``: three pairs, two likes and a dislike without partners."""
    concepts = write_pairs(root)
    for side, number in (("rejected", 0), ("rejected", 1), ("chosen", 5)):
        for file in (root / side).glob(f"{number:03d}.*"):
            file.unlink()
    return concepts


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """A preference run of a few steps; ``changes`` are laid over it."""
    made: dict[str, Any] = {
        "__version": 1,
        "base_model_name": str(small_folder()),
        "workspace_dir": str(folder / "run"),
        "cache_dir": str(folder / "cache"),
        "output_model_destination": str(folder / "out.safetensors"),
        "output_dtype": "FLOAT_32",
        "train_device": "cpu",
        "train_dtype": "FLOAT_32",
        "cpu_threads": 1,
        "dataloader_threads": 0,
        "resolution": "32",
        "batch_size": 2,
        "epochs": 2,
        "learning_rate": 1e-3,
        "lora_rank": 2,
        "lora_alpha": 2.0,
        "rlhf_enabled": True,
        "rlhf_dpo_beta": 100.0,
        "backup_after_unit": "NEVER",
        "tensorboard": False,
        "unet": {"gradient_checkpointing": False},
        "samples": [],
    }
    if "concepts" not in changes:
        made["concepts"] = write_pairs(folder / "data")
    return {**made, **changes}


def write_config(folder: Path, **changes: Any) -> Path:
    """The settings in a file, for an adapter of few layers if neither the layers nor a model family is given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    few = {} if {"model_type", "layer_filter_preset"} & changes.keys() else FEW_LAYERS
    path.write_text(json.dumps({**few, **settings(folder, **changes)}), encoding="utf-8")
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / "train.py"), "--config-path", str(config), *arguments]


def train(config: Path, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which begins with what is imported."""
    _, script, *given = command(config, *arguments)
    return run_warm(Path(script), given, timeout, environment())


def train_in_new_process(
    config: Path, *arguments: str, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """As ``train``, and begin with nothing."""
    line = command(config, *arguments)
    return subprocess.run(
        line, capture_output=True, text=True, timeout=timeout, env=environment(), check=False
    )


def start_training(config: Path, *arguments: str) -> WarmProcess | subprocess.Popen[bytes]:
    """As ``train``, and return at once. What it prints is in ``output.txt`` next to the config."""
    _, script, *given = command(config, *arguments)
    output = config.with_name("output.txt")
    return start_warm(Path(script), given, output, output, environment())


def run_here(config: Path, *overrides: str, callback: Any = None, from_files: bool = False) -> Any:
    """Run in this process, for tests that look inside or at many cases; returns the trainer.

    Args:
        from_files: read a tiny model from its files, as other processes do, whose results are to be the same to the
            last bit; it is copied from memory otherwise.
    """
    from modules.runner.RunDirectory import RunDirectory
    from modules.trainer.callbacks import Callback
    from modules.trainer.distributed import Processes
    from modules.trainer.GenericTrainer import GenericTrainer
    from tests.tiny.checked_once import checked_once
    from tests.tiny.loaded_once import loaded_once

    loaded = load_config(config, list(overrides))
    run = RunDirectory(loaded.workspace_dir)
    with run.locked(), checked_once(), nullcontext() if from_files else loaded_once():
        trainer = GenericTrainer(loaded, run, callback or Callback(), Processes(0, 1, 0, torch.device("cpu")))
        trainer.run()
    return trainer


def run_and_go_back(config: Path, step: int, callback: Any = None) -> Any:
    """Run to the end; what is left is what a run has that was stopped after ``step``. Returns the trainer.

    The weights of the whole run are then in ``whole.safetensors`` next to where the run saved them. A stop makes a
    backup as the clock does, so that a run to compare with and one to resume are made at once.
    """
    from modules.trainer.resume.checkpoint import list_backups

    often = ("backup_after_unit=STEP", "backup_each_tenth=false", "rolling_backup=false")
    trainer = run_here(config, f"backup_after={step}", *often, callback=callback)
    backups = list_backups(Path(trainer.config.workspace_dir) / "backup")
    for backup in backups:
        if f"-backup-{step}-" not in backup.name:
            shutil.rmtree(backup)
    assert any(backup.exists() for backup in backups)
    saved = Path(trainer.config.output_model_destination)
    if saved.is_file():
        saved.rename(saved.with_name("whole.safetensors"))
    return trainer


def same_weights(first: Path, second: Path) -> bool:
    """Whether two adapter files hold the same tensors, bit for bit."""
    one, other = load_file(first), load_file(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def small_files_only(limit: int) -> Iterator[None]:
    """A disk on which no file can grow beyond ``limit`` bytes: writing more fails as on a full one."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
