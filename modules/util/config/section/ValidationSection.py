from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import setting
from modules.util.enum.choices import TimeUnit

_validation = partial(setting, group="Validation", free=True)


class ValidationSection(BaseConfig):
    """Measuring on images that are not trained on. Its schedule also applies to preference pairs."""

    SECTION: ClassVar[str] = "Validation"

    validation: bool = _validation(
        False,
        tip=(
            "Measure the loss on the validation concepts (preference pairs have their own switch in the RLHF "
            "section)."
        ),
    )
    validate_after: int = _validation(
        1,
        within=(0, 1_000_000_000),
        visible="!validate_after_unit=NEVER|ALWAYS",
        title="Validate every",
        tip="Interval between validations, in the unit next to it. Validation on pairs uses the same interval.",
    )
    validate_after_unit: TimeUnit = _validation(
        TimeUnit.EPOCH,
        title="Validation unit",
        tip="Unit of the validation interval. NEVER: only at the end of training. ALWAYS: after each step.",
    )
    validation_draws: int = _validation(
        4,
        within=(1, 1000),
        visible="validation",
        title="Draws per image",
        tip="Number of timesteps at which each validation image is measured. The timesteps are always the same.",
    )
