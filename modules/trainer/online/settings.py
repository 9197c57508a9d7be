"""What a config says about online training, as the parts that do the work take it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from modules.accelerator.plan import AccelerationPlan, build_plan
from modules.dataLoader.source import is_dpo
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.advantages import AdvantageOptions
from modules.objective.aggregation import PROMPT_MEAN, Aggregation, StepPlan, resolve_aggregation
from modules.objective.policy_gradient import StepOptions, paradigm_of
from modules.objective.policy_gradient.dgpo import DGPOOptions
from modules.objective.policy_gradient.nft import NFTOptions
from modules.reward.combine import RewardSet
from modules.rollout import samplers, transitions
from modules.rollout.plan import PlanOptions, plan_for
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.samplers import GroupSampler, SamplerLayout
from modules.rollout.timesteps import TimestepOptions
from modules.trainer.online.step_plan import StepRule, check_plan, plan_steps
from modules.util.config.rules.online_values import reward_list, rollout_size, sde_window
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.AdvantageScale import AdvantageScale
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.enum.GroupStrategy import GroupStrategy
from modules.util.enum.RewardFailure import RewardFailure
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.enum.RolloutSampler import RolloutSampler
from modules.util.enum.RolloutTransition import RolloutTransition
from modules.util.enum.ShortStep import ShortStep
from modules.util.errors import ConfigError, UnsupportedError, UserError

_SCALES = {
    AdvantageScale.GLOBAL_STD: "batch",
    AdvantageScale.GROUP_STD: "group",
    AdvantageScale.NONE: "none",
}
_FIELDS = {
    "rewards": "rlhf_rewards",
    "rollouts_per_step": "rlhf_docs_per_step",
    "gradient_steps_per_epoch": None,
}
"""Names that the parts use in their errors, where they are not those of the config without its prefix."""


def is_online(config: TrainConfig) -> bool:
    """Whether images are made and scored while training."""
    return config.rlhf_enabled and config.rlhf_mode.online


@contextmanager
def named_as_in_config() -> Iterator[None]:
    """Errors of the parts name the settings they are about as the config does."""
    try:
        yield
    except UserError as error:
        name = error.field
        if name and name not in TrainConfig.model_fields:
            found = _FIELDS.get(name, f"rlhf_{name}")
            if found is None or found in TrainConfig.model_fields:
                error.field = found
        raise


def needs_reference(config: TrainConfig) -> bool:
    """Whether the loss compares with the weights the run started from."""
    mode = config.rlhf_mode
    if mode is RLHFMode.ONLINE_DPO:
        return True
    return config.rlhf_kl_beta > 0 or (mode is RLHFMode.DGPO and not config.rlhf_dgpo_use_ema_ref)


def needs_old_policy(config: TrainConfig) -> bool:
    """Whether a slowly moving copy of the weights is kept beside them."""
    if config.rlhf_mode is RLHFMode.NFT:
        return True
    return config.rlhf_mode is RLHFMode.DGPO and (
        config.rlhf_dgpo_clip_dsm or config.rlhf_dgpo_clip_kl or config.rlhf_dgpo_use_ema_ref
    )


def images_per_micro_batch(config: TrainConfig, world_size: int) -> int:
    return config.batch_size * world_size


def rollout_batch_size(config: TrainConfig) -> int:
    """Images made at once."""
    return config.rlhf_rollout_batch_size or config.batch_size


# -- rollout --------------------------------------------------------------------------------------------------


def plan_options(config: TrainConfig, model: Model) -> PlanOptions:
    """How this run's images are made with this model."""
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
    """What generation and training of an epoch have to agree on."""
    size = rollout_size(config)
    with named_as_in_config():
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
    """Who makes which images. AUTO spreads groups over the processes where batches hold whole ones.

    Raises:
        ConfigError: the numbers do not fit together.
    """
    layout = SamplerLayout(
        prompts=config.rlhf_prompts_per_epoch,
        group_size=config.rlhf_group_size,
        batch_size=config.batch_size,
        world_size=world_size,
        rank=rank,
    )
    kind = config.rlhf_sampler
    if kind is RolloutSampler.AUTO and config.rlhf_mode is RLHFMode.ONLINE_DPO:
        kind = RolloutSampler.GROUP_CONTIGUOUS
    with named_as_in_config():
        return samplers.create_sampler(kind, layout, prompts, config.seed)


def whole_groups_unit(sampler: GroupSampler) -> int:
    """Micro-batches after which no group is left half seen."""
    layout = sampler.layout
    if sampler.kind != samplers.CONTIGUOUS:
        return 1
    return layout.group_size // math.gcd(layout.group_size, layout.batch_size)


