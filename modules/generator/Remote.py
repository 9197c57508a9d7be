"""The common base of generators in other programs: a server, an adapter folder, and checked images."""

from __future__ import annotations

import binascii
import hashlib
import signal
import struct
import threading
from abc import abstractmethod
from collections.abc import Generator as Stream
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from modules.generator.Generator import Description, Generator, ImageRequest, MadeImage, check_adapter
from modules.util.errors import DataError, UserError
from modules.util.files.user_path import user_path
from modules.util.owned_files import Owned, shown
from modules.util.tensors.peft_config import NAME as PEFT_CONFIG
from modules.util.tensors.peft_config import alters_strength
from modules.util.web.HttpClient import HttpClient

_PNG = b"\x89PNG\r\n\x1a\n"
_HEADER_END = 33
DEFAULT_SIDE = 1024


class Remote(Generator):
    """A generator behind HTTP.

    Args:
        settings: ``url``; ``checkpoint``: name of the model in that program; ``lora_folder``: its adapter
            folder; ``remote``: whether any address is allowed.
    """

    WHAT: ClassVar[str]
    URL: ClassVar[str]
    SENDS: ClassVar[str] = "prompts and adapters"
    """The data that leave this computer if the program is on another one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.checkpoint = str(settings.get("checkpoint", ""))
        self.client = HttpClient(
            self.WHAT, str(settings.get("url", self.URL)), bool(settings.get("remote", False)), self.SENDS
        )
        self._number = 0

    @abstractmethod
    def make(self, request: ImageRequest, adapter: str) -> bytes:
        """Make one image; ``adapter`` is its name in the program, empty for none."""

    def adapter_folder(self) -> Path | None:
        folder = str(self.settings.get("lora_folder", ""))
        return user_path(folder, "--lora-folder") if folder else None

    @property
    def called(self) -> str:
        return self.WHAT

    @contextmanager
    def understood(self, what: str) -> Iterator[None]:
        """Surrounds the reading of an answer, which may be that of any program.

        Args:
            what: what is read, for the message.

        Raises:
            UserError: the answer has other types or names than this program's.
        """
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.WHAT} at {self.client.url} sent {what} that cannot be understood",
                "--url",
                f"check that {self.WHAT} is the program at this address",
            ) from error

    def check(self, requests: Sequence[ImageRequest]) -> None:
        if any(request.sources for request in requests):
            self.refuse_sources()
        offer = self.describe()
        if self.checkpoint and offer.models:
            self._known(self.checkpoint, offer.models, "model", "--checkpoint")
        for sampler in {request.sampler for request in requests if request.sampler}:
            if offer.samplers:
                self._known(sampler, offer.samplers, "sampler", "--sampler")
        for file in {request.adapter for request in requests if request.adapter is not None}:
            self._adapter_name(file, offer)

    def _known(self, name: str, names: Sequence[str], what: str, field: str) -> None:
        if name not in names:
            listed = ", ".join(names[:20])
            raise DataError(f"{self.WHAT} has no {what} {name!r}", field, f"it has: {listed or 'none'}")

    def _adapter_name(self, file: Path, offer: Description) -> str:
        """The name of an adapter file in the program. The file is copied there if it is missing.

        The name is derived from the content, so that a file of another origin is never replaced.

        Raises:
            UserError: there is no such file, its strength is in another one, or the program does not see it.
        """
        check_adapter(file)
        if alters_strength(file):
            raise DataError(
                f"{self.WHAT} would use the adapter {shown(file)} at the wrong strength: it does not read "
                f"{PEFT_CONFIG} next to it",
                "--adapter",
                "use the file that scripts/convert_model.py adapter FILE NEW --to KOHYA_LORA --family FAMILY writes",
            )
        stem = f"tastemaker-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
        found = _named(stem, offer.adapters)
        if found:
            return found
        folder = self.adapter_folder()
        if folder is None or not folder.is_dir():
            raise DataError(
                f"{self.WHAT} does not have the adapter {shown(file)}",
                "--lora-folder",
                f"name its folder of adapters, or copy the file there as {stem}.safetensors",
            )
        target = folder / f"{stem}.safetensors"
        if not target.is_file():
            # files of the hub's cache are links
            Owned(folder, local=True).take(file.resolve(), target.name)
        self.refresh_adapters()
        found = _named(stem, self.describe().adapters)
        if not found:
            raise DataError(
                f"{self.WHAT} does not see {target.name} in {shown(folder)}",
                "--lora-folder",
                "check that this is its LoRA folder",
            )
        return found

    def generate(self, requests: Sequence[ImageRequest]) -> Stream[MadeImage, None, None]:
        offer = self.describe()
        names = {
            file: self._adapter_name(file, offer)
            for file in {r.adapter for r in requests}
            if file is not None
        }
        for number, request in enumerate(requests):
            adapter = names[request.adapter] if request.adapter is not None else ""
            self._number = number
            try:
                with _ended_as_stopped():
                    data = self.make(request, adapter)
            except KeyboardInterrupt:
                # a program that is gone makes no image any more
                with suppress(UserError):
                    self.cancel()
                raise
            yield MadeImage(number, self._checked(request, data))

    def _checked(self, request: ImageRequest, data: bytes) -> bytes:
        """Add to an image how it was made. Raises ``UserError`` unless it is a complete PNG."""
        if not data.startswith(_PNG) or b"IEND" not in data[-12:]:
            raise UserError(
                f"{self.WHAT} sent something that is not a complete PNG image", hint="let it save images as PNG"
            )
        return with_parameters(data, parameters(self.used(request), self.checkpoint, self.WHAT))

    def used(self, request: ImageRequest) -> ImageRequest:
        """The request without the settings that the program does not use, which an image must not claim."""
        return request


@contextmanager
def _ended_as_stopped() -> Iterator[None]:
    """Inside the block, SIGTERM is Ctrl+C, unless somebody else handles it. Otherwise the other program would finish an
    image that nobody fetches.
    """

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    alone = threading.current_thread() is threading.main_thread()
    if not alone or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _named(stem: str, names: Sequence[str]) -> str:
    """The name in this list that belongs to a file of this stem, in whatever folder."""
    return next(
        (name for name in names if Path(name.replace("\\", "/")).name.removesuffix(".safetensors") == stem),
        "",
    )


def parameters(request: ImageRequest, model: str, program: str) -> str:
    """Describe how an image was made, in the format the pair tool reads. A line of settings needs at least
    three settings.
    """
    facts = {
        "Steps": request.steps,
        "Sampler": request.sampler,
        "CFG scale": request.cfg,
        "Seed": request.seed,
    }
    if request.width and request.height:
        facts["Size"] = f"{request.width}x{request.height}"
    facts["Model"] = model.replace(",", " ") or None
    facts |= {"Program": program, "Asked by": "Tastemaker"}
    lines = [request.prompt, *([f"Negative prompt: {request.negative}"] if request.negative else [])]
    return "\n".join(
        [*lines, ", ".join(f"{name}: {value}" for name, value in facts.items() if value is not None)]
    )


def with_parameters(png: bytes, text: str) -> bytes:
    """A PNG file whose first text is ``parameters``. The program's own texts follow it."""
    body = b"iTXt" + b"parameters\0\0\0\0\0" + text.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", binascii.crc32(body))
    return png[:_HEADER_END] + chunk + png[_HEADER_END:]
