"""Finds the images and captions of a concept folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.pipeline.Item import Item
from modules.pipeline.nodes.prompts import MAX_CONCEPT_PROMPT_BYTES, complete_prompt, read_lines
from modules.util.display import counted
from modules.util.errors import DataError, list_offenders
from modules.util.files.caption_list import CaptionList, read_captions
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS, key_of_relative

MASK_SUFFIXES = ("-masklabel", "-condlabel")
"""Stems of files that belong to an image next to them and are not trained on themselves."""


@dataclass
class Found:
    """Content of a concept folder.

    ``faults`` lists everything unusable. ``broken`` has the keys of existing images with a fault, so that
    their partners are not reported as missing. ``warnings`` tells which images are left out and why.
    """

    items: list[Item] = field(default_factory=list)
    faults: list[DataError] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    empty_captions: int = 0
    warnings: list[str] = field(default_factory=list)


def image_paths(folder: Path, subfolders: bool) -> Iterator[Path]:
    """Images below a folder, unsorted. Hidden files and folders and mask files are not images of the concept.

    Links are followed. A folder that is reached twice, as in a loop of links, is entered once.
    """
    return (folder / relative for relative in image_names(folder, subfolders))


def image_names(folder: Path, subfolders: bool) -> Iterator[str]:
    """As ``image_paths``, but as relative names with ``/``. They are strings, because creating a path object
    takes longer than reading a small caption.
    """
    seen: set[str] = set()
    pending = [""]
    while pending:
        below = pending.pop()
        current = folder / below
        real = os.path.realpath(current)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(current) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                stem, suffix = split_suffix(name)
                if suffix.lower() in IMAGE_EXTENSIONS and not entry.is_dir():
                    if not stem.lower().endswith(MASK_SUFFIXES):
                        yield below + name
                elif subfolders and entry.is_dir():
                    pending.append(f"{below}{name}/")


def split_suffix(name: str) -> tuple[str, str]:
    """Stem and suffix of a file's name, as ``pathlib`` divides it."""
    dot = name.rfind(".")
    return (name[:dot], name[dot:]) if 0 < dot < len(name) - 1 else (name, "")


def collect_items(concept: Any, index: int, tag: str, joined: bool = False) -> Found:
    """The images of a concept with their captions, sorted by their path below its folder.

    Args:
        concept: its config (``path``, ``include_subdirectories``, ``text``).
        index: its index among the concepts of the run.
        tag: first part of the items' ids.
        joined: whether the lines of a caption are one prompt instead of alternatives.
    """
    found = Found()
    folder = Path(concept.path)
    name = f"concept {tag!r}"
    if not str(concept.path).strip():
        found.faults.append(DataError(f"{name} has no folder", hint="set its path"))
        return found
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        found.faults.append(DataError(f"{name}: the folder {concept.path} {what}", hint="check the path"))
        return found
    try:
        names = sorted(image_names(folder, concept.include_subdirectories))
    except OSError as error:
        found.faults.append(DataError(f"{name}: {error.filename} cannot be read ({error.strerror})"))
        return found
    if not names:
        hint = "switch on include_subdirectories if they are in subfolders" if _deeper(concept, folder) else None
        found.faults.append(DataError(f"{name}: there are no images in {concept.path}", hint=hint))
        return found
    try:
        captions = Captions(concept, tag, joined)
    except DataError as error:
        found.faults.append(error)
        return found
    _read_captions(captions, concept, index, folder, names, found)
    return found


def _deeper(concept: Any, folder: Path) -> bool:
    try:
        return not concept.include_subdirectories and next(image_paths(folder, True), None) is not None
    except OSError:
        return False


def _read_captions(
    captions: Captions, concept: Any, index: int, folder: Path, names: list[str], found: Found
) -> None:
    tag = captions.tag
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    # a folder "." is not part of the paths in it
    start = str(folder / "_")[:-1]
    usable = _encodable(start)
    for relative in names:
        path, key = start + relative.replace("/", os.sep), key_of_relative(relative)
        if not usable or not relative.isprintable():
            found.faults.append(
                DataError(f"concept {tag!r}: {relative!a} is not a usable file name", hint="rename the file")
            )
            found.broken.add(key)
            continue
        try:
            prompts = captions.of(relative, path)
        except DataError as error:
            found.faults.append(error)
            found.broken.add(key)
            continue
        if prompts is None:
            if captions.missing_is_fault:
                found.broken.add(key)
            continue
        # many images share a caption, so keep one copy of it
        completed = tuple([complete_prompt(prompt, concept.text) for prompt in prompts])
        prompts = known.setdefault(completed, completed)
        found.empty_captions += prompts == ("",)
        found.items.append(Item(path, f"{tag}/{relative}", key, index, prompts))
    captions.report(found)


