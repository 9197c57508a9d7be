"""Optimizers by name; each accepts only its own settings."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from modules.trainer.optim.Adafactor import Adafactor
from modules.trainer.optim.ema import kept
from modules.trainer.optim.muon import MUON_ARGUMENTS, muon_groups
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError, DataError

TORCH, EXTRA, EIGHT_BIT = "torch.optim", "pytorch_optimizer", "bitsandbytes.optim"
CLASSES: Mapping[Optimizer, tuple[str, str]] = {
    Optimizer.ADAMW: (TORCH, "AdamW"),
    Optimizer.ADAM: (TORCH, "Adam"),
    Optimizer.ADAMW_8BIT: (EIGHT_BIT, "AdamW8bit"),
    Optimizer.ADAM_8BIT: (EIGHT_BIT, "Adam8bit"),
    Optimizer.LION_8BIT: (EIGHT_BIT, "Lion8bit"),
    Optimizer.ADAFACTOR: (Adafactor.__module__, Adafactor.__name__),
    Optimizer.ADAGRAD: (TORCH, "Adagrad"),
    Optimizer.RMSPROP: (TORCH, "RMSprop"),
    Optimizer.SGD: (TORCH, "SGD"),
    Optimizer.ADABELIEF: (EXTRA, "AdaBelief"),
    Optimizer.ADEMAMIX: (EXTRA, "AdEMAMix"),
    Optimizer.ADOPT: (EXTRA, "ADOPT"),
    Optimizer.CAME: (EXTRA, "CAME"),
    Optimizer.LAMB: (EXTRA, "Lamb"),
    Optimizer.LION: (EXTRA, "Lion"),
    Optimizer.PRODIGY: (EXTRA, "Prodigy"),
    Optimizer.SCHEDULE_FREE_ADAMW: (EXTRA, "ScheduleFreeAdamW"),
    Optimizer.SCHEDULE_FREE_SGD: (EXTRA, "ScheduleFreeSGD"),
    Optimizer.TIGER: (EXTRA, "Tiger"),
    Optimizer.AIDA: (EXTRA, "Aida"),
    Optimizer.DADAPT_ADAM: (EXTRA, "DAdaptAdam"),
    Optimizer.DADAPT_ADAN: (EXTRA, "DAdaptAdan"),
    Optimizer.DADAPT_ADA_GRAD: (EXTRA, "DAdaptAdaGrad"),
    Optimizer.DADAPT_LION: (EXTRA, "DAdaptLion"),
    Optimizer.DADAPT_SGD: (EXTRA, "DAdaptSGD"),
    Optimizer.LARS: (EXTRA, "LARS"),
    Optimizer.MUON: (EXTRA, "Muon"),
    Optimizer.YOGI: (EXTRA, "Yogi"),
    Optimizer.ADAGRAD_8BIT: (EIGHT_BIT, "Adagrad8bit"),
    Optimizer.ADEMAMIX_8BIT: (EIGHT_BIT, "AdEMAMix8bit"),
    Optimizer.LAMB_8BIT: (EIGHT_BIT, "LAMB8bit"),
    Optimizer.LARS_8BIT: (EIGHT_BIT, "LARS8bit"),
    Optimizer.RMSPROP_8BIT: (EIGHT_BIT, "RMSprop8bit"),
    Optimizer.SGD_8BIT: (EIGHT_BIT, "SGD8bit"),
}
NOT_FOR_USERS = ("self", "params", "lr", "capturable", "differentiable", "kwargs", "groups")
# one kernel for all parameters of a step; same numbers in every run
NEEDS_MOMENTUM = (Optimizer.LARS_8BIT, Optimizer.SGD_8BIT)
FUSED = (Optimizer.ADAMW, Optimizer.ADAM)

Group = tuple[str, float, Sequence[tuple[str, torch.nn.Parameter]]]
"""(name, learning rate, named parameters)"""


def optimizer_class(kind: Optimizer) -> Callable[..., torch.optim.Optimizer]:
    """The class behind a name.

    Raises:
        ConfigError: its library is not installed.
    """
    package, name = CLASSES[kind]
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        where = "pip install -r requirements-gpu.txt" if package == EIGHT_BIT else "install it"
        raise ConfigError(
            f"{kind} needs the package {package.partition('.')[0]}, which cannot be imported: {error}",
            "optimizer.optimizer",
            f"{where}, or choose ADAMW",
        ) from error
    return getattr(module, name)  # type: ignore[no-any-return]


def optimizer_arguments(config: OptimizerConfig) -> dict[str, Any]:
    """Constructor arguments, apart from parameters and learning rate.

    Raises:
        ConfigError: a setting this optimizer does not have.
    """
    accepted = dict(inspect.signature(optimizer_class(config.optimizer)).parameters)
    if config.optimizer is Optimizer.MUON:
        accepted |= inspect.signature(muon_groups).parameters
    made: dict[str, Any] = {}
    for field, value in (("beta1", config.beta1), ("beta2", config.beta2)):
        if value is not None:
            _set_beta(config.optimizer, accepted, made, field, value)
    for field in ("eps", "weight_decay", "momentum"):
        value = getattr(config, field)
        if value is None:
            continue
        if field not in accepted or isinstance(accepted[field].default, tuple):
            raise ConfigError(f"{config.optimizer} has no {field}", f"optimizer.{field}", "leave it empty")
        made[field] = value
    for name, argument in config.params.items():
        if name in NOT_FOR_USERS or name not in accepted:
            near = difflib.get_close_matches(name, [n for n in accepted if n not in NOT_FOR_USERS], n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else "it takes: " + ", ".join(n for n in accepted if n not in NOT_FOR_USERS)
            )
            raise ConfigError(f"{config.optimizer} has no argument {name!r}", "optimizer.params", hint)
        made[name] = argument
    if config.optimizer in NEEDS_MOMENTUM:
        made.setdefault("momentum", 0.9)
    if config.optimizer in FUSED:
        made.setdefault("fused", True)
    return made


def _set_beta(
    kind: Optimizer, accepted: Mapping[str, inspect.Parameter], made: dict[str, Any], field: str, value: float
) -> None:
    index = int(field[-1]) - 1
    if "betas" in accepted:
        betas = list(made.get("betas", accepted["betas"].default))
        betas[index] = value
        made["betas"] = tuple(betas)
        return
    name = {"ADAFACTOR": ("beta1", ""), "TIGER": ("beta", ""), "RMSPROP": ("", "alpha")}.get(
        kind.value, ("", "")
    )[index]
    if not name:
        raise ConfigError(f"{kind} has no {field}", f"optimizer.{field}", "leave it empty")
    made[name] = value


def create_optimizer(config: OptimizerConfig, groups: Sequence[Group]) -> torch.optim.Optimizer:
    """An optimizer over groups of parameters; each keeps its name and its full learning rate as ``initial_lr``.

    Raises:
        ConfigError: settings it does not take.
    """
    arguments = optimizer_arguments(config)
    if config.optimizer is Optimizer.MUON:
        split = {name: arguments.pop(name) for name in MUON_ARGUMENTS if name in arguments}
        made = muon_groups(groups, **split)
    else:
        made = [
            {"params": [p for _, p in named], "lr": rate, "initial_lr": rate, "name": name}
            for name, rate, named in groups
        ]
    try:
        optimizer = optimizer_class(config.optimizer)(made, lr=groups[0][1], **arguments)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"{config.optimizer} refuses its settings: {error}", "optimizer") from error
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Every group's full learning rate times ``factor``."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def effective_rate(group: Mapping[str, Any]) -> float:
    """The learning rate of a group, times the step size that optimizers like PRODIGY have found; 0 for a group that is
    trained no longer.
    """
    if not any(parameter.requires_grad for parameter in group["params"]):
        return 0.0
    return float(group["lr"]) * float(group.get("d", 1.0))


def trains_elsewhere(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer trains other weights than it evaluates and saves (schedule-free methods)."""
    return hasattr(optimizer, "eval")


