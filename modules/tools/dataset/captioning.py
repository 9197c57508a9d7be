"""Captions of a folder of images, written by whatever describes images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from modules.tools.dataset.files import DataImage, caption_text, shared_files
from modules.tools.Journal import Journal
from modules.util.errors import DataError, list_offenders

Describe = Callable[[Sequence[Image.Image]], list[str]]
Tell = Callable[[int, str], None]


class Mode(StrEnum):
    """What becomes of captions that are there."""

    BLANK = "BLANK"
    REPLACE = "REPLACE"
    APPEND = "APPEND"


@dataclass(frozen=True)
class Wanted:
    """How captions are written.

    Args:
        mode: BLANK writes missing and empty ones alone, APPEND adds to those that are there after a comma.
        prefix: before each new text and a space.
        suffix: after it; with a space between them, unless it begins with a comma or a full stop.
        batch: how many images are described at once.
    """

    mode: Mode = Mode.BLANK
    prefix: str = ""
    suffix: str = ""
    batch: int = 1


class Outcome(NamedTuple):
    """Names of images: those with a new caption, and those left as they are with the reason."""

    written: list[str]
    left: dict[str, str]


def plan_captions(root: Path, images: list[DataImage], mode: Mode) -> list[DataImage]:
    """The images that get a caption.

    Raises:
        DataError: images share a caption file.
    """
    shared = shared_files([DataImage(one.name, (), (one.caption() or f"{one.stem}.txt",)) for one in images])
    if shared:
        raise DataError(
            f"several images have the same caption file:\n{list_offenders(shared)}",
            hint="rename all but one of each",
        )
    return [one for one in images if mode is not Mode.BLANK or not (caption_text(root, one) or "").strip()]


def write_captions(
    root: Path, plan: list[DataImage], wanted: Wanted, describe: Describe, progress: Tell
) -> Outcome:
    """Describe images and write their captions, batch by batch; what is written stays after a stop or a kill.

    Args:
        progress: called with how many images are done and the name of the next.

    Raises:
        UserError: describing failed; ``Journal.undo`` takes back what was written before.
    """
    outcome = Outcome([], {})
    with Journal(root).job("captions") as job:
        for start in range(0, len(plan), wanted.batch):
            progress(start, plan[start].name)
            opened: dict[str, Image.Image] = {}
            batch = plan[start : start + wanted.batch]
            for one in batch:
                try:
                    opened[one.name] = opened_rgb(root / one.name)
                except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                    outcome.left[one.name] = f"unreadable: {error}"
            texts = dict(zip(opened, describe(list(opened.values())), strict=True)) if opened else {}
            for one in batch:
                text = " ".join(texts.get(one.name, "").split())
                if one.name in opened and not text:
                    outcome.left[one.name] = "nothing was found to say"
                if text:
                    old = one.caption()
                    job.replace([old] if old else [], {
                        old or f"{one.stem}.txt": partial(_write, _whole(root, one, text, wanted))
                    })  # fmt: skip
                    outcome.written.append(one.name)
    return outcome


def opened_rgb(path: Path) -> Image.Image:
    """An image as a person sees it: upright, transparent parts white.

    Raises:
        OSError, ValueError, SyntaxError, DecompressionBombError: it cannot be read.
    """
    with Image.open(path) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            clear = image.convert("RGBA")
            white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, clear)
        return image.convert("RGB")


def _whole(root: Path, image: DataImage, text: str, wanted: Wanted) -> str:
    prefix, suffix = wanted.prefix.strip(), wanted.suffix.strip()
    between = "" if suffix.startswith((",", ".")) or not suffix else " "
    made = f"{prefix} {text}{between}{suffix}".strip()
    before = (caption_text(root, image) or "").strip() if wanted.mode is Mode.APPEND else ""
    return f"{before}, {made}" if before else made


def _write(text: str, target: Path) -> None:
    target.write_text(text, encoding="utf-8")
