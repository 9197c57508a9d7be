"""The journey of the online modes, small: a judge behind HTTP, images made while training, a report."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from PIL import Image
from safetensors import safe_open

from scripts.demo.journey import run_journey
from scripts.demo.pairs import prompt_split
from scripts.demo.plan import FULL, Journey, Size
from scripts.make_demo import main, summary

TINY = (
    "cpu_threads=1", "rlhf_prompts_per_epoch=2", "rlhf_group_size=2", "batch_size=4", "rlhf_rollout_steps=4",
    "rlhf_rollout_cfg_scale=1", "rlhf_num_train_timesteps=1",
)  # fmt: skip
COUPLED = ("rlhf_num_sde_steps=1", 'rlhf_sde_window="0-2"')
SMALL = Size(prompts=5, images_per_prompt=4, pairs_per_prompt=1, judged=3, online_epochs=2)
FIELDS_OF_PAIRS = ("answers", "pairs", "heldout_pairs", "heldout_pair_accuracy", "supervised_win_rate")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("GRPO", marks=pytest.mark.slow),
        pytest.param("GSPO", marks=pytest.mark.slow),
        pytest.param("DGPO", marks=pytest.mark.slow),
        pytest.param("ONLINE_DPO", marks=pytest.mark.slow),
        pytest.param("NFT", marks=pytest.mark.slow),
    ],
)
def test_a_small_journey(tmp_path: Path, mode: str) -> None:
    out = tmp_path / "a folder with spaces"
    before = threading.active_count()
    settings = TINY + COUPLED if mode in ("GRPO", "GSPO") else TINY
    made = run_journey(Journey(out, seed=3, mode=mode, size=SMALL, overrides=settings), print)
    assert threading.active_count() <= before, "the judge goes home"
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == made
    assert (made["mode"], made["reward"], made["seed"], made["judged"]) == (mode, "judge", 3, 3)
    assert made["images"] == 8 and made["steps"] == 2 and len(made["reward_curve"]) == 2
    assert all(made[name] is None for name in FIELDS_OF_PAIRS)
    assert all(0.0 <= made[name] <= 1.0 for name in ("win_rate", "fidelity_base", "fidelity_adapter"))
    assert made["train_cpu_seconds"] > 0 and made["judge_cpu_seconds"] > 0
    prompts = (out / "prompts.txt").read_text(encoding="utf-8").splitlines()
    assert len(prompts) == made["prompts"] and not {w.caption() for w in prompt_split(3)[1]} & set(prompts)
    with Image.open(out / "before_after.png") as sheet:
        assert sheet.width > 500
    with safe_open(made["adapter"], framework="pt") as adapter:
        assert adapter.metadata()["tastemaker.mode"] == mode
    assert "8 images made while training, 2 steps" in summary(made)


@pytest.mark.slow
def test_a_reward_learned_from_picks(tmp_path: Path) -> None:
    journey = Journey(tmp_path / "out", 3, "GRPO", SMALL, overrides=TINY + COUPLED, reward="picks")
    made = run_journey(journey, print)
    assert made["reward"] == "picks" and made["error_rate"] == 0.1 and made["judge_cpu_seconds"] is None
    assert made["pairs"] + made["heldout_pairs"] == 5 and made["answers"] >= 5
    assert 0.0 <= made["heldout_pair_accuracy"] <= 1.0
    assert (tmp_path / "out" / "taste.safetensors").is_file() and made["images"] == 8


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["--mode", "GRPO", "--reward", "applause"], "applause"),
        (["--mode", "DPO", "--reward", "picks"], "learns from pairs"),
        (["--mode", "PPO"], "possible: FEW, LOOP, LIVE, DPO, DGPO, GRPO, GSPO"),
        (["--mode", "DGPO", "--error-rate", "0.7"], "0.7"),
    ):
        assert main(["journey", "--out", str(tmp_path / "new"), *arguments]) == 2
        assert expected in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


def test_a_training_that_fails_shows_its_log(tmp_path: Path) -> None:
    from modules.util.errors import UserError

    journey = Journey(tmp_path / "out", mode="GRPO", size=SMALL, overrides=("rlhf_group_size=1",))
    with pytest.raises(UserError, match="rlhf_group_size"):
        run_journey(journey, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mode", ["GRPO", "GSPO", "DGPO"])
def test_online_training_wins(tmp_path: Path, mode: str, seed: int) -> None:
    journey = Journey(tmp_path / "out", seed, mode, FULL, overrides=("cpu_threads=1",))
    made = run_journey(journey, print)
    assert made["win_rate"] >= 0.70
    assert made["fidelity_base"] - made["fidelity_adapter"] <= 0.03
    assert made["reward_after"] > made["reward_before"]
    assert made["train_cpu_seconds"] <= 600
