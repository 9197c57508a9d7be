"""Timesteps and noise that the model's schedule has not are refused by the dry run, and before the first image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.trainer.assembly import check_model
from modules.trainer.online import EpochMaker
from modules.util.config.load import load_config
from modules.util.errors import ConfigError
from scripts.train import main
from tests.trainer.builders import run_here
from tests.trainer.online.builders import write_online
from tests.usual import usual

TEN = {"rlhf_rollout_steps": 10}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "more timesteps than steps in the range": (
        "DGPO",
        {**TEN, "rlhf_num_train_timesteps": 9, "rlhf_timestep_range_high": 0.6},
        "rlhf_num_train_timesteps",
    ),
    "no step in the range": (
        "NFT",
        {**TEN, "rlhf_timestep_range_low": 0.95, "rlhf_timestep_range_high": 0.99},
        "rlhf_timestep_range_low",
    ),
    "no noise": ("GRPO", {**TEN, "rlhf_rollout_noise_level": 0}, "rlhf_rollout_noise_level"),
    "more noise than there is": ("GSPO", {**TEN, "rlhf_rollout_noise_level": 2}, "rlhf_rollout_noise_level"),
}


@pytest.mark.parametrize("name", usual(CASES, "no noise", "no step in the range", "more noise than there is"))
def test_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    mode, changes, field = CASES[name]
    config = write_online(tmp_path, mode, **changes)
    assert main(["--config-path", str(config), "--dry-run"]) == 2
    assert f"error: {field}: " in capsys.readouterr().err
    monkeypatch.setattr(EpochMaker, "generate", None)
    with pytest.raises(ConfigError) as caught:
        run_here(config)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("DGPO", {**TEN, "rlhf_num_train_timesteps": 6, "rlhf_timestep_range_high": 0.6}),
        ("NFT", {**TEN, "rlhf_timestep_range_low": 0.8, "rlhf_timestep_range_high": 1.0}),
        ("GRPO", {**TEN, "rlhf_rollout_noise_level": 1}),
    ],
)
def test_what_the_model_has_passes(tmp_path: Path, mode: str, changes: dict[str, Any]) -> None:
    check_model(load_config(write_online(tmp_path, mode, **changes)))


def test_each_fault_of_the_settings_and_the_model_is_found_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {**TEN, "rlhf_num_train_timesteps": 9, "rlhf_timestep_range_high": 0.6, "batch_size": 1}
    config = write_online(tmp_path, "DGPO", **changes)
    capsys.readouterr()
    assert main(["--config-path", str(config), "--dry-run", "--json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert [one["field"] for one in errors] == ["gradient_accumulation_steps", "rlhf_num_train_timesteps"]
