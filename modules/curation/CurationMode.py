"""The ways of choosing by name, as configs, command lines and stores have them."""

from __future__ import annotations

from modules.curation.choosing.base import WayOfChoosing, ways
from modules.util.enum.BaseEnum import BaseEnum


class CurationMode(BaseEnum):
    """How the person is asked which image of a group is best: the keys of the files in ``choosing``."""

    vars().update({key: key for key in ways()})

    @property
    def way(self) -> WayOfChoosing:
        """What the mode shows, asks and concludes."""
        return ways()[self.value]


DEFAULT_MODE = next(iter(CurationMode))
