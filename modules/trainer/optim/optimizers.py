"""Optimizers by name. Each accepts only its own settings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from modules.trainer.optim.Adafactor import Adafactor
from modules.trainer.optim.ema import kept
from modules.trainer.optim.muon import MUON_ARGUMENTS, MUON_LAYERS, UNSCALED, muon_groups
from modules.util.config.optimizer.tables import CLASS_NAMES, unknown_parameter
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError, DataError

TORCH, EXTRA, EIGHT_BIT = "torch.optim", "pytorch_optimizer", "bitsandbytes.optim"
PRODIGY_PLUS, ADVANCED = "prodigyplus", "adv_optm"
REQUIREMENTS: Mapping[str, str] = {
    EIGHT_BIT: "requirements-gpu.txt",
    PRODIGY_PLUS: "requirements-optimizers.txt",
    ADVANCED: "requirements-optimizers.txt",
}
"""Files of packages that are optional."""
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
    Optimizer.PRODIGY_PLUS_SCHEDULE_FREE: (PRODIGY_PLUS, "ProdigyPlusScheduleFree"),
    Optimizer.ADAMW_ADV: (ADVANCED, "AdamW_adv"),
    Optimizer.ADOPT_ADV: (ADVANCED, "Adopt_adv"),
    Optimizer.LION_ADV: (ADVANCED, "Lion_adv"),
    Optimizer.SIGNSGD_ADV: (ADVANCED, "SignSGD_adv"),
    Optimizer.PRODIGY_ADV: (ADVANCED, "Prodigy_adv"),
    Optimizer.MUON_ADV: (ADVANCED, "Muon_adv"),
    Optimizer.ADAMUON_ADV: (ADVANCED, "AdaMuon_adv"),
}
NOT_FOR_USERS = (
    *(
        "self",
        "params",
        "lr",
        "capturable",
        "differentiable",
        "kwargs",
        "groups",
        "fused_back_pass",
        "fsdp_in_use",
    ),
    *("use_muon", "rate_scale", "k_logging", "layer_key_fn", "clip_lambda"),
)
NOT_RESUMED = (
    *("stochastic_rounding", "spectral_normalization", "adam_spectral_normalization", "stochastic_sign"),
    *(
        "low_rank_ortho",
        "ortho_rank",
        "kourkoutas_beta",
        "beta2_min",
        "ema_alpha",
        "tiny_spike",
        "k_warmup_steps",
    ),
)
"""Arguments whose random numbers or memory the class keeps outside its state: a resumed run would be another one."""
ROUNDS_ITSELF = (PRODIGY_PLUS, ADVANCED)
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
        file = REQUIREMENTS.get(package)
        where = f"pip install -r {file}" if file else "install it"
        raise ConfigError(
            f"{kind} needs the package {package.partition('.')[0]}, which cannot be imported: {error}",
            "optimizer.optimizer",
            f"{where}, or choose ADAMW",
        ) from error
    return getattr(module, name)  # type: ignore[no-any-return]


def optimizer_arguments(config: OptimizerConfig) -> dict[str, Any]:
    """Constructor arguments, apart from parameters and learning rate.

    Raises:
        ConfigError: this optimizer does not have the setting.
    """
    accepted = dict(inspect.signature(optimizer_class(config.optimizer)).parameters)
    if config.optimizer.of_matrices:
        accepted |= inspect.signature(muon_groups).parameters
    for name in (*NOT_FOR_USERS, *NOT_RESUMED):
        accepted.pop(name, None)
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
        if name not in accepted:
            what, hint = unknown_parameter(config.optimizer, name)
            raise ConfigError(what, "optimizer.params", hint)
        made[name] = argument
    if config.optimizer in NEEDS_MOMENTUM:
        made.setdefault("momentum", 0.9)
    if config.optimizer in FUSED:
        made.setdefault("fused", True)
    if CLASSES[config.optimizer][0] in ROUNDS_ITSELF:
        made["stochastic_rounding"] = False
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
    name = CLASS_NAMES.get((kind, field))
    if name is None:
        raise ConfigError(f"{kind} has no {field}", f"optimizer.{field}", "leave it empty")
    made[name] = value


def create_optimizer(
    config: OptimizerConfig, groups: Sequence[Group], rate_scale: float = 1.0
) -> torch.optim.Optimizer:
    """Create an optimizer over groups of parameters. Each group keeps its name, and its full learning rate as
    ``initial_lr``.

    Args:
        rate_scale: factor on learning rates among the optimizer's parameters; the rates of ``groups`` contain it.

    Raises:
        ConfigError: the optimizer does not accept the settings.
    """
    arguments = optimizer_arguments(config)
    if config.optimizer.of_matrices:
        split = {name: arguments.pop(name) for name in MUON_ARGUMENTS if name in arguments}
        made = muon_groups(groups, **split, rate_scale=rate_scale)
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


def check_layers(
    config: OptimizerConfig, groups: Sequence[tuple[str, float | None, Sequence[tuple[str, torch.nn.Parameter]]]]
) -> None:
    """Check that an optimizer of matrices has layers to update among the trained parameters.

    Raises:
        ConfigError: it has none.
    """
    if config.optimizer.of_matrices:
        split: dict[str, Any] = {name: config.params[name] for name in MUON_LAYERS if name in config.params}
        muon_groups([(name, 0.0, named) for name, _, named in groups], **split)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to ``factor`` times its full rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def effective_rate(group: Mapping[str, Any]) -> float:
    """The learning rate of a group, multiplied by the step size that optimizers like PRODIGY have found; 0 if
    the group is no longer trained.
    """
    if not any(parameter.requires_grad for parameter in group["params"]):
        return 0.0
    return float(group["lr"]) * float(group.get("d", 1.0))


def trains_elsewhere(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer trains other weights than it evaluates and saves (schedule-free methods).
    """
    return hasattr(optimizer, "eval")


