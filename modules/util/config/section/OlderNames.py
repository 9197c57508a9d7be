"""Settings that were replaced by others: still read, never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.choices import LossAggregation
from modules.util.errors import ConfigError

_MODE, _DIVISOR = "rlhf_loss_aggregation", "rlhf_loss_aggregation_divisor"
_IDLE = {
    "rlhf_strict_loss_mixing": "has no effect any more, because every term of the loss has its own divisor; remove it",
}
"""Names without a replacement."""


class OlderNames(BaseConfig):
    """Names that older configs use. They are read from files and by `--set`, and never written."""

    rlhf_calculate_per_step_loss: bool = setting(
        False,
        title="Per-step loss",
        tip="Older name of rlhf_loss_aggregation TOKEN_MEAN.",
    )
    rlhf_pg_loss_divisor: Float | None = setting(
        None,
        above=(0, 1e9),
        title="Loss divisor",
        tip="Older name of rlhf_loss_aggregation CONSTANT with this rlhf_loss_aggregation_divisor.",
    )
    rlhf_strict_loss_mixing: bool = setting(
        True,
        title="Strict mixing",
        tip="Ignored, because every term of the loss has its own divisor.",
    )

    def idle(self) -> list[str]:
        """One line for each name that is set but has no effect."""
        fields = type(self).model_fields
        return [
            f"{name}: {why}" for name, why in _IDLE.items() if getattr(self, name) != fields[name].default
        ]

    def replaced(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The replacements of these names, to be merged over ``data``.

        Args:
            data: the rest of the config, under current names.

        Raises:
            ConfigError: an older name contradicts a current one.
        """
        made: dict[str, Any] = {}
        mode = str(data.get(_MODE, LossAggregation.SAMPLE_MEAN))
        if self.rlhf_calculate_per_step_loss:
            others = mode in (LossAggregation.PROMPT_MEAN, LossAggregation.CONSTANT)
            _refuse(others, "rlhf_calculate_per_step_loss", LossAggregation.TOKEN_MEAN, mode)
            older = self.rlhf_pg_loss_divisor is not None
            _refuse(older, "rlhf_calculate_per_step_loss", LossAggregation.TOKEN_MEAN, "rlhf_pg_loss_divisor")
            made[_MODE] = LossAggregation.TOKEN_MEAN.value
        if self.rlhf_pg_loss_divisor is not None:
            others = mode not in (LossAggregation.SAMPLE_MEAN, LossAggregation.CONSTANT)
            _refuse(others, "rlhf_pg_loss_divisor", LossAggregation.CONSTANT, mode)
            given = data.get(_DIVISOR)
            differs = given is not None and given != self.rlhf_pg_loss_divisor
            _refuse(
                differs,
                "rlhf_pg_loss_divisor",
                f"a divisor of {self.rlhf_pg_loss_divisor:g}",
                f"{_DIVISOR} {given}",
            )
            made |= {_MODE: LossAggregation.CONSTANT.value, _DIVISOR: self.rlhf_pg_loss_divisor}
        return made


def _refuse(wrong: bool, name: str, meaning: str, other: str) -> None:
    if wrong:
        raise ConfigError(
            f"stands for {meaning}, which contradicts {other}",
            name,
            f"remove it and set {_MODE} and {_DIVISOR} as you want them",
        )