class Captions:
    """The prompts of a concept's images, wherever they come from.

    Args:
        concept: its config.
        tag: its name in messages.
        joined: whether the lines of a caption are one prompt. Those of the file of a concept are never joined.

    Raises:
        DataError: the file with the prompts of all images cannot be used.
    """

    def __init__(self, concept: Any, tag: str, joined: bool = False) -> None:
        self._settings, self.tag, self._joined = concept.text, tag, joined
        self._folders = str(concept.source_path).strip(), concept.path
        self._source = str(concept.text.prompt_source)
        self._missing: list[str] = []
        self._shared = concept_prompts(concept, tag) if self._source == "concept" else ()
        self._listed: CaptionList | None = None
        if self._source == "metadata":
            path = _prompt_file(concept, tag, "set the prompt file of the concept, which lists its captions")
            self._listed = read_captions(path, concept.path)

    @property
    def missing_is_fault(self) -> bool:
        """True if an image without a caption is a fault; otherwise, it is left out."""
        return self._listed is None

    def of(self, relative: str, path: str) -> tuple[str, ...] | None:
        """The prompts of an image; None if it has no caption.

        Raises:
            DataError: its caption cannot be read.
        """
        found: tuple[str, ...] | None = self._shared
        if self._source == "filename":
            found = (split_suffix(relative.rpartition("/")[2])[0].strip(),)
        elif self._listed is not None:
            entry = self._listed.of(relative, split_suffix(relative)[0])
            found = None if entry is None else entry.prompts(self._settings.tag_delimiter)
        elif self._source == "sample":
            try:
                found = read_lines(split_suffix(path)[0] + str(self._settings.caption_extension))
            except FileNotFoundError:
                found = None
        if found is None and self._settings.missing_caption:
            return (self._settings.missing_caption,)
        if found is None:
            self._missing.append(relative)
        elif self._joined and self._source != "concept":
            found = (" ".join(found),)
        return found

    def report(self, found: Found) -> None:
        """Add a fault or a warning about images without a caption, and about captions without an image."""
        if self._listed is not None:
            self._report_listed(found, self._listed.unused())
        elif self._missing:
            found.faults.append(
                DataError(
                    f"concept {self.tag!r}: {counted(len(self._missing), 'image has', 'images have')} no caption "
                    f"file:\n{list_offenders(self._missing)}",
                    hint=self._move_from_sources()
                    or f"put a {self._settings.caption_extension} with the same name next to each (an empty one for "
                    "the empty prompt), set text.missing_caption, or take "
                    "the prompts from the file names or from one file for the concept",
                )
            )

    def _move_from_sources(self) -> str | None:
        """The hint for captions that were put next to the source images of edits; None if there are none."""
        sources, results = self._folders
        if not sources:
            return None
        extension = str(self._settings.caption_extension)
        files = [split_suffix(relative)[0] + extension for relative in self._missing]
        there = [file for file in files if Path(sources, file).is_file()]
        if not there:
            return None
        more = f" and {counted(len(there) - 1, 'other', 'others')}" if len(there) > 1 else ""
        return f"move {there[0]}{more} from {sources} to {results}: instructions belong next to the results"

    def _report_listed(self, found: Found, unused: list[str]) -> None:
        path = self._settings.prompt_path
        if not found.items and not found.faults:
            found.faults.append(
                DataError(
                    f"concept {self.tag!r}: {path} lists none of its images:\n{list_offenders(unused)}",
                    hint="names in it are relative to the folder of the concept, or full paths of images below it; "
                    "switch on include_subdirectories if they are in subfolders",
                )
            )
            return
        if self._missing:
            found.warnings.append(
                f"concept {self.tag!r}: {counted(len(self._missing), 'image is', 'images are')} not listed in {path} "
                f"and left out; text.missing_caption gives them a caption:\n{list_offenders(self._missing)}"
            )
        if unused:
            found.warnings.append(
                f"concept {self.tag!r}: {counted(len(unused), 'name', 'names')} in {path} "
                f"{'has' if len(unused) == 1 else 'have'} no image below its folder:\n{list_offenders(unused)}"
            )


def _encodable(name: str) -> bool:
    """Return whether a name is valid text. On some systems, file names may be any bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def concept_prompts(concept: Any, tag: str) -> tuple[str, ...]:
    """The prompts of a concept whose images share one text file.

    Raises:
        DataError: the file does not exist, or has no text.
    """
    hint = "set the prompt file of the concept, with one prompt per line"
    path = _prompt_file(concept, tag, hint)
    try:
        return read_lines(Path(path), MAX_CONCEPT_PROMPT_BYTES)
    except FileNotFoundError:
        raise DataError(f"concept {tag!r}: the prompt file {path} does not exist", hint=hint) from None


def _prompt_file(concept: Any, tag: str, hint: str) -> str:
    path = str(concept.text.prompt_path).strip()
    if not path:
        raise DataError(f"concept {tag!r} takes its prompts from a file, but names no file", hint=hint)
    return path
