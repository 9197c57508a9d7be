import math
from functools import partial

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import INFINITIES, Float, setting
from modules.util.enum.choices import Optimizer

Scalar = bool | int | float | str | None

_optimizer = partial(setting, group="Optimizer", free=False)


class OptimizerConfig(BaseConfig):
    """The optimizer and its numbers. Empty fields keep the optimizer's own defaults."""

    optimizer: Optimizer = _optimizer(
        Optimizer.ADAMW,
        cost="value",
        first=True,
        tip=(
            "The update rule. ADAMW is the safe choice. PRODIGY and DADAPT find their own step size; set "
            "the learning rate to 1 for them. MUON updates the matrices inside blocks and leaves "
            "all other weights to ADAMW (at 3e-4). The 8BIT variants need less memory. The ADV variants and "
            "PRODIGY_PLUS_SCHEDULE_FREE need additional packages (requirements-optimizers.txt)."
        ),
    )
    beta1: Float | None = _optimizer(
        None,
        ge=0,
        lt=1,
        title="Beta 1",
        tip="Decay of the moving average of gradients; 0.9 is usual. Empty: the optimizer's default.",
    )
    beta2: Float | None = _optimizer(
        None,
        ge=0,
        lt=1,
        title="Beta 2",
        tip=(
            "Decay of the moving average of squared gradients (LION: of gradients); 0.99 to 0.999 is usual. "
            "Empty: the optimizer's default."
        ),
    )
    eps: Float | None = _optimizer(
        None,
        within=(0, 1),
        title="Epsilon",
        tip="Added to the denominator to avoid division by zero. Empty: the optimizer's default.",
    )
    weight_decay: Float | None = _optimizer(
        None,
        within=(0, 10),
        tip="How strongly the weights are pulled towards zero. Empty: the optimizer's default.",
    )
    momentum: Float | None = _optimizer(
        None,
        ge=0,
        lt=1,
        tip=(
            "Momentum of SGD, RMSPROP, LARS and MUON. Empty: the optimizer's default. SGD_8BIT and "
            "LARS_8BIT need momentum and use 0.9 if this is empty."
        ),
    )
    fused_back_pass: bool = _optimizer(
        False,
        cost="value",
        title="Fused backward pass",
        tip=(
            "Apply each gradient as soon as it is computed, then drop it. Fine-tuning a whole "
            "model then needs no memory for gradients. Cannot be combined with accumulation, "
            "clipping of all gradients together, FLOAT_16, preference training or several processes."
        ),
    )
    stochastic_rounding: bool = _optimizer(
        False,
        cost="value",
        tip=(
            "For trained weights in BFLOAT_16: round each step up or down at random, so that small steps "
            "are not lost. The optimizer state is then kept in 32 bits. Turn this on when fine-tuning a "
            "model in BFLOAT_16. Works with ADAMW, ADAM, ADAFACTOR, CAME, LION and SGD."
        ),
    )
    params: dict[str, Scalar] = _optimizer(
        factory=dict,
        hidden=True,
        cost="value",
        title="Parameters",
        tip="The optimizer's other parameters, by name; docs/optimizers.md lists them.",
    )

    @property
    def ignores_rate(self) -> bool:
        """True if the optimizer derives the learning rate from the number of the step alone."""
        return self.optimizer is Optimizer.ADAFACTOR and self.params.get("relative_step") is True

    @field_validator("params", mode="before")
    @classmethod
    def _plain_params(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name, item in value.items():
            if item is not None and not isinstance(item, (bool, int, float, str)):
                raise PydanticCustomError("setting", f"{name}: must be a number, text, true, false or null")
            if isinstance(item, float) and math.isnan(item):
                raise PydanticCustomError("setting", f"{name}: must be a number, not NaN")
        return {k: INFINITIES.get(v, v) if isinstance(v, str) else v for k, v in value.items()}
