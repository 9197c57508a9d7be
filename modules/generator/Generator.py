"""The contract of everything that turns prompts into image files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator as Stream
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ImageRequest:
    """One image.

    Args:
        width, height, steps, cfg, sampler: the model's usual ones where ``None``.
        adapter: an adapter file; ``None`` for the base model.
        strength: how much of the adapter.
    """

    prompt: str
    seed: int
    negative: str = ""
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    cfg: float | None = None
    sampler: str | None = None
    adapter: Path | None = None
    strength: float = 1.0


@dataclass(frozen=True)
class MadeImage:
    """An image that was made.

    Args:
        number: of its request, from 0.
        data: the file, with metadata that the pair tool reads.
    """

    number: int
    data: bytes


class Generator(ABC):
    """Makes images. One file for each, registered under its key; none knows another."""

    @abstractmethod
    def check(self, requests: Sequence[ImageRequest]) -> None:
        """Find every fault that can be found before the first image.

        Raises:
            UserError: it cannot be reached, or lacks something; says what, where and what to do.
        """

    @abstractmethod
    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        """Make the images, in any order, each handed on as soon as it is there. Closing the stream cancels.

        Raises:
            UserError: it cannot continue. What was handed on stays good; ask again for what is missing.
        """