@contextmanager
def evaluation_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside the block the weights to evaluate and save (schedule-free methods); afterwards the trained ones, bit for
    bit.
    """
    if not trains_elsewhere(optimizer):
        yield
        return
    with kept([p for group in optimizer.param_groups for p in group["params"]]):
        optimizer.eval()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            optimizer.train()  # type: ignore[attr-defined]


@torch.no_grad()
def settle(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[torch.nn.Parameter],
    shape: Callable[[], object] = lambda: None,
) -> None:
    """Give parameters that are trained no longer the weights that are saved (schedule-free methods), for good.

    Args:
        shape: what is done to all weights before they are saved.
    """
    if not trains_elsewhere(optimizer):
        return
    frozen = list(parameters)
    with evaluation_weights(optimizer):
        shape()
        averaged = [parameter.clone() for parameter in frozen]
    for parameter, weights in zip(frozen, averaged, strict=True):
        parameter.copy_(weights)
        state = optimizer.state.get(parameter, {})
        if "z" in state:
            # between equal weights, the optimizer's views of them are these weights, bit for bit
            state["z"].copy_(weights)


def optimizer_state(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, Any]:
    """The state with the names of the parameters in its order, of tensors and plain values only."""
    return {**optimizer.state_dict(), "parameter_names": list(names)}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Continue from a saved state, bit for bit.

    Raises:
        DataError: it belongs to other parameters or another optimizer.
    """
    if list(state.get("parameter_names", ())) != list(names):
        raise DataError("the optimizer state of the backup belongs to other parameters")
    rates = [group["initial_lr"] for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict({"state": state["state"], "param_groups": state["param_groups"]})
    except (ValueError, KeyError) as error:
        raise DataError(f"the optimizer state of the backup does not fit: {error}") from error
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        own = optimizer.state[parameters[index]]
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and own[key].dtype != value.dtype:
                # torch casts state to the type of the weights, which would round it
                own[key] = value.to(own[key].device)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = rate
