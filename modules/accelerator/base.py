"""The base class of accelerators: a named change of a denoiser that can be made, used in rollouts, and undone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from modules.util.errors import ConfigError
from modules.util.Registry import Registry

if TYPE_CHECKING:
    from torch import nn

Safety = Literal["lossless", "lossy"]
"""``lossless``: rollout and training forward pass of equal inputs agree to the last bit."""

Stage = Literal["both", "rollout"]
"""``both``: acts in the rollout and in the training forward; ``rollout``: only while images are made."""

ACCELERATORS: Registry[type[Accelerator]] = Registry("accelerator", "modules.accelerator")


def register(cls: type[Accelerator]) -> type[Accelerator]:
    """Register an accelerator under its name."""
    return ACCELERATORS.register(cls.name)(cls)


class Params:
    """Reads the parameters of one accelerator. Unknown or invalid ones raise ``ConfigError``.

    Args:
        field: its location in the config (``acceleration.shared[0].params``).
    """

    def __init__(self, values: Mapping[str, Any], field: str) -> None:
        self._left = dict(values)
        self._known: list[str] = []
        self.field = field

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        return self._left.pop(key, default)

    def fault(self, key: str, message: str, hint: str | None = None) -> ConfigError:
        return ConfigError(message, field=f"{self.field}.{key}", hint=hint)

    def text(
        self, key: str, default: str | None = None, allowed: tuple[str, ...] | None = None
    ) -> str | None:
        value = self._take(key, default)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, f"{value!r} is not text")
        if allowed is not None and value is not None and value not in allowed:
            raise self.fault(key, f"unknown value {value!r}", hint=f"one of: {', '.join(allowed)}")
        return value

    def flag(self, key: str, default: bool | None) -> bool | None:
        value = self._take(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, f"{value!r} is not true or false")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._take(key, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.fault(key, f"{value!r} is not a mapping of names to values")
        return dict(value)

    @property
    def known(self) -> tuple[str, ...]:
        """The parameters that were requested by name."""
        return tuple(self._known)

    def rest(self) -> dict[str, Any]:
        """All parameters that were not requested by name, to be checked by the caller."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """Raise an error for unknown parameters."""
        for key in self._left:
            known = ", ".join(self._known) or "none"
            raise self.fault(key, f"unknown parameter {key!r}", hint=f"parameters: {known}")


def asked_parameters(kind: type[Accelerator]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the parameters an accelerator reads, and of the required ones among them."""
    params = Params({}, kind.name)
    try:
        kind(params)
    except ConfigError as error:
        return params.known, (str(error.field).removeprefix(f"{kind.name}."),)
    return params.known, ()


def is_number(value: object) -> bool:
    """A finite number that is not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Accelerator(ABC):
    """One way to save time.

    The first line of a subclass's docstring describes it in the window.

    ``setup`` runs once the weights are final (resume, EMA and reference are ready). ``teardown`` reverts
    everything. It may be called twice, and after a ``setup`` that failed half-way.
    """

    name: ClassVar[str]
    safety: ClassVar[Safety]
    stage: ClassVar[Stage]
    requires_grad_rollout: ClassVar[bool] = False
    """True if rollouts must run with gradients enabled, to use the same program as the training forward pass."""

    def __init__(self, params: Params) -> None:
        """Read the parameters.

        Raises:
            ConfigError: a parameter is unknown or out of range.
        """
        params.finish()
        self.warnings: list[str] = []

    @abstractmethod
    def setup(self, models: Mapping[str, nn.Module]) -> None:
        """Change the models in place, or fail before anything is changed.

        Args:
            models: role (``transformer``, ``unet``) to the module the trainer calls, adapters included.

        Raises:
            UserError: it does not work with this class of model or on this machine.
        """

    def rollout_context(self) -> AbstractContextManager[None]:
        """Entered around the making of one batch of images."""
        return nullcontext()

    def reset(self) -> None:  # noqa: B027 - most have nothing to forget
        """Called inside the rollout context before other images."""

    def branch(self, name: str, timestep: float | None = None) -> AbstractContextManager[None]:
        """Entered around one call of the denoiser; ``name`` distinguishes the conditional from the
        unconditional call.
        """
        return nullcontext()

    def advice(self, num_inference_steps: int | None) -> Iterator[str]:
        """Warnings about these settings for the user, before the run."""
        yield from ()

    @abstractmethod
    def teardown(self) -> None:
        """Undo what ``setup`` changed."""


def peel(model: nn.Module) -> nn.Module:
    """The plain model inside wrappers of compilation, data parallelism and adapters."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    seen = set()
    while id(model) not in seen:
        seen.add(id(model))
        if (inner := model._modules.get("_orig_mod")) is not None:
            model = inner
        elif isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif callable(base := getattr(model, "get_base_model", None)):
            model = base()
    return model
