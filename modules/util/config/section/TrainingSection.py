from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.EMAMode import EMAMode
from modules.util.enum.LearningRateScheduler import LearningRateScheduler
from modules.util.enum.LossWeight import LossWeight
from modules.util.enum.TimestepDistribution import TimestepDistribution


class TrainingSection(BaseConfig):
    """Steps, learning rate, optimizer, loss and noise."""

    SECTION: ClassVar[str] = "Training"

    epochs: int = setting(
        10,
        ge=1,
        le=1_000_000,
        title="Epochs",
        group="Steps",
        tip="How often the whole data set is gone through.",
    )
    max_steps: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        title="Most steps",
        group="Steps",
        tip="Stop after so many optimizer steps; 0 goes by epochs alone.",
    )
    batch_size: int = setting(
        1,
        ge=1,
        le=4096,
        title="Batch size",
        group="Steps",
        tip="Images (or pairs) computed at once. More need more memory.",
    )
    gradient_accumulation_steps: int = setting(
        1,
        ge=1,
        le=4096,
        title="Accumulation",
        group="Steps",
        tip=(
            "Batches whose gradients are added up before the weights move: a larger batch in the memory of a "
            "small one."
        ),
    )
    clip_grad_norm: Float | None = setting(
        1.0,
        ge=0,
        le=1_000_000,
        title="Clip gradient norm",
        group="Steps",
        tip="Longest gradient that is applied; longer ones are shortened to it. Empty or 0 switches it off.",
    )
    nan_patience: int = setting(
        0,
        ge=0,
        le=1_000_000,
        title="Bad steps in a row",
        group="Steps",
        tip=(
            "So many steps in a row may have a loss or gradient that is no number and are skipped; 0 stops "
            "at the first."
        ),
    )

    learning_rate: Float = setting(
        1e-4,
        ge=0,
        le=100,
        title="Learning rate",
        group="Learning rate",
        tip=(
            "Size of the steps. Around 1e-4 for a LoRA, 1e-5 or less for preference training and fine- "
            "tuning."
        ),
    )
    learning_rate_scheduler: LearningRateScheduler = setting(
        LearningRateScheduler.CONSTANT,
        title="Schedule",
        group="Learning rate",
        tip="How the learning rate moves after the warm-up.",
    )
    learning_rate_warmup_steps: Float = setting(
        0.0,
        ge=0,
        le=1_000_000_000,
        title="Warm-up",
        group="Learning rate",
        tip="The learning rate rises from 0 over so many steps; up to 1 it is a share of the whole run.",
    )
    learning_rate_cycles: Float = setting(
        1.0,
        gt=0,
        le=10_000,
        visible="learning_rate_scheduler=COSINE|COSINE_WITH_RESTARTS|COSINE_WITH_HARD_RESTARTS",
        title="Cycles",
        group="Learning rate",
        tip="How many cosine waves fit into the run.",
    )
    learning_rate_min_factor: Float = setting(
        0.0,
        ge=0,
        le=1,
        visible="!learning_rate_scheduler=CONSTANT",
        title="Lowest factor",
        group="Learning rate",
        tip="The schedule ends at this share of the learning rate.",
    )

    optimizer: OptimizerConfig = setting(
        factory=OptimizerConfig, title="Optimizer", tip="The update rule and its numbers."
    )

    ema: EMAMode = setting(
        EMAMode.OFF,
        title="EMA",
        group="EMA",
        tip="Save a moving average of the weights instead of the last ones, kept in CPU or GPU memory.",
    )
    ema_decay: Float = setting(
        0.999,
        ge=0,
        le=1,
        visible="!ema=OFF",
        title="EMA decay",
        group="EMA",
        tip="How much of the average stays at each update; nearer to 1 averages over longer times.",
    )
    ema_update_step_interval: int = setting(
        5,
        ge=1,
        le=1_000_000,
        visible="!ema=OFF",
        title="EMA interval",
        group="EMA",
        tip="Steps between updates of the average.",
    )

    mse_strength: Float = setting(
        1.0,
        ge=0,
        le=1000,
        title="MSE strength",
        group="Loss",
        tip="Weight of the squared distance in the supervised loss.",
    )
    mae_strength: Float = setting(
        0.0, ge=0, le=1000, title="MAE strength", group="Loss", tip="Weight of the absolute distance."
    )
    log_cosh_strength: Float = setting(
        0.0, ge=0, le=1000, title="Log-cosh strength", group="Loss", tip="Weight of the log-cosh distance."
    )
    huber_strength: Float = setting(
        0.0, ge=0, le=1000, title="Huber strength", group="Loss", tip="Weight of the Huber distance."
    )
    huber_delta: Float = setting(
        1.0,
        gt=0,
        le=1000,
        visible="huber_strength",
        title="Huber delta",
        group="Loss",
        tip="Distance at which the Huber loss turns from squared to absolute.",
    )
    loss_weight_fn: LossWeight = setting(
        LossWeight.CONSTANT,
        title="Loss weight",
        group="Loss",
        tip="How the supervised loss is weighted over noise levels. Preference scores are never weighted.",
    )
    loss_weight_strength: Float = setting(
        5.0,
        ge=0,
        le=1000,
        visible="loss_weight_fn=MIN_SNR_GAMMA|P2",
        title="Loss weight strength",
        group="Loss",
        tip="Gamma of MIN_SNR_GAMMA (5 is usual) or of P2 (1 is usual).",
    )

    timestep_distribution: TimestepDistribution = setting(
        TimestepDistribution.UNIFORM,
        title="Timestep distribution",
        group="Noise",
        tip="How timesteps are drawn.",
    )
    noising_weight: Float = setting(
        0.0,
        ge=-100,
        le=100,
        visible="!timestep_distribution=UNIFORM",
        title="Distribution weight",
        group="Noise",
        tip="SIGMOID: slope. LOGIT_NORMAL: the deviation is 1 plus this.",
    )
    noising_bias: Float = setting(
        0.0,
        ge=-100,
        le=100,
        visible="!timestep_distribution=UNIFORM",
        title="Distribution bias",
        group="Noise",
        tip="Moves the centre of the distribution; positive is towards noise.",
    )
    timestep_shift: Float = setting(
        1.0,
        gt=0,
        le=1000,
        title="Timestep shift",
        group="Noise",
        tip="Above 1 moves timesteps towards noise.",
    )
    min_noising_strength: Float = setting(
        0.0,
        ge=0,
        lt=1,
        title="Least noise",
        group="Noise",
        tip="Timesteps below this share of the schedule are not trained.",
    )
    max_noising_strength: Float = setting(
        1.0,
        gt=0,
        le=1,
        title="Most noise",
        group="Noise",
        tip="Timesteps above this share of the schedule are not trained.",
    )
    offset_noise_weight: Float = setting(
        0.0,
        ge=0,
        le=10,
        title="Offset noise",
        group="Noise",
        tip=(
            "Adds noise that is constant over each channel, so that the model learns very dark and bright "
            "images."
        ),
    )
    perturbation_noise_weight: Float = setting(
        0.0,
        ge=0,
        le=10,
        title="Perturbation noise",
        group="Noise",
        tip="Adds noise to the model's input alone, against overfitting to the exact noise.",
    )
