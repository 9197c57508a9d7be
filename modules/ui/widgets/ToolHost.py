"""The common base of the windows around pairs: pages, keys, worker, prefetched images, orderly shutdown."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from tkinter import ttk
from typing import Protocol, cast

from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import (
    IDLE,
    Pump,
    dialog_with_focus,
    focused,
    install_error_dialog,
    later,
    show_error,
    types_text,
)

CONTROL, SHIFT = 0x4, 0x1
ALT = 0x20000 if sys.platform == "win32" else 0x8
SWITCH_SECONDS = 0.001
"""Scanning and decoding threads yield to the window after this time, a fifth of the default: one redraw takes
the interpreter's lock dozens of times.
"""
PRESSING = ("space", "Return", "KP_Enter", "Up", "Down")
NO_FOCUS = ("", "0")
"""``takefocus`` of widgets that have no use for these keys: labels, frames, scrollbars. A click may still give them the
focus.
"""


class Page(Protocol):
    """Optional methods of a page."""

    def on_key(self, key: str, control: bool, shift: bool) -> bool: ...

    def on_release(self, key: str) -> None: ...

    def arrived(self, key: Key) -> None: ...


class ToolHost(ttk.Frame):
    """Fills its window and shows one page at a time.

    Args:
        window: the window whose title and keys are set.
        closed: called when everything is on disk and the window may be destroyed.
    """

    name = ""

    def __init__(self, window: tk.Tk | tk.Toplevel, theme: Theme, closed: Callable[[], None]) -> None:
        super().__init__(window, style="Back.TFrame")
        self.window = window
        self.theme = theme
        self.pump = Pump(window)
        self.worker = SerialWorker(window, self.failed)
        self.prefetcher = ImagePrefetcher(lambda key: self.pump.post(lambda: self._arrived(key)))
        self.page: ttk.Frame | None = None
        self._when_closed = closed
        self._closing = False
        self._held: set[str] = set()
        self._then: Callable[[], object] | None = None
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        sys.setswitchinterval(SWITCH_SECONDS)
        install_error_dialog(window)
        window.bind("<KeyPress>", self._key, add="+")
        window.bind("<KeyRelease>", lambda event: self._released(event.keysym), add="+")
        window.bind("<FocusOut>", lambda _event: later(self, IDLE, self._release_all), add="+")
        window.protocol("WM_DELETE_WINDOW", self.close)

    def show(self, page: ttk.Frame, title: str) -> None:
        """Replace the current page."""
        if self.page is not None:
            self.page.destroy()
        self.page = page
        page.grid(row=0, column=0, sticky="nsew")
        self.window.title(f"{title} \u2013 {self.name}" if title else self.name)
        if dialog_with_focus(self) is None:
            self.window.focus_set()

    def failed(self, error: Exception) -> None:
        """Show an error. If closing failed because of it, the window can be closed again."""
        self.stay()
        show_error(self.window, error)

    def _arrived(self, key: Key) -> None:
        if hasattr(self.page, "arrived"):
            cast(Page, self.page).arrived(key)

    def _key(self, event: tk.Event[tk.Misc]) -> str | None:
        focus = focused(self.window)
        if types_text(focus) and event.keysym != "Escape":
            return None
        if event.keysym in PRESSING and isinstance(focus, ttk.Widget) and str(focus.cget("takefocus")) not in NO_FOCUS:
            return None
        if not hasattr(self.page, "on_key"):
            return None
        state = int(event.state)
        control = bool(state & CONTROL)
        if state & ALT:
            if sys.platform != "darwin":
                return None
            control = True  # the command key
        self._held.add(event.keysym)
        taken = cast(Page, self.page).on_key(event.keysym, control, bool(state & SHIFT))
        return "break" if taken else None

    def _release_all(self) -> None:
        """Release all keys if another window has the focus, because their release is not heard here."""
        focus = focused(self.window)
        if focus is None or focus.winfo_toplevel() is not self.window:
            self._released(*self._held)

    def _released(self, *keys: str) -> None:
        self._held.difference_update(keys)
        for key in keys if hasattr(self.page, "on_release") else ():
            cast(Page, self.page).on_release(key)

    def close(self, then: Callable[[], object] | None = None) -> None:
        """Finish running work, then close.

        Args:
            then: called when the window is closed; never if it stays open.
        """
        self._then = then or self._then
        if not self._closing:
            self._closing = True
            self.prepare_close(self._end)

    def stay(self) -> None:
        """Cancel closing the window."""
        self._closing, self._then = False, None

    def prepare_close(self, then: Callable[[], None]) -> None:
        """Save what must be saved before closing."""
        then()

    def _end(self) -> None:
        self.prefetcher.close()
        self.worker.close()
        self.pump.close()
        if self.page is not None:
            self.page.destroy()
            self.page = None
        then = self._then
        self._when_closed()
        if then is not None:
            then()