def step_rule(config: TrainConfig, sampler: GroupSampler) -> StepRule:
    """How the micro-batches of an epoch become optimizer steps."""
    return StepRule(
        accumulation=config.gradient_accumulation_steps,
        images=config.rlhf_docs_per_step,
        multiple=config.rlhf_docs_per_step_multiple,
        short_is_error=config.rlhf_short_step is ShortStep.ERROR,
        unit=whole_groups_unit(sampler),
        whole=needs_whole_groups(config),
        max_empty=config.rlhf_max_empty_batches,
    )


# -- rewards and advantages -----------------------------------------------------------------------------------


def reward_set(config: TrainConfig) -> RewardSet:
    """The rewards of the run; nothing is loaded yet."""
    skip = config.rlhf_reward_on_error is RewardFailure.SKIP_GROUP
    with named_as_in_config():
        try:
            return RewardSet.from_settings(reward_list(config), "skip_group" if skip else "fail")
        except UserError as error:
            error.field = error.field or ("rlhf_rewards" if config.rlhf_rewards else "rlhf_reward")
            raise


def advantage_options(config: TrainConfig) -> AdvantageOptions:
    """How rewards become advantages."""
    return AdvantageOptions(
        scale=_SCALES[config.rlhf_advantage_scale],  # type: ignore[arg-type]
        eps=config.rlhf_advantage_eps,
        clip=config.rlhf_advantage_clip,
        combine=config.rlhf_reward_combination.lower(),  # type: ignore[arg-type]
    )


# -- losses ---------------------------------------------------------------------------------------------------


def aggregation(config: TrainConfig, world_size: int = 1) -> Aggregation:
    """How losses are averaged.

    Raises:
        ConfigError: values that contradict each other.
    """
    with named_as_in_config():
        return resolve_aggregation(
            config.rlhf_loss_aggregation,
            config.rlhf_loss_aggregation_divisor,
            config.rlhf_calculate_per_step_loss,
            config.rlhf_pg_loss_divisor,
            StepPlan(
                group_size=config.rlhf_group_size,
                images_per_step=config.rlhf_docs_per_step or _fixed_step(config, world_size),
                steps_per_rollout=max(1, nominal_steps_per_epoch(config, world_size)),
                world_size=world_size,
                groups_across_ranks=config.rlhf_sampler is not RolloutSampler.GROUP_CONTIGUOUS,
                kl_beta=config.rlhf_kl_beta,
                strict_loss_mixing=config.rlhf_strict_loss_mixing,
            ),
        )


def _fixed_step(config: TrainConfig, world_size: int) -> int:
    return images_per_micro_batch(config, world_size) * config.gradient_accumulation_steps


def nominal_steps_per_epoch(config: TrainConfig, world_size: int) -> int:
    """Optimizer steps of an epoch that loses no image.

    Raises:
        ConfigError: the numbers of prompts, images and processes do not fit together.
    """
    sampler = create_sampler(config, config.rlhf_prompts_per_epoch, 0, world_size)
    layout = sampler.layout
    # whether a short last step is an error is asked elsewhere
    rule = replace(step_rule(config, sampler), short_is_error=False)
    steps = plan_steps(range(layout.batches), [layout.global_batch] * layout.batches, rule)
    return sum(1 for _ in steps) * config.rlhf_inner_epochs


def step_options(config: TrainConfig, world_size: int = 1) -> StepOptions:
    """The numbers of the coupled losses."""
    with named_as_in_config():
        return StepOptions(
            clip_low=config.rlhf_clip_range_low,
            clip_high=config.rlhf_clip_range_high,
            kl_beta=config.rlhf_kl_beta,
            aggregation=aggregation(config, world_size),
            guard=config.rlhf_mode is RLHFMode.GRPO and config.rlhf_grpo_guard,
            gspo_weighting=config.rlhf_gspo_weighting.lower(),  # type: ignore[arg-type]
            normalize_by_documents=config.rlhf_mode is RLHFMode.GSPO and config.rlhf_normalize_by_documents,
        )


def timestep_options(config: TrainConfig) -> TimestepOptions:
    """Which noise levels a decoupled loss looks at."""
    with named_as_in_config():
        return TimestepOptions(
            sampler=config.rlhf_timestep_sampler,
            count=config.rlhf_num_train_timesteps,
            interval=(config.rlhf_timestep_range_low, config.rlhf_timestep_range_high),
            shift=config.rlhf_time_shift,
            mean=config.rlhf_timestep_mean,
            std=config.rlhf_timestep_std,
        )


def dgpo_options(config: TrainConfig) -> DGPOOptions:
    """The numbers of DGPO."""
    with named_as_in_config():
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


def nft_options(config: TrainConfig) -> NFTOptions:
    """The numbers of NFT."""
    with named_as_in_config():
        return NFTOptions(
            strength=config.rlhf_nft_beta, adv_max=config.rlhf_advantage_clip, kl_beta=config.rlhf_kl_beta
        )


