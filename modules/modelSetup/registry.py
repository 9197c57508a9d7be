"""Model families by model type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.util.Registry import Registry

if TYPE_CHECKING:
    from modules.modelSetup.BaseModelSetup import BaseModelSetup

MODEL_SETUPS: Registry[type[BaseModelSetup]] = Registry("model type", "modules.modelSetup.families")


def model_setup(kind: type[BaseModelSetup]) -> type[BaseModelSetup]:
    """Decorator that registers a family under its spec's key."""
    return MODEL_SETUPS.register(kind.spec.key)(kind)


def create_model_setup(model_type: object) -> BaseModelSetup:
    """The setup of a model type (a name or an enum member).

    Raises:
        ConfigError: the type is unknown. The message lists similar and known ones.
    """
    return MODEL_SETUPS.get(str(getattr(model_type, "value", model_type)), field="model_type")()
