"""Every case of ``tests/house/acts``: another value of one setting, and another outcome."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.acts.case import Case
from tests.house.acts.registry import cases

SHOWN = (
    "seed", "continue_last_backup", "tensorboard_port", "unet.weight_dtype", "concepts.0.image.enable_fixed_flip",
    "dataloader_threads", "learning_rate_cycles", "layer_filter_regex", "rlhf_dpo_sequential_strategy", "rlhf_sampler",
    "rlhf_rewards.0.clip_high", "rlhf_reward_on_error", "rlhf_rollout_temperature", "rlhf_nft_beta",
    "samples.0.cfg_scale", "save_skip_first", "validation_draws", "acceleration.shared", "prevent_overwrites",
)  # fmt: skip
"""Settings that are made without effect in the usual run of the tests, of each kind of outcome and of each list; all of
them are in the long one.
"""

ALIKE = tuple(
    f"{part}.{name}"
    for part, names in {
        "text_encoder_2": ("model_name", "train", "activation_offloading", "stop_training_after_unit"),
        "text_encoder_3": ("weight_dtype", "learning_rate", "gradient_checkpointing", "stop_training_after"),
        "text_encoder_4": ("weight_dtype", "learning_rate", "gradient_checkpointing", "activation_offloading"),
        "transformer": ("model_name", "learning_rate", "stop_training_after", "stop_training_after_unit"),
    }.items()
    for name in names
)
"""Settings that all parts of a model have, which are read by the name of the part: the UNet and the first text encoder
have all of them in the usual run, each other part some, and each of them is there for two parts or more.
"""

LONG = (
    *(f"{part}.offload_fraction" for part in (*(f"text_encoder{n}" for n in ("", "_2", "_3")), "transformer", "unet")),
    "custom_conditioning_image", "embedding.is_output_embedding", "embedding.stop_training_after",
    "rlhf_dgpo_clip_kl", "rlhf_dgpo_group_strategy", "rlhf_dgpo_use_ema_ref", "rlhf_dpo_patience_enabled",
    "rlhf_dpo_reference_cache_draws", "rlhf_dpo_save_best", "rlhf_dpo_validation",
    "rlhf_dpo_validation_draws", "rlhf_dpo_validation_percentage", "rlhf_ema_ref_device",
    "rlhf_ema_ref_max_decay", "rlhf_ema_ref_ramp_rate", "rlhf_keep_image_epochs", "rlhf_norm_guard",
    "rlhf_off_policy", "rlhf_online_dpo_beta", "rlhf_person_timeout", "rlhf_ratio_check", "rlhf_short_step",
    "rlhf_switch_ema_ref", "rlhf_time_shift", "rlhf_timestep_std", "samples.0.base_image_path",
    "samples.0.mask_image_path", "samples.0.text_encoder_1_sequence_length",
    "samples.0.text_encoder_2_sequence_length", "samples.0.text_encoder_4_sequence_length",
    "text_encoder.sequence_length", "text_encoder_4.stop_training_after",
)  # fmt: skip
"""Settings whose case takes about a second or more, mostly because two runs are made for it alone. What they do is also
asserted where their feature is tested.
"""


def named(case: Case) -> str:
    return case.path


def of(paths: tuple[str, ...]) -> list[Case]:
    found = {case.path: case for case in cases()}
    return [found[path] for path in paths]


def test_the_two_configs_of_a_case_differ_in_the_setting_alone() -> None:
    assert [case.path for case in cases() if not case.changes_the_config()] == []


def marked() -> list[Any]:
    """All cases, those with one reference run next to each other; those of ``ALIKE`` and ``LONG`` are slow."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] if case.path in (*ALIKE, *LONG) else [])
        for case in sorted(cases(), key=lambda case: case.shared)
    ]


def test_the_settings_left_to_the_long_run_are_there() -> None:
    assert {*ALIKE, *LONG} < {case.path for case in cases()}


@pytest.mark.parametrize("case", marked(), ids=named)
def test_the_setting_acts(case: Case) -> None:
    assert case.acts(), f"{case.path} changes nothing of: {case.see.name}"


# -- that a setting without effect, and an outcome that differs by chance, would be seen ---------------------------


@pytest.mark.parametrize("case", of(SHOWN), ids=named)
def test_without_its_effect_a_case_fails(case: Case) -> None:
    with case.inert():
        assert not case.acts()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in cases() if case.path not in SHOWN], ids=named)
def test_without_its_effect_every_case_fails(case: Case) -> None:
    with case.inert():
        assert not case.acts()
