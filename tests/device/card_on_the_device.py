"""Whole commands on a device that the product takes for a card; used by ``test_another_device.py``.

What is learnt there is tried elsewhere: here it counts that each line that only a card reaches does what it should.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.trainer.resume.checkpoint import list_backups
from scripts import sample, train
from tests.device import card
from tests.tiny import tiny_folder
from tests.trainer.builders import events, same_weights, write_config, write_pairs
from tests.trainer.online.builders import write_online

SAMPLE = {"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 2}
CARD: card.Card = torch.second  # type: ignore[attr-defined]


def trained(path: Path, *arguments: str, ended: str = "finished") -> list[dict[str, Any]]:
    """Train as a person does; returns the events of the run."""
    assert train.main(["--config-path", str(path), *arguments]) == 0
    told = [event for event in events(path.parent / "run") if event["kind"] != "phase"]
    assert (told[-1]["kind"], told[-1]["status"]) == ("run_finished", ended)
    return told


def of_kind(told: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in told if event["kind"] == kind]


def check_memory(told: list[dict[str, Any]]) -> None:
    kinds = [event["kind"] for event in told]
    assert kinds.index("memory_plan") < kinds.index("run_started")
    plan = of_kind(told, "memory_plan")[-1]
    assert 0 < plan["total_bytes"] < plan["free_bytes"] <= card.TOTAL
    assert all(0 < event["metrics"]["memory/gpu_peak_gib"] < 1 for event in of_kind(told, "step"))


def test_pairs_with_all_that_a_run_does(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, train_device="auto", train_dtype="FLOAT_16",
        rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=34.0, ema="GPU", ema_update_step_interval=1,
        samples=[SAMPLE], sample_after=1, sample_after_unit="EPOCH", backup_after=1, backup_after_unit="EPOCH",
        unet={"gradient_checkpointing": True, "activation_offloading": True},
    )  # fmt: skip
    told = trained(path)
    check_memory(told)
    assert len(of_kind(told, "step")) == 4 and len(of_kind(told, "sample")) == len(of_kind(told, "backup")) == 2
    assert of_kind(told, "warning") == of_kind(told, "error") == []
    (tmp_path / "out.safetensors").rename(tmp_path / "whole.safetensors")
    last, _ = sorted(list_backups(tmp_path / "run" / "backup"))[::-1]
    last.rename(tmp_path / "not there")
    trained(path, "--set", "continue_last_backup=true")
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")


def test_images_made_by_the_run(tmp_path: Path) -> None:
    check_memory(trained(write_online(tmp_path, train_device="cuda", epochs=1, ema="CPU", ema_update_step_interval=1)))


def test_weights_in_main_memory_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(
        tmp_path, train_device="cuda", training_method="FINE_TUNE", rlhf_enabled=False, train_dtype="BFLOAT_16",
        concepts=[{**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}], max_steps=3,
        optimizer={"optimizer": "ADAFACTOR", "fused_back_pass": True, "params": {"scale_parameter": False}},
        unet={"offload_fraction": 0.5, "gradient_checkpointing": True, "weight_dtype": "FLOAT_32"},
        clip_each_weight=True, output_model_format="DIFFUSERS", output_model_destination=str(tmp_path / "out"),
    )  # fmt: skip
    told = trained(path, "--profile", "2")
    check_memory(told)
    assert "on test card 0" in capsys.readouterr().out
    made = {file.name for file in (tmp_path / "run").rglob("*") if file.is_file()}
    assert {"table.txt", "memory.pickle"} <= made


def test_less_memory_than_needed_is_told_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(card, "TOTAL", 1 << 20)
    # advice, tried in test_memory_advice.py, is predicted for one change of settings after the other if none helps
    monkeypatch.setattr("modules.trainer.memory.memory_advice.cheapest_saving", lambda *_: None)
    path = write_config(tmp_path, train_device="cuda", rlhf_dpo_execution_mode="AUTO", max_steps=1)
    told = trained(path)
    assert any("does not fit" in event["message"] for event in of_kind(told, "warning"))
    assert "execution mode SEQUENTIAL" in capsys.readouterr().out


def test_images_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", str(tiny_folder()), "--prompt", "a cat", "--steps", "2", "--width", "64", "--height", "64"]
    assert sample.main([*given, "--out", str(tmp_path / "card")]) == 0
    assert sample.main([*given, "--out", str(tmp_path / "cpu"), "--device", "cpu", "--dtype", "BFLOAT_16"]) == 0
    (first,), (second,) = ([Image.open(p) for p in (tmp_path / name).glob("*.png")] for name in ("card", "cpu"))
    assert first.size == second.size == (64, 64)
    CARD.set_limit(CARD.live() + 4096)
    try:
        assert sample.main([*given, "--out", str(tmp_path / "full")]) == 2
    finally:
        CARD.set_limit(0)
    assert "error: the graphics card has too little memory" in capsys.readouterr().err
    assert not list(tmp_path.glob("full/*.png"))
