"""Predicted cost of a run before it is started: memory, optimizer steps, time. No Tk here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.ui.texts import forecast as words

GIB = 2**30
SEPARATOR = "  \u00b7  "


@dataclass(frozen=True)
class Memory:
    """Memory of the graphics card, in bytes.

    Args:
        needed: peak usage; 0 if unknown.
        free: free memory; ``None`` without a CUDA card.
        unknown: why ``needed`` is not known.
        saving: the cheapest settings that make the run fit, if it does not.
        then: peak usage with them.
    """

    needed: int = 0
    free: int | None = None
    unknown: str = ""
    saving: Mapping[str, Any] = field(default_factory=dict)
    then: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Memory:
        """Read the output of a dry run.

        Raises:
            LookupError, TypeError, ValueError: the data has another form.
        """
        if "unknown" in data:
            return cls(unknown=str(data["unknown"]))
        free, saving = data["free_bytes"], data["saving"] or {"changes": {}, "needed_bytes": 0}
        return cls(
            int(data["needed_bytes"]), None if free is None else int(free), "", dict(saving["changes"]),
            int(saving["needed_bytes"]),
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """True if the run fits, as far as known."""
        return self.free is None or self.needed <= self.free

    def text(self) -> str:
        """One short line."""
        if self.unknown:
            return words.MEMORY_UNKNOWN.format(reason=self.unknown)
        needed = self.needed / GIB
        if self.free is None:
            return words.NEEDS_NO_CARD.format(needed=needed)
        said = words.FITS if self.fits else words.TOO_MUCH
        return said.format(needed=needed, free=self.free / GIB)

    def short(self) -> str:
        """A short form of a few letters."""
        if self.unknown:
            return words.MEMORY_UNKNOWN_SHORT
        if self.free is None:
            return words.NEEDS.format(needed=self.needed / GIB)
        return words.FITS.format(needed=self.needed / GIB, free=self.free / GIB)


@dataclass(frozen=True)
class Forecast:
    """Predicted cost of the run that Start would begin.

    Args:
        memory: memory of the card; ``None`` if not determined.
        steps: optimizer steps; 0 if unknown.
        seconds: duration of one step; ``None`` if no run of this kind was measured.
        epoch_steps: optimizer steps of the first epoch; 0 if unknown.
    """

    memory: Memory | None = None
    steps: int = 0
    seconds: float | None = None
    epoch_steps: int = 0

    def text(self) -> str:
        """Memory and time in one line."""
        parts = [self.memory.text()] if self.memory is not None else []
        if self.steps:
            parts.append(words.steps_and_time(self.steps, self.seconds))
        return SEPARATOR.join(parts)

    def short_texts(self) -> list[str]:
        """Shorter versions of the text, the longest first."""
        memory = self.memory.short() if self.memory is not None else ""
        time = words.about(self.steps * self.seconds) if self.steps and self.seconds is not None else ""
        return [SEPARATOR.join(part for part in (memory, time) if part), memory or time]
