"""The optimizer and the learning rate of a kohya config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.faults import show
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.Notes import Notes
from modules.util.config.kohya.kohya_network import key_values
from modules.util.enum.choices import Optimizer
from modules.util.errors import UnsupportedError

Data = dict[str, Any]

_OTHER_NAMES: Mapping[str, tuple[str, Data]] = {
    "dadaptation": ("DADAPT_ADAM", {}),
    "dadaptadampreprint": ("DADAPT_ADAM", {}),
    "sgdnesterov": ("SGD", {"nesterov": True}),
    "sgdnesterov8bit": ("SGD_8BIT", {}),  # its class does not use nesterov
    "pagedadamw8bit": ("ADAMW_8BIT", {"is_paged": True}),
    "pagedlion8bit": ("LION_8BIT", {"is_paged": True}),
    "adamwschedulefree": ("SCHEDULE_FREE_ADAMW", {}),
    "sgdschedulefree": ("SCHEDULE_FREE_SGD", {}),
    "radam": ("", {}),
}
_MOMENTUM = ("SGD", "SGD_8BIT")
_PACKAGES = (
    "torch.optim", "bitsandbytes.optim", "pytorch_optimizer", "prodigyopt", "lion_pytorch", "dadaptation",
    "schedulefree", "transformers", "prodigyplus", "adv_optm",
)  # fmt: skip
"""Packages in which classes of these names have the same update rule as ours of that name."""
_SCHEDULES = {
    "constant": "CONSTANT",
    "constant_with_warmup": "CONSTANT",
    "linear": "LINEAR",
    "cosine": "COSINE",
    "cosine_with_restarts": "COSINE_WITH_HARD_RESTARTS",
    "cosine_with_min_lr": "COSINE",
    "adafactor": "ADAFACTOR",
}
_WITH_A_LEAST = "cosine_with_min_lr"
_FIELDS = ("weight_decay", "eps", "momentum")


def import_optimizer(fields: Fields, notes: Notes) -> Data:
    """Our optimizer, learning rate and schedule.

    Raises:
        UnsupportedError: the update rule or the schedule is not supported.
    """
    given = fields.text("optimizer_type", "AdamW") or "AdamW"
    for name, kind in (("use_8bit_adam", "AdamW8bit"), ("use_lion_optimizer", "Lion")):
        if fields.flag(name):
            given = kind
    name, params = optimizer_named(given, "optimizer_type")
    arguments = key_values(fields.raw("optimizer_args"), "optimizer_args", notes)
    section = optimizer_section(name, params, arguments, notes, "optimizer_args")
    made: Data = {"optimizer": section, "learning_rate": fields.number("learning_rate", 2e-6)}
    relative = section["params"].get("relative_step")
    made |= _schedule(fields, notes)
    if name == Optimizer.ADAFACTOR.value and relative is True:
        made["learning_rate_scheduler"] = "ADAFACTOR"
    return made


def optimizer_named(given: str, field: str) -> tuple[str, Data]:
    """Our name of an update rule, and the arguments implied by its name.

    Raises:
        UnsupportedError: it is not supported.
    """
    package, _, word = given.rpartition(".")
    plain = word.lower().replace("_", "")
    name, params = _OTHER_NAMES.get(plain, ("", {}))
    known = {member.value.lower().replace("_", ""): member.value for member in Optimizer}
    name = name or known.get(plain, "")
    if not name or (package and not package.startswith(_PACKAGES)):
        raise UnsupportedError(
            f"the optimizer {show(given)} is not supported",
            field,
            "nearest: AdamW; docs/config.md lists what is",
        )
    return name, dict(params)


def optimizer_section(name: str, params: Data, arguments: Data, notes: Notes, place: str) -> Data:
    """Our section of an optimizer with the arguments of its class."""
    section: Data = {"optimizer": name}
    arguments = dict(arguments)
    betas = arguments.pop("betas", None)
    if isinstance(betas, (tuple, list)):
        section |= dict(zip(("beta1", "beta2"), betas, strict=False))
        if len(betas) > 2:
            notes.add(f"{place}.betas", list(betas), "the third is left at the default")
    if "beta1" in arguments and arguments["beta1"] is None:
        arguments.pop("beta1")
    for key in _FIELDS:
        value = arguments.pop(key, None)
        if isinstance(value, (tuple, list)):
            section |= {"eps": value[0]} if value else {}
            params |= {"eps2": value[1]} if len(value) > 1 else {}
        elif value is not None:
            section[key] = value
    if name in _MOMENTUM:
        section.setdefault("momentum", 0.9)
    if name == Optimizer.ADAFACTOR.value:
        params |= {"relative_step": True, "scale_parameter": True}
    usable = {key: value for key, value in arguments.items() if isinstance(value, (bool, int, float, str))}
    for key in arguments.keys() - usable.keys():
        notes.add(f"{place}.{key}", arguments[key], "not read: not a number, text, true or false")
    return {**section, "params": {**params, **usable}}


def _schedule(fields: Fields, notes: Notes) -> Data:
    given = fields.text("lr_scheduler", "constant").lower()
    power = fields.number("lr_scheduler_power", 1.0)
    fields.lost("lr_scheduler_type", "not supported: schedules are chosen by name", unless=(None, ""))
    made: Data = {"learning_rate_scheduler": schedule_named(given, power or 0.0, "lr_scheduler")}
    warmup = fields.number("lr_warmup_steps", 0.0) or 0.0
    if given == "constant" and warmup:
        notes.moved("lr_warmup_steps", warmup, "0", "in kohya, constant has no warm-up")
        warmup = 0.0
    if warmup == 1:
        notes.add("lr_warmup_steps", warmup, "no warm-up: one step at half the rate is left out", ours=0)
        warmup = 0.0
    made["learning_rate_warmup_steps"] = float(warmup)
    made["learning_rate_cycles"] = float(fields.number("lr_scheduler_num_cycles", 1.0) or 1.0)
    least = fields.number("lr_scheduler_min_lr_ratio", 0.0)
    if given == _WITH_A_LEAST:
        made["learning_rate_min_factor"] = least
    elif least:
        notes.moved("lr_scheduler_min_lr_ratio", least, "0", f"in kohya, only {_WITH_A_LEAST} has a lowest rate")
    return made


def schedule_named(given: str, power: float, field: str) -> str:
    """Our name for a schedule.

    Raises:
        UnsupportedError: it is not supported.
    """
    name = _SCHEDULES.get(given, "LINEAR" if given == "polynomial" and power == 1 else "")
    if not name:
        what = f"{given} with power {power:g}" if given == "polynomial" else given
        raise UnsupportedError(
            f"the schedule {show(what)} is not supported",
            field,
            f"nearest: one of {', '.join(sorted(_SCHEDULES))}",
        )
    return name
