"""Finds the source images of edits: next to the result, or named in its embedded ComfyUI graph.

Names in a graph are untrusted. They are searched only in ComfyUI's input folder, and never lead out of it.
"""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from modules.util.dpo_curation_util import IMAGE_EXTENSIONS, UNCONDITIONAL, file_sha256
from modules.util.errors import UserError
from modules.util.files.user_path import user_path
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.image_metadata_util import ImageMetadata, normalise_prompt, read_metadata
from modules.util.owned_files import Owned, shown
from modules.util.pairs.source_files import MOST_SOURCES, SourceImage, source_stem

ENDINGS = ("-source", "_source")
"""Name suffixes of a source next to its result, before the extension."""
FOLDERS = ("source", "control", "input")
"""Folders next to the results in which sources have the names of their results."""
MAX_BYTES = 512 << 20
_ANNOTATED = re.compile(r"(.*) \[(input|output|temp)\]", re.DOTALL)
_FOLDERS_KEPT = 8


@dataclass(frozen=True)
class EditOptions:
    """Locations of the source images of edits.

    Args:
        edits: every image is an edit; otherwise only those whose metadata or neighbouring files indicate it.
        input_dir: ComfyUI's input folder, in which the names in its graphs are found.
        image: the source of all images.
    """

    edits: bool = False
    input_dir: Path | None = None
    image: Path | None = None

    @property
    def all_edited(self) -> bool:
        """True if every image is an edit, which is implied if the location of sources is given.

        Otherwise an image is one if its metadata names a source, or if ``NAME-source`` is next to it.
        """
        return self.edits or self.input_dir is not None or self.image is not None

    def check(self) -> None:
        """Check the locations.

        Raises:
            UserError: a location cannot hold sources. The message says which, and why.
        """
        if self.input_dir is not None and not self.input_dir.is_dir():
            raise UserError(
                f"the folder of source images {self.input_dir} does not exist", hint="check the path"
            )
        if self.image is not None:
            try:
                _check_image(self.image)
            except (Unusable, OSError) as error:
                raise UserError(
                    f"the source image {shown(self.image)} cannot be used: {error}", hint="choose an image"
                ) from error


NO_EDITS = EditOptions()


def options_of_form(sources: str, edits: bool) -> EditOptions:
    """Read from a form which images are edits. A file is the source of all images, anything else a folder of
    sources.

    Raises:
        UserError: it is not a path here.
    """
    path = user_path(sources.strip()) if sources.strip() else None
    if path is not None and path.is_file():
        return EditOptions(edits, image=path)
    return EditOptions(edits, input_dir=path)


