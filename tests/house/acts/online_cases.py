"""Cases of training on images that are made while training."""

from __future__ import annotations

from tests.house.acts import outcomes as see
from tests.house.acts.bases import (
    dgpo,
    grpo,
    grpo_flow,
    gspo,
    image_folder,
    nft,
    nft_flow,
    online_dpo,
    rewarded,
)
from tests.house.acts.case import Case

GUIDED = {"rlhf_rollout_cfg_scale": 3.0}
AGAIN = {"rlhf_inner_epochs": 2, "learning_rate": 100.0}
NOTHING_GOOD = {"rlhf_rewards": [{"reward": "brightness", "threshold": 100.0}]}
SKIPPED = {**NOTHING_GOOD, "rlhf_skip_zero_advantage": True, "rlhf_docs_per_step": 4}
A_GROUP_GONE = {
    "rlhf_reward_on_error": "SKIP_GROUP",
    "rlhf_prompts_per_epoch": 4,
    "batch_size": 16,
    "rlhf_count_skipped": True,
}
ROUNDED = {"rlhf_rollout_batch_size": 2, "rlhf_ratio_tolerance": 0.0}
FOLLOWED = {"epochs": 2, "learning_rate": 100.0, "rlhf_ema_ref_ramp_rate": 1.0}
KL = {"rlhf_kl_beta": 100.0}
KL_V = {**KL, "rlhf_kl_type": "V"}
OTHER_REWARD = [{"reward": "contrast", "weight": 1.0}]
MATH = {"name": "attention_backend", "params": {"backend": "_native_math"}}

