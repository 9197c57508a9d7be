from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.RewardConfig import RewardConfig
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import (
    AdvantageScale,
    DataType,
    GuidanceLayout,
    RewardCombination,
    RewardFailure,
    RolloutSampler,
    RolloutTransition,
    SdeChoice,
    ShortStep,
)
from modules.util.enum.RLHFMode import shown_for

_ONLINE, _COUPLED, _DECOUPLED = shown_for("online"), shown_for("coupled"), shown_for("decoupled")


class OnlineSection(BaseConfig):
    """For the online modes, which make images during training: prompts, rollouts, rewards and advantages."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_prompts_file: PathText = setting(
        "",
        widget="file",
        visible=_ONLINE,
        free=True,
        first=True,
        title="Prompts",
        group="Prompts",
        tip=(
            "A text file with one prompt per line; empty lines and lines that begin with # are ignored. For "
            "models that edit images: a .jsonl file whose lines name an instruction and a source image. If no "
            "file is set, the captions of the enabled concepts are used, with their source images."
        ),
    )
    rlhf_prompts_per_epoch: int = setting(
        8,
        ge=1,
        le=1000000,
        visible=_ONLINE,
        cost="value",
        free=False,
        first=True,
        title="Prompts per epoch",
        group="Prompts",
        tip="Number of different prompts for which images are made in each epoch.",
    )
    rlhf_group_size: int = setting(
        8,
        ge=2,
        le=4096,
        visible=_ONLINE,
        cost="value",
        free=False,
        first=True,
        title="Images per prompt",
        group="Prompts",
        tip=(
            "Number of images made for each prompt and compared with each other. More images give better "
            "advantages but take longer."
        ),
    )
    rlhf_sampler: RolloutSampler = setting(
        RolloutSampler.AUTO,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Split over GPUs",
        group="Prompts",
        tip=(
            "With several processes: GROUP_DISTRIBUTED spreads each prompt's images over all processes. "
            "GROUP_CONTIGUOUS keeps each prompt's images in one process. DISTRIBUTED_K_REPEAT mixes all "
            "images. AUTO takes GROUP_DISTRIBUTED if the mode and the batch sizes allow it, otherwise "
            "GROUP_CONTIGUOUS."
        ),
    )
    rlhf_inner_epochs: int = setting(
        1,
        ge=1,
        le=1000,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Passes per epoch",
        group="Prompts",
        tip="Number of times the images of an epoch are trained on.",
    )
    rlhf_docs_per_step: int = setting(
        0,
        ge=0,
        le=1000000,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Images per step",
        group="Prompts",
        tip=(
            "Number of images in an optimizer step over all processes, not counting skipped images. 0: "
            "batch size times accumulation decides."
        ),
    )
    rlhf_docs_per_step_multiple: int = setting(
        1,
        ge=1,
        le=1024,
        visible=f"{_ONLINE},rlhf_docs_per_step",
        cost="value",
        free=False,
        title="Micro-batch multiple",
        group="Prompts",
        tip=(
            "The number of micro-batches in an optimizer step must be a multiple of this, or the "
            "run does not start. If images are skipped, a step takes further micro-batches up to the next "
            "multiple. The last step of an epoch takes the remaining images."
        ),
    )
    rlhf_short_step: ShortStep = setting(
        ShortStep.TRAIN,
        visible=f"{_ONLINE},rlhf_docs_per_step",
        free=False,
        title="Short last step",
        group="Prompts",
        tip=(
            "If too few images are left for the last step of an epoch: TRAIN trains on fewer images than requested, "
            "ERROR ends the run."
        ),
    )
    rlhf_max_empty_batches: int = setting(
        16,
        ge=1,
        le=1000000,
        visible=f"{_ONLINE},rlhf_docs_per_step",
        free=False,
        title="Empty micro-batches",
        group="Prompts",
        tip=("Stop with an error after this many consecutive micro-batches without a usable image."),
    )
    rlhf_rollout_steps: int = setting(
        10,
        ge=1,
        le=1000,
        visible=_ONLINE,
        cost="value",
        free=False,
        first=True,
        title="Rollout steps",
        group="Rollout",
        tip=("Number of denoising steps for each image. A few steps are enough: the images need not look finished."),
    )
    rlhf_rollout_size: str = setting(
        "",
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Image size",
        group="Rollout",
        tip=(
            "Width x height in pixels, such as 512x768, or one number for a square. Empty: the first value "
            "of Resolution."
        ),
    )
    rlhf_rollout_cfg_scale: Float = setting(
        1.0,
        ge=0,
        le=100,
        visible=_ONLINE,
        cost="value",
        free=False,
        first=True,
        title="CFG scale",
        group="Rollout",
        tip=(
            "Guidance scale of the rollout. 1: no guidance. GRPO and GSPO also train with this guidance. The other "
            "modes do not, unless the model takes the scale as an input."
        ),
    )
    rlhf_rollout_negative_prompt: str = setting(
        "",
        widget="multiline",
        visible=_ONLINE,
        free=False,
        title="Negative prompt",
        group="Rollout",
        tip="What the images should not show.",
    )
    rlhf_rollout_batch_size: int = setting(
        0,
        ge=0,
        le=4096,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Rollout batch size",
        group="Rollout",
        tip=(
            "Number of images made at once. 0: the batch size of training, so that rollout and training compute the "
            "same numbers."
        ),
    )
    rlhf_rollout_cfg_layout: GuidanceLayout = setting(
        GuidanceLayout.SPLIT,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="CFG layout",
        group="Rollout",
        tip=(
            "How guidance is computed. SPLIT runs the model twice per step, and keeps the gradients of the "
            "pass with the prompt only. JOINT runs the model once with twice the batch."
        ),
    )
    rlhf_shared_start_noise: bool = setting(
        False,
        visible=_COUPLED,
        free=False,
        title="Shared start noise",
        group="Rollout",
        tip=(
            "All images of a prompt start from the same noise, so that they differ only by the noise of their "
            "denoising steps."
        ),
    )
    rlhf_rollout_transition: RolloutTransition = setting(
        RolloutTransition.AUTO,
        visible=_COUPLED,
        free=False,
        title="Transition",
        group="Rollout",
        tip=(
            "The kind of random denoising step that is trained. DDIM is for noise- and v-prediction models, "
            "the others are for flow matching. AUTO takes DDIM or FLOW_SDE."
        ),
    )
    rlhf_rollout_noise_level: Float | None = setting(
        None,
        ge=0,
        le=10,
        visible=_COUPLED,
        free=False,
        title="Noise level",
        group="Rollout",
        tip="Strength of the noise in denoising steps (eta). Empty: the usual level of the transition.",
    )
    rlhf_rollout_temperature: Float = setting(
        1.0,
        gt=0,
        le=100,
        visible=_COUPLED,
        free=False,
        title="Noise temperature",
        group="Rollout",
        tip=(
            "Multiplies the standard deviation of the noise, in rollout and training alike. Values other "
            "than 1 change the look of the images; the setting Noise level does not."
        ),
    )
    rlhf_sde_window: str = setting(
        "",
        visible=_COUPLED,
        cost="value",
        free=False,
        title="Range of trained steps",
        group="Rollout",
        tip=(
            "First and last denoising step that may be trained, such as 0-4 (0 is the noisiest). Empty: all except "
            "the last."
        ),
    )
    rlhf_num_sde_steps: int = setting(
        0,
        ge=0,
        le=1000,
        visible=_COUPLED,
        cost="value",
        free=False,
        title="Trained steps per image",
        group="Rollout",
        tip=(
            "How many denoising steps of each image are trained. Each epoch draws others. The "
            "other steps add no noise. 0: all steps that may be trained."
        ),
    )
    rlhf_sde_choice: SdeChoice = setting(
        SdeChoice.RANDOM,
        visible=_COUPLED,
        free=False,
        title="Choice of trained steps",
        group="Rollout",
        tip="RANDOM: any steps. CONTIGUOUS: consecutive steps.",
    )
    rlhf_rollout_storage_dtype: DataType = setting(
        DataType.FLOAT_32,
        visible=_COUPLED,
        free=False,
        title="Precision of kept latents",
        group="Rollout",
        tip=(
            "Number format in which the latents of each denoising step are stored. Probabilities are "
            "computed from these rounded numbers."
        ),
    )
    rlhf_off_policy: bool = setting(
        False,
        visible=_DECOUPLED,
        free=False,
        title="Rollout with EMA",
        group="Rollout",
        tip=("Make the images with the moving average of the weights (EMA) instead of the current weights."),
    )
    rlhf_switch_ema_ref: int = setting(
        200,
        ge=0,
        le=1000000000,
        visible=shown_for("old_policy"),
        free=False,
        title="Old policy from step",
        group="Rollout",
        tip=(
            "After this many optimizer steps, the old policy makes the images. Until then, the trained "
            "weights make them. No effect if the mode has no old policy."
        ),
    )
    rlhf_keep_images: int = setting(
        16,
        ge=0,
        le=10000,
        visible=_ONLINE,
        free=True,
        title="Images kept",
        group="Rollout",
        tip="Number of images of each epoch that are kept in the run's folder, with prompt and reward. 0: none.",
    )
    rlhf_keep_image_epochs: int = setting(
        20,
        ge=1,
        le=100000,
        visible=_ONLINE,
        free=True,
        title="Epochs of images kept",
        group="Rollout",
        tip="Number of recent epochs whose images are kept; older folders are removed.",
    )
    rlhf_reward: str = setting(
        "brightness",
        widget="reward",
        visible=_ONLINE,
        cost="value",
        free=False,
        first=True,
        title="Reward",
        group="Reward",
        tip='The reward that scores the images, or several with weights, such as "aesthetic 1, clip_score 0.5".',
    )
    rlhf_rewards: list[RewardConfig] = setting(
        factory=list,
        hidden=True,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Rewards",
        group="Reward",
        tip="The rewards with all their settings. If the list is not empty, the field Reward is ignored.",
    )
    rlhf_reward_combination: RewardCombination = setting(
        RewardCombination.SUM,
        visible=_ONLINE,
        free=False,
        title="Reward combination",
        group="Reward",
        tip=(
            "SUM adds the rewards as they are. GDPO first brings them to the same scale within a prompt, "
            "so that the weights of rewards with different scales are comparable."
        ),
    )
    rlhf_reward_on_error: RewardFailure = setting(
        RewardFailure.FAIL,
        visible=_ONLINE,
        free=False,
        title="Failed rewards",
        group="Reward",
        tip="FAIL: end the run if a reward fails. SKIP_GROUP: skip all images of the prompt.",
    )
    rlhf_reward_device: str = setting(
        "auto",
        widget="device",
        visible=_ONLINE,
        cost="value",
        free=True,
        title="Reward device",
        group="Reward",
        tip="The device of reward models; auto takes the device of the run.",
    )
    rlhf_reward_swap: bool = setting(
        False,
        visible=_ONLINE,
        cost="value",
        free=True,
        title="Unload the model while scoring",
        group="Reward",
        tip=(
            "Keep only the reward models on the device while images are scored, and only the trained model "
            "otherwise. Slower; use it if both do not fit."
        ),
    )
    rlhf_person_timeout: Float = setting(
        0.0,
        ge=0,
        le=1e7,
        visible=_ONLINE,
        free=False,
        title="Vote timeout",
        group="Reward",
        tip=(
            'With the reward "person": after this many seconds without a vote, prompts without votes are '
            "left out. 0: no limit."
        ),
    )
    rlhf_person_share: Float = setting(
        1.0,
        gt=0,
        le=1,
        visible=_ONLINE,
        free=False,
        title="Share of shown prompts",
        group="Reward",
        tip=(
            'With the reward "person": the share of prompts that are shown to you. A taste head learns from your '
            "votes. Once it has 20 comparisons, it votes on the other prompts. 1 shows you all prompts; 0.25 is usual."
        ),
    )
    rlhf_advantage_ranked: bool = setting(
        False,
        visible=_ONLINE,
        free=False,
        title="Ranks as rewards",
        group="Advantage",
        tip=(
            "Learn only from the order of a prompt's images: each reward is replaced by its rank in the prompt, from 0 "
            "(worst) to 1 (best). Turn it on if a few very high or low scores dominate, or if the scale of "
            "a reward means little."
        ),
    )
    rlhf_advantage_scale: AdvantageScale = setting(
        AdvantageScale.GLOBAL_STD,
        visible=_ONLINE,
        free=False,
        title="Advantage scale",
        group="Advantage",
        tip=(
            "An advantage is the reward of an image minus the mean of its prompt. This difference is divided by "
            "the standard deviation of the whole epoch, by the standard deviation of the prompt, or not at all."
        ),
    )
    rlhf_advantage_eps: Float = setting(
        1e-4,
        gt=0,
        le=1,
        visible=_ONLINE,
        free=False,
        title="Advantage epsilon",
        group="Advantage",
        tip="Added to the standard deviation to avoid division by zero; above 0.",
    )
    rlhf_advantage_clip: Float = setting(
        5.0,
        gt=0,
        le=1000,
        # pairs need only the order of a prompt's images
        visible=shown_for("online", without="pair_loss"),
        free=False,
        title="Advantage limit",
        group="Advantage",
        tip="Advantages are clipped to the range from minus this value to this value.",
    )
    rlhf_skip_zero_advantage: bool = setting(
        False,
        visible=_ONLINE,
        cost="value",
        free=False,
        title="Skip images with zero advantage",
        group="Advantage",
        tip=(
            "Do not train on images whose advantage is 0, for example if all images of a prompt got the "
            "same reward."
        ),
    )
