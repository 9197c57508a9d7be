"""Several processes make and learn from the images one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dist.test_torchrun import run_two
from tests.trainer.making import events, run_here, same_weights
from tests.trainer.online_making import SGD, Listening, write_online
from tests.trainer.test_online_steps import gap

pytestmark = pytest.mark.dist

NORMALISED = [{"reward": "brightness", "normalise": True}, {"reward": "contrast", "weight": -0.5}]
ONE_STEP = {"gradient_accumulation_steps": 2, "rlhf_inner_epochs": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: mode, settings, those of one process, those of each of two
    "grpo": ("GRPO", {"rlhf_kl_beta": 0.1, "rlhf_rewards": NORMALISED}, {}, {"batch_size": 2}),
    "gspo_prompt_mean": (
        "GSPO",
        {"rlhf_loss_aggregation": "PROMPT_MEAN", "rlhf_inner_epochs": 2},
        {},
        {"batch_size": 2},
    ),
    "dgpo_exact": ("DGPO", {"rlhf_inner_epochs": 2}, {}, {"batch_size": 2}),
    "dgpo_two_passes": (
        "DGPO",
        {},
        {},
        {"batch_size": 2, "rlhf_dgpo_group_strategy": "TWO_PASS", "rlhf_sampler": "DISTRIBUTED_K_REPEAT"},
    ),
    "dgpo_contiguous": ("DGPO", ONE_STEP, {}, {"batch_size": 4, "rlhf_sampler": "GROUP_CONTIGUOUS"}),
    "pairs": (
        "ONLINE_DPO",
        {**ONE_STEP, "rlhf_online_dpo_beta": 50.0},
        {},
        {"batch_size": 4},
    ),
    "docs_per_step": (
        "GRPO",
        {"rlhf_docs_per_step": 4, "rlhf_skip_zero_advantage": True},
        {"batch_size": 2, "rlhf_sampler": "GROUP_CONTIGUOUS", "rlhf_rollout_batch_size": 1},
        {"batch_size": 1, "rlhf_sampler": "DISTRIBUTED_K_REPEAT"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does(tmp_path: Path, name: str) -> None:
    mode, common, alone, each = CASES[name]
    heard = Listening()
    changes = {**SGD, **common}
    if name in ("dgpo_contiguous", "pairs"):
        each = {**each, "gradient_accumulation_steps": 1}
    if name == "docs_per_step":
        changes["rlhf_group_size"], changes["rlhf_prompts_per_epoch"] = 2, 4
    run_here(write_online(tmp_path / "one", mode, **{**changes, **alone}), callback=heard)
    run_two(write_online(tmp_path / "two", mode, **{**changes, **each}))
    told = events(tmp_path / "two" / "run")
    assert next(e for e in told if e["kind"] == "run_started")["processes"] == 2
    steps = [e["metrics"] for e in told if e["kind"] == "step"]
    last = steps[-1]
    assert last["loss/train_step"] == pytest.approx(heard.metrics[-1]["loss/train_step"], rel=2e-2, abs=1e-4)
    first = next(m for m in steps if "rl/reward_mean" in m)
    for tag in ("rl/reward_mean", "rl/reward_std", "rl/images", "rl/zero_std_ratio"):
        assert first[tag] == pytest.approx(heard.metrics[0][tag], rel=1e-4), tag
    assert gap(tmp_path / "one", tmp_path / "two") < 1e-2


def test_two_processes_go_on_bit_equal_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"batch_size": 2, "rlhf_rewards": NORMALISED, "backup_after": 1}
    run_two(write_online(tmp_path / "one", **changes, backup_after_unit="NEVER"))
    config = write_online(tmp_path / "two", **changes, backup_after_unit="STEP")
    run_two(config, "--set", "max_steps=1")
    run_two(config, "--set", "continue_last_backup=true")
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")
    told = events(tmp_path / "two" / "run")
    resumed = max(i for i, e in enumerate(told) if e["kind"] == "run_started")
    assert told[resumed]["progress"]["epoch_step"] == 1
    phases = [e["name"] for e in told[resumed:] if e["kind"] == "phase"]
    # the images of the first epoch come out of the backup
    assert "making images, epoch 1" not in phases
    assert "making images, epoch 2" in phases
