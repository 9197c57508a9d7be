"""One parameter of an update rule, as the parameters window, the documents and the checks see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from modules.util.config.settings import Limits

Value = bool | int | float | str | None
NO_LIMITS = Limits()
Kind = Literal["switch", "whole", "number", "text"]


@dataclass(frozen=True)
class OptimizerParameter:
    """A name with what it may be.

    Args:
        name: as ``optimizer.params`` has it, or the field of ``optimizer`` it is.
        kind: of its values.
        default: what the update rule does without it.
        about: what it does, one sentence.
        limits: of numbers.
        choices: of texts; empty for any text.
        optional: may be empty (null).
        field: whether it is a field of ``optimizer`` of its own instead of a name in ``params``.
    """

    name: str
    kind: Kind
    default: Value
    about: str
    limits: Limits = NO_LIMITS
    choices: tuple[str, ...] = ()
    optional: bool = False
    field: bool = False

    @property
    def path(self) -> str:
        """Its place in a config, for messages."""
        return f"optimizer.{self.name}" if self.field else "optimizer.params"

    def allowed(self) -> str:
        """The values it may have, in words."""
        words = {
            "switch": "true or false",
            "whole": "whole number",
            "number": "number",
            "text": f"one of {', '.join(self.choices)}" if self.choices else "text",
        }[self.kind]
        limits = self.limits.text()
        made = f"{words}, {limits}" if limits else words
        return f"{made}; may be null" if self.optional else made

    def fault(self, value: Value) -> str:
        """Return the reason why it cannot have this value; empty if it can."""
        if value is None:
            return "" if self.optional or self.default is None else f"must be {self._wanted()}, not null"
        fits = {
            "switch": isinstance(value, bool),
            "whole": isinstance(value, int) and not isinstance(value, bool),
            "number": isinstance(value, (int, float)) and not isinstance(value, bool),
            "text": isinstance(value, str) and (not self.choices or value in self.choices),
        }[self.kind]
        if not fits or (isinstance(value, (int, float)) and not self._inside(value)):
            return f"must be {self._wanted()}, not {value!r}"
        return ""

    def _wanted(self) -> str:
        """The values it may have, after "must be"."""
        article = {"switch": "", "whole": "a ", "number": "a ", "text": "" if self.choices else "a "}[self.kind]
        return article + self.allowed()

    def _inside(self, value: float) -> bool:
        own = self.limits
        return not math.isnan(value) and (
            (own.ge is None or value >= own.ge)
            and (own.gt is None or value > own.gt)
            and (own.le is None or value <= own.le)
            and (own.lt is None or value < own.lt)
        )
