"""MaPO: pairs without a reference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from modules.trainer import assembly
from modules.trainer.callbacks import Callback
from tests.trainer.builders import run_here, write_config

BETA, WEIGHT = 20.0, 0.5
MAPO: dict[str, Any] = {
    "rlhf_dpo_objective": "MAPO",
    "rlhf_dpo_beta": BETA,
    "rlhf_dpo_mapo_weight": WEIGHT,
    "rlhf_dpo_validation": True,
    "rlhf_dpo_validation_draws": 1,
    "validate_after": 1,
    "validate_after_unit": "STEP",
    "max_steps": 1,
}


class Numbers(Callback):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, float] = {}

    def step(self, progress: Any, metrics: Any, *_: Any) -> None:
        self.seen.update(metrics)

    def validation(self, progress: Any, metrics: Any) -> None:
        self.seen.update(metrics)


def test_a_run_from_an_adapter_makes_no_reference_and_validates_the_loss_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(write_config(tmp_path / "first", max_steps=1))
    monkeypatch.setattr(assembly, "create_reference", None)
    told = Numbers()
    start = str(tmp_path / "first" / "out.safetensors")
    trainer = run_here(write_config(tmp_path / "second", lora_model_name=start, **MAPO), callback=told)
    assert len(trainer.parts.validation_loader) == 1, "one pair, so that averages are its numbers"
    chosen, rejected = told.seen["dpo/val_chosen_reward"], told.seen["dpo/val_rejected_reward"]
    assert chosen < 0 and rejected < 0, "minus the errors"
    expected = -chosen + WEIGHT * math.log1p(math.exp(-BETA * (chosen - rejected)))
    assert told.seen["dpo/val_loss"] == pytest.approx(expected, rel=1e-5)
    assert told.seen["dpo/reward_margin"] == pytest.approx(
        told.seen["dpo/chosen_reward"] - told.seen["dpo/rejected_reward"], rel=1e-4
    )
