"""The pair tool: from a folder of images to preference pairs."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.PairController import PairController, PickingOptions
from modules.ui.curation.SerialWorker import SerialWorker
from modules.ui.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.theme import Theme
from modules.ui.tk_support import Pump, install_error_dialog, show_error, types_text

CONTROL, SHIFT = 0x4, 0x1


class PairTool(ttk.Frame):
    """All pages of the pair tool; fills the window it is put in.

    Args:
        window: gets the title and the keys.
        theme: looks and scale.
        closed: called when everything is on the disk and the window may go.
    """

    def __init__(self, window: tk.Tk | tk.Toplevel, theme: Theme, closed: Callable[[], None]) -> None:
        super().__init__(window, style="Back.TFrame")
        self.window = window
        self.theme = theme
        self.closed = closed
        self.pump = Pump(window)
        self.worker = SerialWorker(window, self.failed)
        self.prefetcher = ImagePrefetcher(self._image_ready)
        self.controller: PairController | None = None
        self.page: ttk.Frame | None = None
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        install_error_dialog(window)
        window.bind("<KeyPress>", self._key, add="+")
        window.bind("<KeyRelease>", self._key_released, add="+")
        window.protocol("WM_DELETE_WINDOW", self.close)

    def _image_ready(self, key: Key) -> None:
        self.pump.post(lambda: self._arrived(key))

    def _arrived(self, key: Key) -> None:
        if isinstance(self.page, ChoosingPage):
            self.page.arrived(key)

    def failed(self, error: Exception) -> None:
        """Show what went wrong."""
        show_error(self.window, error)

    def _show(self, page: ttk.Frame, title: str) -> None:
        if self.page is not None:
            self.page.destroy()
        self.page = page
        page.grid(row=0, column=0, sticky="nsew")
        self.window.title(f"{title} \u2013 Pair tool")
        self.window.focus_set()

    def start(self, options: PickingOptions, blind: bool = False) -> None:
        """Begin picking, or go on where it stopped."""

        def changed(shot):  # type: ignore[no-untyped-def]
            page.show(shot)

        self.controller = PairController(options, self.worker, changed, self.failed, self.pump.post)
        page = ChoosingPage(self, self.theme, self.controller, self.prefetcher, self.show_export, blind)
        self._show(page, options.source.name)
        self.controller.start()

    def show_export(self) -> None:
        """The page that finalises."""

    def _key(self, event: tk.Event[tk.Misc]) -> str | None:
        focus = self.window.focus_get()
        if types_text(focus) or (
            isinstance(focus, ttk.Widget)
            and str(focus.cget("takefocus")) != "0"
            and event.keysym in ("space", "Return", "KP_Enter")
        ):
            return None
        handler = getattr(self.page, "on_key", None)
        state = int(event.state)
        if handler is not None and handler(event.keysym, bool(state & CONTROL), bool(state & SHIFT)):
            return "break"
        return None

    def _key_released(self, event: tk.Event[tk.Misc]) -> None:
        handler = getattr(self.page, "on_release", None)
        if handler is not None:
            handler(event.keysym)

    def close(self) -> None:
        """Close the store, then the window."""
        if self.controller is not None:
            controller, self.controller = self.controller, None
            controller.close(self._closed)
        else:
            self._closed()

    def _closed(self) -> None:
        self.prefetcher.close()
        self.worker.close()
        self.pump.close()
        self.closed()


def run_pair_tool(source: Path | None = None) -> None:
    """The pair tool as a program of its own; returns when its window is closed."""
    root = tk.Tk(className="Tastemaker")
    theme = Theme(root)
    theme.apply("Dark", 100)
    root.geometry("1180x680")
    tool = PairTool(root, theme, root.destroy)
    tool.pack(fill="both", expand=True)
    if source is not None:
        tool.start(PickingOptions(source, source.with_name(source.name + "-pairs")))
    root.mainloop()
