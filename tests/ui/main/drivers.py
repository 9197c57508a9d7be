"""What a person does in the main window: real events on mapped widgets."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.ui.dialogs import Dialog
from modules.ui.form.FieldRow import FieldRow
from modules.ui.MainWindow import MainWindow
from modules.ui.pages.FormPage import FormPage
from modules.ui.pages.registry import page_of
from modules.ui.widgets.tk_support import ErrorDialog

_KEYS = {
    "<": "less", ">": "greater",
    " ": "space", ".": "period", "-": "minus", "_": "underscore", "/": "slash", ",": "comma", "{": "braceleft",
    "}": "braceright", ":": "colon", "=": "equal", "~": "asciitilde",
}  # fmt: skip


class Hands:
    """Drives a window and looks at it."""

    def __init__(self, window: MainWindow) -> None:
        self.window = window
        self._errors: list[BaseException] = []
        self.asked: list[str] = []
        self._heard: list[str] = []
        window.heard = self._heard  # type: ignore[attr-defined]
        shown = window.report_callback_exception

        def report(kind: type[BaseException], error: BaseException, trace: object) -> None:
            self._errors.append(error)
            shown(kind, error, trace)  # type: ignore[arg-type]

        window.report_callback_exception = report  # type: ignore[method-assign,assignment]

    # -- looking ---------------------------------------------------------------------------------------------

    def wait(self, wanted: Callable[[], object], what: str = "", seconds: float = 20.0) -> None:
        """Let the window live until something holds."""
        end, nap = time.monotonic() + seconds, 0.001
        while not wanted():
            assert time.monotonic() < end, what or "it does not happen"
            self.window.update()
            time.sleep(nap)
            nap = min(1.2 * nap, 0.02)  # most things happen at once; what takes longer needs the processor itself

    def rest(self, seconds: float = 0.0) -> None:
        """Let the window live for a while."""
        end = time.monotonic() + seconds
        self.window.update()
        while time.monotonic() < end:
            self.window.update()
            time.sleep(0.01)

    def row(self, path: str) -> FieldRow:
        """The row of a field, on the screen."""
        setting = self.window.state_.settings[path]
        self.window.show_page(page_of(self.window.pages, setting).key)
        self.rest()
        page = self.window.current_page()
        assert isinstance(page, FormPage)
        row = page.form.rows[path]
        if page.form.hides(path):
            page.more.invoke()
            self.rest()
        self.wait(lambda: row.shown, f"{path} is not shown")
        return row

    def dialogs(self) -> list[ErrorDialog]:
        """Messages on the screen."""
        return [child for child in self.window.winfo_children() if isinstance(child, ErrorDialog)]

    def expect_dialog(self, words: str) -> None:
        """A message with these words comes up; it is closed with Escape."""
        self.wait(lambda: any(words in d.message for d in self.dialogs()), f"no message says {words!r}")
        self.wait(self._closed)
        self._errors.clear()
        self.window.focus_force()
        self.rest()

    def _closed(self) -> bool:
        for dialog in self.dialogs():  # keys go to where the focus is, and a new window has to get it first
            if dialog.winfo_exists():  # of several, another one may have taken the key
                dialog.focus_force()
                self.window.update()
            if dialog.winfo_exists():
                dialog.event_generate("<Escape>")
        return not self.dialogs()

    def dialog(self) -> tk.Toplevel:
        """The window that was opened last."""

        def found() -> list[tk.Toplevel]:
            children = self.window.winfo_children()
            return [c for c in children if isinstance(c, tk.Toplevel) and c.winfo_viewable()]

        self.wait(found, "no window is open")
        return found()[-1]

    def button(self, text: str, within: tk.Misc | None = None) -> ttk.Button:
        """The button with this text on the screen."""

        def found() -> list[ttk.Button]:
            return [
                widget
                for widget in _below(within or self.window)
                if isinstance(widget, ttk.Button) and widget.winfo_viewable() and widget.cget("text") == text
            ]

        self.rest()
        self.wait(lambda: len(found()) == 1, f"not one button says {text!r}")
        return found()[0]

    def status(self) -> str:
        """The line at the bottom."""
        return self.window.bottom_bar.said

    def expect_status(self, words: str) -> None:
        """The line at the bottom says this, or did since it was last expected: what comes later may replace it."""
        self.wait(
            lambda: any(words in text for text in self._heard),
            f"the line at the bottom does not say {words!r} but {self.status()!r}",
        )
        self._heard.clear()

    def unexpected(self) -> list[BaseException]:
        """Errors in callbacks that no test expected."""
        return list(self._errors)

    # -- doing -----------------------------------------------------------------------------------------------

    def focus(self, widget: tk.Misc) -> None:
        """Put the keys into a widget."""
        widget.focus_force()
        self.wait(lambda: self.window.focus_get() is widget, f"{widget} does not get the focus")
        self.rest()

    def expect_focus(self, widget: tk.Misc) -> None:
        """The keys go to this widget, or soon will."""
        self.wait(
            lambda: self.window.focus_get() is widget,
            f"{widget} does not get the focus, {self.window.focus_get()} has it",
        )

    def keys(self, *names: str, to: tk.Misc | None = None) -> None:
        """Press keys where the focus is. Between two windows nothing has it for a moment."""
        for name in names:
            self.wait(lambda: to or self.window.focus_get(), "nothing has the focus")
            target = to or self.window.focus_get()
            assert target is not None
            target.event_generate(name if name.startswith("<") else f"<{_KEYS.get(name, name)}>")
            self.window.update()

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        for character in text:
            self.keys(f"<KeyPress-{_KEYS.get(character, character)}>")

    def fill(self, path: str, text: str) -> FieldRow:
        """Replace what is in a field by typing."""
        row = self.row(path)
        self.focus(row.input.focus_widget)
        self.keys("<Control-a>")
        self.keys("<Delete>")
        self.type(text)
        return row

    def click(self, widget: tk.Misc, x: int | None = None, y: int | None = None) -> None:
        """Press and release the left button in the middle of a widget, or at a place in it."""
        self.rest()
        self.wait(widget.winfo_viewable, f"{widget} is not on the screen")
        place = {
            "x": widget.winfo_width() // 2 if x is None else x,
            "y": widget.winfo_height() // 2 if y is None else y,
        }
        widget.event_generate("<Enter>", **place)
        widget.event_generate("<Motion>", **place)
        widget.event_generate("<ButtonPress-1>", **place)
        widget.event_generate("<ButtonRelease-1>", **place)
        self.window.update()

    def answer(self, label: str, *keys: str) -> None:
        """Press keys and then a button of the window that will ask: what opens it returns only with the answer."""

        def press() -> None:
            found = [c for c in self.window.winfo_children() if isinstance(c, Dialog) and c.winfo_viewable()]
            focus = self.window.focus_get()
            if not found or focus in (None, found[-1]) or focus.winfo_toplevel() is not found[-1]:
                self.window.after(10, press)
                return
            focus.focus_force()
            self.rest()
            self.asked.append(str(found[-1].body.winfo_children()[0].cget("text")))
            for key in keys:
                self.keys(key if key.startswith("<") else f"<KeyPress-{key}>")
            self.click(self.button(label, found[-1]))

        self.window.after(10, press)

    def picture(self, path: Path) -> None:
        """Keep what the screen shows."""
        from PIL import ImageGrab

        path.parent.mkdir(parents=True, exist_ok=True)
        ImageGrab.grab(xdisplay="").save(path)

    def close(self) -> None:
        """Close the window as a person does."""
        try:
            if self.window.winfo_exists():
                self.window.quit_window()
        except tk.TclError:
            pass  # closed by the test


def _below(widget: tk.Misc) -> list[tk.Misc]:
    found: list[tk.Misc] = []
    for child in widget.winfo_children():
        found += [child, *_below(child)]
    return found
