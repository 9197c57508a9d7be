from __future__ import annotations

from enum import StrEnum


class BaseEnum(StrEnum):
    """A choice in a config, stored by name: every value equals its member's name.

    (Where a value names something outside, such as a logged metric, it is that name in lower case.)
    """

    @property
    def label(self) -> str:
        """The choice as people read it: ``FULL_CONCURRENT`` is "Full concurrent"."""
        return self.value.replace("_", " ").capitalize()
