"""Several processes train what one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.util.TrainProgress import TrainProgress
from tests.dist.group import run_group, run_two
from tests.trainer.builders import (
    ROOT,
    environment,
    events,
    run_here,
    same_weights,
    write_config,
    write_likes,
    write_pairs,
)

pytestmark = pytest.mark.dist

COMMON: dict[str, Any] = {"epochs": 2, "gradient_accumulation_steps": 1, "train_dtype": "FLOAT_32"}


def torchrun(config: Path, *arguments: str, processes: int = 2) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--master-port=0",
        "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(ROOT / "scripts" / "train.py"),
        "--config-path", str(config), *arguments,
    ]  # fmt: skip


def difference(first: Path, second: Path) -> float:
    """Largest difference between two adapter files, relative to the largest value."""
    one, other = load_file(first), load_file(second)
    assert one.keys() == other.keys()
    names = [name for name in one if "alpha" not in name]
    gap = max(float((one[n] - other[n]).abs().max()) for n in names)
    return gap / max(float(one[n].abs().max()) for n in names)


PLAIN: dict[str, Any] = {"optimizer": {"optimizer": "SGD"}, "clip_grad_norm": 0.0, "learning_rate": 0.5}
"""Adam would hide a gradient of the wrong length, and would make much of the rounding of a tiny one."""

CASES: dict[str, dict[str, Any]] = {
    "preference": {
        **PLAIN,
        "rlhf_dpo_beta": 10.0,  # scores are float32: a larger one would show their rounding
        "rlhf_dpo_validation": True,
        "rlhf_dpo_validation_percentage": 30.0,
        "rlhf_dpo_adaptive_beta": True,
        "ema": "CPU",
        "ema_update_step_interval": 1,
    },
    "cached_reference": {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 2},
    "sequential": {"rlhf_dpo_execution_mode": "SEQUENTIAL"},
    "supervised": {"rlhf_enabled": False, "text_encoder": {"dropout_probability": 0.3}},
    # three in the first process and two in the second
    "five_pairs": PLAIN,
    # the mean reward of a step is that of the images of both
    "likes": {**PLAIN, "rlhf_dpo_objective": "KTO", "rlhf_dpo_beta": 10.0},
}
BATCH_SIZES = {"five_pairs": (5, 3)}
"""Of one process and of each of two, where they are not 4 and 2."""


class Validations(Callback):
    """Keeps the losses of validation."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def validation(self, progress: TrainProgress, metrics: Any) -> None:
        self.losses.append(metrics["dpo/val_loss"])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_the_weights_of_one(tmp_path: Path, name: str) -> None:
    changes = {**COMMON, **CASES[name]}
    alone, each = BATCH_SIZES.get(name, (4, 2))
    if name == "five_pairs":
        changes["concepts"] = write_pairs(tmp_path / "data", 5)
    if name == "likes":
        changes["concepts"] = write_likes(tmp_path / "data")
    if name == "supervised":
        write_pairs(tmp_path / "data", 7)
        changes["concepts"] = [{"path": str(tmp_path / "data" / "chosen"), "type": "STANDARD"}]
    told = Validations()
    run_here(write_config(tmp_path / "one", **changes, batch_size=alone), callback=told)
    two = write_config(tmp_path / "two", **changes, batch_size=each)
    run_two(two)
    started = next(e for e in events(tmp_path / "two" / "run") if e["kind"] == "run_started")
    assert started["processes"] == 2
    assert difference(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors") < 2e-4

    curve = [
        e["metrics"]["dpo/val_loss"] for e in events(tmp_path / "two" / "run") if e["kind"] == "validation"
    ]
    assert curve == pytest.approx(told.losses, rel=1e-5)
    assert bool(curve) == ("rlhf_dpo_validation" in changes)


def test_two_processes_stop_together_and_resume_bit_equal(tmp_path: Path) -> None:
    changes = {**COMMON, "epochs": 3}
    run_two(write_config(tmp_path / "one", **changes))
    config = write_config(tmp_path / "two", **changes)
    run_group(tmp_path, ROOT / "tests" / "dist" / "stopped.py", str(config), "2")
    run = tmp_path / "two" / "run"
    assert events(run)[-1]["status"] == "stopped"
    assert 2 <= events(run)[-1]["progress"]["global_step"] < 6
    run_two(config, "--set", "continue_last_backup=true")
    assert events(run)[-1]["progress"]["global_step"] == 6
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")


def test_what_fails_or_is_slow_in_the_first_process_does_not_part_it_from_the_others(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, **COMMON, rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=40.0, batch_size=1
    )
    run_group(tmp_path, ROOT / "tests" / "dist" / "one_fails.py", str(config), timeout=60)
    told = events(tmp_path / "run")
    assert [e["message"] for e in told if e["kind"] == "command" and e["state"] == "failed"] == ["no room"]
    assert told[-1]["status"] == "finished"


def test_a_message_that_arrives_just_after_its_time_has_run_out_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        ended = False

        def is_completed(self) -> bool:
            return self.ended

        def wait(self, _: object) -> None:
            if not self.ended:
                self.ended = True
                raise RuntimeError("Operation timed out!")

    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: Late())
    assert Processes(0, 2, 0, torch.device("cpu")).sum(torch.ones(1)).item() == 1.0


@pytest.mark.slow
def test_auto_means_one_execution_mode_in_all_processes(tmp_path: Path) -> None:
    config = write_config(tmp_path / "auto", **COMMON, rlhf_dpo_execution_mode="AUTO")
    script = ROOT / "tests" / "dist" / "unequal_cards.py"
    assert "card 1: SEQUENTIAL" in run_group(tmp_path, script, "--config-path", str(config))
    run = tmp_path / "auto" / "run"
    assert [(run / f"mode{rank}").read_text("utf-8") for rank in range(2)] == ["SEQUENTIAL"] * 2
    named = write_config(tmp_path / "named", **COMMON, rlhf_dpo_execution_mode="SEQUENTIAL")
    run_two(named)
    assert same_weights(tmp_path / "auto" / "out.safetensors", tmp_path / "named" / "out.safetensors")


def test_processes_that_have_read_different_data_do_not_train(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_config(tmp_path / name, **COMMON, workspace_dir=str(tmp_path / "run"))
    for side in ("chosen", "rejected"):
        (tmp_path / "two" / "data" / side / "000.txt").write_text("another prompt", encoding="utf-8")
    configs = [str(tmp_path / name / "config.json") for name in ("one", "two")]
    with pytest.raises(AssertionError, match="processes of this run have read different images"):
        run_group(tmp_path, ROOT / "tests" / "dist" / "other_data.py", *configs, timeout=60)
    assert not any(event["kind"] == "step" for event in events(tmp_path / "run"))


@pytest.mark.slow  # it is the launcher that ends the others: see test_several_devices.py
def test_an_error_in_the_data_ends_all_processes(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    (tmp_path / "data" / "chosen" / "000.txt").write_text("another prompt", encoding="utf-8")
    made = subprocess.run(
        torchrun(config), capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert made.returncode != 0
    assert "000" in made.stderr and "prompt" in made.stderr
