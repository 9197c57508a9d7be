from __future__ import annotations

import pytest

from modules.util.config.load import check_config, find_problems, read_config
from modules.util.config.rules.online_values import reward_list, rollout_size, sde_window
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.errors import ConfigError, UnsupportedError, UserError

GRPO = {"rlhf_enabled": True, "rlhf_mode": "GRPO"}
DGPO = {"rlhf_enabled": True, "rlhf_mode": "DGPO"}
FLOW = {**GRPO, "model_type": "FLUX_DEV_1"}
GSPO = {"rlhf_enabled": True, "rlhf_mode": "GSPO"}
NORMALISED = {"rlhf_rewards": [{"reward": "entropy"}, {"reward": "contrast", "normalise": True}]}
CONSTANT = {"rlhf_loss_aggregation": "CONSTANT"}


@pytest.mark.parametrize(
    ("data", "field", "kind"),
    [
        ({**GRPO, "rlhf_group_size": 1}, "rlhf_group_size", ConfigError),
        ({**GRPO, "rlhf_rollout_size": "12by3"}, "rlhf_rollout_size", ConfigError),
        ({**GRPO, "rlhf_rollout_size": "0"}, "rlhf_rollout_size", ConfigError),
        ({**GRPO, "rlhf_reward": " "}, "rlhf_reward", ConfigError),
        ({**GRPO, "rlhf_reward": "brightness x"}, "rlhf_reward", ConfigError),
        ({**GRPO, "rlhf_reward": "brightness nan"}, "rlhf_reward", ConfigError),
        ({**GRPO, "rlhf_reward": "brightness 0"}, "rlhf_reward", ConfigError),
        ({**GRPO, "rlhf_reward": "contrast, contrast"}, "rlhf_reward", ConfigError),
        ({**GRPO, "rlhf_rewards": [{"weight": 0}]}, "rlhf_rewards", ConfigError),
        ({**GRPO, "rlhf_rewards": [{"weight": "inf"}]}, "rlhf_rewards[0].weight", ConfigError),
        ({**GRPO, "rlhf_rewards": [{}, {}]}, "rlhf_rewards", ConfigError),
        (
            {**GRPO, "rlhf_rewards": [{"clip_low": 1, "clip_high": 1}]},
            "rlhf_rewards[0].clip_low",
            ConfigError,
        ),
        (
            {**GRPO, "rlhf_rewards": [{"threshold": 3, "clip_high": 2}]},
            "rlhf_rewards[0].threshold",
            ConfigError,
        ),
        ({**GRPO, "rlhf_sde_window": "a"}, "rlhf_sde_window", ConfigError),
        ({**GRPO, "rlhf_sde_window": "4-1"}, "rlhf_sde_window", ConfigError),
        ({**GRPO, "rlhf_sde_window": "4-10"}, "rlhf_sde_window", ConfigError),
        ({**GRPO, "rlhf_sde_window": "9"}, "rlhf_sde_window", ConfigError),
        ({**GRPO, "rlhf_num_sde_steps": 10}, "rlhf_num_sde_steps", ConfigError),
        ({**GRPO, "rlhf_rollout_steps": 1}, "rlhf_rollout_steps", ConfigError),
        ({**GRPO, "rlhf_rollout_temperature": 0}, "rlhf_rollout_temperature", ConfigError),
        ({**GRPO, "rlhf_advantage_eps": 0}, "rlhf_advantage_eps", ConfigError),
        ({**GRPO, "rlhf_rollout_transition": "FLOW_SDE"}, "rlhf_rollout_transition", UnsupportedError),
        (
            {**GRPO, "model_type": "FLUX_DEV_1", "rlhf_rollout_transition": "DDIM"},
            "rlhf_rollout_transition",
            UnsupportedError,
        ),
        ({**GRPO, "text_encoder": {"train": True}}, "text_encoder.train", UnsupportedError),
        ({**GRPO, **CONSTANT}, "rlhf_loss_aggregation_divisor", ConfigError),
        ({**GRPO, "rlhf_loss_aggregation_divisor": 4}, "rlhf_loss_aggregation_divisor", ConfigError),
        ({**GRPO, "rlhf_loss_aggregation": "MEAN"}, "rlhf_loss_aggregation", ConfigError),
        ({**GRPO, "rlhf_loss_aggregation": 3}, "rlhf_loss_aggregation", ConfigError),
        (
            {**GRPO, "rlhf_loss_aggregation": "PROMPT_MEAN", "rlhf_docs_per_step": 12},
            "rlhf_docs_per_step",
            ConfigError,
        ),
        ({**DGPO, "rlhf_docs_per_step": 12}, "rlhf_docs_per_step", ConfigError),
        (
            {**GRPO, "rlhf_reward_combination": "GDPO", "rlhf_advantage_scale": "NONE"},
            "rlhf_advantage_scale",
            ConfigError,
        ),
        (
            {**DGPO, "rlhf_dgpo_use_ema_ref": True, "rlhf_dgpo_kl_cfg": 2.0},
            "rlhf_dgpo_kl_cfg",
            ConfigError,
        ),
        (
            {**DGPO, "model_type": "FLUX_DEV_1", "rlhf_dgpo_kl_cfg": 2.0},
            "rlhf_dgpo_kl_cfg",
            UnsupportedError,
        ),
        ({**DGPO, "rlhf_off_policy": True}, "rlhf_off_policy", ConfigError),
        ({**DGPO, "rlhf_shared_start_noise": True}, "rlhf_shared_start_noise", UnsupportedError),
        ({**DGPO, "rlhf_ema_ref_device": "OFF"}, "rlhf_ema_ref_device", ConfigError),
        ({**DGPO, "rlhf_kl_beta": 0.1}, "rlhf_kl_type", ConfigError),
        ({**DGPO, "rlhf_timestep_range_low": 0.7}, "rlhf_timestep_range_low", ConfigError),
        (
            {**GSPO, "rlhf_gspo_strategy": "STASH", "rlhf_kl_beta": 0.1},
            "rlhf_gspo_strategy",
            UnsupportedError,
        ),
        (
            {**GSPO, "rlhf_loss_aggregation": "TOKEN_MEAN", "rlhf_gspo_weighting": "DOCUMENT"},
            "rlhf_gspo_weighting",
            ConfigError,
        ),
        (
            {**GSPO, "rlhf_loss_aggregation": "PROMPT_MEAN", "rlhf_normalize_by_documents": True},
            "rlhf_normalize_by_documents",
            ConfigError,
        ),
        ({**GRPO, "rlhf_rollout_noise_level": 0}, "rlhf_rollout_noise_level", ConfigError),
        (
            {**GRPO, "rlhf_grpo_guard": True, "rlhf_logprob_form": "SQUARED_ERROR"},
            "rlhf_grpo_guard",
            UnsupportedError,
        ),
        (
            {
                **GRPO,
                "model_type": "FLUX_DEV_1",
                "rlhf_rollout_transition": "CPS",
                "rlhf_rollout_noise_level": 1.5,
            },
            "rlhf_rollout_noise_level",
            ConfigError,
        ),
        ({**DGPO, "rlhf_num_train_timesteps": 11}, "rlhf_num_train_timesteps", ConfigError),
        (
            {**DGPO, "rlhf_num_train_timesteps": 10, "rlhf_timestep_sampler": "DISCRETE_WO_INIT"},
            "rlhf_num_train_timesteps",
            ConfigError,
        ),
        ({"rlhf_enabled": True, "acceleration": {"rollout": "x"}}, "acceleration.rollout", ConfigError),
        ({"acceleration": {"shared": 3}}, "acceleration.shared", ConfigError),
        ({"acceleration": {"shared": [{"nme": "x"}]}}, "acceleration.shared[0].nme", ConfigError),
    ],
)
def test_one_error_each(data: dict, field: str, kind: type) -> None:
    with pytest.raises(kind) as caught:
        read_config(data)
    assert caught.value.field == field


