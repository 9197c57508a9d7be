"""Rewards of an online run, and accelerators that speed up the denoiser."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, setting


class RewardConfig(BaseConfig):
    """A reward and its weight."""

    WHAT: ClassVar[str] = "reward"

    reward: str = setting(
        "brightness",
        min_length=1,
        widget="reward",
        tip="The key of a built-in reward or of a reward model.",
    )
    name: str = setting("", tip="Name in the logs. Empty: the reward's key. Each name must be different.")
    weight: Float = setting(
        1.0, tip="Factor of this reward in the sum of all rewards. Below 0: lower values are better."
    )
    clip_low: Float | None = setting(
        None, widget="bound", title="Lowest score", tip="Smaller values are raised to this value. Empty: no limit."
    )
    clip_high: Float | None = setting(
        None, widget="bound", title="Highest score", tip="Larger values are lowered to this value. Empty: no limit."
    )
    threshold: Float | None = setting(
        None, widget="bound", tip="Values below the threshold count as 0. Empty: no threshold."
    )
    normalise: bool = setting(
        False,
        tip=(
            "Divide by a moving average of the reward's standard deviation within prompts, so that a "
            "weight means the same for all rewards. Without effect if rewards are replaced by their ranks."
        ),
    )
    params: dict[str, Any] = setting(
        factory=dict, hidden=True, title="Parameters", tip="Arguments of the reward, by name."
    )


class AcceleratorConfig(BaseConfig):
    """An accelerator by name."""

    name: str = setting("", min_length=1, widget="accelerator", tip="The accelerator to use.")
    params: dict[str, Any] = setting(
        factory=dict, hidden=True, title="Parameters", tip="Arguments of the accelerator, by name."
    )


def _entries(value: object) -> object:
    """Accept a single entry or a bare name as a list of one."""
    if isinstance(value, (str, dict, AcceleratorConfig)):
        value = [value]
    if isinstance(value, list):
        return [{"name": item} if isinstance(item, str) else item for item in value]
    if value is None:
        return []
    return value


class AccelerationConfig(BaseConfig):
    """Accelerators of the denoiser, in the order in which they are applied."""

    shared: list[AcceleratorConfig] = setting(
        factory=list,
        hidden=True,
        cost="value",
        free=False,
        title="In training and rollouts",
        tip="Accelerators that apply whenever the denoiser is called. They make it cheaper to compute.",
    )
    rollout: list[AcceleratorConfig] = setting(
        factory=list,
        hidden=True,
        cost="value",
        free=False,
        title="In rollouts only",
        tip="Accelerators that apply only while training images are made, and not in training itself.",
    )

    @field_validator("shared", "rollout", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        made = _entries(value)
        if not isinstance(made, list):
            raise PydanticCustomError("setting", "must be a list of accelerators")
        return made
