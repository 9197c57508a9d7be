"""What AUTO meant when a run began, it means when the run resumes, whatever memory is free then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.trainer import assembly
from modules.trainer.memory.memory_advice import choose_mode
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from tests.trainer.builders import run_and_go_back, run_here, same_weights, write_config

NEEDED = {"FULL_CONCURRENT": 30, "POLICY_CONCURRENT": 20, "SEQUENTIAL": 10}
CHANGES: dict[str, Any] = {
    "rlhf_dpo_execution_mode": "AUTO", "epochs": 2, "batch_size": 3,
}  # fmt: skip


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A card with ``free`` memory; ``meant`` are the modes of the runs on it."""
    state: dict[str, Any] = {"free": 100, "meant": []}
    build = assembly._run

    def choose(config: TrainConfig, _device: object) -> tuple[TrainConfig, str]:
        if config.rlhf_dpo_execution_mode != "AUTO":
            return config, ""
        mode = DPOExecutionMode(choose_mode(state["free"], NEEDED))
        return config.model_copy(update={"rlhf_dpo_execution_mode": mode}), f"execution mode {mode}"

    def built(*arguments: Any) -> Any:
        made = build(*arguments)
        state["meant"].append(made.config.rlhf_dpo_execution_mode.value)
        return made

    monkeypatch.setattr(assembly, "choose_execution_mode", choose)
    monkeypatch.setattr(assembly, "_run", built)
    return state


@pytest.mark.parametrize(("first", "later"), [(100, 10), pytest.param(10, 100, marks=pytest.mark.slow)])
def test_a_run_resumes_in_the_mode_it_began_in(
    tmp_path: Path, card: dict[str, Any], first: int, later: int
) -> None:
    card["free"] = first
    config = write_config(tmp_path, **CHANGES)
    run_and_go_back(config, 2)
    card["free"] = later
    assert run_here(config, "continue_last_backup=true").progress.global_step == 4
    began, resumed = card["meant"]
    assert began == resumed == choose_mode(first, NEEDED)
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")
    (backup,) = (tmp_path / "run" / "backup").iterdir()
    assert json.loads((backup / "meta.json").read_text("utf-8"))["state"]["execution_mode"] == resumed
    # a new run takes what is free now
    run_here(config, "max_steps=1")
    assert card["meant"][-1] == choose_mode(later, NEEDED) != resumed
