"""Learning rates from a scheduler class named in the config."""

from __future__ import annotations

import ast
import importlib
import math
import warnings
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError

CLASS, ARGUMENTS = "custom_learning_rate_scheduler", "scheduler_params"
TRIED_STEPS, UNKNOWN_STEPS = 2, 1000


def custom_factors(
    config: TrainConfig,
    total_steps: int,
    warmup_steps: int,
    tried: int | None = None,
    epoch_steps: int | None = None,
) -> tuple[float, ...]:
    """The factor of each optimizer step after the warm-up, from running the class with a dummy optimizer.

    The scheduler sees a single group with the run's learning rate and momentum; only its rates are used. It
    is run again at each start, so that no state needs to be saved.

    Args:
        tried: compute only this many steps, if the length of the run is not known yet.
        epoch_steps: optimizer steps of an epoch of a run whose length max_steps says; ``None`` if not known yet.

    Raises:
        ConfigError: the class does not exist, rejects its arguments, or fails before the end.
    """
    steps = max(total_steps - warmup_steps, 1)
    known = {
        "%LR%": config.learning_rate,
        "%EPOCHS%": math.ceil(total_steps / epoch_steps) if epoch_steps else config.epochs,
        "%STEPS_PER_EPOCH%": epoch_steps or math.ceil(total_steps / config.epochs),
        "%TOTAL_STEPS%": total_steps,
        "%SCHEDULER_STEPS%": steps,
    }
    kind = _class(config.custom_learning_rate_scheduler)
    if config.learning_rate <= 0:
        raise ConfigError("the learning rate must be above 0 for a CUSTOM schedule", "learning_rate")
    idle = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=config.learning_rate, momentum=0.9)
    factors = []
    try:
        scheduler = kind(idle, **_arguments(config.scheduler_params, known))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this optimizer takes no steps, about which torch warns
            for step in range(steps if tried is None else min(steps, tried)):
                factors.append(float(idle.param_groups[0]["lr"]) / config.learning_rate)
                if step + 1 < steps:
                    scheduler.step()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a class of the user's may do anything
        at = f" at step {len(factors)} of {steps}" if factors else ""
        raise ConfigError(
            f"{config.custom_learning_rate_scheduler} failed{at}: {_told(error)}",
            ARGUMENTS,
            "change its arguments",
        ) from error
    if not all(math.isfinite(one) and one >= 0 for one in factors):
        raise ConfigError(
            f"{config.custom_learning_rate_scheduler} makes learning rates that are negative or NaN",
            ARGUMENTS,
        )
    return tuple(factors)


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _class(name: str) -> type[LRScheduler]:
    package, _, last = name.strip().rpartition(".")
    try:
        found = getattr(importlib.import_module(package), last) if package and last else None
    except (Exception, SystemExit) as error:  # importing a module may do anything
        raise ConfigError(
            f"there is no class {name!r}: {type(error).__name__}: {error}", CLASS,
            "for example torch.optim.lr_scheduler.OneCycleLR",
        ) from error  # fmt: skip
    if not isinstance(found, type) or not issubclass(found, LRScheduler):
        raise ConfigError(
            f"{name!r} is not a learning rate scheduler of torch", CLASS,
            "for example torch.optim.lr_scheduler.OneCycleLR",
        )  # fmt: skip
    if issubclass(found, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(f"{name!r} needs a validation loss at each step", CLASS, "choose another class")
    return found


def _arguments(text: str, known: dict[str, float]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, value = (piece.strip() for piece in entry.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"{entry!r} is not name=value", ARGUMENTS, "write it like eta_min=1e-6; T_max=100"
            )
        if name in made:
            raise ConfigError(f"{name} is given twice", ARGUMENTS)
        try:
            made[name] = known[value] if value in known else ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise ConfigError(
                f"{value!r} is neither a value nor one of {', '.join(known)}", ARGUMENTS,
                "put texts in quotation marks",
            ) from error  # fmt: skip
    return made