def test_an_old_run_that_this_version_cannot_resume_is_told_what_to_do() -> None:
    """Neither setting can be changed in a resumed run."""
    with pytest.raises(UnsupportedError) as caught:
        read_config({**GRPO, "rlhf_grpo_guard": True, "rlhf_logprob_form": "SQUARED_ERROR"})
    assert "cannot be resumed, so start a new one" in str(caught.value)


@pytest.mark.parametrize("model", ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_35", "FLUX_SCHNELL_1"])
def test_a_guided_reference_is_fine_where_guidance_is_two_passes(model: str) -> None:
    read_config({**DGPO, "model_type": model, "rlhf_dgpo_kl_cfg": 2.0})


@pytest.mark.parametrize("value", [True, "inf", 0, -1, "nan"])
def test_impossible_divisors(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({**GRPO, **CONSTANT, "rlhf_loss_aggregation_divisor": value})
    assert caught.value.field == "rlhf_loss_aggregation_divisor"


def test_bounds_of_a_reward_that_leave_something_are_fine() -> None:
    bounds = {"clip_low": 0, "clip_high": 1, "threshold": 1}
    assert check_config(read_config({**GRPO, "rlhf_rewards": [bounds]})) == []


@pytest.mark.parametrize("mode", list(RLHFMode))
def test_every_mode_is_fine_as_it_comes(mode: RLHFMode) -> None:
    assert check_config(read_config({"rlhf_enabled": True, "rlhf_mode": mode.value})) == []


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({**GRPO, "rlhf_clip_range_high": 0.2}, "rlhf_clip_range_high"),
        (
            {"rlhf_enabled": True, "rlhf_mode": "GSPO", "rlhf_loss_aggregation": "TOKEN_MEAN"},
            "rlhf_loss_aggregation",
        ),
        ({**GRPO, "rlhf_rollout_cfg_scale": 0.5}, "rlhf_rollout_cfg_scale"),
    ],
)
def test_warnings(data: dict, field: str) -> None:
    found = find_problems(read_config(data)).warnings
    assert [warning.field for warning in found] == [field]


