"""The text field for the caption of one image."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.texts import captions as words
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.tk_support import elide_middle, on_event

LONGEST_NAME = 40


class CaptionField(ttk.Frame):
    """A text field below the name of its image.

    Args:
        save: saves the typed text.
        step: shows the image this many places ahead and keeps the focus in the field.
        leave: returns the focus to the grid.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        save: Callable[[], None],
        step: Callable[[int], None],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(parent)
        px = theme.px
        self._go, self._leave = step, leave
        self.name: str | None = None
        self._shown: str | None = None
        self._saved = ""
        self._locked = False
        self.columnconfigure(0, weight=1)
        self._title = ttk.Label(self, style="Bold.TLabel")
        self._title.grid(row=0, column=0, sticky="w")
        self.box = tk.Text(self, wrap="word", width=20, height=4, undo=True, maxundo=1000)
        style_text(theme, self.box)
        self.box.grid(row=1, column=0, sticky="ew", pady=px(4))
        self._hint = ttk.Label(self, style="Small.TLabel", wraplength=px(320), justify="left")
        self._hint.grid(row=2, column=0, sticky="w")
        self.box.bind("<FocusOut>", lambda _event: save())
        self.box.bind("<Shift-Return>", lambda _event: None)
        for key, places in (("<Return>", 1), ("<KP_Enter>", 1), ("<Next>", 1), ("<Prior>", -1)):
            self.box.bind(key, on_event(self._step, places))
        self.box.bind("<Escape>", lambda _event: self._drop())
        self.box.bind("<Tab>", lambda event: self._tab(event.widget.tk_focusNext()))
        for key in ("<Shift-Tab>", "<ISO_Left_Tab>"):
            if key == "<Shift-Tab>" or self.tk.call("tk", "windowingsystem") == "x11":
                self.box.bind(key, lambda event: self._tab(event.widget.tk_focusPrev()))

    @property
    def typed(self) -> str:
        """The typed text, stripped."""
        return self.box.get("1.0", "end").strip()

    @property
    def changed(self) -> bool:
        """True if the text differs from what was last shown or saved."""
        return self.name is not None and self.typed != self._saved

    def show(self, name: str | None, title: str, text: str | None, fault: str = "") -> None:
        """Show a caption.

        Args:
            name: name of the caption file; ``None`` for no image.
            text: the caption; ``None`` until it is read.
            fault: why the caption cannot be edited.
        """
        same_image, self._shown = name == self._shown, name
        self.name = name if text is not None and not fault else None
        self._saved = (text or "").strip()
        self._title.configure(text=elide_middle(title, LONGEST_NAME))
        self.box.configure(state="normal")
        # undo must not bring back the caption of another image
        if self.typed != self._saved or not self._saved or not same_image:
            self.box.delete("1.0", "end")
            self.box.insert("1.0", self._saved)
            self.box.edit_reset()
        self._hint.configure(
            text=words.UNREADABLE.format(reason=fault) if fault else words.SEVERAL_LINES,
            style="Error.TLabel" if fault else "Small.TLabel",
        )
        self._set_state()

    def lock(self, on: bool) -> None:
        """Block typing while another action changes captions; it would overwrite the typed text."""
        self._locked = on
        self._set_state()

    def _set_state(self) -> None:
        self.box.configure(state="disabled" if self._locked or self.name is None else "normal")

    def saved(self, text: str) -> None:
        """Note the text that is saved or being saved."""
        self._saved = text.strip()

    def _step(self, step: int) -> str:
        self._go(step)
        return "break"

    def _drop(self) -> str:
        # has no effect while the field is disabled
        self.box.delete("1.0", "end")
        self.box.insert("1.0", self._saved)
        self._leave()
        return "break"

    def _tab(self, to: tk.Misc | None) -> str:
        if to is not None:
            to.focus_set()
        return "break"
