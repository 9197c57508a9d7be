"""The ways of choosing by name, as used in configs, command lines and stores."""

from __future__ import annotations

from modules.curation.choosing.base import WayOfChoosing, ways
from modules.util.enum.BaseEnum import BaseEnum


class CurationMode(BaseEnum):
    """Ways of asking the person which image of a group is best. The members are the keys of the files in
    ``choosing``.
    """

    vars().update({key: key for key in ways()})

    @property
    def way(self) -> WayOfChoosing:
        """The way of choosing of this mode."""
        return ways()[self.value]


DEFAULT_MODE = next(iter(CurationMode))
