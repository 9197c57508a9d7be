"""The interface of captioners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from PIL import Image

from modules.util.errors import UserError


class Captioner(Protocol):
    """A model or a server that describes images."""

    def describe(self, images: Sequence[Image.Image]) -> Sequence[str | UserError]:
        """Return one text for each RGB image, in order: empty if there is nothing to say, or the error of an
        image that could not be described.

        Raises:
            UserError: no image can be described.
        """
        ...
