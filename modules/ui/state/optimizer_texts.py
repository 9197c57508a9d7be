"""Parameters of the optimizer as a person reads and types them. No Tk here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.ui.state.parameters import read_value
from modules.ui.texts import training as words
from modules.ui.texts.lists import NUMBER, SWITCH, TEXT, WHOLE
from modules.util.config.optimizer.OptimizerParameter import OptimizerParameter, Value
from modules.util.config.optimizer.tables import parameter_of, parameters_of, unknown_parameter
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.errors import UserError

_KINDS = {"switch": SWITCH, "whole": WHOLE, "number": NUMBER, "text": TEXT}


def value_text(value: Value) -> str:
    """Return the text to show for a value."""
    if value is None:
        return words.NOTHING
    if isinstance(value, bool):
        return words.ON if value else words.OFF
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def choices_of(parameter: OptimizerParameter) -> tuple[str, ...]:
    """Texts to choose from; empty where a value is typed."""
    if parameter.kind != "switch":
        return parameter.choices
    return (words.ON, words.OFF, *([words.NOTHING] if parameter.optional else []))


def read_text(parameter: OptimizerParameter, text: str) -> Value:
    """The value behind a text; an empty one is the default.

    Raises:
        UserError: the parameter cannot be this.
    """
    plain = text.strip()
    if not plain:
        return parameter.default
    if plain == words.NOTHING and (parameter.optional or parameter.default is None):
        return None
    value = read_value(_KINDS[parameter.kind], plain)
    assert value is None or isinstance(value, (bool, int, float, str))
    if parameter.kind == "number" and isinstance(value, int):
        value = float(value)
    fault = parameter.fault(value)
    if fault:
        raise UserError(fault)
    return value


@dataclass(frozen=True)
class Given:
    """The parameters of the optimizer in a config.

    Args:
        values: of parameters the optimizer has, by name.
        strange: of those it does not have, with what is wrong.
    """

    values: Mapping[str, Value]
    strange: Mapping[str, tuple[Value, str]]


def given_by(config: OptimizerConfig) -> Given:
    """Return the values that are set, by the names the window shows."""
    kind = config.optimizer
    values: dict[str, Value] = {
        one.name: getattr(config, one.name)
        for one in parameters_of(kind)
        if one.field and getattr(config, one.name) is not None
    }
    strange: dict[str, tuple[Value, str]] = {}
    for name, value in config.params.items():
        parameter = parameter_of(kind, name)
        if parameter is None:
            strange[name] = value, ": ".join(unknown_parameter(kind, name))
        else:
            values.setdefault(parameter.name, value)
    return Given(values, strange)
