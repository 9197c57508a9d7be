"""What turns images into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from PIL import Image

from modules.util.errors import UserError


class Captioner(Protocol):
    """A model or a server that describes images."""

    def describe(self, images: Sequence[Image.Image]) -> Sequence[str | UserError]:
        """One text for each RGB image, in their order: empty where there is nothing to say, or why one could not be
        described.

        Raises:
            UserError: none can be.
        """
        ...
