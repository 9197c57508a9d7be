"""The contract of everything that turns prompts into image files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Generator as Stream
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


@dataclass(frozen=True)
class Description:
    """What a program is and has; an empty list of names means that it does not say.

    Args:
        name: of the program.
        version: empty if it does not say.
    """

    name: str
    version: str
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()


@dataclass(frozen=True)
class MakingNews:
    """The progress of an image that is being made.

    Args:
        number: of its request.
        step, steps: of the sampler; ``None`` where it does not say.
        preview: an image file, empty for none.
    """

    number: int
    step: int | None = None
    steps: int | None = None
    preview: bytes = b""


class Generator(ABC):
    """Makes images. One file for each, registered under its key; none knows another.

    ``on_news`` receives steps and previews, from the thread that reads the images; some programs report none.
    """

    on_news: Callable[[MakingNews], None] = staticmethod(lambda news: None)

    @abstractmethod
    def describe(self) -> Description:
        """What makes the images.

        Raises:
            UserError: it cannot be reached.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Stop what it is making for us; nothing happens if it is making nothing."""

    @abstractmethod
    def refresh_adapters(self) -> None:
        """Let the program look for new adapters, where it does not do so by itself."""

    def adapter_folder(self) -> Path | None:
        """The program's folder of adapters, where it is on this computer and the program needs one."""
        return None

    @abstractmethod
    def check(self, requests: Sequence[ImageRequest]) -> None:
        """Find every fault that can be found before the first image.

        Raises:
            UserError: it cannot be reached, or lacks something; says what, where and what to do.
        """

    @abstractmethod
    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        """Make the images, in any order, and yield each one as soon as it is there. Closing the stream cancels.

        Raises:
            UserError: it cannot continue. What was handed on stays good; ask again for what is missing.
        """
