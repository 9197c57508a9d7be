"""Small images on a canvas, read in the background and kept as long as they are drawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PIL import ImageTk

from modules.ui.Ui import Ui
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key, prefetcher_of
from modules.ui.widgets.tk_support import Timer

BUDGET = 128 * 2**20
GATHER_MS = 30
"""Images that arrive within this time are drawn together."""


class Thumbnails:
    """The images of one widget.

    Args:
        owner: reading stops when it is destroyed.
        redraw: draws what is visible; called when images have arrived. It must request them within ``drawing``.
    """

    def __init__(self, owner: tk.Misc, ui: Ui, redraw: Callable[[], None]) -> None:
        self._owner, self._ui = owner, ui
        self._gathering = Timer(owner, GATHER_MS, redraw)
        self._photos: dict[Key, ImageTk.PhotoImage] = {}
        self._used: dict[Key, ImageTk.PhotoImage] = {}
        self._wanted: list[Key] = []
        self._prefetcher: ImagePrefetcher | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Wrap one pass of drawing. Images not requested in it are forgotten; missing ones are read."""
        self._used, self._wanted = {}, []
        yield
        self._photos = self._used
        if self._wanted:
            self._images().want(self._wanted)

    def get(self, key: Key) -> ImageTk.PhotoImage | str:
        """The image of a file scaled to a box, or the text to write in its place."""
        photo = self._photos.get(key)
        if photo is None and (image := self._images().get(*key)) is not None:
            photo = ImageTk.PhotoImage(image, master=self._owner)
        if photo is not None:
            self._used[key] = photo
            return photo
        failure = self._images().failure(key[0])
        if failure is None:
            self._wanted.append(key)
        return failure or "\u2026"

    def forget(self) -> None:
        """Files have changed: read them again when they are next drawn."""
        self._photos = {}
        if self._prefetcher is not None:
            self._prefetcher.forget_all()

    def _images(self) -> ImagePrefetcher:
        if self._prefetcher is None:
            self._prefetcher = prefetcher_of(
                self._owner, self._ui.pump, lambda _path: self._gathering.start(), BUDGET
            )
        return self._prefetcher
