"""The interface of captioners."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from PIL import Image

from modules.util.errors import AnswerError, UserError

THINKS = "<think>"
THOUGHTS = re.compile(r".*</think>", re.DOTALL)
"""Of a model that thinks first. Where the question ends with the opening mark, the answer has only the closing one."""


class Captioner(Protocol):
    """A model or a server that describes images."""

    def describe(self, images: Sequence[Image.Image]) -> Sequence[str | UserError]:
        """Return one text for each RGB image, in order: empty if there is nothing to say, or the error of an
        image that could not be described, an ``AnswerError`` if only its answer cannot be used.

        Raises:
            UserError: no image can be described.
        """
        ...


def without_thoughts(answer: str) -> str | UserError:
    """The answer of a model that may think before it answers, or why there is none."""
    said = THOUGHTS.sub("", answer).strip()
    if said.startswith(THINKS):
        return AnswerError(
            "the answer contains only the model's thoughts", hint="use a larger --length or another model"
        )
    return said
