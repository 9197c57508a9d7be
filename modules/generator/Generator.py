"""The interface of everything that turns prompts into image files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Generator as Stream
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from modules.util.errors import DataError
from modules.util.owned_files import shown


@dataclass(frozen=True)
class ImageRequest:
    """A request for one image.

    Args:
        width, height, steps, cfg, sampler: ``None`` means the model's usual value.
        adapter: an adapter file; ``None`` for the base model.
        sources: the images that the prompt edits, in order; the further ones are next to the first, as ``NAME.2.png``.
        source_resolution: side in pixels of a square of the area to which they are scaled; ``None`` for the size of the
            image.
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
    sources: tuple[Path, ...] = ()
    source_resolution: int | None = None


@dataclass(frozen=True)
class MadeImage:
    """An image that was made.

    Args:
        number: index of its request, from 0.
        data: content of the file, with metadata that the pair tool reads.
    """

    number: int
    data: bytes


@dataclass(frozen=True)
class Description:
    """A program and what it offers. An empty list of names means that it is unknown.

    Args:
        version: its version; empty if unknown.
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
        step, steps: progress of the sampler; ``None`` if unknown.
        preview: an image file; empty for none.
    """

    number: int
    step: int | None = None
    steps: int | None = None
    preview: bytes = b""


def check_adapter(file: Path) -> None:
    """Raise ``DataError`` unless the file of an adapter exists."""
    if not file.is_file():
        raise DataError(f"there is no adapter file {shown(file)}", "--adapter", "check the path, or train first")


class Generator(ABC):
    """A program that makes images. Each has a file of its own, is registered under its key, and knows no
    other.

    ``on_news`` receives steps and previews, in the thread that reads the images. Some programs report none.
    """

    on_news: Callable[[MakingNews], None] = staticmethod(lambda news: None)

    takes_sources: ClassVar[bool] = False
    """True if it can make images from other images."""

    def refuse_sources(self) -> None:
        """Raise ``UserError`` unless it can make images from other images."""
        if not self.takes_sources:
            raise DataError(
                f"{self.called} cannot be given source images here",
                "--generator",
                "use the generator own, or comfyui with a workflow that edits an image; to pick from existing edits, "
                "use the pair tool",
            )

    @property
    def called(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @abstractmethod
    def describe(self) -> Description:
        """Describe the program.

        Raises:
            UserError: the program cannot be reached.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Stop making images for us. Does nothing if none are being made."""

    @abstractmethod
    def refresh_adapters(self) -> None:
        """Make the program look for new adapters, if it does not do so itself."""

    def adapter_folder(self) -> Path | None:
        """The program's adapter folder, if it needs one and is on this computer."""
        return None

    @abstractmethod
    def check(self, requests: Sequence[ImageRequest]) -> None:
        """Check everything that can be checked before the first image.

        Raises:
            UserError: the program cannot be reached, or lacks something. The message says what, where and
                what to do.
        """

    @abstractmethod
    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        """Make the images in any order, and yield each as soon as it is done. Closing the stream cancels.

        Raises:
            UserError: it cannot continue. Images yielded so far are valid; request the missing ones again.
        """
