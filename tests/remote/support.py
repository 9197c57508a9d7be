"""Command lines, configs and a small program for the tests of remote runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from modules.remote import records, starting
from modules.remote.again import persistently
from modules.util.config.load import load_config
from modules.util.config.remote.RemoteConfig import RemoteConfig
from scripts import train_remote
from tests.source_tree import ROOT

TRAINER = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.runner.fake_trainer import main
main(sys.argv[sys.argv.index("--run-dir") + 1], "obey")
"""
CONTROL = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from scripts.runctl import main
sys.exit(main())
"""


def write_remote(folder: Path, remote: RemoteConfig, **changes: Any) -> Path:
    """The config of a tiny run with the settings of another computer."""
    from tests.trainer.builders import settings  # loads torch, which the other tests do not need

    return _write(folder, remote, settings(folder, **{"max_steps": 3, **changes}))


def _write(folder: Path, remote: RemoteConfig, settings: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**settings, "remote": remote.to_dict()}), encoding="utf-8")
    return path


def write_light(folder: Path, remote: RemoteConfig, **changes: Any) -> Path:
    """The same without a model and images: a file of a few bytes for each."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "images" / "a.png").write_bytes(b"image")
    (folder / "images" / "a.txt").write_text("a caption")
    (folder / "model.safetensors").write_bytes(b"model")
    light = {
        "__version": 1, "workspace_dir": str(folder / "run"), "train_device": "cpu", "samples": [],
        "base_model_name": str(folder / "model.safetensors"), "concepts": [{"path": str(folder / "images")}],
    }  # fmt: skip
    return _write(folder, remote, {**light, **changes})


def small_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies a program of four files, whose trainer obeys commands and trains nothing."""
    texts = {"scripts/train.py": TRAINER, "scripts/runctl.py": CONTROL}
    for name in ("requirements.txt", "requirements-gpu.txt", "constraints.txt"):
        texts[name] = (ROOT / name).read_text(encoding="utf-8")
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(starting, "program_files", lambda: {name: folder / name for name in sorted(texts)})
    monkeypatch.setattr(train_remote, "look_at_data", lambda config: [])
    return folder


def begin(config_path: Path, run: str = "run-1", **more: Any) -> starting.Start:
    """Start a run as the command does."""
    config, folder = load_config(config_path), config_path.parent / run
    task = starting.Start(starting.Wanted(config.remote, config, run, folder=folder, **more), lambda _: None)
    asyncio.run(persistently(config.remote, lambda _: None, lambda _: None, task.work, starting.TRIES))
    return task


def newest() -> records.Record:
    """The run that was started last."""
    return records.find(None)
