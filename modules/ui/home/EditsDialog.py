"""A dialog that asks where edited images and their source images are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tkinter import ttk

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions, options_of_form
from modules.ui.dialogs import Dialog
from modules.ui.form.PathRow import PathRow
from modules.ui.texts import home as words
from modules.ui.texts import start
from modules.ui.Ui import Ui
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.files.user_path import user_path

WIDTH, HEIGHT = 620, 340


class EditsDialog(Dialog):
    """Asks for images that are all edits. Nothing happens before its first button.

    Args:
        take: called with the images, and where their sources are.
        images: the images or their folder, if they are known.
        reason: why it asks, if the person did not choose to.
        places: where their sources were looked for.
    """

    def __init__(
        self,
        ui: Ui,
        take: Callable[[Path | Sequence[Path], EditOptions], object],
        images: Path | Sequence[Path] | None = None,
        reason: str = "",
        places: EditOptions = NO_EDITS,
    ) -> None:
        super().__init__(ui, words.EDITS_TITLE, width=WIDTH, height=HEIGHT, scrolls=True)
        self._take = take
        self._files = None if images is None or isinstance(images, Path) else images
        px = ui.theme.px
        self.body.columnconfigure(1, minsize=px(120))
        self.body.columnconfigure(2, weight=1)
        about = ttk.Label(
            self.body, text=reason or words.EDITS_ABOUT, wraplength=px(WIDTH - 40), justify="left"
        )
        about.grid(row=0, column=1, columnspan=2, sticky="w", pady=(0, px(8)))
        self.images = PathRow(self.body, 1, ui, words.EDITED_IMAGES, self.accept, folder=words.ASK_EDITED)
        if self._files is not None:
            self.images.show(False)
            ttk.Label(self.body, text=words.EDITED_IMAGES).grid(row=1, column=1, sticky="w")
            count = ttk.Label(self.body, text=counted(len(self._files), words.IMAGE))
            count.grid(row=1, column=2, sticky="w", pady=px(3))
        elif images is not None:
            self.images.value.set(str(images))
        self.sources = PathRow(
            self.body, 2, ui, start.SOURCES, self.accept, folder=words.ASK_INPUTS, file=words.ASK_SOURCE
        )
        self.sources.value.set(str(places.image or places.input_dir or ""))
        note = ttk.Label(
            self.body, text=words.EDITS_NOTE, style="Small.TLabel", wraplength=px(WIDTH - 170), justify="left"
        )
        note.grid(row=3, column=2, sticky="w")
        self.error = ttk.Label(self.body, style="Error.TLabel", wraplength=px(WIDTH - 40), justify="left")
        self.error.grid(row=4, column=1, columnspan=2, sticky="w")
        self.read_button = self.add_button(words.READ_EDITS, self.accept, accent=True)
        self.add_button(words.CANCEL, self.cancel)
        self.present((self.images if images is None else self.sources).entry)

    def accept(self) -> None:
        """Pass on what was chosen, or say what is missing."""
        try:
            images = self._images()
            places = options_of_form(self.sources.text, edits=True)
            places.check()
        except UserError as error:
            self.error.configure(text=str(error))
            self.see(self.error)
            return
        self.destroy()
        self._take(images, places)

    def _images(self) -> Path | Sequence[Path]:
        if self._files is not None:
            return self._files
        if not self.images.text:
            raise UserError(words.NO_EDITED)
        return user_path(self.images.text)
