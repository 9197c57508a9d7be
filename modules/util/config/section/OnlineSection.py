from functools import partial
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

_prompts = partial(setting, group="Prompts", visible=_ONLINE, free=False)
_rollout = partial(setting, group="Rollout", visible=_ONLINE, free=False)
_random_steps = partial(_rollout, visible=_COUPLED)
_reward = partial(setting, group="Reward", visible=_ONLINE, free=False)
_advantage = partial(setting, group="Advantage", visible=_ONLINE, free=False)


class OnlineSection(BaseConfig):
    """For the online modes, which make images during training: prompts, rollouts, rewards and advantages."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_prompts_file: PathText = _prompts(
        "",
        widget="file",
        free=True,
        first=True,
        title="Prompts",
        tip=(
            "A text file with one prompt per line; empty lines and lines that begin with # are ignored. For "
            "models that edit images: a .jsonl file whose lines name an instruction and a source image. If no "
            "file is set, the captions of the enabled concepts are used, with their source images."
        ),
    )
    rlhf_prompts_per_epoch: int = _prompts(
        8,
        within=(1, 1000000),
        cost="value",
        first=True,
        tip="Number of different prompts for which images are made in each epoch.",
    )
    rlhf_group_size: int = _prompts(
        8,
        within=(2, 4096),
        cost="value",
        first=True,
        title="Images per prompt",
        tip=(
            "Number of images made for each prompt and compared with each other. More images give better "
            "advantages but take longer."
        ),
    )
    rlhf_sampler: RolloutSampler = _prompts(
        RolloutSampler.AUTO,
        cost="value",
        title="Split over GPUs",
        tip=(
            "With several processes: GROUP_DISTRIBUTED spreads each prompt's images over all processes. "
            "GROUP_CONTIGUOUS keeps each prompt's images in one process. DISTRIBUTED_K_REPEAT mixes all "
            "images. AUTO takes GROUP_DISTRIBUTED if the mode and the batch sizes allow it, otherwise "
            "GROUP_CONTIGUOUS."
        ),
    )
    rlhf_inner_epochs: int = _prompts(
        1,
        within=(1, 1000),
        cost="value",
        title="Passes per epoch",
        tip="Number of times the images of an epoch are trained on.",
    )
    rlhf_docs_per_step: int = _prompts(
        0,
        within=(0, 1000000),
        cost="value",
        title="Images per step",
        tip=(
            "Number of images in an optimizer step over all processes, not counting skipped images. 0: "
            "batch size times accumulation decides."
        ),
    )
    rlhf_docs_per_step_multiple: int = _prompts(
        1,
        within=(1, 1024),
        visible=f"{_ONLINE},rlhf_docs_per_step",
        cost="value",
        title="Micro-batch multiple",
        tip=(
            "The number of micro-batches in an optimizer step must be a multiple of this, or the "
            "run does not start. If images are skipped, a step takes further micro-batches up to the next "
            "multiple. The last step of an epoch takes the remaining images."
        ),
    )
    rlhf_short_step: ShortStep = _prompts(
        ShortStep.TRAIN,
        visible=f"{_ONLINE},rlhf_docs_per_step",
        title="Short last step",
        tip=(
            "If too few images are left for the last step of an epoch: TRAIN trains on fewer images than requested, "
            "ERROR ends the run."
        ),
    )
    rlhf_max_empty_batches: int = _prompts(
        16,
        within=(1, 1000000),
        visible=f"{_ONLINE},rlhf_docs_per_step",
        title="Empty micro-batches",
        tip=("Stop with an error after this many consecutive micro-batches without a usable image."),
    )
    rlhf_rollout_steps: int = _rollout(
        10,
        within=(1, 1000),
        cost="value",
        first=True,
        tip=("Number of denoising steps for each image. A few steps are enough: the images need not look finished."),
    )
    rlhf_rollout_size: str = _rollout(
        "",
        cost="value",
        title="Image size",
        tip=(
            "Width x height in pixels, such as 512x768, or one number for a square. Empty: the first value "
            "of Resolution."
        ),
    )
    rlhf_rollout_cfg_scale: Float = _rollout(
        1.0,
        within=(0, 100),
        cost="value",
        first=True,
        title="CFG scale",
        tip=(
            "Guidance scale of the rollout. 1: no guidance. GRPO and GSPO also train with this guidance. The other "
            "modes do not, unless the model takes the scale as an input."
        ),
    )
    rlhf_rollout_negative_prompt: str = _rollout(
        "",
        widget="multiline",
        title="Negative prompt",
        tip="What the images should not show.",
    )
    rlhf_rollout_batch_size: int = _rollout(
        0,
        within=(0, 4096),
        cost="value",
        tip=(
            "Number of images made at once. 0: the batch size of training, so that rollout and training compute the "
            "same numbers."
        ),
    )
    rlhf_rollout_cfg_layout: GuidanceLayout = _rollout(
        GuidanceLayout.SPLIT,
        cost="value",
        title="CFG layout",
        tip=(
            "How guidance is computed. SPLIT runs the model twice per step, and keeps the gradients of the "
            "pass with the prompt only. JOINT runs the model once with twice the batch."
        ),
    )
    rlhf_shared_start_noise: bool = _random_steps(
        False,
        tip=(
            "All images of a prompt start from the same noise, so that they differ only by the noise of their "
            "denoising steps."
        ),
    )
    rlhf_rollout_transition: RolloutTransition = _random_steps(
        RolloutTransition.AUTO,
        title="Transition",
        tip=(
            "The kind of random denoising step that is trained. DDIM is for noise- and v-prediction models, "
            "the others are for flow matching. AUTO takes DDIM or FLOW_SDE."
        ),
    )
    rlhf_rollout_noise_level: Float | None = _random_steps(
        None,
        within=(0, 10),
        title="Noise level",
        tip="Strength of the noise in denoising steps (eta). Empty: the usual level of the transition.",
    )
    rlhf_rollout_temperature: Float = _random_steps(
        1.0,
        gt=0,
        le=100,
        title="Noise temperature",
        tip=(
            "Multiplies the standard deviation of the noise, in rollout and training alike. Values other "
            "than 1 change the look of the images; the setting Noise level does not."
        ),
    )
    rlhf_sde_window: str = _random_steps(
        "",
        cost="value",
        title="Range of trained steps",
        tip=(
            "First and last denoising step that may be trained, such as 0-4 (0 is the noisiest). Empty: all except "
            "the last."
        ),
    )
    rlhf_num_sde_steps: int = _random_steps(
        0,
        within=(0, 1000),
        cost="value",
        title="Trained steps per image",
        tip=(
            "How many denoising steps of each image are trained. Each epoch draws others. The "
            "other steps add no noise. 0: all steps that may be trained."
        ),
    )
    rlhf_sde_choice: SdeChoice = _random_steps(
        SdeChoice.RANDOM,
        title="Choice of trained steps",
        tip="RANDOM: any steps. CONTIGUOUS: consecutive steps.",
    )
    rlhf_rollout_storage_dtype: DataType = _random_steps(
        DataType.FLOAT_32,
        title="Precision of kept latents",
        tip=(
            "Number format in which the latents of each denoising step are stored. Probabilities are "
            "computed from these rounded numbers."
        ),
    )
    rlhf_off_policy: bool = _rollout(
        False,
        visible=_DECOUPLED,
        title="Rollout with EMA",
        tip=("Make the images with the moving average of the weights (EMA) instead of the current weights."),
    )
    rlhf_switch_ema_ref: int = _rollout(
        200,
        within=(0, 1000000000),
        visible=shown_for("old_policy"),
        title="Old policy from step",
        tip=(
            "After this many optimizer steps, the old policy makes the images. Until then, the trained "
            "weights make them. No effect if the mode has no old policy."
        ),
    )
    rlhf_keep_images: int = _rollout(
        16,
        within=(0, 10000),
        free=True,
        title="Images kept",
        tip="Number of images of each epoch that are kept in the run's folder, with prompt and reward. 0: none.",
    )
    rlhf_keep_image_epochs: int = _rollout(
        20,
        within=(1, 100000),
        free=True,
        title="Epochs of images kept",
        tip="Number of recent epochs whose images are kept; older folders are removed.",
    )
    rlhf_reward: str = _reward(
        "brightness",
        widget="reward",
        cost="value",
        first=True,
        tip='The reward that scores the images, or several with weights, such as "aesthetic 1, clip_score 0.5".',
    )
    rlhf_rewards: list[RewardConfig] = _reward(
        factory=list,
        hidden=True,
        cost="value",
        tip="The rewards with all their settings. If the list is not empty, the field Reward is ignored.",
    )
    rlhf_reward_combination: RewardCombination = _reward(
        RewardCombination.SUM,
        tip=(
            "SUM adds the rewards as they are. GDPO first brings them to the same scale within a prompt, "
            "so that the weights of rewards with different scales are comparable."
        ),
    )
    rlhf_reward_on_error: RewardFailure = _reward(
        RewardFailure.FAIL,
        title="Failed rewards",
        tip="FAIL: end the run if a reward fails. SKIP_GROUP: skip all images of the prompt.",
    )
    rlhf_reward_device: str = _reward(
        "auto",
        widget="device",
        cost="value",
        free=True,
        tip="The device of reward models; auto takes the device of the run.",
    )
    rlhf_reward_swap: bool = _reward(
        False,
        cost="value",
        free=True,
        title="Unload the model while scoring",
        tip=(
            "Keep only the reward models on the device while images are scored, and only the trained model "
            "otherwise. Slower; use it if both do not fit."
        ),
    )
    rlhf_person_timeout: Float = _reward(
        0.0,
        within=(0, 1e7),
        title="Vote timeout",
        tip=(
            'With the reward "person": after this many seconds without a vote, prompts without votes are '
            "left out. 0: no limit."
        ),
    )
    rlhf_person_share: Float = _reward(
        1.0,
        gt=0,
        le=1,
        title="Share of shown prompts",
        tip=(
            'With the reward "person": the share of prompts that are shown to you. A taste head learns from your '
            "votes. Once it has 20 comparisons, it votes on the other prompts. 1 shows you all prompts; 0.25 is usual."
        ),
    )
    rlhf_advantage_ranked: bool = _advantage(
        False,
        title="Ranks as rewards",
        tip=(
            "Learn only from the order of a prompt's images: each reward is replaced by its rank in the prompt, from 0 "
            "(worst) to 1 (best). Turn it on if a few very high or low scores dominate, or if the scale of "
            "a reward means little."
        ),
    )
    rlhf_advantage_scale: AdvantageScale = _advantage(
        AdvantageScale.GLOBAL_STD,
        tip=(
            "An advantage is the reward of an image minus the mean of its prompt. This difference is divided by "
            "the standard deviation of the whole epoch, by the standard deviation of the prompt, or not at all."
        ),
    )
    rlhf_advantage_eps: Float = _advantage(
        1e-4,
        gt=0,
        le=1,
        title="Advantage epsilon",
        tip="Added to the standard deviation to avoid division by zero; above 0.",
    )
    rlhf_advantage_clip: Float = _advantage(
        5.0,
        gt=0,
        le=1000,
        # pairs need only the order of a prompt's images
        visible=shown_for("online", without="pair_loss"),
        title="Advantage limit",
        tip="Advantages are clipped to the range from minus this value to this value.",
    )
    rlhf_skip_zero_advantage: bool = _advantage(
        False,
        cost="value",
        title="Skip images with zero advantage",
        tip=(
            "Do not train on images whose advantage is 0, for example if all images of a prompt got the "
            "same reward."
        ),
    )
