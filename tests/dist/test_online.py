"""Several processes make and learn from the images one does."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.trainer.distributed import Processes
from tests.dist.group import run_group, run_two
from tests.dist.recorded import run_recorded
from tests.trainer.builders import events, same_weights
from tests.trainer.online.builders import SGD, write_online
from tests.usual import usual

pytestmark = pytest.mark.dist

NORMALISED = [{"reward": "brightness", "normalise": True}, {"reward": "contrast", "weight": -0.5}]
ONE_STEP = {"gradient_accumulation_steps": 2, "rlhf_inner_epochs": 2}
FOUR_PROMPTS = {"rlhf_prompts_per_epoch": 4, "epochs": 1}
LOST = {**FOUR_PROMPTS, "rlhf_reward_on_error": "SKIP_GROUP"}
CLOSE, CANCELLED = 1e-6, {"dgpo_exact": 5e-6, "pairs": 5e-6}
"""Of gradients, relative to the largest of the step: float32 numbers are added in another order, nothing else differs.
Where better and worse images have the same noise, most of what is added cancels."""

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name: mode, settings, those of one process, those of each of two
    "grpo": (
        "GRPO",
        {"rlhf_kl_beta": 0.1, "rlhf_rewards": NORMALISED, "batch_size": 2},
        {"gradient_accumulation_steps": 2},
        {},
    ),
    "gspo_prompt_mean": (
        "GSPO",
        {
            "rlhf_loss_aggregation": "PROMPT_MEAN", "rlhf_inner_epochs": 2, "batch_size": 2, "learning_rate": 0.01,
        },
        {"gradient_accumulation_steps": 2},
        {},
    ),
    "dgpo_exact": (
        "DGPO",
        {"rlhf_inner_epochs": 2, "batch_size": 2},
        {"gradient_accumulation_steps": 2},
        {"rlhf_dgpo_group_strategy": "EXACT"},
    ),
    "dgpo_two_passes": (
        "DGPO",
        {"batch_size": 2},
        {"gradient_accumulation_steps": 2},
        {"rlhf_dgpo_group_strategy": "TWO_PASS", "rlhf_sampler": "DISTRIBUTED_K_REPEAT"},
    ),
    "dgpo_contiguous": (
        "DGPO",
        {"rlhf_inner_epochs": 2},
        {"gradient_accumulation_steps": 2},
        {"rlhf_sampler": "GROUP_CONTIGUOUS"},
    ),
    "dgpo_lost": ("DGPO", {**LOST, "batch_size": 2}, {"gradient_accumulation_steps": 2}, {}),
    "nft": (
        "NFT",
        {"rlhf_ema_ref_ramp_rate": 0.2, "batch_size": 2},
        {"gradient_accumulation_steps": 2},
        {},
    ),
    "nft_lost": (
        "NFT",
        {**LOST, "batch_size": 2},
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": 2},
    ),
    "pairs": (
        "ONLINE_DPO",
        {"rlhf_inner_epochs": 2, "rlhf_online_dpo_beta": 50.0},
        {"gradient_accumulation_steps": 2},
        {},
    ),
    "docs_per_step": (
        "GRPO",
        {
            **FOUR_PROMPTS, "rlhf_group_size": 2, "epochs": 2, "rlhf_docs_per_step": 4,
            "rlhf_skip_zero_advantage": True, "batch_size": 1,
        },
        {"rlhf_sampler": "GROUP_CONTIGUOUS"},
        {"rlhf_sampler": "DISTRIBUTED_K_REPEAT"},
    ),
}  # fmt: skip


def write_case(folder: Path, name: str, share: dict[str, Any]) -> None:
    mode, common, _, _ = CASES[name]
    # images and their scores in equal batches
    # all layers: the smaller gradients of a few would show more of their rounding
    layers = {"layer_filter_preset": "attn-mlp"}
    write_online(folder, mode, **{**SGD, **layers, "rlhf_rollout_batch_size": 1, **common, **share})
    if name.endswith("lost"):
        (folder / "lose").touch()


def gradient_gaps(first: Path, second: Path) -> list[float]:
    """Of every optimizer step the largest difference of a gradient, relative to the largest gradient."""
    one, other = load_file(first), load_file(second)
    assert one.keys() == other.keys()
    gaps = []
    for step in range(1 + max(int(name.split(".")[0]) for name in one)):
        names = [name for name in one if name.startswith(f"{step}.")]
        largest = max(float(one[name].abs().max()) for name in names)
        assert largest > 0, f"step {step} has no gradient"
        gaps.append(max(float((one[name] - other[name]).abs().max()) for name in names) / largest)
    return gaps


GROUPS = {
    "one of each method": ("grpo", "gspo_prompt_mean", "dgpo_two_passes", "dgpo_lost", "nft", "pairs"),
    "images": ("grpo", "gspo_prompt_mean", "docs_per_step"),
    "groups": ("dgpo_exact", "dgpo_two_passes", "dgpo_contiguous", "dgpo_lost"),
    "decoupled": ("nft", "nft_lost", "pairs"),
}
"""Cases whose runs follow each other in the same two processes: most of the time of a tiny run is spent on starting.

The first has every loss, rewards that are normalised over all images, an image that cannot be scored, and groups whose
images lie in both processes.
"""
assert {*itertools.chain(*GROUPS.values())} == {*CASES}


@pytest.mark.parametrize("group", usual(GROUPS, "one of each method"))
def test_two_processes_learn_what_one_does(tmp_path: Path, group: str) -> None:
    for name in GROUPS[group]:
        write_case(tmp_path / name / "one", name, CASES[name][2])
        write_case(tmp_path / name / "two", name, CASES[name][3])
    # the script asserts that there are two processes
    folders = [str(tmp_path / name / "two") for name in GROUPS[group]]
    run_group(tmp_path, Path(__file__).with_name("recorded.py"), *folders)
    for name in GROUPS[group]:
        expect_same(tmp_path / name / "one", tmp_path / name / "two", name)


def expect_same(one: Path, two: Path, name: str) -> None:
    """Run a case in this process; two processes have run it in the second folder."""
    theirs = two / "gradients.safetensors"
    run_recorded(one, Processes(0, 1, 0, torch.device("cpu")), theirs)
    metrics, told = (
        json.loads((folder / "metrics.json").read_text(encoding="utf-8")) for folder in (one, two)
    )
    gaps = gradient_gaps(one / "gradients.safetensors", theirs)
    assert len(told) == len(metrics) == len(gaps) > 1, name
    assert max(gaps) < CANCELLED.get(name, CLOSE), (name, gaps)
    for mine, other in zip(metrics, told, strict=True):
        for tag in (
            "loss/train_step",
            "grad_norm",
            *(t for t in mine if t.startswith(("rl/reward", "rl/images"))),
        ):
            assert other[tag] == pytest.approx(mine[tag], rel=1e-5, abs=1e-7), (name, tag)
        assert other.get("rl/dropped_groups") == mine.get("rl/dropped_groups"), name
    assert sum(m.get("rl/dropped_groups", 0) for m in told) == (1 if name.endswith("lost") else 0), name


def test_two_processes_resume_bit_equal_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
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
