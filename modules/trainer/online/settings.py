"""Converts the settings of online training into the arguments of the modules that use them."""

from __future__ import annotations

import math
from dataclasses import replace

from modules.accelerator.plan import AccelerationPlan, build_plan
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.advantages import AdvantageOptions
from modules.objective.aggregation import CONSTANT, PROMPT_MEAN, SAMPLE_MEAN, TOKEN_MEAN, Aggregation
from modules.objective.policy_gradient import ImageOptions, StepOptions
from modules.objective.policy_gradient.awm import AWMOptions
from modules.objective.policy_gradient.dgpo import DGPOOptions
from modules.objective.policy_gradient.nft import NFTOptions
from modules.reward.combine import RewardSet
from modules.reward.frozen_features import FeatureOptions
from modules.rollout import samplers, transitions
from modules.rollout.plan import PlanOptions, plan_for
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.samplers import GroupSampler, SamplerLayout
from modules.rollout.timesteps import TimestepOptions, sample_timesteps
from modules.trainer.online.step_plan import StepRule, check_plan, plan_steps
from modules.util.config.rules.online_values import reward_list, rollout_size, sde_window
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import (
    AdvantageScale,
    GroupStrategy,
    LossAggregation,
    RewardFailure,
    RolloutSampler,
    RolloutTransition,
    ShortStep,
)
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import ConfigError, UnsupportedError, UserError

PERSON = "person"
"""The reward that asks a person."""
_SCALES = {
    AdvantageScale.GLOBAL_STD: "batch",
    AdvantageScale.GROUP_STD: "group",
    AdvantageScale.NONE: "none",
}
_MODES = {
    LossAggregation.SAMPLE_MEAN: SAMPLE_MEAN,
    LossAggregation.PROMPT_MEAN: PROMPT_MEAN,
    LossAggregation.TOKEN_MEAN: TOKEN_MEAN,
    LossAggregation.STEP_MEAN: TOKEN_MEAN,
    LossAggregation.CONSTANT: CONSTANT,
}


def needs_reference(config: TrainConfig) -> bool:
    """Return whether the loss compares with the initial weights of the run."""
    return config.rlhf_enabled and config.rlhf_mode.spec.needs_reference(config)


def needs_old_policy(config: TrainConfig) -> bool:
    """Return whether a slowly moving copy of the weights is kept."""
    return config.rlhf_enabled and config.rlhf_mode.spec.needs_old_policy(config)


def rollout_batch_size(config: TrainConfig) -> int:
    """Number of images made at once."""
    return config.rlhf_rollout_batch_size or config.batch_size


# -- rollout --------------------------------------------------------------------------------------------------


def plan_options(config: TrainConfig, model: Model) -> PlanOptions:
    """Return how images are made in this run with this model."""
    kind = config.rlhf_rollout_transition.value if config.rlhf_mode.coupled else transitions.ODE
    if kind == RolloutTransition.AUTO.value:
        kind = transitions.FLOW_SDE if model.schedule.prediction == "flow" else transitions.DDIM
    return PlanOptions(
        steps=config.rlhf_rollout_steps,
        kind=kind,
        noise_level=config.rlhf_rollout_noise_level,
        temperature=config.rlhf_rollout_temperature,
        window=sde_window(config.rlhf_sde_window) if config.rlhf_mode.coupled else None,
        count=config.rlhf_num_sde_steps if config.rlhf_mode.coupled else 0,
        choice=config.rlhf_sde_choice,
    )


def rollout_settings(config: TrainConfig, setup: BaseModelSetup, model: Model, epoch: int) -> RolloutSettings:
    """The settings that generation and training of an epoch must share."""
    size = rollout_size(config)
    plan = plan_for(setup, model, plan_options(config, model), size, config.seed, epoch)
    return RolloutSettings(
        plan=plan,
        size=size,
        cfg=config.rlhf_rollout_cfg_scale,
        layout=config.rlhf_rollout_cfg_layout,
        reduction=config.rlhf_logprob_reduction,
        form=config.rlhf_logprob_form,
        storage=config.rlhf_rollout_storage_dtype.value,
    )


