"""The images of a folder with their captions: shown, selected, edited. No Tk here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from modules.tools.dataset.caption_edits import Caption, list_captions
from modules.tools.dataset.files import DataImage
from modules.tools.dataset.masking import mask_name
from modules.tools.dataset.tags import has_tag
from modules.ui.widgets.ImagePrefetcher import Masked, Shown


class Listing(NamedTuple):
    """Contents of a folder.

    Args:
        images: in order.
        names: caption file name of each image, whether it exists or not.
        plain: what is shown for each image.
        masked: the same, overlaid with its mask if it has one.
    """

    images: list[DataImage]
    names: list[str]
    plain: list[Shown]
    masked: list[Shown]


def list_folder(root: Path, subfolders: bool) -> Listing:
    """List the contents of a folder. Raises as ``list_captions`` does."""
    found = Listing([], [], [], [])
    for image, name in list_captions(root, subfolders):
        path = root / image.name
        # training reads no other images
        mask = mask_name(image) if mask_name(image) in image.masks else None
        found.images.append(image)
        found.names.append(name)
        found.plain.append(path)
        found.masked.append(path if mask is None else Masked(path, root / mask))
    return found


class CaptionList:
    """Identifies images by number and what is shown by place."""

    def __init__(self) -> None:
        self._folder = Listing([], [], [], [])
        self.captions: dict[str, Caption] = {}
        """Captions of files by name. A worker thread adds new ones."""
        self.drafts: dict[str, str] = {}
        """Typed captions that are not on disk yet."""
        self.shown: list[int] = []
        self.cursor = 0
        self._chosen: set[int] = set()
        self._anchor = 0

    def take(self, folder: Listing) -> None:
        """Take over the images found. The image at the cursor stays selected if it still exists."""
        here = self.image
        self._folder = folder
        self.show(range(len(folder.images)))
        for place, image in enumerate(folder.images):
            if here is not None and image.name == here.name:
                self.go(place)

    def forget_others(self) -> None:
        """Drop captions of images that no longer exist."""
        for name in self.captions.keys() - set(self.names):
            del self.captions[name]

    @property
    def names(self) -> list[str]:
        """The caption file name of each image, whether it exists or not."""
        return self._folder.names

    def show(self, numbers: Iterable[int]) -> None:
        """Show these images, the first one selected."""
        self.shown = list(numbers)
        self.go(0)

    # --- one image ------------------------------------------------------------------------------------------------

    @property
    def image(self) -> DataImage | None:
        """The image at the cursor."""
        return self._folder.images[self.shown[self.cursor]] if self.shown else None

    @property
    def name(self) -> str | None:
        """The caption file of the image at the cursor."""
        return self.names[self.shown[self.cursor]] if self.shown else None

    def text(self, name: str) -> str | None:
        """The caption to show; ``None`` if it does not exist or is not read yet."""
        found = self.captions.get(name)
        return self.drafts.get(name, None if found is None else found.text)

    def name_at(self, place: int) -> str:
        """The caption file of the image at a place."""
        return self.names[self.shown[place]]

    def pictures(self, masks: bool) -> list[Shown]:
        """The images and captions shown at each place."""
        found = self._folder.masked if masks else self._folder.plain
        return [found[number] for number in self.shown]

    def has_mask(self, one: DataImage, root: Path) -> None:
        """Note a new mask of an image. Ignored if the image no longer exists."""
        for number, image in enumerate(self._folder.images):
            # images of the same name in different formats share a mask
            if image.stem == one.stem:
                self._folder.masked[number] = Masked(root / image.name, root / mask_name(one))

    @property
    def all_shown(self) -> list[DataImage]:
        """The images that are shown."""
        return [self._folder.images[number] for number in self.shown]

    # --- selecting ------------------------------------------------------------------------------------------------

    def go(self, place: int, extend: bool = False, toggle: bool = False) -> None:
        """Move the cursor.

        Args:
            extend: select the range from the anchor of the selection to this place.
            toggle: add this place to the selection or remove it.
        """
        self.cursor = max(0, min(place, len(self.shown) - 1))
        if extend:
            self._chosen = set(range(min(self._anchor, self.cursor), max(self._anchor, self.cursor) + 1))
            return
        self._anchor = self.cursor
        self._chosen = self._chosen ^ {self.cursor} if toggle else {self.cursor}

    def choose_all(self) -> None:
        """Select all images shown."""
        self._chosen = set(range(len(self.shown)))

    @property
    def chosen(self) -> set[int]:
        """The selected places."""
        return {place for place in self._chosen if place < len(self.shown)}

    def meant(self, all_shown: bool) -> list[str]:
        """Caption files of the selected images, or of all images shown."""
        places = range(len(self.shown)) if all_shown else sorted(self.chosen)
        return list(dict.fromkeys(self.name_at(place) for place in places))

    # --- finding --------------------------------------------------------------------------------------------------

    def with_text(self, words: str) -> list[int]:
        """Images whose caption or name contains a text, ignoring case."""
        wanted = words.casefold()
        texts = [text.casefold() for text in self._texts()]
        # spelled out: for thousands of images a call for each would take longer than to look
        return [
            number
            for number, (text, image) in enumerate(zip(texts, self._folder.images, strict=True))
            if wanted in text or wanted in image.name.casefold()
        ]

    def with_tag(self, tag: str) -> list[int]:
        """Images whose caption has a tag."""
        wanted = tag.strip()
        return [number for number, text in enumerate(self._texts()) if has_tag(text, wanted)]

    def without_caption(self) -> list[int]:
        """Images with no caption, or an empty one."""
        blank = [name in self.captions and self.captions[name].blank for name in self.names]
        return [
            number for number, name in enumerate(self.names) if blank[number] and not self.drafts.get(name)
        ]

    def _texts(self) -> list[str]:
        """The visible part of each image's caption; empty where there is none, or none yet."""
        captions, drafts = self.captions, self.drafts
        found = [captions.get(name) for name in self.names]
        texts = ["" if one is None else one.text or "" for one in found]
        if drafts:
            texts = [drafts.get(name, text) for name, text in zip(self.names, texts, strict=True)]
        return texts
