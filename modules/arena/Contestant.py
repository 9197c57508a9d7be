"""A set of images with prompts and seeds, to be compared with others of the same prompts and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.util.dpo_curation_util import IMAGE_EXTENSIONS
from modules.util.errors import DataError, list_offenders
from modules.util.image_metadata_util import extract_metadata
from modules.util.owned_files import shown

Question = tuple[str, int]
"""Prompt and seed."""


@dataclass(frozen=True)
class Contestant:
    """A contestant of an arena.

    Args:
        name: displayed name, hidden until the end.
        key: identifies the model and adapter of the images in the votes.
        images: an image file for each prompt and seed.
        sources: of edits, the images that they were made from.
    """

    name: str
    key: str
    images: Mapping[Question, Path]
    sources: Mapping[Question, tuple[Path, ...]] = field(default_factory=dict)

    def theme(self, question: Question) -> str:
        """The subject of a question, whatever the seed: the prompt and, of edits, what is edited."""
        return "\n".join([question[0], *(path.name for path in self.sources.get(question, ()))])

    @classmethod
    def of_folder(cls, name: str, key: str, folder: Path) -> Contestant:
        """The images of a folder and its subfolders, by the prompt and seed in their metadata.

        Raises:
            DataError: the folder does not exist, or no image in it has both.
        """
        if not folder.is_dir():
            raise DataError(f"there is no folder {shown(folder)}", "--between", "check the path")
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_EXTENSIONS)
        images: dict[Question, Path] = {}
        silent = []
        for path in files:
            about = extract_metadata(path)
            if about["prompt"] is None or about["seed"] is None:
                silent.append(path.name)
            else:
                images.setdefault((about["prompt"], int(about["seed"])), path)
        if not images:
            raise DataError(
                f"no image in {shown(folder)} names its prompt and seed"
                + (f":\n{list_offenders(silent)}" if silent else ""),
                "--between",
                "use images as the generating program saved them",
            )
        return cls(name, key, images)