def create_sampler(config: TrainConfig, prompts: int, rank: int, world_size: int) -> GroupSampler:
    """Determine which process makes which images. AUTO spreads groups over the processes if batches hold
    whole groups.

    Raises:
        ConfigError: the numbers are inconsistent.
    """
    layout = SamplerLayout(
        prompts=config.rlhf_prompts_per_epoch,
        group_size=config.rlhf_group_size,
        batch_size=config.batch_size,
        world_size=world_size,
        rank=rank,
    )
    kind = config.rlhf_sampler
    if kind is RolloutSampler.AUTO and config.rlhf_mode.spec.groups_in_one_process:
        kind = RolloutSampler.GROUP_CONTIGUOUS
    return samplers.create_sampler(kind, layout, prompts, config.seed)


def whole_groups_unit(sampler: GroupSampler) -> int:
    """The number of micro-batches that holds whole groups."""
    layout = sampler.layout
    if sampler.kind != samplers.CONTIGUOUS:
        return 1
    return layout.group_size // math.gcd(layout.group_size, layout.batch_size)


def step_rule(config: TrainConfig, sampler: GroupSampler) -> StepRule:
    """Return how the micro-batches of an epoch become optimizer steps."""
    return StepRule(
        accumulation=config.gradient_accumulation_steps,
        images=config.rlhf_docs_per_step,
        multiple=config.rlhf_docs_per_step_multiple,
        short_is_error=config.rlhf_short_step is ShortStep.ERROR,
        unit=whole_groups_unit(sampler),
        whole=needs_whole_groups(config),
        max_empty=config.rlhf_max_empty_batches,
    )


def needs_negatives_of_sources(config: TrainConfig) -> bool:
    """Return whether the loss needs a negative prompt that was read with an image that is edited, and
    rollouts do not.
    """
    spec = config.model_type.spec
    mode = config.rlhf_mode.spec
    asked = mode.shows("group_loss") and mode.needs_reference(config) and config.rlhf_dgpo_kl_cfg > 1
    return asked and spec.sees_sources and spec.reads_negatives and config.rlhf_rollout_cfg_scale <= 1


# -- rewards and advantages -----------------------------------------------------------------------------------


def reward_set(config: TrainConfig) -> RewardSet:
    """The rewards of the run, not loaded yet."""
    skip = config.rlhf_reward_on_error is RewardFailure.SKIP_GROUP
    try:
        return RewardSet.from_settings(reward_list(config), "skip_group" if skip else "fail")
    except UserError as error:
        error.field = error.field or ("rlhf_rewards" if config.rlhf_rewards else "rlhf_reward")
        raise


def asks_person(config: TrainConfig) -> bool:
    """Return whether a person votes on the images of this run."""
    return config.trains_online and any(one.reward == PERSON for one in reward_list(config))


def taste_features(config: TrainConfig) -> FeatureOptions | None:
    """Return the features that the head which votes for the person sees: those of the trained denoiser;
    ``None`` without a head.
    """
    if not asks_person(config) or config.rlhf_person_share == 1:
        return None
    return FeatureOptions("denoiser", config.base_model_name, family=config.model_type.value)


def advantage_options(config: TrainConfig) -> AdvantageOptions:
    """Return how rewards become advantages. Where they only put images in an order, they are not clipped, because
    clipped ones are equal.
    """
    return AdvantageOptions(
        scale=_SCALES[config.rlhf_advantage_scale],  # type: ignore[arg-type]
        eps=config.rlhf_advantage_eps,
        clip=None if config.rlhf_mode.spec.shows("pair_loss") else config.rlhf_advantage_clip,
        combine=config.rlhf_reward_combination.lower(),  # type: ignore[arg-type]
        ranked=config.rlhf_advantage_ranked,
    )


# -- losses ---------------------------------------------------------------------------------------------------


def aggregation(config: TrainConfig) -> Aggregation:
    """Return how the losses of a coupled mode are averaged."""
    return Aggregation(_MODES[config.rlhf_loss_aggregation], config.rlhf_loss_aggregation_divisor)


def nominal_steps_per_epoch(config: TrainConfig, world_size: int) -> int:
    """Optimizer steps of an epoch without skipped images.

    Raises:
        ConfigError: the numbers of prompts, images and processes are inconsistent.
    """
    sampler = create_sampler(config, config.rlhf_prompts_per_epoch, 0, world_size)
    layout = sampler.layout
    # whether a short last step is an error is checked elsewhere
    rule = replace(step_rule(config, sampler), short_is_error=False)
    steps = plan_steps(range(layout.batches), [layout.global_batch] * layout.batches, rule)
    return sum(1 for _ in steps) * config.rlhf_inner_epochs