def groups_are_local(sampler: GroupSampler) -> bool:
    """Whether all images of a prompt are made by one process."""
    return sampler.layout.world_size == 1 or sampler.kind == samplers.CONTIGUOUS


def dgpo_strategy(config: TrainConfig, sampler: GroupSampler) -> GroupStrategy:
    """How whole groups are computed: in one pass where micro-batches hold them, else by what the setup allows."""
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
            f"EXACT needs whole groups in a batch, and {layout.group_size} images do not fit into "
            f"{layout.world_size} x {layout.batch_size}"
        )
    elif chosen is GroupStrategy.STASH and not groups_are_local(sampler):
        problem = "STASH needs all images of a prompt in one process"
    elif chosen is GroupStrategy.STASH and config.rlhf_kl_beta > 0:
        problem = "STASH holds gradients that are weighted later, and those of a KL would be among them"
    if problem:
        raise UnsupportedError(problem, "rlhf_dgpo_group_strategy", "use AUTO or TWO_PASS")
    return chosen


def needs_whole_groups(config: TrainConfig) -> bool:
    """Whether all images of a prompt have to be in one optimizer step."""
    if config.rlhf_mode in (RLHFMode.DGPO, RLHFMode.ONLINE_DPO):
        return True
    if not config.rlhf_mode.coupled:
        return False
    # how many processes there are does not matter here
    made = resolve_aggregation(
        config.rlhf_loss_aggregation,
        config.rlhf_loss_aggregation_divisor,
        config.rlhf_calculate_per_step_loss,
        config.rlhf_pg_loss_divisor,
        StepPlan(group_size=config.rlhf_group_size),
    )
    return made.mode == PROMPT_MEAN


def gspo_strategy(config: TrainConfig) -> GroupStrategy:
    """How whole trajectories are computed: AUTO adds up gradients where that needs one buffer."""
    chosen = config.rlhf_gspo_strategy
    if chosen is not GroupStrategy.AUTO:
        return chosen
    alone = config.batch_size == 1 and config.rlhf_kl_beta == 0
    return GroupStrategy.STASH if alone else GroupStrategy.TWO_PASS


def swaps_weights(config: TrainConfig) -> bool:
    """Whether other weights are put in place by pointer: those of an existing adapter, or the old policy's."""
    online = is_online(config)
    compares = needs_reference(config) if online else is_dpo(config)
    return (compares and config.effective_dpo_ref_mode() is DPORefMode.EXISTING_ADAPTER) or (
        online and needs_old_policy(config)
    )


def acceleration_plan(config: TrainConfig) -> AccelerationPlan:
    """The accelerators of the run.

    Raises:
        ConfigError, UserErrors: what does not fit this way of training.
    """
    online = is_online(config)
    return build_plan(
        {name: value for name, value in config.acceleration.to_dict().items() if value},
        paradigm_of(config.rlhf_mode) if online else "offline",
        swaps_weights=swaps_weights(config),
        num_inference_steps=config.rlhf_rollout_steps if online else None,
    )


# -- before anything is loaded --------------------------------------------------------------------------------


def check_online(config: TrainConfig, world_size: int = 1) -> None:
    """What can be found wrong with an online run without a model or its prompts.

    Raises:
        UserError: the first fault.
    """
    acceleration_plan(config)
    if not is_online(config):
        return
    reward_set(config)
    advantage_options(config)
    timestep_options(config)
    options = step_options(config, world_size)
    if config.rlhf_mode is RLHFMode.GSPO:
        from modules.objective.policy_gradient.gspo import check_gspo

        with named_as_in_config():
            check_gspo(options)
        if config.rlhf_gspo_strategy is GroupStrategy.STASH and config.rlhf_kl_beta > 0:
            raise UnsupportedError(
                "STASH holds one sum of gradients for each image, and a KL to the reference would mix with it",
                "rlhf_gspo_strategy",
                "use TWO_PASS or EXACT, or set rlhf_kl_beta to 0",
            )
    sampler = create_sampler(config, config.rlhf_prompts_per_epoch, 0, world_size)
    if config.rlhf_mode is RLHFMode.DGPO:
        dgpo_options(config)
        dgpo_strategy(config, sampler)
    if config.rlhf_mode is RLHFMode.NFT:
        nft_options(config)
    if config.rlhf_mode is RLHFMode.ONLINE_DPO and not groups_are_local(sampler):
        raise UnsupportedError(
            "ONLINE_DPO makes pairs of a prompt's images, which must be in one process",
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
        raise ConfigError(
            f"the {config.rlhf_group_size} images of a prompt take {unit} micro-batches of {config.batch_size}, and "
            f"{config.rlhf_mode} needs all of them in one optimizer step",
            "gradient_accumulation_steps",
            f"use a multiple of {unit}",
        )
