"""Rules for settings of online training, as far as they can be told without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from modules.util.catalog import REWARDS, unknown_name
from modules.util.config.rules.online_values import reward_list, rollout_size, sde_window
from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.AdvantageScale import AdvantageScale
from modules.util.enum.EMAMode import EMAMode
from modules.util.enum.KlType import KlType
from modules.util.enum.LogProbReduction import LogProbReduction
from modules.util.enum.LossAggregation import LossAggregation
from modules.util.enum.RewardCombination import RewardCombination
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.enum.RolloutTransition import RolloutTransition
from modules.util.errors import ConfigError, UnsupportedError, UserError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

_MODE = ("rlhf_enabled", "rlhf_mode")
SMALL_CLIP = 0.1


def _online(c: TrainConfig) -> bool:
    return c.rlhf_enabled and c.rlhf_mode.online


def _coupled(c: TrainConfig) -> bool:
    return c.rlhf_enabled and c.rlhf_mode.coupled


def _fault_of(read: Callable[[], object]) -> Iterator[Finding]:
    try:
        read()
    except UserError as error:
        yield error


@rule(*_MODE, "rlhf_rollout_size", "resolution")
def _size(c: TrainConfig) -> Iterator[Finding]:
    if _online(c):
        yield from _fault_of(lambda: rollout_size(c))


@rule(*_MODE, "rlhf_reward", "rlhf_rewards")
def _rewards(c: TrainConfig) -> Iterator[Finding]:
    if _online(c):
        yield from _fault_of(lambda: reward_list(c))


@rule(*_MODE, "rlhf_reward", "rlhf_rewards")
def _rewards_are_known(c: TrainConfig) -> Iterator[Finding]:
    if not _online(c):
        return
    try:
        named = reward_list(c)
    except UserError:
        return  # reported by the rule above
    for index, one in enumerate(named):
        if odd := unknown_name(one.reward, REWARDS):
            yield ConfigWarning(odd, f"rlhf_rewards[{index}].reward" if c.rlhf_rewards else "rlhf_reward")


@rule(*_MODE, "rlhf_advantage_scale", "rlhf_reward_combination")
def _scale_counts(c: TrainConfig) -> Iterator[Finding]:
    combined = c.rlhf_reward_combination is RewardCombination.GDPO
    if _online(c) and combined and c.rlhf_advantage_scale is not AdvantageScale.GLOBAL_STD:
        yield ConfigError(
            f"{c.rlhf_advantage_scale} would do nothing: GDPO divides by deviations of its own",
            "rlhf_advantage_scale",
            "set rlhf_reward_combination to SUM, or this back to GLOBAL_STD",
        )


@rule(*_MODE, "rlhf_sde_window", "rlhf_rollout_steps", "rlhf_num_sde_steps")
def _trained_steps(c: TrainConfig) -> Iterator[Finding]:
    if not _coupled(c):
        return
    steps = c.rlhf_rollout_steps
    if steps < 2:
        yield ConfigError("the last step is never trained: at least 2 are needed", "rlhf_rollout_steps")
        return
    try:
        window = sde_window(c.rlhf_sde_window)
    except UserError as error:
        yield error
        return
    first, last = window or (0, steps - 2)
    if last >= steps:
        yield ConfigError(f"step {last} is not among the {steps} from 0 on", "rlhf_sde_window")
    elif (usable := min(last, steps - 2) - first + 1) < max(c.rlhf_num_sde_steps, 1):
        yield ConfigError(
            f"{c.rlhf_num_sde_steps or 1} steps are to be trained but only {max(usable, 0)} can be: the last one "
            "never is",
            "rlhf_num_sde_steps" if c.rlhf_num_sde_steps else "rlhf_sde_window",
        )


@rule("rlhf_enabled", "rlhf_mode", "text_encoder", "text_encoder_2", "text_encoder_3", "model_type")
def _text_is_not_trained(c: TrainConfig) -> Iterator[Finding]:
    if _online(c) and c.trains_text():
        trained = next(part for part in c.model_type.text_encoders if getattr(c, part).train)
        yield UnsupportedError(
            f"{c.rlhf_mode} trains the denoiser alone", f"{trained}.train", f"set {trained}.train to false"
        )


@rule(*_MODE, "rlhf_off_policy", "ema")
def _average_is_there(c: TrainConfig) -> Iterator[Finding]:
    if _online(c) and not c.rlhf_mode.coupled and c.rlhf_off_policy and c.ema is EMAMode.OFF:
        yield ConfigError(
            "the average is to make the images, and none is kept", "rlhf_off_policy", "switch ema on"
        )


@rule(*_MODE, "rlhf_ema_ref_device")
def _old_policy_is_somewhere(c: TrainConfig) -> Iterator[Finding]:
    if _online(c) and c.rlhf_ema_ref_device is EMAMode.OFF:
        yield ConfigError(
            "OFF is no place for the weights of the old policy", "rlhf_ema_ref_device", "set it to GPU or CPU"
        )


@rule(*_MODE, "rlhf_kl_beta", "rlhf_kl_type")
def _kl_fits_mode(c: TrainConfig) -> Iterator[Finding]:
    if _online(c) and not c.rlhf_mode.coupled and c.rlhf_kl_beta > 0 and c.rlhf_kl_type is not KlType.V:
        yield ConfigError(
            f"{c.rlhf_mode} has no steps whose divergence {c.rlhf_kl_type} could be",
            "rlhf_kl_type",
            "set it to V, which compares predictions, or rlhf_kl_beta to 0",
        )


@rule(*_MODE, "rlhf_dgpo_kl_cfg", "rlhf_dgpo_use_ema_ref", "rlhf_kl_beta")
def _guided_reference_is_there(c: TrainConfig) -> Iterator[Finding]:
    frozen = c.rlhf_kl_beta > 0 or not c.rlhf_dgpo_use_ema_ref
    if c.rlhf_enabled and c.rlhf_mode is RLHFMode.DGPO and c.rlhf_dgpo_kl_cfg > 1 and not frozen:
        yield ConfigError(
            "guides the frozen reference, which this run does not ask",
            "rlhf_dgpo_kl_cfg",
            "set it to 1, rlhf_kl_beta above 0, or rlhf_dgpo_use_ema_ref to false",
        )


@rule(*_MODE, "rlhf_dgpo_kl_cfg", "model_type")
def _reference_is_guided(c: TrainConfig) -> Iterator[Finding]:
    dgpo = c.rlhf_enabled and c.rlhf_mode is RLHFMode.DGPO
    if dgpo and c.rlhf_dgpo_kl_cfg > 1 and c.model_type.embeds_guidance:
        yield UnsupportedError(
            f"{c.rlhf_dgpo_kl_cfg:g} would do nothing: {c.model_type.label} is told its guidance in one pass, the "
            "reference as the trained model",
            "rlhf_dgpo_kl_cfg",
            "set it to 1; rlhf_rollout_cfg_scale is the guidance of both",
        )


@rule(*_MODE, "rlhf_timestep_range_low", "rlhf_timestep_range_high")
def _range(c: TrainConfig) -> Iterator[Finding]:
    low, high = c.rlhf_timestep_range_low, c.rlhf_timestep_range_high
    if _online(c) and not c.rlhf_mode.coupled and low >= high:
        yield ConfigError(
            f"{low:g} is not below rlhf_timestep_range_high ({high:g})", "rlhf_timestep_range_low"
        )


@rule(*_MODE, "rlhf_loss_aggregation", "rlhf_loss_aggregation_divisor", "rlhf_pg_loss_divisor")
def _divisor(c: TrainConfig) -> Iterator[Finding]:
    constant = c.rlhf_loss_aggregation is LossAggregation.CONSTANT
    given = c.rlhf_loss_aggregation_divisor is not None
    if not _coupled(c):
        return
    if constant and not given and c.rlhf_pg_loss_divisor is None:
        yield ConfigError("CONSTANT divides by this, and it is not given", "rlhf_loss_aggregation_divisor")
    if given and not constant and c.rlhf_pg_loss_divisor is None:
        yield ConfigError(
            f"is given, but {c.rlhf_loss_aggregation} has no divisor",
            "rlhf_loss_aggregation_divisor",
            "leave it empty, or set rlhf_loss_aggregation to CONSTANT",
        )


@rule(*_MODE, "rlhf_loss_aggregation")
def _sequence_level(c: TrainConfig) -> Iterator[Finding]:
    plain = c.rlhf_loss_aggregation is LossAggregation.SAMPLE_MEAN
    if c.rlhf_enabled and c.rlhf_mode is RLHFMode.GSPO and not plain:
        yield ConfigWarning(
            f"{c.rlhf_loss_aggregation} gives images with many trained steps more weight than GSPO means to",
            "rlhf_loss_aggregation",
        )


@rule(*_MODE, "rlhf_docs_per_step", "rlhf_group_size", "rlhf_loss_aggregation")
def _whole_groups_in_a_step(c: TrainConfig) -> Iterator[Finding]:
    if not _online(c) or not c.rlhf_docs_per_step:
        return
    by_prompt = _coupled(c) and c.rlhf_loss_aggregation is LossAggregation.PROMPT_MEAN
    whole = by_prompt or c.rlhf_mode in (RLHFMode.DGPO, RLHFMode.ONLINE_DPO)
    if whole and c.rlhf_docs_per_step % c.rlhf_group_size:
        yield ConfigError(
            f"{c.rlhf_docs_per_step} is no multiple of the {c.rlhf_group_size} images of a prompt, which must not "
            "be torn apart",
            "rlhf_docs_per_step",
        )


@rule(*_MODE, "rlhf_rollout_transition", "model_type")
def _transition_fits(c: TrainConfig) -> Iterator[Finding]:
    chosen = c.rlhf_rollout_transition
    if not _coupled(c) or chosen is RolloutTransition.AUTO:
        return
    flow = c.model_type.flow_matching
    if flow == (chosen is RolloutTransition.DDIM):
        yield UnsupportedError(
            f"{chosen} is no transition of {c.model_type.label}", "rlhf_rollout_transition", "set it to AUTO"
        )


@rule(*_MODE, "rlhf_clip_range_low", "rlhf_clip_range_high", "rlhf_logprob_reduction")
def _clip_is_small(c: TrainConfig) -> Iterator[Finding]:
    if not _coupled(c) or c.rlhf_logprob_reduction is not LogProbReduction.MEAN:
        return
    for name in ("rlhf_clip_range_low", "rlhf_clip_range_high"):
        if getattr(c, name) >= SMALL_CLIP:
            yield ConfigWarning(
                "is that of language models: with means over latent numbers nothing is ever clipped", name
            )


@rule(*_MODE, "acceleration")
def _nothing_to_accelerate(c: TrainConfig) -> Iterator[Finding]:
    if not _online(c) and c.acceleration.rollout:
        yield ConfigError(
            "acts while images are made to learn from, which this run does not do",
            "acceleration.rollout",
            "leave it empty",
        )


@rule(*_MODE, "rlhf_kl_beta")
def _anchored_once(c: TrainConfig) -> Iterator[Finding]:
    if c.rlhf_enabled and c.rlhf_mode is RLHFMode.ONLINE_DPO and c.rlhf_kl_beta > 0:
        yield UnsupportedError(
            "ONLINE_DPO is anchored to the reference by rlhf_online_dpo_beta and has no KL beside it",
            "rlhf_kl_beta",
            "set it to 0",
        )


@rule(*_MODE, "validation")
def _nothing_to_validate_on(c: TrainConfig) -> Iterator[Finding]:
    if _online(c) and c.validation:
        yield UnsupportedError(
            f"{c.rlhf_mode} makes its images itself and has none to validate on",
            "validation",
            "switch it off and watch rl/reward_mean",
        )