def nominal_total_steps(config: TrainConfig, world_size: int) -> int:
    """Optimizer steps of a run without skipped images."""
    return config.max_steps or nominal_steps_per_epoch(config, world_size) * config.epochs


def regulates_ratios(config: TrainConfig) -> bool:
    """Return whether training needs the means of the rollout's steps (GRPO-Guard)."""
    return config.rlhf_mode.spec.shows("regulated_ratio") and config.rlhf_grpo_guard


def step_options(config: TrainConfig) -> StepOptions:
    """Options of the coupled losses."""
    return StepOptions(
        clip_low=config.rlhf_clip_range_low,
        clip_high=config.rlhf_clip_range_high,
        kl_beta=config.rlhf_kl_beta,
        aggregation=aggregation(config),
        guard=regulates_ratios(config),
        gspo_weighting=config.rlhf_gspo_weighting.lower(),  # type: ignore[arg-type]
        normalize_by_documents=config.rlhf_mode.spec.shows("trajectory_loss")
        and config.rlhf_normalize_by_documents,
    )


def timestep_options(config: TrainConfig) -> TimestepOptions:
    """The noise levels of a decoupled loss."""
    return TimestepOptions(
        sampler=config.rlhf_timestep_sampler,
        count=config.rlhf_num_train_timesteps,
        interval=(config.rlhf_timestep_range_low, config.rlhf_timestep_range_high),
        shift=config.rlhf_time_shift,
        mean=config.rlhf_timestep_mean,
        std=config.rlhf_timestep_std,
    )


def dgpo_options(config: TrainConfig) -> DGPOOptions:
    """Options of DGPO."""
    return DGPOOptions(
        beta=config.rlhf_dgpo_beta,
        clip_low=-config.rlhf_clip_range_low,
        clip_high=config.rlhf_clip_range_high,
        clip_dsm=config.rlhf_dgpo_clip_dsm,
        clip_kl=config.rlhf_dgpo_clip_kl,
        kl_beta=config.rlhf_kl_beta,
        kl_type=config.rlhf_kl_type.lower() if config.rlhf_kl_beta else "v",
        use_ema_ref=config.rlhf_dgpo_use_ema_ref,
    )


def image_options(config: TrainConfig) -> ImageOptions:
    """Options of losses that treat each image separately."""
    return ImageOptions(adv_max=config.rlhf_advantage_clip, kl_beta=config.rlhf_kl_beta)


def nft_options(config: TrainConfig) -> NFTOptions:
    """Options of NFT."""
    return NFTOptions(
        strength=config.rlhf_nft_beta,
        adv_max=config.rlhf_advantage_clip,
        kl_beta=config.rlhf_kl_beta,
        norm_guard=config.rlhf_norm_guard,
    )


def awm_options(config: TrainConfig) -> AWMOptions:
    """Options of AWM."""
    return AWMOptions(
        clip_low=config.rlhf_clip_range_low,
        clip_high=config.rlhf_clip_range_high,
        kl_beta=config.rlhf_kl_beta,
        norm_guard=config.rlhf_norm_guard,
    )


def groups_are_local(sampler: GroupSampler) -> bool:
    """Return whether all images of a prompt are made by one process."""
    return sampler.layout.world_size == 1 or sampler.kind == samplers.CONTIGUOUS


def dgpo_strategy(config: TrainConfig, sampler: GroupSampler) -> GroupStrategy:
    """Return how whole groups are computed: in one pass if micro-batches hold them, else by what the setup
    allows.
    """
    layout = sampler.layout
    whole = sampler.kind != samplers.CONTIGUOUS or layout.batch_size % layout.group_size == 0
    chosen = config.rlhf_dgpo_group_strategy
    if chosen is GroupStrategy.AUTO:
        if whole:
            return GroupStrategy.EXACT
        stash = groups_are_local(sampler) and config.rlhf_kl_beta == 0
        return GroupStrategy.STASH if stash else GroupStrategy.TWO_PASS
    problem = ""
    if chosen is GroupStrategy.EXACT and not whole:
        problem = (
            f"EXACT needs whole groups in a batch, but {layout.group_size} images do not fit into "
            f"{layout.world_size} x {layout.batch_size}"
        )
    elif chosen is GroupStrategy.STASH and not groups_are_local(sampler):
        problem = "STASH needs all images of a prompt in one process"
    elif chosen is GroupStrategy.STASH and config.rlhf_kl_beta > 0:
        problem = "STASH weights its gradients later, which would also weight those of the KL"
    if problem:
        raise UnsupportedError(problem, "rlhf_dgpo_group_strategy", "use AUTO or TWO_PASS")
    return chosen


