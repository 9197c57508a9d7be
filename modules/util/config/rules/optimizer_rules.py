"""Rules for the numbers of the optimizer and their effect on its update rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.spec.registry import DENOISERS, TEXT_ENCODERS
from modules.util.config.optimizer.tables import faults_of, idle_in
from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.choices import EMAMode, LearningRateScheduler, Optimizer, Scaler, TrainingMethod
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

ROUNDED = (
    Optimizer.ADAMW,
    Optimizer.ADAM,
    Optimizer.ADAFACTOR,
    Optimizer.CAME,
    Optimizer.LION,
    Optimizer.SGD,
)
"""Optimizers that support stochastic rounding, because they handle each parameter separately."""
_SCHEDULE_FREE = (
    Optimizer.SCHEDULE_FREE_ADAMW,
    Optimizer.SCHEDULE_FREE_SGD,
    Optimizer.PRODIGY_PLUS_SCHEDULE_FREE,
)
HIGH_RATE = 1e-2
_MOVES_BY_THE_RATE = (
    Optimizer.ADAMW,
    Optimizer.ADAM,
    Optimizer.ADAMW_8BIT,
    Optimizer.ADAM_8BIT,
    Optimizer.LION,
    Optimizer.LION_8BIT,
    Optimizer.ADABELIEF,
    Optimizer.ADEMAMIX,
    Optimizer.ADOPT,
    Optimizer.CAME,
    Optimizer.SCHEDULE_FREE_ADAMW,
    Optimizer.TIGER,
    Optimizer.ADEMAMIX_8BIT,
    Optimizer.AIDA,
    Optimizer.YOGI,
    Optimizer.ADAMW_ADV,
    Optimizer.ADOPT_ADV,
    Optimizer.LION_ADV,
    Optimizer.SIGNSGD_ADV,
    Optimizer.MUON_ADV,
    Optimizer.ADAMUON_ADV,
)
"""Optimizers that move every weight by about the learning rate per step, whatever the size of the gradient."""


def _rates(c: TrainConfig) -> Iterator[tuple[str, float]]:
    """The learning rates in use, by field."""
    own = {f"{name}.learning_rate": getattr(c, name).learning_rate for name in c.trained_parts()}
    if c.trains_words():
        own["embedding_learning_rate"] = c.embedding_learning_rate
    if any(rate is None for rate in own.values()):
        yield "learning_rate", c.learning_rate
    for place, rate in own.items():
        if rate is not None:
            yield place, rate


_PARTS = (
    *("model_type", *DENOISERS, *TEXT_ENCODERS),
    *("training_method", "embedding", "additional_embeddings"),
    *("embedding_learning_rate", "embedding_weight_dtype"),
)


@rule("optimizer", "learning_rate", *_PARTS)
def _rate_of_another_rule(c: TrainConfig) -> Iterator[Finding]:
    kind = c.optimizer.optimizer
    if kind not in _MOVES_BY_THE_RATE:
        return
    for place, rate in _rates(c):
        if rate > HIGH_RATE:
            yield ConfigWarning(
                f"{rate:g} is high for {kind}, which moves every weight by about this much in each step: use 1e-4 to "
                "1e-6, or PRODIGY with a rate of 1",
                place,
            )


_HARDLY_SCALED = (
    *(*_MOVES_BY_THE_RATE, Optimizer.ADAFACTOR, Optimizer.LAMB, Optimizer.MUON),
    *(Optimizer.PRODIGY, Optimizer.PRODIGY_ADV, Optimizer.PRODIGY_PLUS_SCHEDULE_FREE),
)
"""Optimizers whose steps do not depend on the overall size of the gradients."""


@rule("optimizer", *_PARTS)
def _rate_of_words_with_matrices(c: TrainConfig) -> Iterator[Finding]:
    if c.optimizer.optimizer.of_matrices and c.trains_words() and c.embedding_learning_rate is not None:
        yield ConfigWarning(
            f"has no effect: {c.optimizer.optimizer} leaves embeddings to ADAMW, which uses the rate muon_adam_lr in "
            "optimizer.params",
            "embedding_learning_rate",
        )


LOW_RATE = 0.1


@rule("optimizer", "learning_rate", *_PARTS)
def _rate_of_a_rule_that_finds_its_own(c: TrainConfig) -> Iterator[Finding]:
    kind = c.optimizer.optimizer
    if not kind.adapts_its_rate:
        return
    rates = list(_rates(c))
    for place, rate in rates:
        if rate < LOW_RATE:
            yield ConfigWarning(
                f"{rate:g} is low for {kind}, which finds its own step size and multiplies it by this rate: use 1, or "
                "a smaller rate to slow training down",
                place,
            )
    if len({rate for _, rate in rates}) > 1 and not _finds_a_step_size_for_each_part(c):
        yield ConfigWarning(
            f"{kind} has one step size for all parts, so different rates have an undefined effect: use the same rate "
            "for all parts",
            rates[-1][0],
        )


def _finds_a_step_size_for_each_part(c: TrainConfig) -> bool:
    params = c.optimizer.params
    return (
        c.optimizer.optimizer is Optimizer.PRODIGY_PLUS_SCHEDULE_FREE
        and bool(params.get("split_groups", True))
        and not params.get("split_groups_mean", False)
    )


@rule("optimizer", "learning_rate_scheduler", "ema")
def _averages_on_its_own(c: TrainConfig) -> Iterator[Finding]:
    kind = c.optimizer.optimizer
    plain = kind is Optimizer.PRODIGY_PLUS_SCHEDULE_FREE and c.optimizer.params.get("use_schedulefree") is False
    if kind not in _SCHEDULE_FREE or plain:
        return
    if c.learning_rate_scheduler is not LearningRateScheduler.CONSTANT:
        yield ConfigWarning(
            f"{c.learning_rate_scheduler} lowers the rate, but {kind} needs a constant rate: its average of the "
            "weights replaces a schedule. Use CONSTANT",
            "learning_rate_scheduler",
        )
    if c.ema is not EMAMode.OFF:
        yield ConfigWarning(
            f"{c.ema} replaces the average that {kind} itself computes and saves: set ema to OFF", "ema"
        )


@rule("optimizer")
def _parameters_of_another_rule(c: TrainConfig) -> Iterator[Finding]:
    for place, what, hint in faults_of(c.optimizer):
        yield ConfigError(what, place, hint)
    for place, name in idle_in(c.optimizer):
        yield ConfigWarning(f"{name} has no effect with {c.optimizer.optimizer}; remove it", place)


@rule("optimizer")
def _library_moves_weights_the_wrong_way(c: TrainConfig) -> Iterator[Finding]:
    """Version 2.0.1 of prodigy-plus-schedule-free then steps by the product of gradient and average."""
    params = c.optimizer.params
    plain = c.optimizer.optimizer is Optimizer.PRODIGY_PLUS_SCHEDULE_FREE and params.get("use_schedulefree") is False
    if plain and params.get("use_cautious") is True:
        yield UnsupportedError(
            "use_cautious without use_schedulefree moves weights in the wrong direction, because of an error in the "
            "library of this optimizer",
            "optimizer.params",
            "remove use_cautious, or set use_schedulefree to true",
        )


def trained_dtypes(c: TrainConfig) -> dict[str, str]:
    """The number formats of trained parts, by field."""
    words = {"embedding_weight_dtype": c.embedding_weight_dtype.value} if c.trains_words() else {}
    if c.training_method is TrainingMethod.LORA:
        return {"lora_weight_dtype": c.lora_weight_dtype.value, **words}
    return {f"{part}.weight_dtype": getattr(c, part).weight_dtype.value for part in c.trained_parts()} | words


@rule("optimizer", "lora_weight_dtype", *_PARTS)
def _rounding_needs_16_bits(c: TrainConfig) -> Iterator[Finding]:
    if not c.optimizer.stochastic_rounding:
        return
    dtypes = trained_dtypes(c)
    if c.optimizer.optimizer not in ROUNDED:
        yield UnsupportedError(
            f"is not supported with {c.optimizer.optimizer}",
            "optimizer.stochastic_rounding",
            f"switch it off, or use {', '.join(ROUNDED)}",
        )
    for place, dtype in dtypes.items():
        if dtype == "FLOAT_16":
            yield UnsupportedError(
                "FLOAT_16 weights cannot be rounded stochastically",
                place,
                "use BFLOAT_16, or switch optimizer.stochastic_rounding off",
            )
    if "BFLOAT_16" not in dtypes.values() and "FLOAT_16" not in dtypes.values():
        yield UnsupportedError(
            "none of the trained weights has 16 bits",
            "optimizer.stochastic_rounding",
            f"switch it off, or set {next(iter(dtypes), 'the number format of the trained weights')} to BFLOAT_16",
        )


@rule("optimizer", "loss_scaler")
def _scaled_loss_is_not_noticed(c: TrainConfig) -> Iterator[Finding]:
    if c.loss_scaler is not Scaler.NONE and c.optimizer.optimizer in _HARDLY_SCALED:
        yield ConfigWarning(
            f"has hardly any effect with {c.optimizer.optimizer}, which divides by the size of the gradients; scale "
            "the learning rate instead (learning_rate_scaler)",
            "loss_scaler",
        )


@rule("optimizer", "learning_rate_scheduler")
def _schedule_of_adafactor(c: TrainConfig) -> Iterator[Finding]:
    if c.learning_rate_scheduler is not LearningRateScheduler.ADAFACTOR:
        return
    chosen = c.optimizer
    if not chosen.ignores_rate:
        yield ConfigError(
            "the schedule ADAFACTOR needs the optimizer ADAFACTOR with relative_step",
            "learning_rate_scheduler",
            "choose that optimizer and set its parameter relative_step to true, or choose another schedule",
        )


@rule("optimizer", "custom_learning_rate_scheduler")
def _schedule_of_a_class(c: TrainConfig) -> Iterator[Finding]:
    own = c.learning_rate_scheduler is LearningRateScheduler.CUSTOM
    names = c.custom_learning_rate_scheduler.strip().split(".")
    if own and (len(names) < 2 or not all(name.isidentifier() for name in names)):
        yield ConfigError(
            f"{c.custom_learning_rate_scheduler!r} is not the full name of a class",
            "custom_learning_rate_scheduler",
            "write module and class, such as torch.optim.lr_scheduler.OneCycleLR",
        )


@rule("optimizer", "training_method")
def _zeros_that_stay(c: TrainConfig) -> Iterator[Finding]:
    kind, size = c.optimizer.optimizer, c.optimizer.params.get("min_8bit_size", 4096)
    limits = kind in (Optimizer.LAMB_8BIT, Optimizer.LARS_8BIT)
    if limits and c.training_method is TrainingMethod.LORA and isinstance(size, int) and size > 0:
        yield ConfigWarning(
            f"{kind} limits the step of a tensor with fewer than {size:,} values by the norm of the tensor: the half "
            "of an adapter that starts at 0 then stays at 0; set min_8bit_size to 0",
            "optimizer.params",
        )


@rule("optimizer", "learning_rate", *_PARTS)
def _adafactor_scales_its_rate(c: TrainConfig) -> Iterator[Finding]:
    if c.optimizer.optimizer is not Optimizer.ADAFACTOR:
        return
    params = c.optimizer.params
    if "scale_parameter" not in params and c.training_method is TrainingMethod.LORA:
        yield ConfigWarning(
            "scale_parameter is not set and is true by default: steps are multiplied by the size of the weights, so "
            "the half of an adapter that starts at 0 learns about 1000 times slower; set scale_parameter to false for "
            "the steps of OneTrainer and kohya",
            "optimizer.params",
        )


_FROM_THE_STEP = "has no effect: with relative_step, ADAFACTOR derives its rate from the step number"


@rule("optimizer", "learning_rate", "learning_rate_scheduler", "learning_rate_warmup_steps", *_PARTS)
def _rates_that_are_ignored(c: TrainConfig) -> Iterator[Finding]:
    """A rate that can be left empty is an error: it would train a part at another rate than the one set for it.
    Each config has a rate of the run and a schedule, so these are warnings.
    """
    if not c.optimizer.ignores_rate:
        return
    for place, rate in _rates(c):
        if place != "learning_rate":
            yield ConfigError(f"{rate:g} {_FROM_THE_STEP}", place, "leave it empty, or set relative_step to false")
        elif rate != type(c).model_fields[place].default:
            yield ConfigWarning(f"{rate:g} {_FROM_THE_STEP}", place)
    if c.learning_rate_scheduler not in (LearningRateScheduler.CONSTANT, LearningRateScheduler.ADAFACTOR):
        yield ConfigWarning(f"{c.learning_rate_scheduler} {_FROM_THE_STEP}", "learning_rate_scheduler")
    if c.learning_rate_warmup_steps:
        yield ConfigWarning(f"{c.learning_rate_warmup_steps:g} {_FROM_THE_STEP}", "learning_rate_warmup_steps")
