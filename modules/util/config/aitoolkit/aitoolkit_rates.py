"""Import of optimizers and learning rate schedules from ai-toolkit configs (its ``toolkit/optimizer.py`` and
``toolkit/scheduler.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.Notes import Notes
from modules.util.config.foreign.step_counts import in_optimizer_steps
from modules.util.config.kohya.kohya_optimizer import optimizer_named, optimizer_section, schedule_named
from modules.util.enum.choices import Optimizer

Data = dict[str, Any]

_EPS = 1e-6
_WITH_THAT_EPS = (
    Optimizer.ADAM, Optimizer.ADAMW, Optimizer.ADAM_8BIT, Optimizer.ADAMW_8BIT, Optimizer.ADEMAMIX_8BIT,
    Optimizer.PRODIGY, Optimizer.DADAPT_ADAM,
)  # fmt: skip
_ARGUMENTS: Mapping[str, Data] = {
    Optimizer.ADAFACTOR.value: {"relative_step": False, "scale_parameter": False, "warmup_init": False},
}
"""Arguments that it sets, unlike the classes themselves."""
_WARMUP = 1000
_PLACE = "train.lr_scheduler_params"
_TO_ITS_END = "torch.optim.lr_scheduler.LinearLR"


def import_optimizer(train: Fields, notes: Notes) -> Data:
    """Our optimizer with the numbers that it has there.

    Raises:
        UnsupportedError: the update rule is not supported.
    """
    name, params = optimizer_named(train.text("optimizer", "adamw"), "train.optimizer")
    given = {key: _number(value) for key, value in train.inner("optimizer_params").left().items()}
    arguments = {**_ARGUMENTS.get(name, {}), **given}
    section = optimizer_section(name, params, arguments, notes, "train.optimizer_params")
    if name in _WITH_THAT_EPS:
        section.setdefault("eps", _EPS)
    return section


def import_schedule(train: Fields, rate: float | None, together: int, notes: Notes) -> Data:
    """Our schedule.

    Args:
        rate: the learning rate.
        together: steps there that make an optimizer step.

    Raises:
        UnsupportedError: the schedule is not supported.
    """
    given = train.text("lr_scheduler", "constant").lower()
    more = train.inner("lr_scheduler_params")
    made: Data = {}
    if given == "linear":
        # it rises from a third to the whole rate; ours falls
        numbers = {name: more.number(name, None) for name in ("start_factor", "end_factor")}
        listed = [f"{name}={value:g}" for name, value in numbers.items() if value is not None]
        made = {
            "learning_rate_scheduler": "CUSTOM", "custom_learning_rate_scheduler": _TO_ITS_END,
            "scheduler_params": "; ".join([*listed, "total_iters=%TOTAL_STEPS%"]),
        }  # fmt: skip
        notes.moved("train.lr_scheduler", given, _TO_ITS_END, "in ai-toolkit, the rate rises to the end of the run")
    else:
        made = {"learning_rate_scheduler": schedule_named(given, 1.0, "train.lr_scheduler")}
    usual = {"constant_with_warmup": _WARMUP, "cosine": 0}
    if given in usual:
        warmup = more.whole("num_warmup_steps", usual[given])
        steps = in_optimizer_steps(f"{_PLACE}.num_warmup_steps", warmup, together, notes)
        # 1 would be the whole run here
        made["learning_rate_warmup_steps"] = float(steps) if steps > 1 else 0.0
    if given.startswith("cosine") and rate:
        made["learning_rate_min_factor"] = (more.number("eta_min", 0.0) or 0.0) / rate
    more.without_meaning(("total_iters",))
    more.note_rest()
    return made


def _number(value: Any) -> Any:
    """Convert to a number. YAML reads 1e-4, without a decimal point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
