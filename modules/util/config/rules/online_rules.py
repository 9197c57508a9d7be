"""Rules for settings of online training, as far as they can be checked without a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.spec.registry import TEXT_ENCODERS, modes_with
from modules.util.catalog import rewards, unknown_name
from modules.util.config.rules.online_values import reward_list, rollout_size, sde_window
from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.choices import (
    AdvantageScale,
    EMAMode,
    GroupStrategy,
    GspoWeighting,
    KlType,
    LogProbForm,
    LogProbReduction,
    LossAggregation,
    RewardCombination,
    RewardFailure,
    RolloutTransition,
    TimestepSampler,
)
from modules.util.errors import ConfigError, UnsupportedError, UserError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

_MODE = ("rlhf_enabled", "rlhf_mode")
SMALL_CLIP = 0.1
_CONTINUOUS = (TimestepSampler.UNIFORM, TimestepSampler.LOGIT_NORMAL)


def _acts(c: TrainConfig, rows: str) -> bool:
    """Return whether the settings of a group (see ``ModeSpec.rows``) act in this run."""
    return c.rlhf_enabled and c.rlhf_mode.spec.shows(rows)


@rule(*_MODE, "rlhf_rollout_size", "resolution")
def _size(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online:
        return
    try:
        rollout_size(c)
    except UserError as error:
        yield error


@rule(*_MODE, "rlhf_reward", "rlhf_rewards")
def _rewards(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online:
        return
    try:
        named = reward_list(c)
    except UserError as error:
        yield error
        return
    for index, one in enumerate(named):
        if odd := unknown_name(one.reward, rewards()):
            yield ConfigWarning(odd, f"rlhf_rewards[{index}].reward" if c.rlhf_rewards else "rlhf_reward")


@rule(*_MODE, "rlhf_rewards")
def _reward_bounds(c: TrainConfig) -> Iterator[Finding]:
    for index, one in enumerate(c.rlhf_rewards if c.trains_online else ()):
        low, high = one.clip_low, one.clip_high
        if low is not None and high is not None and low >= high:
            yield ConfigError(
                f"{low:g} is not below clip_high ({high:g}): every score would become the same",
                f"rlhf_rewards[{index}].clip_low",
                "lower it, or raise clip_high",
            )
        if one.threshold is not None and high is not None and one.threshold > high:
            yield ConfigError(
                f"{one.threshold:g} is above clip_high ({high:g}): every score would become 0",
                f"rlhf_rewards[{index}].threshold",
                "lower it, or raise clip_high",
            )


@rule(*_MODE, "rlhf_rewards", "rlhf_advantage_ranked")
def _ranks_have_no_scale(c: TrainConfig) -> Iterator[Finding]:
    ranked = c.trains_online and c.rlhf_advantage_ranked
    for index, one in enumerate(c.rlhf_rewards if ranked else ()):
        if one.normalise:
            yield ConfigWarning(
                "has no effect: rlhf_advantage_ranked replaces each reward by its rank, and dividing changes no rank",
                f"rlhf_rewards[{index}].normalise",
            )


@rule(*_MODE, "rlhf_advantage_scale", "rlhf_reward_combination")
def _scale_counts(c: TrainConfig) -> Iterator[Finding]:
    combined = c.rlhf_reward_combination is RewardCombination.GDPO
    if c.trains_online and combined and c.rlhf_advantage_scale is not AdvantageScale.GLOBAL_STD:
        yield ConfigError(
            f"{c.rlhf_advantage_scale} has no effect: GDPO divides by its own standard deviations",
            "rlhf_advantage_scale",
            "set rlhf_reward_combination to SUM, or this setting to GLOBAL_STD",
        )


@rule(*_MODE, "rlhf_sde_window", "rlhf_rollout_steps", "rlhf_num_sde_steps")
def _trained_steps(c: TrainConfig) -> Iterator[Finding]:
    if not _acts(c, "coupled"):
        return
    steps = c.rlhf_rollout_steps
    if steps < 2:
        yield ConfigError(
            f"{steps} is too low, because the last step is never trained", "rlhf_rollout_steps", "use 2 or more"
        )
        return
    try:
        window = sde_window(c.rlhf_sde_window)
    except UserError as error:
        yield error
        return
    first, last = window or (0, steps - 2)
    if last >= steps:
        yield ConfigError(f"step {last} does not exist: the steps are 0 to {steps - 1}", "rlhf_sde_window")
    elif (usable := min(last, steps - 2) - first + 1) < max(c.rlhf_num_sde_steps, 1):
        yield ConfigError(
            f"{max(c.rlhf_num_sde_steps, 1)} denoising steps are to be trained, but only {max(usable, 0)} can be; the "
            "last step of a rollout is never trained",
            "rlhf_num_sde_steps" if c.rlhf_num_sde_steps else "rlhf_sde_window",
        )


@rule(
    *("rlhf_enabled", "rlhf_mode", *TEXT_ENCODERS, "model_type"),
    *("training_method", "embedding", "additional_embeddings"),
)
def _text_is_not_trained(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online:
        return
    trained = [place for place, one in c.places_of_embeddings().items() if one.train]
    if c.trains_text():
        trained.insert(0, next(part for part in c.model_type.text_encoders if getattr(c, part).train))
    for place in trained:
        yield UnsupportedError(
            f"{c.rlhf_mode} trains the denoiser alone", f"{place}.train", f"set {place}.train to false"
        )


@rule(*_MODE, "rlhf_off_policy", "ema")
def _average_is_there(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "decoupled") and c.rlhf_off_policy and c.ema is EMAMode.OFF:
        yield ConfigError(
            "needs the moving average of the weights, but ema is OFF", "rlhf_off_policy", "set ema to GPU or CPU"
        )


@rule(*_MODE, "rlhf_shared_start_noise")
def _images_of_a_prompt_differ(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "decoupled") and c.rlhf_shared_start_noise:
        yield UnsupportedError(
            f"makes all images of a prompt the same: the denoising steps of {c.rlhf_mode} add no noise",
            "rlhf_shared_start_noise",
            "set it to false",
        )


@rule(*_MODE, "rlhf_ema_ref_device")
def _old_policy_is_somewhere(c: TrainConfig) -> Iterator[Finding]:
    if c.trains_online and c.rlhf_ema_ref_device is EMAMode.OFF:
        yield ConfigError(
            "cannot be OFF: the old policy's weights must be kept somewhere", "rlhf_ema_ref_device", "choose GPU or CPU"
        )


@rule(*_MODE, "rlhf_kl_beta", "rlhf_kl_type")
def _kl_fits_mode(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "decoupled") and c.rlhf_kl_beta > 0 and c.rlhf_kl_type is not KlType.V:
        yield ConfigError(
            f"{c.rlhf_kl_type} needs per-step probabilities, which {c.rlhf_mode} does not have",
            "rlhf_kl_type",
            "use V, which compares predictions, or set rlhf_kl_beta to 0",
        )


@rule(*_MODE, "rlhf_dgpo_kl_cfg", "rlhf_dgpo_use_ema_ref", "rlhf_kl_beta")
def _guided_reference_is_there(c: TrainConfig) -> Iterator[Finding]:
    frozen = c.rlhf_mode.spec.needs_reference(c)
    if _acts(c, "group_loss") and c.rlhf_dgpo_kl_cfg > 1 and not frozen:
        yield ConfigError(
            "guides the frozen reference, which this run does not use",
            "rlhf_dgpo_kl_cfg",
            "set it to 1, rlhf_kl_beta above 0, or rlhf_dgpo_use_ema_ref to false",
        )


@rule(*_MODE, "rlhf_dgpo_kl_cfg", "model_type")
def _reference_is_guided(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "group_loss") and c.rlhf_dgpo_kl_cfg > 1 and c.model_type.spec.embeds_guidance:
        yield UnsupportedError(
            f"{c.rlhf_dgpo_kl_cfg:g} has no effect: {c.model_type.label} takes its guidance scale as an input, both "
            "in the reference and in the trained model",
            "rlhf_dgpo_kl_cfg",
            "set it to 1; rlhf_rollout_cfg_scale is the guidance of both",
        )


@rule(*_MODE, "rlhf_rollout_cfg_scale", "rlhf_dgpo_kl_cfg", "model_type")
def _nothing_is_guided_without_the_network_for_it(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online or not c.model_type.spec.guide:
        return
    told = {"rlhf_rollout_cfg_scale": c.rlhf_rollout_cfg_scale}
    if _acts(c, "group_loss"):
        told["rlhf_dgpo_kl_cfg"] = c.rlhf_dgpo_kl_cfg
    for name, scale in told.items():
        if scale > 1:
            yield UnsupportedError(
                f"{scale:g} has no effect: {c.model_type.label} is guided by a second network, which training does "
                "not load",
                name,
                "set it to 1",
            )


@rule(*_MODE, "rlhf_rollout_cfg_scale", "model_type")
def _guidance_begins_above_one(c: TrainConfig) -> Iterator[Finding]:
    spec, scale = c.model_type.spec, c.rlhf_rollout_cfg_scale
    if c.trains_online and 0 < scale < 1 and not spec.embeds_guidance:
        yield ConfigWarning(
            f"{scale:g} has no effect: guidance begins above 1; at 1 or less, images are made without it",
            "rlhf_rollout_cfg_scale",
        )


@rule(*_MODE, "rlhf_num_train_timesteps", "rlhf_timestep_sampler", "rlhf_rollout_steps")
def _enough_steps_to_train(c: TrainConfig) -> Iterator[Finding]:
    if not _acts(c, "decoupled") or c.rlhf_timestep_sampler in _CONTINUOUS:
        return
    most = c.rlhf_rollout_steps - (c.rlhf_timestep_sampler is TimestepSampler.DISCRETE_WO_INIT)
    if c.rlhf_num_train_timesteps > most:
        yield ConfigError(
            f"{c.rlhf_num_train_timesteps} timesteps cannot be drawn from {most} steps of the rollout",
            "rlhf_num_train_timesteps",
            f"use {most} or fewer, or more rlhf_rollout_steps",
        )


@rule(*_MODE, "rlhf_rollout_noise_level", "rlhf_rollout_transition")
def _steps_have_noise(c: TrainConfig) -> Iterator[Finding]:
    level = c.rlhf_rollout_noise_level
    if not _acts(c, "coupled") or level is None:
        return
    if level == 0:
        yield ConfigError(
            f"0 leaves no step to train: {c.rlhf_mode} needs steps with noise",
            "rlhf_rollout_noise_level",
            "leave it empty for the usual level of the transition",
        )
    if level > 1 and c.rlhf_rollout_transition is RolloutTransition.CPS:
        yield ConfigError(f"CPS takes a noise level up to 1, not {level:g}", "rlhf_rollout_noise_level")


@rule(*_MODE, "rlhf_timestep_range_low", "rlhf_timestep_range_high")
def _range(c: TrainConfig) -> Iterator[Finding]:
    low, high = c.rlhf_timestep_range_low, c.rlhf_timestep_range_high
    if _acts(c, "decoupled") and low >= high:
        yield ConfigError(
            f"{low:g} is not below rlhf_timestep_range_high ({high:g})", "rlhf_timestep_range_low"
        )


@rule(*_MODE, "rlhf_loss_aggregation", "rlhf_loss_aggregation_divisor")
def _divisor(c: TrainConfig) -> Iterator[Finding]:
    constant = c.rlhf_loss_aggregation is LossAggregation.CONSTANT
    given = c.rlhf_loss_aggregation_divisor is not None
    if not _acts(c, "coupled"):
        return
    if constant and not given:
        yield ConfigError("is empty, but CONSTANT divides by this number", "rlhf_loss_aggregation_divisor")
    if given and not constant:
        yield ConfigError(
            f"is set, but {c.rlhf_loss_aggregation} has no divisor",
            "rlhf_loss_aggregation_divisor",
            "leave it empty, or set rlhf_loss_aggregation to CONSTANT",
        )


@rule(*_MODE, "rlhf_count_skipped", "rlhf_skip_zero_advantage", "rlhf_reward_on_error")
def _images_are_skipped(c: TrainConfig) -> Iterator[Finding]:
    skips = c.rlhf_skip_zero_advantage or c.rlhf_reward_on_error is RewardFailure.SKIP_GROUP
    if _acts(c, "coupled") and c.rlhf_count_skipped and not skips:
        yield ConfigWarning(
            "has no effect: no image is skipped while rlhf_skip_zero_advantage is off and rlhf_reward_on_error is FAIL",
            "rlhf_count_skipped",
        )


@rule(*_MODE, "rlhf_loss_aggregation", "rlhf_gspo_weighting", "rlhf_normalize_by_documents")
def _one_weighting_of_images(c: TrainConfig) -> Iterator[Finding]:
    if not _acts(c, "trajectory_loss") or c.rlhf_loss_aggregation is LossAggregation.SAMPLE_MEAN:
        return
    hint = "set rlhf_loss_aggregation to SAMPLE_MEAN, or this setting to {}"
    if c.rlhf_gspo_weighting is GspoWeighting.DOCUMENT:
        reason = (
            f"DOCUMENT contradicts rlhf_loss_aggregation {c.rlhf_loss_aggregation}, which has its own divisor"
        )
        yield ConfigError(reason, "rlhf_gspo_weighting", hint.format("LENGTH"))
    elif c.rlhf_normalize_by_documents:
        reason = f"contradicts rlhf_loss_aggregation {c.rlhf_loss_aggregation}, which has its own divisor"
        yield ConfigError(reason, "rlhf_normalize_by_documents", hint.format("false"))


@rule(*_MODE, "rlhf_gspo_strategy", "rlhf_kl_beta")
def _stash_holds_one_sum(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "trajectory_loss") and c.rlhf_gspo_strategy is GroupStrategy.STASH and c.rlhf_kl_beta > 0:
        yield UnsupportedError(
            "STASH keeps one sum of gradients for each image, which cannot separate a KL to the reference",
            "rlhf_gspo_strategy",
            "use TWO_PASS or EXACT, or set rlhf_kl_beta to 0",
        )


@rule(*_MODE, "rlhf_loss_aggregation")
def _sequence_level(c: TrainConfig) -> Iterator[Finding]:
    plain = c.rlhf_loss_aggregation is LossAggregation.SAMPLE_MEAN
    if _acts(c, "trajectory_loss") and not plain:
        yield ConfigWarning(
            f"{c.rlhf_loss_aggregation} gives images with many trained steps more weight than intended in "
            f"{c.rlhf_mode}",
            "rlhf_loss_aggregation",
        )


@rule(*_MODE, "rlhf_normalize_by_documents", "rlhf_gspo_weighting")
def _dividing_by_images_acts(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online or not c.rlhf_normalize_by_documents:
        return
    if not _acts(c, "trajectory_loss"):
        others = " and ".join(modes_with("trajectory_loss"))
        yield ConfigWarning(
            f"has no effect with {c.rlhf_mode}: it applies only to {others}", "rlhf_normalize_by_documents"
        )
    elif c.rlhf_gspo_weighting is GspoWeighting.DOCUMENT:
        yield ConfigWarning(
            "has no effect: rlhf_gspo_weighting DOCUMENT already divides by images",
            "rlhf_normalize_by_documents",
        )


@rule(*_MODE, "rlhf_dgpo_clip_kl", "rlhf_kl_beta")
def _there_is_a_kl_to_clip(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "group_loss") and c.rlhf_dgpo_clip_kl and c.rlhf_kl_beta == 0:
        yield ConfigWarning("clips nothing: there is no KL while rlhf_kl_beta is 0", "rlhf_dgpo_clip_kl")


@rule(*_MODE, "rlhf_docs_per_step", "rlhf_group_size", "rlhf_loss_aggregation")
def _whole_groups_in_a_step(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online or not c.rlhf_docs_per_step:
        return
    by_prompt = _acts(c, "coupled") and c.rlhf_loss_aggregation is LossAggregation.PROMPT_MEAN
    whole = by_prompt or c.rlhf_mode.spec.whole_groups
    if whole and c.rlhf_docs_per_step % c.rlhf_group_size:
        yield ConfigError(
            f"{c.rlhf_docs_per_step} is not a multiple of {c.rlhf_group_size} (images per prompt)",
            "rlhf_docs_per_step",
            f"use {-(-c.rlhf_docs_per_step // c.rlhf_group_size) * c.rlhf_group_size}",
        )


@rule(*_MODE, "rlhf_rollout_transition", "model_type")
def _transition_fits(c: TrainConfig) -> Iterator[Finding]:
    chosen = c.rlhf_rollout_transition
    if not _acts(c, "coupled") or chosen is RolloutTransition.AUTO:
        return
    flow = c.model_type.spec.flow_matching
    if flow == (chosen is RolloutTransition.DDIM):
        yield UnsupportedError(
            f"{chosen} is not a transition of {c.model_type.label}",
            "rlhf_rollout_transition",
            "set it to AUTO",
        )


@rule(*_MODE, "rlhf_clip_range_low", "rlhf_clip_range_high", "rlhf_logprob_reduction")
def _clip_is_small(c: TrainConfig) -> Iterator[Finding]:
    if not _acts(c, "coupled") or c.rlhf_logprob_reduction is not LogProbReduction.MEAN:
        return
    for name in ("rlhf_clip_range_low", "rlhf_clip_range_high"):
        if getattr(c, name) >= SMALL_CLIP:
            yield ConfigWarning(
                "is usual for language models only: here log-probabilities are means over a latent, and nothing would "
                "be clipped",
                name,
            )


@rule(*_MODE, "rlhf_grpo_guard", "rlhf_logprob_form")
def _regulated_ratios_are_of_densities(c: TrainConfig) -> Iterator[Finding]:
    if _acts(c, "regulated_ratio") and c.rlhf_grpo_guard and c.rlhf_logprob_form is LogProbForm.SQUARED_ERROR:
        yield UnsupportedError(
            f"is defined for ratios of Gaussian densities, and those of {c.rlhf_logprob_form} have another scale",
            "rlhf_grpo_guard",
            "switch it off, or set rlhf_logprob_form to GAUSSIAN; a run that began with both cannot be resumed, so "
            "start a new one",
        )


@rule(*_MODE, "acceleration")
def _nothing_to_accelerate(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_online and c.acceleration.rollout:
        yield ConfigError(
            "applies to rollouts only, but this run makes no rollouts",
            "acceleration.rollout",
            "leave it empty",
        )


@rule(*_MODE, "rlhf_kl_beta")
def _anchored_once(c: TrainConfig) -> Iterator[Finding]:
    if c.trains_online and not c.rlhf_mode.spec.takes_kl and c.rlhf_kl_beta > 0:
        yield UnsupportedError(
            f"{c.rlhf_mode} is held to the reference by its own beta and takes no KL",
            "rlhf_kl_beta",
            "set it to 0",
        )


@rule(*_MODE, "validation")
def _nothing_to_validate_on(c: TrainConfig) -> Iterator[Finding]:
    if c.trains_online and c.validation:
        yield UnsupportedError(
            f"{c.rlhf_mode} makes its own images, so there are no images to validate on",
            "validation",
            "switch it off and watch rl/reward_mean",
        )