class SourceFinder:
    """Finds the sources of the images of a folder. Lists folders and hashes sources once per scan."""

    def __init__(self, root: Path, options: EditOptions) -> None:
        self._root, self._options = root, options
        self._folders: OrderedDict[Path, dict[str, list[str]]] = OrderedDict()
        self._known: dict[Path, tuple[tuple[int, int], SourceImage]] = {}
        self._image = None if options.image is None else Path(os.path.realpath(options.image))

    def folders(self) -> list[Path]:
        """Folders that hold only sources, to be excluded from the scan."""
        return [] if self._options.input_dir is None else [self._options.input_dir]

    def is_source(self, name: str) -> bool:
        """Return whether an image, by its name relative to the folder, is a source rather than a result."""
        path = PurePosixPath(name)
        if self._image is not None and path.name == self._image.name:
            return Path(os.path.realpath(self._root / name)) == self._image
        stem = re.sub(r"\.[2-9]\Z", "", path.stem)
        if self._options.all_edited and path.parent.name in FOLDERS:
            results = self._listing(self._root / path.parent.parent)
            if path.stem in results or stem in results:
                return True
        result = next((stem.removesuffix(end) for end in ENDINGS if stem.endswith(end)), None)
        return bool(result) and result in self._listing(self._root / path.parent)

    def find(self, name: str, about: ImageMetadata) -> tuple[SourceImage, ...]:
        """The sources of an image with a prompt, in order; empty if it is not an edit.

        An image given for all comes first, then those next to the result, then those that its graph names.

        Raises:
            Unusable: it is an edit without its source, or unusable for training for another reason.
        """
        result = self._root / name
        edited = bool(about.sources) or self._options.all_edited
        try:
            paths = [self._image] if self._image is not None else self._next_to(result, edited)
            if not paths and not edited:
                return ()
            paths = paths or self._named(about.sources)
            found = tuple(self._load(path) for path in paths)
            same = any(_same_file(result, one) for one in found)
        except OSError as error:
            raise Unusable(Reason.NO_SOURCE, f"{shown(str(error.filename))}: {error.strerror}") from error
        if same:
            raise Unusable(Reason.NOT_EDITED)
        if normalise_prompt(about.prompt or "") == UNCONDITIONAL:
            raise Unusable(Reason.NO_INSTRUCTION)
        return found

    # --- next to the result ---

    def _next_to(self, result: Path, edited: bool) -> list[Path]:
        """Sources by file name. Only known edits use the folders: ``input/fox.png`` alone does not make
        ``fox.png`` an edit.
        """
        folder, stem = result.parent, result.stem
        results = self._listing(folder)
        for place, start in (
            *((folder, f"{stem}{end}") for end in ENDINGS),
            *((folder / name, stem) for name in (FOLDERS if edited else ())),
        ):
            there = self._listing(place)
            if start not in there:
                continue
            stems = [start]
            for number in range(2, MOST_SOURCES + 1):
                further = source_stem(start, number)
                # the source of fox.2 is not a second source of fox
                if further not in there or (place != folder and source_stem(stem, number) in results):
                    break
                stems.append(further)
            return [place / self._only(there[one]) for one in stems]
        return []

    @staticmethod
    def _only(names: list[str]) -> str:
        if len(names) > 1:
            raise Unusable(Reason.NO_SOURCE, f"it may be {' or '.join(names)}: keep one of them")
        return names[0]

    def _listing(self, folder: Path) -> dict[str, list[str]]:
        """Names of the images of a folder by stem; empty if the folder does not exist."""
        known = self._folders.get(folder)
        if known is None:
            known = {}
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - names alone, of a large folder
            except (FileNotFoundError, NotADirectoryError):
                names = []  # a missing folder holds no source, which is reported for each image
            for name in names:
                stem, ending = os.path.splitext(name)  # noqa: PTH122 - of every file of a large folder
                if ending.lower() in IMAGE_EXTENSIONS:
                    known.setdefault(stem, []).append(name)
            while len(self._folders) >= _FOLDERS_KEPT:
                self._folders.popitem(last=False)
            self._folders[folder] = known
        self._folders.move_to_end(folder)
        return known

    # --- named in the graph ---

    def _named(self, names: Sequence[str]) -> list[Path]:
        if not names:
            raise Unusable(Reason.NO_SOURCE, "its metadata names none, and there is none next to it")
        if len(names) > MOST_SOURCES:
            raise Unusable(Reason.NO_SOURCE, f"its metadata names more than {MOST_SOURCES}")
        if self._options.input_dir is None:
            raise Unusable(
                Reason.NO_SOURCE,
                f"the folder with {shown(names[0])} is not known: name ComfyUI's input folder",
            )
        return [self._in_folder(self._options.input_dir, name) for name in names]

    @staticmethod
    def _in_folder(folder: Path, name: str) -> Path:
        annotated = _ANNOTATED.fullmatch(name)
        if annotated is not None:
            name = annotated[1]
            if annotated[2] != "input":
                raise Unusable(Reason.NO_SOURCE, f"{shown(name)} is in ComfyUI's {annotated[2]} folder")
        try:
            return Owned(folder).plain_file(name)
        except UserError as error:
            raise Unusable(Reason.NO_SOURCE, f"{shown(name)} is not a name in {folder}") from error

    def _load(self, path: Path) -> SourceImage:
        """Load a source with its hash.

        Raises:
            Unusable: the file is missing or not an image. OSError: it is unreadable.
        """
        try:
            info = path.stat()
        except FileNotFoundError as error:
            raise Unusable(Reason.NO_SOURCE, f"{path.name} is not in {path.parent}") from error
        known = self._known.get(path)
        if known is not None and known[0] == (info.st_size, info.st_mtime_ns):
            return known[1]
        _check_image(path)
        made = SourceImage(path, file_sha256(path))
        self._known[path] = (info.st_size, info.st_mtime_ns), made
        return made


def _check_image(path: Path) -> None:
    info = path.stat()
    if not stat.S_ISREG(info.st_mode) or path.suffix.lower() not in IMAGE_EXTENSIONS:
        raise Unusable(Reason.NO_SOURCE, f"{shown(path.name)} is not an image file")
    if info.st_size > MAX_BYTES:
        raise Unusable(Reason.NO_SOURCE, f"{shown(path.name)} is larger than {MAX_BYTES >> 20} MiB")
    if read_metadata(path, sidecar=False).width < 1:
        raise Unusable(Reason.NO_SOURCE, f"{shown(path.name)} is not an image")


def _same_file(result: Path, source: SourceImage) -> bool:
    return result.stat().st_size == source.path.stat().st_size and file_sha256(result) == source.sha256
