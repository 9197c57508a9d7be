"""The caption of one image, to be written."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from tkinter import ttk

from modules.ui.texts import captions as words
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.tk_support import elide_middle

LONGEST_NAME = 40


@dataclass(frozen=True)
class FieldActions:
    """What the field asks for.

    Args:
        save: what was typed is to be saved.
        step: show the image this number of places on, and stay in the field.
        leave: give the keys back to the grid.
    """

    save: Callable[[], None]
    step: Callable[[int], None]
    leave: Callable[[], None]


class CaptionField(ttk.Frame):
    """A text with the name of its image above it."""

    def __init__(self, parent: tk.Misc, theme: Theme, actions: FieldActions) -> None:
        super().__init__(parent)
        px = theme.px
        self._actions = actions
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
        self.box.bind("<FocusOut>", lambda _event: actions.save())
        self.box.bind("<Shift-Return>", lambda _event: None)
        for key, step in (("<Return>", 1), ("<KP_Enter>", 1), ("<Next>", 1), ("<Prior>", -1)):
            self.box.bind(key, lambda _event, step=step: self._step(step))  # type: ignore[misc]
        self.box.bind("<Escape>", lambda _event: self._drop())
        self.box.bind("<Tab>", lambda event: self._tab(event.widget.tk_focusNext()))
        for key in ("<Shift-Tab>", "<ISO_Left_Tab>"):
            if key == "<Shift-Tab>" or self.tk.call("tk", "windowingsystem") == "x11":
                self.box.bind(key, lambda event: self._tab(event.widget.tk_focusPrev()))

    @property
    def typed(self) -> str:
        """What it holds, without spaces around it."""
        return self.box.get("1.0", "end").strip()

    @property
    def changed(self) -> bool:
        """Whether something was typed since it was shown or saved."""
        return self.name is not None and self.typed != self._saved

    def show(self, name: str | None, title: str, text: str | None, fault: str = "") -> None:
        """Put up a caption.

        Args:
            name: of its file; ``None`` for no image.
            text: ``None`` while it is not read yet.
            fault: why it cannot be changed.
        """
        same_image, self._shown = name == self._shown, name
        self.name = name if text is not None and not fault else None
        self._saved = (text or "").strip()
        self._title.configure(text=elide_middle(title, LONGEST_NAME))
        self.box.configure(state="normal")
        # what was undone here must not bring back what another image said
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
        """Let nothing be typed while captions are changed by something else, which would be overwritten."""
        self._locked = on
        self._set_state()

    def _set_state(self) -> None:
        self.box.configure(state="disabled" if self._locked or self.name is None else "normal")

    def saved(self, text: str) -> None:
        """This is what is saved, or on its way."""
        self._saved = text.strip()

    def _step(self, step: int) -> str:
        self._actions.step(step)
        return "break"

    def _drop(self) -> str:
        # in a field that takes nothing this does nothing
        self.box.delete("1.0", "end")
        self.box.insert("1.0", self._saved)
        self._actions.leave()
        return "break"

    def _tab(self, to: tk.Misc | None) -> str:
        if to is not None:
            to.focus_set()
        return "break"
