"""Maps online modes to the classes of their optimizer steps, which register here."""

from __future__ import annotations

from collections.abc import Callable

import torch

from modules.adapter.reference import Reference
from modules.spec.ModeSpec import ModeSpec
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.OnlineLoader import OnlineLoader
from modules.trainer.steps import TrainStep
from modules.util.Registry import Registry

OnlineStepClass = Callable[
    [OnlineLoader, Reference | None, list[torch.nn.Parameter], OldPolicy | None, bool], TrainStep
]
"""Takes the loader, the reference and old policy if the mode has them, the trained parameters, and whether
rollouts and training compute exactly the same.
"""

STEPS: Registry[OnlineStepClass] = Registry("step of an online mode", "modules.trainer.online.steps")


def step_of(mode: ModeSpec) -> OnlineStepClass:
    """The class registered under the mode's key, or else the one for all modes of its kind.

    Raises:
        ConfigError: there is no such class.
    """
    return STEPS.get(mode.key if mode.key in STEPS else mode.paradigm, field="rlhf_mode")
