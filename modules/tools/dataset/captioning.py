"""Writes captions of a folder of images with any captioner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from modules.tools.dataset.files import MAX_CAPTION, DataImage, caption_text, shared_files, sources_of_edits
from modules.tools.Journal import Journal
from modules.util.errors import AnswerError, DataError, UserError, list_offenders
from modules.util.jsonio import read_bytes
from modules.util.pairs.decoding import IMAGE_ERRORS
from modules.util.pairs.grey_levels import eight_bits, is_deep

Describe = Callable[[Sequence[Image.Image]], Sequence[str | UserError]]
Tell = Callable[[int, str], None]


class Mode(StrEnum):
    """Ways of handling existing captions."""

    BLANK = "BLANK"
    REPLACE = "REPLACE"
    APPEND = "APPEND"


ENDS = ",;.:!?\n，、；。：！？"
"""Characters after which a tag or sentence begins."""


@dataclass(frozen=True)
class Wanted:
    """Options for writing captions.

    Args:
        mode: BLANK writes only missing and empty ones, APPEND adds to each line of existing ones after a comma.
        prefix: text before each new caption, followed by a space.
        suffix: text after it, preceded by a space unless it begins with a comma or a full stop.
        batch: number of images described at once.
    """

    mode: Mode = Mode.BLANK
    prefix: str = ""
    suffix: str = ""
    batch: int = 1


class Outcome(NamedTuple):
    """Names of images: those with a new caption or mask, and those left unchanged with the reason."""

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
    results = captioned_images(images)
    return [one for one in results if mode is not Mode.BLANK or not (caption_text(root, one) or "").strip()]


def captioned_images(images: list[DataImage]) -> list[DataImage]:
    """The images that have captions of their own: all except sources of edits."""
    sources = sources_of_edits(images)
    return [one for one in images if one.name not in sources]


def write_captions(
    root: Path, plan: list[DataImage], wanted: Wanted, describe: Describe, progress: Tell
) -> Outcome:
    """Describe images and write their captions, batch by batch. Written captions stay after a stop or a kill.

    Args:
        progress: called with the number of images done and the name of the next.

    Raises:
        UserError: describing failed, or no answer could be used. ``Journal.undo`` undoes what was written before.
    """
    outcome = Outcome([], {})
    refused: list[AnswerError] = []
    with Journal(root).job("captions") as job:
        for start in range(0, len(plan), wanted.batch):
            progress(start, plan[start].name)
            batch = plan[start : start + wanted.batch]
            for one, said in _described(root, batch, describe, outcome, refused):
                text = " ".join("".join(s for s in said if s.isprintable() or s.isspace()).split())
                reason = "the model gave no text" if not text else _cannot_take(root, one, text, wanted)
                if reason:
                    outcome.left[one.name] = reason
                    continue
                target = one.caption() or f"{one.stem}.txt"
                old = [target] if (root / target).exists() else []
                job.replace(old, {target: partial(_write, _whole(root, one, text, wanted))})
                outcome.written.append(one.name)
    if refused and len(refused) == len(plan):
        raise refused[0]
    return outcome


def _described(
    root: Path, batch: list[DataImage], describe: Describe, outcome: Outcome, refused: list[AnswerError]
) -> list[tuple[DataImage, str]]:
    """The images of a batch that could be described, with their texts. The others are recorded.

    Args:
        refused: gets the errors of answers that cannot be used.

    Raises:
        UserError: no image of the batch was answered.
    """
    opened: dict[DataImage, Image.Image] = {}
    for one in batch:
        try:
            opened[one] = opened_rgb(root / one.name)
        except IMAGE_ERRORS as error:
            outcome.left[one.name] = f"unreadable: {error}"
    said = dict(zip(opened, describe(list(opened.values())), strict=True)) if opened else {}
    faults = {one: error for one, error in said.items() if isinstance(error, UserError)}
    answers = [error for error in faults.values() if isinstance(error, AnswerError)]
    if faults and len(faults) == len(said) and not answers:
        raise next(iter(faults.values()))
    refused += answers
    outcome.left.update({one.name: error.message for one, error in faults.items()})
    return [(one, text) for one, text in said.items() if isinstance(text, str)]


def _cannot_take(root: Path, image: DataImage, text: str, wanted: Wanted) -> str:
    """Return the reason why an image cannot get a text, given the current content of its caption file; empty if
    it can.
    """
    target = root / (image.caption() or f"{image.stem}.txt")
    if not target.exists():
        return ""
    if not target.is_file():
        return f"{target.name} is not a file"
    try:
        before = read_bytes(target, "caption", MAX_CAPTION).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return "" if wanted.mode is Mode.REPLACE else f"{target.name} is not UTF-8"
    except DataError as error:
        return error.message
    if wanted.mode is Mode.BLANK and before:
        return "it has a caption now"
    lines, made = [line for line in before.splitlines() if line.strip()], _made(text, wanted)
    if wanted.mode is Mode.APPEND and lines and all(_ends_with(line.strip(), made) for line in lines):
        return "its caption already ends with this text"
    return ""


def _ends_with(caption: str, text: str) -> bool:
    """Return whether a caption ends with a text that is not the end of a longer tag or sentence."""
    start = caption.removesuffix(text).rstrip(" \t")
    return caption.endswith(text) and (not start or start[-1] in ENDS)


def opened_rgb(path: Path) -> Image.Image:
    """Open an image as displayed: upright, with transparent areas over white.

    Raises:
        one of ``IMAGE_ERRORS``: the image is unreadable.
    """
    with Image.open(path) as opened:
        image: Image.Image = ImageOps.exif_transpose(opened)
        if is_deep(image):
            image.format = opened.format  # it determines the scale of the levels
            image = Image.fromarray(eight_bits(image))
        if image.has_transparency_data:
            clear = image.convert("RGBA")
            white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, clear)
        return image.convert("RGB")


def _made(text: str, wanted: Wanted) -> str:
    prefix, suffix = wanted.prefix.strip(), wanted.suffix.strip()
    between = "" if suffix.startswith((",", ".")) or not suffix else " "
    return f"{prefix} {text}{between}{suffix}".strip()


def _whole(root: Path, image: DataImage, text: str, wanted: Wanted) -> str:
    target = root / (image.caption() or f"{image.stem}.txt")
    appends = wanted.mode is Mode.APPEND and target.is_file()
    before = read_bytes(target, "caption", MAX_CAPTION).decode("utf-8-sig").strip() if appends else ""
    made = _made(text, wanted)
    return "\n".join(_appended(line.rstrip(), made) for line in before.splitlines()) if before else made


def _appended(line: str, made: str) -> str:
    """A line of a caption with the text at its end. Each line is a caption of its own, of which training takes one."""
    return f"{line}, {made}" if line and not _ends_with(line, made) else line


def _write(text: str, target: Path) -> None:
    target.write_text(text, encoding="utf-8")
