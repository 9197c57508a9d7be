"""Presets of online training run with their own values, on the tiny model of their family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.spec.registry import MODES
from modules.util.config.load import load_config
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here

FOLDER = Path(__file__).resolve().parents[2] / "training_presets"
PROMPTS = ("a red circle", "a blue square", "a green triangle", "a large cat")
UNITS = 3


def online(path: Path) -> bool:
    values = json.loads(path.read_text(encoding="utf-8"))
    return "rlhf_mode" in values and MODES[values["rlhf_mode"]].online


# those of the demo are trained in its own tests
PRESETS = [path for path in sorted(FOLDER.glob("*/#*.json")) if online(path)]


def tiny_values(folder: Path, key: str) -> dict[str, Any]:
    """What a tiny model and a machine without a network, a GPU and time demand: its own files, the smallest images, a
    reward without a model, two prompts an epoch with four images each.
    """
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS), encoding="utf-8")
    return {
        "base_model_name": str(tiny_folder(key)),
        "workspace_dir": str(folder / "run"),
        "cache_dir": str(folder / "cache"),
        "output_model_destination": str(folder / "out.safetensors"),
        "train_device": "cpu",
        "cpu_threads": 1,
        "tensorboard": False,
        "concepts": [],
        "samples": [],
        "resolution": str(max(32, tiny_setup(key).spec.size_multiple)),
        "rlhf_prompts_file": str(prompts),
        "rlhf_reward": "brightness",
        "rlhf_prompts_per_epoch": 2,
        "rlhf_group_size": 4,
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "epochs": UNITS,
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_preset_trains_three_epochs_with_its_own_values(path: Path, tmp_path: Path) -> None:
    preset = json.loads(path.read_text(encoding="utf-8"))
    changed = tiny_values(tmp_path, preset["model_type"])
    config = tmp_path / "config.json"
    config.write_text(json.dumps(preset | changed), encoding="utf-8")
    trainer = run_here(config)
    # whatever else the preset says is what was trained with
    own, used = (load_config(one).to_dict() for one in (path, config))
    assert {name for name, value in own.items() if used[name] != value} <= changed.keys() | {"concepts"}
    assert trainer.parts.facts(1).get("mode", preset["rlhf_mode"]) == preset["rlhf_mode"]
    assert trainer.progress.global_step >= UNITS and trainer.progress.epoch == UNITS
    # the file holds the average of the weights, which some presets renew after eight steps only
    saved = load_file(tmp_path / "out.safetensors").values()
    trained = [parameter for _, parameter in trainer.parts.named]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (*saved, *trained))
    assert any(bool(p.abs().max() > 0) for n, p in trainer.parts.named if "lora_B" in n)
