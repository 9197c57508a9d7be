from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import setting
from modules.util.enum.choices import TimeUnit


class ValidationSection(BaseConfig):
    """Measuring on images that are not trained on. Its schedule also applies to preference pairs."""

    SECTION: ClassVar[str] = "Validation"

    validation: bool = setting(
        False,
        free=True,
        title="Validation",
        group="Validation",
        tip=(
            "Measure the loss on the validation concepts (preference pairs have their own switch in the RLHF "
            "section)."
        ),
    )
    validate_after: int = setting(
        1,
        ge=0,
        le=1_000_000_000,
        visible="!validate_after_unit=NEVER|ALWAYS",
        free=True,
        title="Validate every",
        group="Validation",
        tip="Interval between validations, in the unit next to it. Validation on pairs uses the same interval.",
    )
    validate_after_unit: TimeUnit = setting(
        TimeUnit.EPOCH,
        free=True,
        title="Validation unit",
        group="Validation",
        tip="Unit of the validation interval. NEVER: only at the end of training. ALWAYS: after each step.",
    )
    validation_draws: int = setting(
        4,
        ge=1,
        le=1000,
        visible="validation",
        free=True,
        title="Draws per image",
        group="Validation",
        tip="Number of timesteps at which each validation image is measured. The timesteps are always the same.",
    )
