from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.RewardConfig import AccelerationConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.EMAMode import EMAMode
from modules.util.enum.GroupNoise import GroupNoise
from modules.util.enum.GroupStrategy import GroupStrategy
from modules.util.enum.GspoWeighting import GspoWeighting
from modules.util.enum.KlType import KlType
from modules.util.enum.LogProbForm import LogProbForm
from modules.util.enum.LogProbReduction import LogProbReduction
from modules.util.enum.LossAggregation import LossAggregation
from modules.util.enum.OldLogProbSource import OldLogProbSource
from modules.util.enum.OnlinePairs import OnlinePairs
from modules.util.enum.RatioCheck import RatioCheck
from modules.util.enum.TimestepSampler import TimestepSampler

_ONLINE = "rlhf_enabled,rlhf_mode=DGPO|GRPO|GSPO|ONLINE_DPO|NFT"
_COUPLED = "rlhf_enabled,rlhf_mode=GRPO|GSPO"
_DECOUPLED = "rlhf_enabled,rlhf_mode=DGPO|ONLINE_DPO|NFT"


class OnlineLossSection(BaseConfig):
    """Learning from images made while training: what is made of the advantages."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_clip_range_low: Float = setting(
        1e-4,
        ge=0,
        lt=1,
        visible=f"{_ONLINE},rlhf_mode=DGPO|GRPO|GSPO",
        title="Clip below",
        group="Policy loss",
        tip=(
            "How far the ratio of new to old probability may fall before it stops to count. Tiny, because"
            " log-probabilities are means over all latent numbers."
        ),
    )
    rlhf_clip_range_high: Float = setting(
        1e-4,
        ge=0,
        le=10,
        visible=f"{_ONLINE},rlhf_mode=DGPO|GRPO|GSPO",
        title="Clip above",
        group="Policy loss",
        tip="How far the ratio may rise.",
    )
    rlhf_kl_beta: Float = setting(
        0.0,
        ge=0,
        le=1000000.0,
        visible=_ONLINE,
        title="KL strength",
        group="Policy loss",
        tip="Keeps the model near the reference: 0.01 to 0.04 is common with a KL of EXACT.",
    )
    rlhf_kl_type: KlType = setting(
        KlType.EXACT,
        visible=f"{_ONLINE},rlhf_kl_beta",
        title="KL",
        group="Policy loss",
        tip=(
            "EXACT is the divergence of the steps; FLOW_GRPO leaves out the step size; X and V compare "
            "next latents and predictions. Modes without steps know V alone."
        ),
    )
    rlhf_grpo_guard: bool = setting(
        False,
        visible=f"{_ONLINE},rlhf_mode=GRPO",
        title="Regulated ratio",
        group="Policy loss",
        tip="GRPO-Guard: bring the ratios of all steps to one scale before clipping.",
    )
    rlhf_loss_aggregation: LossAggregation = setting(
        LossAggregation.SAMPLE_MEAN,
        visible=_COUPLED,
        title="Aggregation",
        group="Policy loss",
        tip=(
            "How steps and images are averaged. All are the same unless images have different numbers of "
            "trained steps."
        ),
    )
    rlhf_loss_aggregation_divisor: Float | None = setting(
        None,
        gt=0,
        le=1e9,
        visible=f"{_COUPLED},rlhf_loss_aggregation=CONSTANT",
        title="Divisor",
        group="Policy loss",
        tip="Constant number of steps by which CONSTANT divides, as Dr. GRPO does.",
    )
    rlhf_calculate_per_step_loss: bool = setting(
        False,
        hidden=True,
        visible=_COUPLED,
        title="Per-step loss",
        group="Policy loss",
        tip="Older name of the aggregation TOKEN_MEAN.",
    )
    rlhf_pg_loss_divisor: Float | None = setting(
        None,
        gt=0,
        le=1e9,
        hidden=True,
        visible=_COUPLED,
        title="Loss divisor",
        group="Policy loss",
        tip="Older name of the aggregation CONSTANT and its divisor.",
    )
    rlhf_strict_loss_mixing: bool = setting(
        True,
        visible=f"{_COUPLED},rlhf_loss_aggregation=TOKEN_MEAN|STEP_MEAN",
        title="Strict mixing",
        group="Policy loss",
        tip="Refuse TOKEN_MEAN beside terms that would share its divisor.",
    )
    rlhf_logprob_reduction: LogProbReduction = setting(
        LogProbReduction.MEAN,
        visible=_COUPLED,
        title="Log-probability",
        group="Policy loss",
        tip="Mean or sum over the latent numbers. SUM needs a clip range larger by their count.",
    )
    rlhf_logprob_form: LogProbForm = setting(
        LogProbForm.GAUSSIAN,
        visible=_COUPLED,
        title="Form",
        group="Policy loss",
        tip=(
            "SQUARED_ERROR leaves out the deviation, as some programs do for CPS; ratios are then on "
            "another scale."
        ),
    )
    rlhf_old_logprob_source: OldLogProbSource = setting(
        OldLogProbSource.ROLLOUT,
        visible=_COUPLED,
        title="Old probabilities",
        group="Policy loss",
        tip=(
            "RECOMPUTE asks once more in the batches of training, which makes the first ratio exactly 1 "
            "in any setup."
        ),
    )
    rlhf_ratio_check: RatioCheck = setting(
        RatioCheck.AUTO,
        visible=_COUPLED,
        title="First ratio",
        group="Policy loss",
        tip=("What to do if it is not 1. AUTO ends the run where it must be exact and warns elsewhere."),
    )
    rlhf_ratio_tolerance: Float | None = setting(
        None,
        ge=0,
        le=1e9,
        visible=f"{_COUPLED},rlhf_ratio_check=AUTO|WARN|ERROR",
        title="Tolerance",
        group="Policy loss",
        tip=(
            "How far from 1 it may be; empty is 0 where it must be exact, else a quarter of the clip range."
        ),
    )
    rlhf_gspo_weighting: GspoWeighting = setting(
        GspoWeighting.LENGTH,
        visible=f"{_ONLINE},rlhf_mode=GSPO",
        title="Weight of an image",
        group="Policy loss",
        tip="LENGTH counts each image by its trained steps, DOCUMENT counts all the same.",
    )
    rlhf_normalize_by_documents: bool = setting(
        False,
        visible=f"{_ONLINE},rlhf_mode=GSPO",
        title="Divide by images",
        group="Policy loss",
        tip=(
            "Divide by the images of the step instead of their steps: with T steps each the loss is T "
            "times as large."
        ),
    )
    rlhf_gspo_strategy: GroupStrategy = setting(
        GroupStrategy.AUTO,
        visible=f"{_ONLINE},rlhf_mode=GSPO",
        title="Whole trajectories",
        group="Policy loss",
        tip=(
            "EXACT keeps the graphs of all steps, STASH adds up gradients, TWO_PASS asks twice. All give "
            "the same gradient."
        ),
    )
    rlhf_dgpo_beta: Float = setting(
        100.0,
        gt=0,
        le=1000000000.0,
        visible=f"{_ONLINE},rlhf_mode=DGPO",
        title="Beta",
        group="Group loss",
        tip="Sharpness of the comparison within a group.",
    )
    rlhf_dgpo_group_strategy: GroupStrategy = setting(
        GroupStrategy.AUTO,
        visible=f"{_ONLINE},rlhf_mode=DGPO",
        title="Whole groups",
        group="Group loss",
        tip=(
            "EXACT needs whole groups in a batch, STASH adds up gradients, TWO_PASS asks twice. All give "
            "the same gradient."
        ),
    )
    rlhf_dgpo_clip_dsm: bool = setting(
        True,
        visible=f"{_ONLINE},rlhf_mode=DGPO",
        title="Clip",
        group="Group loss",
        tip="Images that have moved far enough from the old policy no longer pull.",
    )
    rlhf_dgpo_clip_kl: bool = setting(
        False,
        visible=f"{_ONLINE},rlhf_mode=DGPO,rlhf_kl_beta",
        title="Clip KL",
        group="Group loss",
        tip="Nor are they pulled back to the reference.",
    )
    rlhf_dgpo_use_ema_ref: bool = setting(
        False,
        visible=f"{_ONLINE},rlhf_mode=DGPO",
        title="Old policy as reference",
        group="Group loss",
        tip="Compare with the moving old policy instead of the model the run started from.",
    )
    rlhf_dgpo_kl_cfg: Float = setting(
        1.0,
        ge=1,
        le=100,
        visible=f"{_ONLINE},rlhf_mode=DGPO",
        title="Reference CFG",
        group="Group loss",
        tip="Guidance of the reference; 1 is without.",
    )
    rlhf_dgpo_noise: GroupNoise = setting(
        GroupNoise.GROUP_FIXED,
        visible=_DECOUPLED,
        title="Noise",
        group="Group loss",
        tip=("One noise for all images of a prompt, one for each timestep of it, or one for each image."),
    )
    rlhf_num_train_timesteps: int = setting(
        0,
        ge=0,
        le=1000,
        visible=_DECOUPLED,
        title="Timesteps",
        group="Group loss",
        tip=(
            "Noise levels each image is trained at in a pass; 0 takes as many as rollout steps lie in the"
            " range."
        ),
    )
    rlhf_timestep_range_low: Float = setting(
        0.0,
        ge=0,
        lt=1,
        visible=_DECOUPLED,
        title="Range from",
        group="Group loss",
        tip="Where training begins along denoising: 0 is pure noise.",
    )
    rlhf_timestep_range_high: Float = setting(
        0.6,
        gt=0,
        le=1,
        visible=_DECOUPLED,
        title="Range to",
        group="Group loss",
        tip="Where it ends: 1 is the finished image.",
    )
    rlhf_timestep_sampler: TimestepSampler = setting(
        TimestepSampler.DISCRETE,
        visible=_DECOUPLED,
        title="Draw",
        group="Group loss",
        tip=("How the noise levels are drawn: from the steps of the rollout (DISCRETE) or continuously."),
    )
    rlhf_timestep_mean: Float = setting(
        0.0,
        ge=-100,
        le=100,
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=LOGIT_NORMAL",
        title="Mean",
        group="Group loss",
        tip="Centre of the logit-normal distribution.",
    )
    rlhf_timestep_std: Float = setting(
        1.0,
        gt=0,
        le=100,
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=LOGIT_NORMAL",
        title="Deviation",
        group="Group loss",
        tip="Width of the logit-normal distribution.",
    )
    rlhf_time_shift: Float = setting(
        3.0,
        gt=0,
        le=100,
        visible=f"{_DECOUPLED},rlhf_timestep_sampler=UNIFORM|LOGIT_NORMAL",
        title="Shift",
        group="Group loss",
        tip="Moves continuous draws towards noise; 1 does not.",
    )
    rlhf_ema_ref_max_decay: Float = setting(
        0.3,
        ge=0,
        lt=1,
        visible=f"{_ONLINE},rlhf_mode=DGPO|NFT",
        title="Highest decay",
        group="Old policy",
        tip="Share of the old policy that stays at each optimizer step, at most.",
    )
    rlhf_ema_ref_ramp_rate: Float = setting(
        0.001,
        ge=0,
        le=1,
        visible=f"{_ONLINE},rlhf_mode=DGPO|NFT",
        title="Rise",
        group="Old policy",
        tip="By how much that share rises with each step; it begins at 0.",
    )
    rlhf_ema_ref_device: EMAMode = setting(
        EMAMode.GPU,
        visible=f"{_ONLINE},rlhf_mode=DGPO|NFT",
        title="Kept on",
        group="Old policy",
        tip="Where the old policy's weights are: beside the model, or in main memory.",
    )
    rlhf_online_dpo_beta: Float = setting(
        5000.0,
        gt=0,
        le=1000000000.0,
        visible=f"{_ONLINE},rlhf_mode=ONLINE_DPO",
        title="Beta",
        group="Pair loss",
        tip="Strength of the anchor to the reference, as in DPO.",
    )
    rlhf_online_dpo_pairs: OnlinePairs = setting(
        OnlinePairs.BEST_WORST,
        visible=f"{_ONLINE},rlhf_mode=ONLINE_DPO",
        title="Pairs",
        group="Pair loss",
        tip=(
            "BEST_WORST compares the best with the worst image of a prompt, ALL every better with every "
            "worse one."
        ),
    )
    rlhf_nft_beta: Float = setting(
        1.0,
        gt=0,
        le=100,
        visible=f"{_ONLINE},rlhf_mode=NFT",
        title="Beta",
        group="Pair loss",
        tip="How far the implicit good and bad models lie from the old policy.",
    )
    acceleration: AccelerationConfig = setting(
        factory=AccelerationConfig,
        title="Acceleration",
        group="Acceleration",
        tip="What makes the denoiser faster, in training and while images are made.",
    )
