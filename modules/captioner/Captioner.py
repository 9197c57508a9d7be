"""What turns images into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from PIL import Image


class Captioner(Protocol):
    """A model or a server that describes images."""

    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        """One text for each RGB image, in their order; empty where there is nothing to say.

        Raises:
            UserError: it failed; what was described before stays described.
        """
        ...
