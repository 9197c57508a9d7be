from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.RewardConfig import AccelerationConfig
from modules.util.config.setting import Float, kept_setting, setting
from modules.util.enum.choices import (
    EMAMode,
    GroupNoise,
    GroupStrategy,
    GspoWeighting,
    KlType,
    LogProbForm,
    LogProbReduction,
    LossAggregation,
    OldLogProbSource,
    OnlinePairs,
    RatioCheck,
    TimestepSampler,
)
from modules.util.enum.RLHFMode import shown_for

_KL, _COUPLED, _DECOUPLED = shown_for("kl"), shown_for("coupled"), shown_for("decoupled")

_policy_loss = partial(setting, group="Policy loss", visible=_COUPLED, free=False)
_trajectory_loss = partial(_policy_loss, visible=shown_for("trajectory_loss"))
_group_loss = partial(setting, group="Group loss", visible=shown_for("group_loss"), free=False)
_draws = partial(_group_loss, visible=_DECOUPLED)
_old_policy = partial(setting, group="Old policy", visible=shown_for("old_policy"), free=False)
_pair_loss = partial(setting, group="Pair loss", visible=shown_for("pair_loss"), free=False)


class OnlineLossSection(BaseConfig):
    """The loss of the online modes, and the limits on what it may change."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_clip_range_low: Float = _policy_loss(
        1e-4,
        ge=0,
        lt=1,
        visible=shown_for("clip"),
        title="Clip below",
        tip=(
            "How far the ratio of new to old probability may fall below 1 before it is clipped. In DGPO and "
            "AWM, the ratio is exp(error of the old policy - error of the model). Usual values are tiny, "
            "because log-probabilities and errors are averaged over all numbers of a latent."
        ),
    )
    rlhf_clip_range_high: Float = _policy_loss(
        1e-4,
        within=(0, 10),
        visible=shown_for("clip"),
        title="Clip above",
        tip="How far the ratio of new to old probability may rise above 1 before it is clipped.",
    )
    rlhf_kl_beta: Float = _policy_loss(
        0.0,
        within=(0, 1000000.0),
        visible=_KL,
        cost="switch",
        first=True,
        title="KL strength",
        tip="How strongly the model is held to the reference. 0: not at all. Usual with KL type EXACT: 0.01 to 0.04.",
    )
    rlhf_kl_type: KlType = _policy_loss(
        KlType.EXACT,
        visible=f"{_KL},rlhf_kl_beta",
        title="KL type",
        tip=(
            "EXACT: the divergence of the denoising steps. FLOW_GRPO: the same divergence without the step "
            "size. X: compares the next latents. V: compares the predictions. DGPO, NFT and AWM support V only. "
            "ONLINE_DPO takes no KL."
        ),
    )
    rlhf_grpo_guard: bool = _policy_loss(
        False,
        visible=shown_for("regulated_ratio"),
        cost="value",
        title="Regulated ratio",
        tip="GRPO-Guard: bring the ratios of all denoising steps to the same scale before clipping.",
    )
    rlhf_loss_aggregation: LossAggregation = _policy_loss(
        LossAggregation.SAMPLE_MEAN,
        title="Aggregation",
        tip=(
            "How the losses of denoising steps and images are averaged. SAMPLE_MEAN averages within each "
            "image first, PROMPT_MEAN within each prompt, TOKEN_MEAN over all denoising steps. CONSTANT "
            "divides by Loss divisor. The choices differ only if images have different numbers of trained "
            "steps, as with Count skipped images."
        ),
    )
    rlhf_count_skipped: bool = _policy_loss(
        False,
        title="Count skipped images",
        tip=(
            "Count images that are skipped (zero advantage, failed reward) as images without trained steps. "
            "SAMPLE_MEAN then divides by all images, TOKEN_MEAN by the trained steps only. Off: skipped images are "
            "not counted."
        ),
    )
    rlhf_loss_aggregation_divisor: Float | None = _policy_loss(
        None,
        gt=0,
        le=1e9,
        visible=f"{_COUPLED},rlhf_loss_aggregation=CONSTANT",
        title="Loss divisor",
        tip="Constant number of steps by which CONSTANT divides, as Dr. GRPO does.",
    )
    rlhf_logprob_reduction: LogProbReduction = _policy_loss(
        LogProbReduction.MEAN,
        title="Log-probability",
        tip=(
            "Mean or sum over the values of a latent. With SUM, multiply the clip range by the number of values in a "
            "latent."
        ),
    )
    rlhf_logprob_form: LogProbForm = _policy_loss(
        LogProbForm.GAUSSIAN,
        title="Log-probability form",
        tip=(
            "SQUARED_ERROR leaves out the standard deviation, as some programs do for CPS. Ratios are then "
            "on another scale."
        ),
    )
    rlhf_old_logprob_source: OldLogProbSource = _policy_loss(
        OldLogProbSource.ROLLOUT,
        cost="value",
        title="Old probabilities",
        tip=(
            "ROLLOUT uses the probabilities computed when the images were made. RECOMPUTE computes them "
            "again in the training batches, which makes the first ratio exactly 1 in any setup."
        ),
    )
    rlhf_ratio_check: RatioCheck = _policy_loss(
        RatioCheck.AUTO,
        free=True,
        title="First ratio check",
        tip=(
            "What to do if the first ratio after a rollout is not 1. AUTO ends the run where the ratio must be exact, "
            "and warns otherwise."
        ),
    )
    rlhf_ratio_tolerance: Float | None = _policy_loss(
        None,
        within=(0, 1e9),
        visible=f"{_COUPLED},rlhf_ratio_check=AUTO|WARN|ERROR",
        free=True,
        tip=(
            "How far the first ratio may be from 1. Empty: 0 where the ratio must be exact, otherwise a quarter of "
            "the clip range."
        ),
    )
    rlhf_gspo_weighting: GspoWeighting = _trajectory_loss(
        GspoWeighting.LENGTH,
        title="Image weighting",
        tip="LENGTH weights each image by its number of trained steps, DOCUMENT weights all images equally.",
    )
    rlhf_normalize_by_documents: bool = _trajectory_loss(
        False,
        title="Divide by images",
        tip=(
            "Divide by the number of images of an optimizer step instead of the number of their denoising "
            "steps. With T denoising steps each, the loss is T times as large."
        ),
    )
    rlhf_gspo_strategy: GroupStrategy = _trajectory_loss(
        GroupStrategy.AUTO,
        cost="value",
        title="Trajectory strategy",
        tip=(
            "How the loss over all trained steps of an image is computed. EXACT keeps the graphs of all steps. "
            "STASH adds up gradients. TWO_PASS runs the model twice. AUTO chooses STASH or TWO_PASS. All give "
            "the same gradient."
        ),
    )
    rlhf_dgpo_beta: Float = _group_loss(
        100.0,
        within=(1e-6, 1e9),
        first=True,
        title="Beta",
        tip=(
            "How quickly a group loses weight as the model learns from it. The weight is sigmoid(s), where s is beta "
            "times the mean of advantage x (error - error of the reference) over the group's images. The weight "
            "begins at 0.5 and is 0.27 at s = -1. With beta 100, it reaches 0.27 once the errors of an image with "
            "advantage 1 have fallen by 0.01 on average. Errors of flow-matching models are near 1, so this is 1 % "
            "of the error. Use a lower value to move further from the reference. Other programs may use another "
            "mean, so their values cannot be copied."
        ),
    )
    rlhf_dgpo_group_strategy: GroupStrategy = _group_loss(
        GroupStrategy.AUTO,
        cost="value",
        title="Group strategy",
        tip=(
            "How the loss over all images of a prompt is computed. EXACT needs whole groups in a batch. STASH adds "
            "up gradients. TWO_PASS runs the model twice. AUTO chooses the first of these that is possible. "
            "All give the same gradient."
        ),
    )
    rlhf_dgpo_clip_dsm: bool = _group_loss(
        True,
        cost="value",
        title="Image clipping",
        tip=(
            "Ignore a good image once its ratio is above the clip range, and a bad image once its ratio is "
            "below. The tip of Clip below explains the ratio."
        ),
    )
    rlhf_dgpo_clip_kl: bool = _group_loss(
        False,
        visible=f"{shown_for('group_loss')},rlhf_kl_beta",
        cost="value",
        title="KL clipping",
        tip="Do not pull the model back to the reference on clipped images either.",
    )
    rlhf_dgpo_use_ema_ref: bool = _group_loss(
        False,
        cost="value",
        title="Old policy as reference",
        tip="Compare with the moving old policy instead of the model the run started from.",
    )
    rlhf_dgpo_kl_cfg: Float = _group_loss(
        1.0,
        within=(1, 100),
        cost="value",
        title="Reference CFG",
        tip="Guidance scale of the reference. 1: no guidance.",
    )
    rlhf_dgpo_noise: GroupNoise = _draws(
        GroupNoise.GROUP_FIXED,
        title="Group noise",
        tip=(
            "GROUP_FIXED: one noise for all images of a prompt. GROUP_PER_TIMESTEP: one noise for each timestep of "
            "a prompt. INDEPENDENT: one noise for each image."
        ),
    )
    rlhf_num_train_timesteps: int = _draws(
        0,
        within=(0, 1000),
        cost="value",
        title="Timesteps per image",
        tip=(
            "Number of noise levels at which an image is trained in each pass. 0: one for each rollout step "
            "in the timestep range."
        ),
    )
    rlhf_timestep_range_low: Float = _draws(
        0.0,
        ge=0,
        lt=1,
        cost="value",
        title="Timestep range start",
        tip="Start of the part of denoising that is trained. 0: pure noise.",
    )
    rlhf_timestep_range_high: Float = _draws(
        0.6,
        gt=0,
        le=1,
        cost="value",
        title="Timestep range end",
        tip="End of the part of denoising that is trained. 1: the finished image.",
    )
    rlhf_timestep_sampler: TimestepSampler = _draws(
        TimestepSampler.DISCRETE,
        cost="value",
        title="Timestep draw",
        tip=(
            "How the noise levels are drawn. UNIFORM and LOGIT_NORMAL: from a continuous range. DISCRETE: "
            "from the steps of the rollout. DISCRETE_WITH_INIT always includes the first of these steps, "
            "DISCRETE_WO_INIT never does."
        ),
    )
    rlhf_timestep_mean: Float = _group_loss(
        0.0,
        within=(-100, 100),
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=LOGIT_NORMAL",
        title="Logit-normal mean",
        tip=(
            "Centre of the logit-normal distribution. Above 0: more timesteps close to the finished image. "
            "Below 0: more close to pure noise."
        ),
    )
    rlhf_timestep_std: Float = _group_loss(
        1.0,
        gt=0,
        le=100,
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=LOGIT_NORMAL",
        title="Logit-normal standard deviation",
        tip="Width of the logit-normal distribution.",
    )
    rlhf_time_shift: Float = _group_loss(
        3.0,
        gt=0,
        le=100,
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=UNIFORM|LOGIT_NORMAL",
        title="Shift of draws",
        tip=(
            "Values above 1 shift the timesteps that UNIFORM and LOGIT_NORMAL draw towards the finished "
            "image. 1: no shift."
        ),
    )
    rlhf_ema_ref_max_decay: Float = _old_policy(
        0.3,
        ge=0,
        lt=1,
        title="Highest old-policy decay",
        tip="Maximum share of the old policy that is kept at each optimizer step.",
    )
    rlhf_ema_ref_ramp_rate: Float = _old_policy(
        0.001,
        within=(0, 1),
        title="Old-policy decay ramp",
        tip="How much the kept share of the old policy rises with each optimizer step, starting at 0.",
    )
    rlhf_ema_ref_device: EMAMode = _old_policy(
        EMAMode.GPU,
        cost="value",
        free=True,
        title="Old policy device",
        tip="Where the old policy's weights are kept: next to the model, or in main memory.",
    )
    rlhf_online_dpo_beta: Float = _pair_loss(
        5000.0,
        within=(1e-6, 1e9),
        first=True,
        title="Beta",
        tip="How strongly the model is held to the reference, as in DPO: higher = smaller change.",
    )
    rlhf_online_dpo_pairs: OnlinePairs = _pair_loss(
        OnlinePairs.BEST_WORST,
        cost="value",
        title="Pairs",
        tip=(
            "BEST_WORST compares the best with the worst image of a prompt, ALL compares every better image with "
            "every worse one."
        ),
    )
    rlhf_nft_beta: Float = _pair_loss(
        1.0,
        within=(1e-6, 100),
        visible=shown_for("mirror_loss"),
        first=True,
        title="Beta",
        tip=(
            "NFT compares a good and a bad model, which lie on opposite sides of the old policy. The old "
            "policy is a copy of the adapter that follows the trained one. This is the distance of both "
            "models from the old policy. 1: the good model is the trained model itself."
        ),
    )
    acceleration: AccelerationConfig = kept_setting(
        factory=AccelerationConfig,
        group="Acceleration",
        tip="Accelerators that make the denoiser faster, in training and while images are made.",
    )
