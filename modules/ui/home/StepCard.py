"""A card for one step of a round: state, some images, one button."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from tkinter import ttk

from PIL import ImageTk

from modules.ui.texts import home as words
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ThinBar import ThinBar
from modules.ui.widgets.tk_support import show_in_grid

THUMB = 60
GAP = 4
MOST = 6
BUTTON_WIDTH = 17
RING = "ring"
TEXT_WIDTH = 210
"""Minimum width of the texts. The images give way."""


class StepCard(ttk.Frame):
    """A card that shows the state of a step.

    Args:
        press: action of the button.
        prefetcher: decodes the images.
        look: shows images enlarged, starting at the clicked one, or at the first after Return or space.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        key: str,
        press: Callable[[], object],
        prefetcher: ImagePrefetcher,
        look: Callable[[Sequence[Path], int], object],
    ) -> None:
        px = theme.px
        super().__init__(parent, padding=(px(14), px(9)))
        self._theme, self._prefetcher, self._look = theme, prefetcher, look
        self._paths: tuple[Path, ...] = ()
        self._room = MOST
        self._photos: list[ImageTk.PhotoImage] = []
        self.columnconfigure(0, weight=1)
        ttk.Label(self, text=words.TITLES[key], style="Bold.TLabel").grid(row=0, column=0, sticky="w")
        self.state_label = self._text("TLabel", 1)
        self.reason = self._text("Muted.TLabel", 2)
        self.fault = self._text("Error.TLabel", 3)
        self.bar = ThinBar(self, theme)
        self.bar.grid(row=4, column=0, sticky="ew", pady=(px(5), 0))
        self.bar.grid_remove()
        self.pictures = tk.Canvas(
            self,
            width=MOST * px(THUMB + GAP),
            height=px(THUMB),
            highlightthickness=0,
            borderwidth=0,
            takefocus=0,
            cursor="hand2",
        )
        self.pictures.bind("<ButtonRelease-1>", self._clicked)
        for key_name in ("Return", "KP_Enter", "space"):
            self.pictures.bind(f"<{key_name}>", self._pressed)
        for event in ("<FocusIn>", "<FocusOut>"):
            self.pictures.bind(event, lambda _event: self._show_focus())
        self.pictures.grid(row=0, column=1, rowspan=6, sticky="e", padx=(px(12), 0))
        theme.on_change(lambda: self.pictures.configure(background=theme.palette.panel), self)
        self.side = ttk.Frame(self)
        self.side.grid(row=0, column=2, rowspan=6, sticky="e", padx=(px(12), 0))
        self.rowconfigure(5, weight=1)  # texts stay together if the buttons are higher
        self.button = self.add_button(words.BUTTONS[key], press)
        self.bind("<Configure>", lambda _event: self._fit())

    def _fit(self) -> None:
        """Show as many images as fit next to the texts and the buttons."""
        px = self._theme.px
        taken = px(TEXT_WIDTH) + self.side.winfo_reqwidth() + px(2 * 14 + 2 * 12)
        room = max(0, min(MOST, (self.winfo_width() - taken) // px(THUMB + GAP)))
        if room != self._room:
            self._room = room
            self.pictures.configure(width=max(1, room * px(THUMB + GAP)))
            self.draw()

    def _text(self, style: str, row: int) -> ttk.Label:
        label = ttk.Label(self, style=style, justify="left", width=1)
        label.grid(row=row, column=0, sticky="ew")
        label.grid_remove()
        label.bind("<Configure>", lambda event: label.configure(wraplength=max(1, event.width)))
        return label

    def add_button(self, text: str, press: Callable[[], object]) -> ttk.Button:
        """Add a button below the others."""
        button = ttk.Button(self.side, text=text, width=BUTTON_WIDTH, command=press)
        button.bind("<Return>", lambda _event: button.invoke())
        button.pack(pady=(0 if not self.side.winfo_children()[1:] else self._theme.px(4), 0))
        return button

    def show(self, state: str, reason: str = "", fault: str = "", share: float | None = None) -> None:
        """Show the state, why the step cannot be taken, what went wrong, and the progress while it is
        running.
        """
        for label, text in ((self.state_label, state), (self.reason, reason), (self.fault, fault)):
            label.configure(text=text)
            show_in_grid(label, bool(text))
        show_in_grid(self.bar, share is not None)
        if share is not None:
            self.bar.show(share)

    def show_button(self, text: str, on: bool, main: bool) -> None:
        """Set the text of the button, whether it is enabled, and whether it is the main action."""
        self.button.configure(text=text, style="Accent.TButton" if main else "TButton")
        self.button.state(["!disabled" if on else "disabled"])

    # --- images -------------------------------------------------------------------------------------------------

    def _box(self) -> tuple[int, int]:
        return self._theme.px(THUMB), self._theme.px(THUMB)

    def wanted(self, paths: Sequence[Path]) -> list[Key]:
        """Show the last of these images. Returns what has to be decoded."""
        shown = tuple(paths[-MOST:])
        show_in_grid(self.pictures, bool(shown))
        if shown != self._paths:
            self._paths = shown
            self.draw()
        return [(path, self._box()) for path in shown]

    def _shown(self) -> tuple[tuple[Path, ...], int]:
        """The images that fit, and the horizontal position of the first."""
        shown = self._paths[len(self._paths) - min(self._room, len(self._paths)) :]
        return shown, (self._room - len(shown)) * self._theme.px(THUMB + GAP)

    def _clicked(self, event: tk.Event[tk.Misc]) -> None:
        shown, left = self._shown()
        place = (event.x - left) // self._theme.px(THUMB + GAP)
        if 0 <= place < len(shown):
            self._look(shown, place)

    def _pressed(self, _event: tk.Event[tk.Misc]) -> str:
        shown, _ = self._shown()
        if shown:
            self._look(shown, 0)
        return "break"

    def _show_focus(self) -> None:
        """Draw a frame around the images that the keys would open."""
        px, canvas = self._theme.px, self.pictures
        canvas.delete(RING)
        shown, left = self._shown()
        if not shown or canvas.focus_get() is not canvas:
            return
        width = px(2)
        right = left + len(shown) * px(THUMB + GAP) - px(GAP)
        canvas.create_rectangle(
            left + width // 2, width // 2, right - width // 2 - 1, px(THUMB) - width // 2 - 1,
            outline=self._theme.palette.accent, width=width, tags=RING,
        )  # fmt: skip

    def draw(self) -> None:
        """Draw the decoded images at the right end."""
        px, canvas = self._theme.px, self.pictures
        canvas.delete("all")
        photos = []
        shown, left = self._shown()
        for place, path in enumerate(shown):
            image = self._prefetcher.get(path, self._box())
            if image is not None:
                photos.append(ImageTk.PhotoImage(image))
                middle = left + place * px(THUMB + GAP) + px(THUMB) // 2
                canvas.create_image(middle, px(THUMB) // 2, image=photos[-1])
        self._photos = photos
        canvas.configure(takefocus=1 if shown else 0)
        self._show_focus()

    def destroy(self) -> None:
        self._photos = []  # pixels, which must not wait for the garbage collector
        super().destroy()
