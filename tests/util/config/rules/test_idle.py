"""Settings that are set but cannot act are named."""

from __future__ import annotations

from typing import Any

import pytest

from modules.util.config.load import check_config
from modules.util.config.TrainConfig import TrainConfig

DPO = {"rlhf_enabled": True, "training_method": "LORA"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, []),
        ({**DPO, "rlhf_dpo_beta": 100.0, "ema": "GPU", "ema_decay": 0.9}, []),
        ({"ema_decay": 0.9}, ["ema_decay: has no effect while ema is OFF"]),
        (
            {**DPO, "rlhf_group_size": 6, "rlhf_nft_beta": 0.5, "rlhf_clip_range_low": 0.1},
            [
                "rlhf_group_size: has no effect while rlhf_mode is DPO; the same holds for rlhf_clip_range_low, "
                "rlhf_nft_beta"
            ],
        ),
        (
            {"rlhf_group_size": 6},
            ["rlhf_group_size: has no effect while rlhf_enabled is off and rlhf_mode is DPO"],
        ),
        (
            {"learning_rate_rex_d": 0.7},
            ["learning_rate_rex_d: has no effect while learning_rate_scheduler is CONSTANT"],
        ),
        (
            {"unet": {"train": False, "learning_rate": 1e-5}, "text_encoder": {"train": True}},
            ["unet.learning_rate: has no effect while unet.train is off"],
        ),
        (
            {"concepts": [{"path": "a", "image": {"resolution_override": "768"}}]},
            [
                "concepts[0].image.resolution_override: has no effect while "
                "concepts[0].image.enable_resolution_override is off"
            ],
        ),
        (
            {"samples": [{"random_seed": True, "seed": 7}]},
            ["samples[0].seed: has no effect while samples[0].random_seed is on"],
        ),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named_with_its_reason(data: dict[str, Any], said: list[str]) -> None:
    assert check_config(TrainConfig.from_dict(data)) == said


def test_many_with_one_reason_are_one_line() -> None:
    names = ["group_size", "rollout_steps", "kl_beta", "online_dpo_beta", "nft_beta", "dgpo_beta"]
    names.append("num_train_timesteps")
    defaults = TrainConfig().to_dict()
    changed = {name: defaults[name] + 1 for name in map("rlhf_{}".format, names)}
    (line,) = check_config(TrainConfig.from_dict({**DPO, **changed}))
    assert line.endswith("1 more setting") and line.count("rlhf_") == 7  # six names, and that of the mode


def test_what_another_warning_tells_is_not_told_twice() -> None:
    data = {"model_type": "STABLE_DIFFUSION_15", "text_encoder_2": {"learning_rate": 1e-5}}
    lines = check_config(TrainConfig.from_dict(data))
    assert [line for line in lines if "text_encoder_2" in line] == lines and len(lines) == 1
