from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.choices import (
    EMAMode,
    LearningRateScheduler,
    LossWeight,
    Scaler,
    TimestepDistribution,
)
from modules.util.enum.ModelType import families_where


class TrainingSection(BaseConfig):
    """Steps, learning rate, optimizer, loss and noise."""

    SECTION: ClassVar[str] = "Training"

    epochs: int = setting(
        10,
        ge=1,
        le=1_000_000,
        free=False,
        first=True,
        title="Epochs",
        group="Steps",
        tip="Number of passes over the whole data set.",
    )
    max_steps: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        free=False,
        first=True,
        title="Maximum steps",
        group="Steps",
        tip="Stop after this many optimizer steps. 0: no limit, epochs decide.",
    )
    batch_size: int = setting(
        1,
        ge=1,
        le=4096,
        cost="value",
        free=False,
        first=True,
        title="Batch size",
        group="Steps",
        tip="Images (or pairs) computed at once. Larger batches need more memory.",
    )
    gradient_accumulation_steps: int = setting(
        1,
        ge=1,
        le=4096,
        cost="value",
        free=False,
        first=True,
        title="Accumulation",
        group="Steps",
        tip=(
            "Number of batches whose gradients are added up before the weights change. This has "
            "the effect of a larger batch with the memory of a small one."
        ),
    )
    clip_grad_norm: Float | None = setting(
        1.0,
        ge=0,
        le=1_000_000,
        free=False,
        title="Clip gradient norm",
        group="Steps",
        tip="Maximum norm of the gradients. Larger gradients are scaled down to this norm. Empty or 0: no limit.",
    )
    clip_each_weight: bool = setting(
        False,
        free=False,
        title="Per-weight clipping",
        group="Steps",
        tip=(
            "Apply the limit to the gradient of each weight instead of to all gradients together. "
            "Required for the fused backward pass, where OneTrainer also clips this way."
        ),
    )
    nan_patience: int = setting(
        0,
        ge=0,
        le=1_000_000,
        free=True,
        title="Invalid steps tolerated",
        group="Steps",
        tip=(
            "Skip up to this many consecutive steps with a NaN or infinite loss or gradient. 0: stop at the "
            "first."
        ),
    )

    learning_rate: Float = setting(
        1e-4,
        ge=0,
        le=100,
        free=False,
        first=True,
        title="Learning rate",
        group="Learning rate",
        tip=(
            "Step size of the optimizer. Usual for a LoRA with alpha equal to its rank: 1e-4 on plain images, 5e-5 on "
            "pairs. Usual for fine-tuning: 1e-5 or less."
        ),
    )
    learning_rate_scheduler: LearningRateScheduler = setting(
        LearningRateScheduler.CONSTANT,
        free=False,
        first=True,
        title="Schedule",
        group="Learning rate",
        tip=(
            "How the learning rate changes after the warm-up. ADAFACTOR: the optimizer ADAFACTOR sets the rate; "
            "switch its relative_step on. CUSTOM: a class that you name."
        ),
    )
    custom_learning_rate_scheduler: str = setting(
        "",
        visible="learning_rate_scheduler=CUSTOM",
        free=False,
        title="Scheduler class",
        group="Learning rate",
        tip=(
            "A learning rate scheduler of torch or of another installed package, with its module, such as "
            "torch.optim.lr_scheduler.OneCycleLR."
        ),
    )
    scheduler_params: str = setting(
        "",
        visible="learning_rate_scheduler=CUSTOM",
        free=False,
        title="Arguments of the class",
        group="Learning rate",
        tip=(
            "Arguments as name=value, separated by semicolons, such as max_lr=%LR%; total_steps=%SCHEDULER_STEPS%. "
            "These words are replaced: %LR% by the learning rate, %TOTAL_STEPS% by the steps of the run, "
            "%SCHEDULER_STEPS% by those after the warm-up, %EPOCHS% and %STEPS_PER_EPOCH% by these numbers."
        ),
    )
    learning_rate_warmup_steps: Float = setting(
        0.0,
        ge=0,
        le=1_000_000_000,
        free=False,
        first=True,
        title="Warm-up",
        group="Learning rate",
        tip=(
            "The learning rate rises from 0 over this many steps. A value of up to 1 is a share of the "
            "whole run."
        ),
    )
    learning_rate_cycles: Float = setting(
        1.0,
        gt=0,
        le=10_000,
        visible="learning_rate_scheduler=COSINE_WITH_RESTARTS|COSINE_WITH_HARD_RESTARTS",
        free=False,
        title="Schedule cycles",
        group="Learning rate",
        tip=(
            "How often the rate falls in the run with COSINE_WITH_RESTARTS and COSINE_WITH_HARD_RESTARTS. "
            "No effect with COSINE."
        ),
    )
    learning_rate_min_factor: Float = setting(
        0.0,
        ge=0,
        le=1,
        visible="!learning_rate_scheduler=CONSTANT|ADAFACTOR",
        free=False,
        title="Lowest rate factor",
        group="Learning rate",
        tip="The schedule ends at this share of the learning rate.",
    )
    learning_rate_rex_d: Float = setting(
        0.5,
        ge=0,
        lt=1,
        visible="learning_rate_scheduler=REX",
        free=False,
        title="REX curvature",
        group="Learning rate",
        tip=(
            "How long the rate stays high with REX. 0: a straight line. 0.5: as in the paper. 0.9: as in "
            "OneTrainer; in the middle of the run, the rate is still at 91 %."
        ),
    )
    learning_rate_ends_high: bool = setting(
        False,
        visible="learning_rate_scheduler=COSINE_WITH_RESTARTS",
        free=False,
        title="Full final rate",
        group="Learning rate",
        tip=(
            "COSINE_WITH_RESTARTS makes whole waves and ends at the full learning rate, as in OneTrainer. "
            "Off: it ends at the lowest rate."
        ),
    )
    learning_rate_scaler: Scaler = setting(
        Scaler.NONE,
        free=False,
        title="Scale with batch",
        group="Learning rate",
        tip=(
            "Multiplies the learning rate of every part by the square root of the batch size, of the "
            "number of accumulated batches, or of both. GLOBAL counts the batches of all processes."
        ),
    )

    optimizer: OptimizerConfig = setting(
        factory=OptimizerConfig, free=False, title="Optimizer", tip="The update rule and its parameters."
    )

    ema: EMAMode = setting(
        EMAMode.OFF,
        cost="value",
        free=False,
        title="EMA",
        group="EMA",
        tip=(
            "Save a moving average of the weights instead of the final weights. The average is "
            "kept in CPU or GPU memory."
        ),
    )
    ema_decay: Float = setting(
        0.999,
        ge=0,
        le=1,
        visible="!ema=OFF",
        free=False,
        title="EMA decay",
        group="EMA",
        tip="Share of the average that is kept at each update; values closer to 1 average over more steps.",
    )
    ema_update_step_interval: int = setting(
        5,
        ge=1,
        le=1_000_000,
        visible="!ema=OFF",
        cost="value",
        free=False,
        title="EMA interval",
        group="EMA",
        tip="Number of optimizer steps between two updates of the average.",
    )

    mse_strength: Float = setting(
        1.0,
        ge=0,
        le=1000,
        free=False,
        title="MSE strength",
        group="Loss",
        tip="Weight of the squared distance in the supervised loss.",
    )
    mae_strength: Float = setting(
        0.0,
        ge=0,
        le=1000,
        free=False,
        title="MAE strength",
        group="Loss",
        tip="Weight of the absolute distance in the supervised loss.",
    )
    log_cosh_strength: Float = setting(
        0.0,
        ge=0,
        le=1000,
        free=False,
        title="Log-cosh strength",
        group="Loss",
        tip="Weight of the log-cosh distance in the supervised loss.",
    )
    huber_strength: Float = setting(
        0.0,
        ge=0,
        le=1000,
        free=False,
        title="Huber strength",
        group="Loss",
        tip="Weight of the Huber distance in the supervised loss.",
    )
    huber_delta: Float = setting(
        1.0,
        gt=0,
        le=1000,
        visible="huber_strength",
        free=False,
        title="Huber delta",
        group="Loss",
        tip="Distance at which the Huber loss changes from squared to absolute.",
    )
    vb_loss_strength: Float = setting(
        0.0,
        ge=0,
        le=1000,
        visible=families_where(lambda spec: spec.predicts_variance),
        free=False,
        title="Variance strength",
        group="Loss",
        tip=(
            "Weight of the variational bound in supervised training. It trains the variance that PixArt "
            "predicts, which the samplers of this program do not use. 1 is usual if you use the model in "
            "other programs. 0: the variance is not trained."
        ),
    )
    loss_weight_fn: LossWeight = setting(
        LossWeight.CONSTANT,
        free=False,
        title="Loss weight",
        group="Loss",
        tip="How the supervised loss is weighted over noise levels. Preference scores are never weighted.",
    )
    loss_weight_strength: Float = setting(
        5.0,
        ge=0,
        le=1000,
        visible="loss_weight_fn=MIN_SNR_GAMMA|P2|SNR",
        free=False,
        title="Loss weight strength",
        group="Loss",
        tip=(
            "Meaning of this number for each loss weight. MIN_SNR_GAMMA: gamma, usually 5. P2: gamma, usually 1. SNR: "
            "the maximum weight."
        ),
    )
    loss_scaler: Scaler = setting(
        Scaler.NONE,
        free=False,
        title="Loss scale",
        group="Loss",
        tip=(
            "Multiplies the loss by the batch size, the number of accumulated batches, or both. With "
            "optimizers such as ADAMW this has no effect, except through clipping."
        ),
    )

    timestep_distribution: TimestepDistribution = setting(
        TimestepDistribution.UNIFORM,
        free=False,
        first=True,
        title="Timestep distribution",
        group="Noise",
        tip=(
            "How timesteps are drawn. UNIFORM: evenly. LOGIT_NORMAL, INVERTED_PARABOLA and COS_MAP: more in "
            "the middle. HEAVY_TAIL: more in the middle, or more at both ends if Distribution weight is "
            "below 0. SIGMOID and POWER: more at one end. BETA: more in the middle, at one end or at both "
            "ends, depending on Distribution weight and Distribution bias."
        ),
    )
    noising_weight: Float = setting(
        0.0,
        ge=-100,
        le=100,
        visible="!timestep_distribution=UNIFORM|COS_MAP",
        free=False,
        title="Distribution weight",
        group="Noise",
        tip=(
            "SIGMOID: slope. LOGIT_NORMAL: the standard deviation minus 1. HEAVY_TAIL: -1 (ends) to 1.75 (middle). "
            "INVERTED_PARABOLA: curvature, 7.7 is usual. BETA: alpha. POWER: exponent, at least 1."
        ),
    )
    noising_bias: Float = setting(
        0.0,
        ge=-100,
        le=100,
        visible="!timestep_distribution=UNIFORM|COS_MAP|HEAVY_TAIL",
        free=False,
        title="Distribution bias",
        group="Noise",
        tip=(
            "Shifts the centre of the distribution; positive values shift it towards noise. BETA: beta. POWER: below 0 "
            "prefers low timesteps, otherwise high ones."
        ),
    )
    timestep_shift: Float = setting(
        1.0,
        gt=0,
        le=1000,
        free=False,
        first=True,
        title="Timestep shift",
        group="Noise",
        tip="Values above 1 shift timesteps towards noise. 1: no shift.",
    )
    dynamic_timestep_shifting: bool = setting(
        False,
        visible=families_where(lambda spec: spec.shifts_by_size),
        free=False,
        title="Shift by size",
        group="Noise",
        tip=(
            "Shift timesteps by the size of each image, as the model does when it makes images: larger "
            "images get more noise. Replaces the timestep shift."
        ),
    )
    min_noising_strength: Float = setting(
        0.0,
        ge=0,
        lt=1,
        free=False,
        title="Lowest timestep",
        group="Noise",
        tip="Timesteps below this share of the schedule are not trained.",
    )
    max_noising_strength: Float = setting(
        1.0,
        gt=0,
        le=1,
        free=False,
        title="Highest timestep",
        group="Noise",
        tip="Timesteps above this share of the schedule are not trained.",
    )
    noising_range_before_shift: bool = setting(
        False,
        free=False,
        title="Range before shift",
        group="Noise",
        tip=(
            "Apply the lowest and highest timestep before the shift, as OneTrainer does. Shifted timesteps "
            "may then be outside this range. Off: apply the limits after the shift."
        ),
    )
    offset_noise_weight: Float = setting(
        0.0,
        ge=0,
        le=10,
        free=False,
        title="Offset noise",
        group="Noise",
        tip=(
            "Strength of additional noise that is constant over each channel, so that the model learns "
            "very dark and bright images. 0: off."
        ),
    )
    generalized_offset_noise: bool = setting(
        False,
        visible="offset_noise_weight," + families_where(lambda spec: not spec.flow_matching),
        free=False,
        title="Offset by noise level",
        group="Noise",
        tip=(
            "Reduces the offset noise at low noise levels (Kutsuna 2024), which leaves clean details unchanged. Not "
            "for flow-matching models, and not with a zero terminal SNR."
        ),
    )
    perturbation_noise_weight: Float = setting(
        0.0,
        ge=0,
        le=10,
        free=False,
        title="Perturbation noise",
        group="Noise",
        tip="Strength of additional noise in the model's input only, to reduce overfitting to the exact noise. 0: off.",
    )
    perturbation_on_target: bool = setting(
        False,
        visible="perturbation_noise_weight",
        free=False,
        title="Perturb the target",
        group="Noise",
        tip=(
            "Also add the perturbation noise to the training target, as OneTrainer does. Off: only "
            "to the model's input, as in the paper."
        ),
    )
