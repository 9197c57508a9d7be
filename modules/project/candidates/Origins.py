"""Sources of images that a person brings."""

from __future__ import annotations

from pathlib import Path

from modules.curation.intake.edit_sources import EditOptions, SourceFinder
from modules.util.image_metadata.limits import Unusable
from modules.util.image_metadata_util import ImageMetadata


class Origins:
    """Finds the source images of edits as the pair tool does.

    Args:
        options: where they are; ``None`` where only images made from prompts alone are of use, so that nothing is
            searched.
    """

    def __init__(self, options: EditOptions | None) -> None:
        self._options = options
        self._finders: dict[Path, SourceFinder] = {}

    def _finder(self, path: Path) -> tuple[SourceFinder, str]:
        """Return the finder of an image's sources, and its name for the image."""
        # sources may be in a folder next to that of the images
        root = path.parent.parent
        if root not in self._finders:
            self._finders[root] = SourceFinder(root, self._options or EditOptions())
        return self._finders[root], path.relative_to(root).as_posix()

    def is_source(self, path: Path) -> bool:
        """Return whether it is what another one was made from."""
        if self._options is None:
            return False
        folder = self._options.input_dir
        if folder is not None and path.absolute().is_relative_to(folder.absolute()):
            return True
        finder, name = self._finder(path)
        return finder.is_source(name)

    def of(self, path: Path, about: ImageMetadata) -> tuple[Path, ...] | None:
        """Its sources; none of an image made from a prompt alone; ``None`` of an edit without usable sources."""
        if self._options is None:
            return None if about.sources else ()
        finder, name = self._finder(path)
        try:
            return tuple(source.path for source in finder.find(name, about))
        except Unusable:
            return None
