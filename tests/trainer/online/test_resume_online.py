"""Online training that was interrupted ends with the weights of a run that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.reward.base import Reward
from modules.util.errors import UserError
from scripts.train import main
from tests.trainer.builders import events, run_and_go_back, run_here, same_weights
from tests.trainer.online.builders import Listening, write_online
from tests.usual import usual

EMA = {"ema": "CPU", "ema_update_step_interval": 1, "backup_before_save": True}
NORMALISED = [
    {"reward": "brightness", "normalise": True},
    {"reward": "contrast", "weight": -0.5, "normalise": True},
]
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "in_an_epoch": ("GRPO", {"rlhf_rewards": NORMALISED, "rlhf_kl_beta": 0.1}, 1),
    "between_epochs": ("GRPO", {"rlhf_rewards": NORMALISED}, 2),
    "inner_epochs": ("GSPO", {"rlhf_inner_epochs": 2, "rlhf_old_logprob_source": "RECOMPUTE"}, 3),
    "regulated": ("GRPO", {"rlhf_grpo_guard": True, "rlhf_num_sde_steps": 1}, 1),
    "old_policy": ("DGPO", {"rlhf_switch_ema_ref": 1, "rlhf_ema_ref_ramp_rate": 0.2}, 3),
    "old_policy_mid": ("DGPO", {"rlhf_switch_ema_ref": 0, "rlhf_ema_ref_ramp_rate": 0.2}, 1),
    "average": ("NFT", {**EMA, "rlhf_off_policy": True, "rlhf_switch_ema_ref": 50}, 2),
    "pairs": ("ONLINE_DPO", {"rlhf_online_dpo_pairs": "ALL", "rlhf_online_dpo_beta": 100.0}, 1),
    "weighed": ("AWM", {"rlhf_ema_ref_ramp_rate": 0.2, "rlhf_norm_guard": 10.0}, 1),
}


SIGNALLED = ("in_an_epoch", "between_epochs", "average")
"""These are stopped as the system does; the others resume from a backup that the whole run made on its way."""


# both kinds of steps; NFT and GRPO are resumed by test_free_weights.py too
@pytest.mark.parametrize("name", usual(CASES, "in_an_epoch", "old_policy"))
def test_stopped_and_continued_is_bit_equal(tmp_path: Path, name: str) -> None:
    mode, changes, at = CASES[name]
    whole, parts, rest = Listening(), Listening(stop_at=at), Listening()
    config = write_online(tmp_path / "parts", mode, **changes)
    if name in SIGNALLED:
        run_here(write_online(tmp_path / "whole", mode, **changes), callback=whole)
        straight = tmp_path / "whole" / "out.safetensors"
        assert run_here(config, callback=parts).progress.global_step == at
    else:
        run_and_go_back(config, at, callback=whole)
        straight, parts.metrics = tmp_path / "parts" / "whole.safetensors", whole.metrics[:at]
    run_here(config, "continue_last_backup=true", callback=rest)
    assert same_weights(straight, tmp_path / "parts" / "out.safetensors")
    assert len(parts.metrics) + len(rest.metrics) == len(whole.metrics)
    for ours, theirs in zip(parts.metrics + rest.metrics, whole.metrics, strict=True):
        assert {k: v for k, v in ours.items() if not k.startswith("memory")} == theirs
    made_again = sum(name.startswith("making images") for name in rest.phases) > 0
    assert made_again or at > 2
    if name == "in_an_epoch":
        # the second epoch is made, the first is taken up
        assert not any("epoch 1" in phase for phase in rest.phases)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a run that was not stopped; only to be read."""
    folder = tmp_path_factory.mktemp("plain")
    run_here(write_online(folder, rlhf_rollout_steps=2))
    return folder / "out.safetensors"


@pytest.mark.parametrize(
    "phase",
    usual(
        ["making images, epoch 2", "decoding images", "scoring images"], "scoring images"
    ),
)
def test_stopped_while_images_are_made(tmp_path: Path, plain: Path, phase: str) -> None:
    config = write_online(tmp_path / "parts", rlhf_rollout_steps=2)
    stopped = run_here(config, callback=Listening(stop_in=phase))
    assert stopped.progress.global_step in (0, 2)
    run_here(config, "continue_last_backup=true")
    assert same_weights(plain, tmp_path / "parts" / "out.safetensors")


def test_scales_of_rewards_count_an_epoch_once(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "rlhf_old_logprob_source": "RECOMPUTE",
        "rlhf_rollout_steps": 2,
        "rlhf_reward_combination": "SUM",
        "rlhf_rewards": [
            {"reward": "brightness", "normalise": True},
            {"reward": "contrast", "weight": -0.5},
        ],
    }
    run_here(write_online(tmp_path / "whole", **changes))
    config = write_online(tmp_path / "parts", **changes)
    stopped = run_here(config, callback=Listening(stop_in="asking for the probabilities"))
    assert stopped.progress.global_step == 0
    run_here(config, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole" / "out.safetensors", tmp_path / "parts" / "out.safetensors")


@pytest.mark.slow
def test_other_prompts_are_refused(tmp_path: Path) -> None:
    config = write_online(tmp_path, epochs=1)
    run_here(config, callback=Listening(stop_at=1))
    (tmp_path / "prompts.txt").write_text("something else\nand more\nof it\n", encoding="utf-8")
    with pytest.raises(UserError, match="prompts"):
        run_here(config, "continue_last_backup=true")


def test_another_file_under_a_reward_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"the reward's weights")
    # a reward of the tests with weights of its own would be registered for all of them
    monkeypatch.setattr(Reward, "weights_file", lambda reward: weights)
    config = write_online(tmp_path, epochs=1)
    run_here(config, callback=Listening(stop_at=1))
    weights.write_bytes(b"other weights")
    with pytest.raises(UserError, match="the file of reward 'brightness' has changed"):
        run_here(config, "continue_last_backup=true")
    weights.write_bytes(b"the reward's weights")
    run_here(config, "continue_last_backup=true")
    assert (tmp_path / "out.safetensors").is_file()


def test_command_line_tells_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config-path", str(write_online(tmp_path, epochs=1))]) == 0
    said = capsys.readouterr().out
    assert "4 prompts; an epoch makes 4 images for each of 2 prompts, 8 in all, scored by brightness" in said
    told = events(tmp_path / "run")
    assert told[-1]["status"] == "finished"
    steps = [event["metrics"] for event in told if event["kind"] == "step"]
    assert {"reward/brightness/mean", "rl/zero_std_ratio", "rl/dropped_groups"} <= steps[0].keys()