def needs_whole_groups(config: TrainConfig) -> bool:
    """Return whether all images of a prompt must be in one optimizer step."""
    if config.rlhf_mode.spec.whole_groups:
        return True
    return config.rlhf_mode.coupled and config.rlhf_loss_aggregation is LossAggregation.PROMPT_MEAN


def gspo_strategy(config: TrainConfig) -> GroupStrategy:
    """Return how whole trajectories are computed. AUTO accumulates gradients if that needs only one buffer."""
    chosen = config.rlhf_gspo_strategy
    if chosen is not GroupStrategy.AUTO:
        return chosen
    alone = config.batch_size == 1 and config.rlhf_kl_beta == 0
    return GroupStrategy.STASH if alone else GroupStrategy.TWO_PASS


def swaps_weights(config: TrainConfig) -> bool:
    """Return whether weights are swapped by pointer: those of an existing adapter, or of the old policy."""
    existing = config.effective_dpo_ref_mode() is DPORefMode.EXISTING_ADAPTER
    return (needs_reference(config) and existing) or needs_old_policy(config)


def acceleration_plan(config: TrainConfig) -> AccelerationPlan:
    """The accelerators of the run.

    Raises:
        ConfigError, UserErrors: the accelerators that do not suit this way of training.
    """
    return build_plan(
        {name: value for name, value in config.acceleration.to_dict().items() if value},
        config.rlhf_mode.spec.paradigm if config.rlhf_enabled else "offline",
        swaps_weights=swaps_weights(config),
        num_inference_steps=config.rlhf_rollout_steps if config.trains_online else None,
    )


# -- before anything is made ----------------------------------------------------------------------------------


def check_online(config: TrainConfig, world_size: int = 1) -> None:
    """Check what the config rules cannot: whether the settings suit the processes, rewards and accelerators.

    Raises:
        UserError: the first fault.
    """
    acceleration_plan(config)
    if not config.trains_online:
        return
    reward_set(config)
    if world_size > 1 and asks_person(config):
        raise UnsupportedError(
            f"the votes of a person need a single process, not {world_size}",
            "rlhf_reward",
            "train in one process, or let another reward score the images",
        )
    sampler = create_sampler(config, config.rlhf_prompts_per_epoch, 0, world_size)
    mode = config.rlhf_mode.spec
    if mode.shows("group_loss"):
        dgpo_strategy(config, sampler)
    if mode.groups_in_one_process and not groups_are_local(sampler):
        raise UnsupportedError(
            f"{config.rlhf_mode} makes pairs of a prompt's images, which must be in one process",
            "rlhf_sampler",
            "set it to AUTO or GROUP_CONTIGUOUS",
        )
    _check_steps_hold_groups(config, sampler)
    layout = sampler.layout
    check_plan(layout.batches, layout.global_batch, step_rule(config, sampler))


def _check_steps_hold_groups(config: TrainConfig, sampler: GroupSampler) -> None:
    unit = whole_groups_unit(sampler)
    if config.rlhf_docs_per_step or not needs_whole_groups(config):
        return
    if config.gradient_accumulation_steps % unit:
        what = config.rlhf_loss_aggregation if config.rlhf_mode.coupled else config.rlhf_mode
        raise ConfigError(
            f"the {config.rlhf_group_size} images of a prompt take {unit} micro-batches of {config.batch_size}, and "
            f"{what} needs all of them in one optimizer step",
            "gradient_accumulation_steps",
            f"use a multiple of {unit}",
        )


def check_noise_levels(config: TrainConfig, setup: BaseModelSetup, model: Model) -> None:
    """Check that the model's schedule has the steps and noise levels to be trained online.

    Args:
        model: the model; its weights are not needed.

    Raises:
        UserError: the first fault.
    """
    if not config.trains_online:
        return
    plan = rollout_settings(config, setup, model, 0).plan
    if not config.rlhf_mode.coupled:
        places = [place.timestep for place in plan.positions]
        sample_timesteps(model.schedule, timestep_options(config), places, config.seed, 0)