def test_a_model_that_takes_its_guidance_as_an_input_takes_a_small_one() -> None:
    data = {**GRPO, "model_type": "FLUX_DEV_1", "rlhf_rollout_cfg_scale": 0.5}
    assert "rlhf_rollout_cfg_scale" not in [found.field for found in find_problems(read_config(data)).warnings]


def test_texts() -> None:
    config = read_config({**GRPO, "resolution": "384, 512", "rlhf_reward": "contrast -1, entropy"})
    assert rollout_size(config) == (384, 384)
    config.rlhf_rollout_size = "512x768"
    assert rollout_size(config) == (768, 512)
    assert [(r.reward, r.weight) for r in reward_list(config)] == [("contrast", -1.0), ("entropy", 1.0)]
    config = read_config({**GRPO, "rlhf_rewards": [{"reward": "sharpness", "name": "s"}]})
    assert [r.name for r in reward_list(config)] == ["s"]
    assert sde_window("") is None
    assert sde_window("3") == (3, 3)
    assert sde_window(" 1 - 4 ") == (1, 4)
    with pytest.raises(UserError):
        sde_window("-1")


def test_a_single_accelerator_is_a_list_of_one() -> None:
    config = read_config({"acceleration": {"shared": "attention_backend", "rollout": None}})
    assert [a.name for a in config.acceleration.shared] == ["attention_backend"]
    assert read_config(config.to_dict()) == config


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({**GRPO, "rlhf_normalize_by_documents": True}, "rlhf_normalize_by_documents"),
        (
            {**GSPO, "rlhf_normalize_by_documents": True, "rlhf_gspo_weighting": "DOCUMENT"},
            "rlhf_normalize_by_documents",
        ),
        ({**DGPO, "rlhf_dgpo_clip_kl": True}, "rlhf_dgpo_clip_kl"),
        ({**GRPO, "rlhf_count_skipped": True}, "rlhf_count_skipped"),
        ({**GRPO, "offset_noise_weight": 0.1}, "offset_noise_weight"),
        ({**GRPO, "min_noising_strength": 0.2}, "min_noising_strength"),
        ({**DGPO, "max_noising_strength": 0.8}, "max_noising_strength"),
        ({**DGPO, "timestep_distribution": "LOGIT_NORMAL"}, "timestep_distribution"),
        ({**GRPO, "timestep_shift": 3.0}, "timestep_shift"),
        ({**FLOW, "dynamic_timestep_shifting": True}, "dynamic_timestep_shifting"),
        ({**GRPO, "noising_range_before_shift": True}, "noising_range_before_shift"),
        ({**DGPO, "perturbation_noise_weight": 0.1}, "perturbation_noise_weight"),
        ({"rlhf_enabled": True, "perturbation_noise_weight": 0.1}, "perturbation_noise_weight"),
        ({**GRPO, **NORMALISED, "rlhf_advantage_ranked": True}, "rlhf_rewards[1].normalise"),
    ],
)
def test_a_setting_that_cannot_act_is_named(data: dict, field: str) -> None:
    assert field in [warning.field for warning in find_problems(read_config(data)).warnings]


def test_the_same_settings_are_not_named_where_they_act() -> None:
    for data in (
        {**GRPO, "rlhf_count_skipped": True, "rlhf_skip_zero_advantage": True},
        {**GRPO, "rlhf_count_skipped": True, "rlhf_reward_on_error": "SKIP_GROUP"},
        {**GSPO, "rlhf_normalize_by_documents": True},
        {**DGPO, "rlhf_dgpo_clip_kl": True, "rlhf_kl_beta": 0.1, "rlhf_kl_type": "V"},
        {**DGPO, "rlhf_num_train_timesteps": 10},
        {**DGPO, "rlhf_num_train_timesteps": 99, "rlhf_timestep_sampler": "UNIFORM"},
        {**DGPO, "rlhf_rollout_noise_level": 0},
        {**GRPO, **NORMALISED},
        {**NORMALISED, "rlhf_advantage_ranked": True},
    ):
        assert find_problems(read_config(data)).warnings == []
