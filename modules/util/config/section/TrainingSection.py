from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.setting import Float, kept_setting, setting
from modules.util.enum.choices import (
    EMAMode,
    LearningRateScheduler,
    LossWeight,
    Scaler,
    TimestepDistribution,
)
from modules.util.enum.ModelType import families_where

_steps = partial(setting, group="Steps", free=False)
_learning_rate = partial(setting, group="Learning rate", free=False)
_ema = partial(setting, group="EMA", free=False)
_loss = partial(setting, group="Loss", free=False)
_noise = partial(setting, group="Noise", free=False)


class TrainingSection(BaseConfig):
    """Steps, learning rate, optimizer, loss and noise."""

    SECTION: ClassVar[str] = "Training"

    epochs: int = _steps(
        10,
        within=(1, 1_000_000),
        first=True,
        tip="Number of passes over the whole data set.",
    )
    max_steps: int = _steps(
        0,
        within=(0, 1_000_000_000),
        first=True,
        title="Maximum steps",
        tip="Stop after this many optimizer steps. 0: no limit, epochs decide.",
    )
    batch_size: int = _steps(
        1,
        within=(1, 4096),
        cost="value",
        first=True,
        tip="Images (or pairs) computed at once. Larger batches need more memory.",
    )
    gradient_accumulation_steps: int = _steps(
        1,
        within=(1, 4096),
        cost="value",
        first=True,
        title="Accumulation",
        tip=(
            "Number of batches whose gradients are added up before the weights change. This has "
            "the effect of a larger batch with the memory of a small one."
        ),
    )
    clip_grad_norm: Float | None = _steps(
        1.0,
        within=(0, 1_000_000),
        title="Clip gradient norm",
        tip="Maximum norm of the gradients. Larger gradients are scaled down to this norm. Empty or 0: no limit.",
    )
    clip_each_weight: bool = _steps(
        False,
        title="Per-weight clipping",
        tip=(
            "Apply the limit to the gradient of each weight instead of to all gradients together. "
            "Required for the fused backward pass, where OneTrainer also clips this way."
        ),
    )
    nan_patience: int = _steps(
        0,
        within=(0, 1_000_000),
        free=True,
        title="Invalid steps tolerated",
        tip=(
            "Skip up to this many consecutive steps with a NaN or infinite loss or gradient. 0: stop at the "
            "first."
        ),
    )

    learning_rate: Float = _learning_rate(
        1e-4,
        within=(0, 100),
        first=True,
        tip=(
            "Step size of the optimizer. Usual for a LoRA with alpha equal to its rank: 1e-4 on plain images, 5e-5 on "
            "pairs. Usual for fine-tuning: 1e-5 or less."
        ),
    )
    learning_rate_scheduler: LearningRateScheduler = _learning_rate(
        LearningRateScheduler.CONSTANT,
        first=True,
        title="Schedule",
        tip=(
            "How the learning rate changes after the warm-up. ADAFACTOR: the optimizer ADAFACTOR sets the rate; "
            "switch its relative_step on. CUSTOM: a class that you name."
        ),
    )
    custom_learning_rate_scheduler: str = _learning_rate(
        "",
        visible="learning_rate_scheduler=CUSTOM",
        title="Scheduler class",
        tip=(
            "A learning rate scheduler of torch or of another installed package, with its module, such as "
            "torch.optim.lr_scheduler.OneCycleLR."
        ),
    )
    scheduler_params: str = _learning_rate(
        "",
        visible="learning_rate_scheduler=CUSTOM",
        title="Arguments of the class",
        tip=(
            "Arguments as name=value, separated by semicolons, such as max_lr=%LR%; total_steps=%SCHEDULER_STEPS%. "
            "These words are replaced: %LR% by the learning rate, %TOTAL_STEPS% by the steps of the run, "
            "%SCHEDULER_STEPS% by those after the warm-up, %EPOCHS% and %STEPS_PER_EPOCH% by these numbers."
        ),
    )
    learning_rate_warmup_steps: Float = _learning_rate(
        0.0,
        within=(0, 1_000_000_000),
        first=True,
        title="Warm-up",
        tip=(
            "The learning rate rises from 0 over this many steps. A value of up to 1 is a share of the "
            "whole run."
        ),
    )
    learning_rate_cycles: Float = _learning_rate(
        1.0,
        gt=0,
        le=10_000,
        visible="learning_rate_scheduler=COSINE_WITH_RESTARTS|COSINE_WITH_HARD_RESTARTS",
        title="Schedule cycles",
        tip=(
            "How often the rate falls in the run with COSINE_WITH_RESTARTS and COSINE_WITH_HARD_RESTARTS. "
            "No effect with COSINE."
        ),
    )
    learning_rate_min_factor: Float = _learning_rate(
        0.0,
        within=(0, 1),
        visible="!learning_rate_scheduler=CONSTANT|ADAFACTOR",
        title="Lowest rate factor",
        tip="The schedule ends at this share of the learning rate.",
    )
    learning_rate_rex_d: Float = _learning_rate(
        0.5,
        ge=0,
        lt=1,
        visible="learning_rate_scheduler=REX",
        title="REX curvature",
        tip=(
            "How long the rate stays high with REX. 0: a straight line. 0.5: as in the paper. 0.9: as in "
            "OneTrainer; in the middle of the run, the rate is still at 91 %."
        ),
    )
    learning_rate_ends_high: bool = _learning_rate(
        False,
        visible="learning_rate_scheduler=COSINE_WITH_RESTARTS",
        title="Full final rate",
        tip=(
            "COSINE_WITH_RESTARTS makes whole waves and ends at the full learning rate, as in OneTrainer. "
            "Off: it ends at the lowest rate."
        ),
    )
    learning_rate_scaler: Scaler = _learning_rate(
        Scaler.NONE,
        title="Scale with batch",
        tip=(
            "Multiplies the learning rate of every part by the square root of the batch size, of the "
            "number of accumulated batches, or of both. GLOBAL counts the batches of all processes."
        ),
    )

    optimizer: OptimizerConfig = kept_setting(
        factory=OptimizerConfig, tip="The update rule and its parameters."
    )

    ema: EMAMode = _ema(
        EMAMode.OFF,
        cost="value",
        title="EMA",
        tip=(
            "Save a moving average of the weights instead of the final weights. The average is "
            "kept in CPU or GPU memory."
        ),
    )
    ema_decay: Float = _ema(
        0.999,
        within=(0, 1),
        visible="!ema=OFF",
        title="EMA decay",
        tip="Share of the average that is kept at each update; values closer to 1 average over more steps.",
    )
    ema_update_step_interval: int = _ema(
        5,
        within=(1, 1_000_000),
        visible="!ema=OFF",
        cost="value",
        title="EMA interval",
        tip="Number of optimizer steps between two updates of the average.",
    )

    mse_strength: Float = _loss(
        1.0,
        within=(0, 1000),
        title="MSE strength",
        tip="Weight of the squared distance in the supervised loss.",
    )
    mae_strength: Float = _loss(
        0.0,
        within=(0, 1000),
        title="MAE strength",
        tip="Weight of the absolute distance in the supervised loss.",
    )
    log_cosh_strength: Float = _loss(
        0.0,
        within=(0, 1000),
        title="Log-cosh strength",
        tip="Weight of the log-cosh distance in the supervised loss.",
    )
    huber_strength: Float = _loss(
        0.0,
        within=(0, 1000),
        tip="Weight of the Huber distance in the supervised loss.",
    )
    huber_delta: Float = _loss(
        1.0,
        gt=0,
        le=1000,
        visible="huber_strength",
        tip="Distance at which the Huber loss changes from squared to absolute.",
    )
    vb_loss_strength: Float = _loss(
        0.0,
        within=(0, 1000),
        visible=families_where(lambda spec: spec.predicts_variance),
        title="Variance strength",
        tip=(
            "Weight of the variational bound in supervised training. It trains the variance that PixArt "
            "predicts, which the samplers of this program do not use. 1 is usual if you use the model in "
            "other programs. 0: the variance is not trained."
        ),
    )
    loss_weight_fn: LossWeight = _loss(
        LossWeight.CONSTANT,
        title="Loss weight",
        tip="How the supervised loss is weighted over noise levels. Preference scores are never weighted.",
    )
    loss_weight_strength: Float = _loss(
        5.0,
        within=(0, 1000),
        visible="loss_weight_fn=MIN_SNR_GAMMA|P2|SNR",
        tip=(
            "Meaning of this number for each loss weight. MIN_SNR_GAMMA: gamma, usually 5. P2: gamma, usually 1. SNR: "
            "the maximum weight."
        ),
    )
    loss_scaler: Scaler = _loss(
        Scaler.NONE,
        title="Loss scale",
        tip=(
            "Multiplies the loss by the batch size, the number of accumulated batches, or both. With "
            "optimizers such as ADAMW this has no effect, except through clipping."
        ),
    )

    timestep_distribution: TimestepDistribution = _noise(
        TimestepDistribution.UNIFORM,
        first=True,
        tip=(
            "How timesteps are drawn. UNIFORM: evenly. LOGIT_NORMAL, INVERTED_PARABOLA and COS_MAP: more in "
            "the middle. HEAVY_TAIL: more in the middle, or more at both ends if Distribution weight is "
            "below 0. SIGMOID and POWER: more at one end. BETA: more in the middle, at one end or at both "
            "ends, depending on Distribution weight and Distribution bias."
        ),
    )
    noising_weight: Float = _noise(
        0.0,
        within=(-100, 100),
        visible="!timestep_distribution=UNIFORM|COS_MAP",
        title="Distribution weight",
        tip=(
            "SIGMOID: slope. LOGIT_NORMAL: the standard deviation minus 1. HEAVY_TAIL: -1 (ends) to 1.75 (middle). "
            "INVERTED_PARABOLA: curvature, 7.7 is usual. BETA: alpha. POWER: exponent, at least 1."
        ),
    )
    noising_bias: Float = _noise(
        0.0,
        within=(-100, 100),
        visible="!timestep_distribution=UNIFORM|COS_MAP|HEAVY_TAIL",
        title="Distribution bias",
        tip=(
            "Shifts the centre of the distribution; positive values shift it towards noise. BETA: beta. POWER: below 0 "
            "prefers low timesteps, otherwise high ones."
        ),
    )
    timestep_shift: Float = _noise(
        1.0,
        gt=0,
        le=1000,
        first=True,
        tip="Values above 1 shift timesteps towards noise. 1: no shift.",
    )
    dynamic_timestep_shifting: bool = _noise(
        False,
        visible=families_where(lambda spec: spec.shifts_by_size),
        title="Shift by size",
        tip=(
            "Shift timesteps by the size of each image, as the model does when it makes images: larger "
            "images get more noise. Replaces the timestep shift."
        ),
    )
    min_noising_strength: Float = _noise(
        0.0,
        ge=0,
        lt=1,
        title="Lowest timestep",
        tip="Timesteps below this share of the schedule are not trained.",
    )
    max_noising_strength: Float = _noise(
        1.0,
        gt=0,
        le=1,
        title="Highest timestep",
        tip="Timesteps above this share of the schedule are not trained.",
    )
    noising_range_before_shift: bool = _noise(
        False,
        title="Range before shift",
        tip=(
            "Apply the lowest and highest timestep before the shift, as OneTrainer does. Shifted timesteps "
            "may then be outside this range. Off: apply the limits after the shift."
        ),
    )
    offset_noise_weight: Float = _noise(
        0.0,
        within=(0, 10),
        title="Offset noise",
        tip=(
            "Strength of additional noise that is constant over each channel, so that the model learns "
            "very dark and bright images. 0: off."
        ),
    )
    generalized_offset_noise: bool = _noise(
        False,
        visible="offset_noise_weight," + families_where(lambda spec: not spec.flow_matching),
        title="Offset by noise level",
        tip=(
            "Reduces the offset noise at low noise levels (Kutsuna 2024), which leaves clean details unchanged. Not "
            "for flow-matching models, and not with a zero terminal SNR."
        ),
    )
    perturbation_noise_weight: Float = _noise(
        0.0,
        within=(0, 10),
        title="Perturbation noise",
        tip="Strength of additional noise in the model's input only, to reduce overfitting to the exact noise. 0: off.",
    )
    perturbation_on_target: bool = _noise(
        False,
        visible="perturbation_noise_weight",
        title="Perturb the target",
        tip=(
            "Also add the perturbation noise to the training target, as OneTrainer does. Off: only "
            "to the model's input, as in the paper."
        ),
    )