ROLLOUT = [
    Case("rlhf_prompts_file", grpo, lambda folder: str(image_folder() / "other.txt"), see.rollouts),
    Case("rlhf_prompts_per_epoch", grpo, 3, see.steps),
    Case("rlhf_group_size", grpo, 2, see.steps),
    Case("rlhf_sampler", grpo, "DISTRIBUTED_K_REPEAT", see.processes),
    Case("rlhf_inner_epochs", grpo, 2, see.steps),
    Case("rlhf_docs_per_step", grpo, 8, see.steps),
    Case("rlhf_docs_per_step_multiple", grpo, 3, see.check_result, {"rlhf_docs_per_step": 8}),
    Case("rlhf_short_step", grpo, "ERROR", see.end, {"rlhf_docs_per_step": 6, "rlhf_prompts_per_epoch": 3}),
    Case("rlhf_max_empty_batches", grpo, 1, see.end, SKIPPED),
    Case("rlhf_rollout_steps", grpo, 4, see.rollouts),
    Case("rlhf_rollout_size", grpo, "64x32", see.rollouts),
    Case("rlhf_rollout_cfg_scale", grpo, 3.0, see.rollouts),
    Case("rlhf_rollout_negative_prompt", grpo, "a dog", see.rollouts, GUIDED),
    Case("rlhf_rollout_batch_size", grpo, 2, see.predicted),
    Case("rlhf_rollout_cfg_layout", grpo, "JOINT", see.predicted, GUIDED),
    Case("rlhf_shared_start_noise", grpo, True, see.rollouts),
    Case("rlhf_rollout_transition", grpo_flow, "DANCE_SDE", see.rollouts),
    Case("rlhf_rollout_noise_level", grpo, 0.5, see.rollouts),
    Case("rlhf_rollout_temperature", grpo, 1.5, see.rollouts),
    Case("rlhf_sde_window", grpo, "0-0", see.rollouts),
    Case("rlhf_num_sde_steps", grpo, 1, see.rollouts),
    Case("rlhf_sde_choice", grpo, "CONTIGUOUS", see.rollouts, {"rlhf_rollout_steps": 8, "rlhf_num_sde_steps": 3}),
    Case("rlhf_rollout_storage_dtype", grpo, "BFLOAT_16", see.weights),
    Case("rlhf_off_policy", online_dpo, True, see.weights, {
        "ema": "CPU", "ema_update_step_interval": 1, "epochs": 2}),
    Case("rlhf_switch_ema_ref", nft, 0, see.rollouts, FOLLOWED),
    Case("rlhf_keep_images", grpo, 1, see.rollouts),
    Case("rlhf_keep_image_epochs", grpo, 1, see.rollouts, {"epochs": 2}),
]  # fmt: skip
REWARDS = [
    Case("rlhf_reward", grpo, "contrast", see.weights),
    Case("rlhf_rewards", grpo, OTHER_REWARD, see.weights),
    Case("rlhf_rewards.0.reward", rewarded, "symmetry_lr", see.weights),
    Case("rlhf_rewards.0.name", rewarded, "light", see.metrics),
    Case("rlhf_rewards.0.weight", rewarded, 0.25, see.weights),
    Case("rlhf_rewards.0.clip_low", rewarded, 0.6, see.weights),
    Case("rlhf_rewards.0.clip_high", rewarded, 0.4, see.weights),
    Case("rlhf_rewards.0.threshold", rewarded, 0.55, see.weights),
    Case("rlhf_rewards.0.normalise", rewarded, True, see.weights),
    Case("rlhf_rewards.0.params", rewarded, {"target": 0.2}, see.weights),
    Case("rlhf_reward_combination", rewarded, "GDPO", see.weights),
    Case("rlhf_reward_on_error", rewarded, "SKIP_GROUP", see.picky_end, {"rlhf_prompts_per_epoch": 4}),
    Case("rlhf_reward_device", grpo, "cuda:99", see.end),
    Case("rlhf_reward_swap", grpo, True, see.moved),
    Case("rlhf_person_timeout", grpo, 0.05, see.person_end, {"rlhf_reward": "person"}),
    Case("rlhf_person_share", grpo, 0.5, see.person_weights, {"rlhf_reward": "person", "epochs": 3}),
    Case("rlhf_advantage_ranked", grpo, True, see.weights),
    Case("rlhf_advantage_scale", grpo, "NONE", see.weights),
    Case("rlhf_advantage_eps", grpo, 0.5, see.weights),
    Case("rlhf_advantage_clip", grpo, 0.25, see.weights),
    Case("rlhf_skip_zero_advantage", grpo, False, see.end, SKIPPED),
]  # fmt: skip
COUPLED = [
    Case("rlhf_clip_range_low", grpo, 1e-9, see.weights, AGAIN),
    Case("rlhf_clip_range_high", grpo, 1e-9, see.weights, AGAIN),
    Case("rlhf_kl_beta", grpo, 100.0, see.weights),
    Case("rlhf_kl_type", grpo, "V", see.weights, KL),
    Case("rlhf_grpo_guard", grpo, True, see.weights, AGAIN),
    Case("rlhf_loss_aggregation", grpo, "TOKEN_MEAN", see.picky_weights, A_GROUP_GONE),
    Case("rlhf_count_skipped", grpo, False, see.picky_weights, A_GROUP_GONE),
    Case("rlhf_loss_aggregation_divisor", grpo, 4.0, see.weights, {
        "rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 2.0}),
    Case("rlhf_logprob_reduction", grpo, "SUM", see.weights),
    Case("rlhf_logprob_form", grpo, "SQUARED_ERROR", see.weights),
    Case("rlhf_old_logprob_source", grpo, "RECOMPUTE", see.predicted),
    Case("rlhf_ratio_check", grpo, "ERROR", see.end, ROUNDED),
    Case("rlhf_ratio_tolerance", grpo, 1e9, see.warnings, ROUNDED),
    Case("rlhf_gspo_weighting", gspo, "DOCUMENT", see.picky_weights, A_GROUP_GONE),
    Case("rlhf_normalize_by_documents", gspo, True, see.weights),
    Case("rlhf_gspo_strategy", gspo, "EXACT", see.predicted),
]  # fmt: skip
DECOUPLED = [
    Case("rlhf_dgpo_beta", dgpo, 10.0, see.weights),
    Case("rlhf_dgpo_group_strategy", dgpo, "TWO_PASS", see.predicted),
    Case("rlhf_dgpo_clip_dsm", dgpo, False, see.predicted),
    Case(
        "rlhf_dgpo_clip_kl",
        dgpo,
        True,
        see.weights,
        {**KL_V, **AGAIN, "rlhf_clip_range_low": 0.0, "rlhf_clip_range_high": 0.0},
    ),
    Case("rlhf_dgpo_use_ema_ref", dgpo, True, see.weights, {"epochs": 2}),
    Case("rlhf_dgpo_kl_cfg", dgpo, 3.0, see.weights),
    Case("rlhf_dgpo_noise", dgpo, "INDEPENDENT", see.weights),
    Case("rlhf_num_train_timesteps", dgpo, 1, see.predicted),
    Case("rlhf_timestep_range_low", dgpo, 0.5, see.weights),
    Case("rlhf_timestep_range_high", dgpo, 0.5, see.weights),
    Case("rlhf_timestep_sampler", dgpo, "UNIFORM", see.weights),
    Case("rlhf_timestep_mean", dgpo, 1.0, see.weights, {"rlhf_timestep_sampler": "LOGIT_NORMAL"}),
    Case("rlhf_timestep_std", dgpo, 0.5, see.weights, {"rlhf_timestep_sampler": "LOGIT_NORMAL"}),
    Case("rlhf_time_shift", dgpo, 1.0, see.weights, {"rlhf_timestep_sampler": "UNIFORM"}),
    Case("rlhf_ema_ref_max_decay", nft, 0.9, see.weights, FOLLOWED),
    Case("rlhf_ema_ref_ramp_rate", nft, 0.001, see.weights, FOLLOWED),
    Case("rlhf_ema_ref_device", nft, "CPU", see.gpu_memory),
    Case("rlhf_online_dpo_beta", online_dpo, 50.0, see.weights),
    Case("rlhf_online_dpo_pairs", online_dpo, "ALL", see.weights),
    Case("rlhf_nft_beta", nft, 0.5, see.weights),
]
ACCELERATION = [
    Case("acceleration.shared", nft_flow, [MATH], see.kernels),
    Case("acceleration.rollout.0.name", nft_flow, "attention_backend", see.check_result),
    Case("acceleration.shared.0.name", nft_flow, "diffusers_cache", see.check_result),
    Case("acceleration.shared.0.params", nft_flow, {"backend": "_native_math"}, see.kernels),
    Case("acceleration.rollout", nft_flow, [], see.rollouts),
    Case("acceleration.rollout.0.params", nft_flow, {"threshold": 0.001}, see.rollouts),
]
CASES = [*ROLLOUT, *REWARDS, *COUPLED, *DECOUPLED, *ACCELERATION]
