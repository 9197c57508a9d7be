from __future__ import annotations

from collections.abc import Callable

from modules.spec.FamilySpec import FamilySpec
from modules.spec.registry import FAMILIES
from modules.util.enum.BaseEnum import BaseEnum


class ModelType(BaseEnum):
    """Model families: one member for each spec in ``modules/spec/families``, named by its key."""

    vars().update({key: key for key in FAMILIES})

    @property
    def spec(self) -> FamilySpec:
        """The description of the family, available without loading a model."""
        return FAMILIES[self.value]

    @property
    def label(self) -> str:
        return self.spec.label

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts with weights, denoiser first, as the config has them."""
        return self.spec.module_parts

    @property
    def denoiser(self) -> str:
        return self.spec.denoiser

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.spec.text_encoders


def families_where(has: Callable[[FamilySpec], bool]) -> str:
    """A visibility rule for settings that only some families have, such as ``model_type=SANA|QWEN``."""
    # a rule needs a value; no family is called "-"
    return "model_type=" + ("|".join(key for key, spec in FAMILIES.items() if has(spec)) or "-")


def families_with(part: str) -> str:
    """A visibility rule for settings of a part: the families that have it."""
    return families_where(lambda spec: part in spec.module_parts)