@contextmanager
def evaluation_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside the block, use the weights to evaluate and save (schedule-free methods); afterwards exactly the
    trained ones.
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
    """Permanently set parameters that are no longer trained to the weights that are saved (schedule-free
    methods).

    Args:
        shape: applied to all weights before they are saved.
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
    """The state, by parameter name in the optimizer's order, as tensors and plain values only."""
    return {**optimizer.state_dict(), "parameter_names": list(names)}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Restore a saved state, bit for bit.

    Raises:
        DataError: the state belongs to other parameters or another optimizer.
    """
    if list(state.get("parameter_names", ())) != list(names):
        raise DataError("the optimizer state of the backup belongs to other parameters")
    fresh = [(group["initial_lr"], group.get(UNSCALED)) for group in optimizer.param_groups]
    advanced = type(optimizer).__module__.startswith(ADVANCED)
    # adv_optm's own way fails for states without a number format; what it is for is done below
    load = torch.optim.Optimizer.load_state_dict if advanced else type(optimizer).load_state_dict
    try:
        load(optimizer, {"state": state["state"], "param_groups": state["param_groups"]})
    except (ValueError, KeyError) as error:
        raise DataError(f"the optimizer state of the backup does not fit: {error}") from error
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        own = optimizer.state[parameters[index]]
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and own[key].dtype != value.dtype:
                # torch casts state to the type of the weights, which would round it
                own[key] = value.to(own[key].device)
    for group, (rate, unscaled) in zip(optimizer.param_groups, fresh, strict=True):
        group["initial_lr"] = rate if unscaled is None or UNSCALED in group else unscaled
    if advanced and "d_numerator" in optimizer.param_groups[0]:
        # between steps PRODIGY_ADV has these outside its state
        optimizer.d_denom = torch.zeros((), device=parameters[0].device)  # type: ignore[attr-defined]
        optimizer.init_step()  # type: ignore[attr-defined]
