"""Small modal windows: a question, a choice, a list to read."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from tkinter import ttk
from typing import TypeVar

from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import chosen_line, make_modal, pack_with_bar, place_over, set_text

T = TypeVar("T")
SOON = 0.3
"""Seconds that work may take before a window says that it is being done."""
MASK = "\u2022"
FRAME = 60
"""Height of the title bar of the desktop, at 100 %."""


class Dialog(tk.Toplevel):
    """A modal window with a body and a row of buttons; Escape closes it.

    Args:
        width, height: size at 100 %; 0 fits the content.
        scrolls: the body scrolls if it is higher than the screen.
    """

    def __init__(self, ui: Ui, title: str, width: int = 0, height: int = 0, scrolls: bool = False) -> None:
        super().__init__(ui.root)
        self.ui = ui
        self.withdraw()
        self.title(title)
        px = ui.theme.px
        self.configure(background=ui.theme.palette.panel)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self._body_scroll = ScrollFrame(self, ui.theme, auto_hide=True, fill=True) if scrolls else None
        if self._body_scroll is None:
            self.body = ttk.Frame(self)
            self.body.grid(row=0, column=0, sticky="nsew")
        else:
            self.body = self._body_scroll.inside
            self._body_scroll.canvas.configure(background=ui.theme.palette.panel)
            self._body_scroll.grid(row=0, column=0, sticky="nsew")
        self.body.configure(style="TFrame", padding=(px(16), px(14)))
        self.foot = ttk.Frame(self, padding=(px(16), px(8), px(16), px(14)))
        self.foot.grid(row=1, column=0, sticky="ew")
        self._size = (px(width) if width else 0, px(height) if height else 0)
        self.bind("<Escape>", lambda _event: self.cancel())
        self.protocol("WM_DELETE_WINDOW", self.cancel)

    def add_button(self, text: str, command: Callable[[], object], accent: bool = False) -> ttk.Button:
        """Add a button to the left of those added before. Tab goes through all of them from left to right."""
        style = "Accent.TButton" if accent else "TButton"
        button = ttk.Button(self.foot, text=text, style=style, command=command)
        button.bind("<Return>", lambda _event: button.invoke())
        button.pack(side="right", padx=(self.ui.theme.px(6), 0))
        button.lower()  # Tab follows the stacking order
        return button

    def see(self, widget: tk.Misc) -> None:
        """Scroll until a widget of the body is visible."""
        if self._body_scroll is not None:
            self.update_idletasks()
            self._body_scroll.see(widget)

    def cancel(self) -> None:
        """Close without an answer."""
        self.destroy()

    def present(self, focus: tk.Misc | None = None) -> None:
        """Show it centred over the main window, within the screen, and grab the input."""
        if self._body_scroll is not None:
            self.update_idletasks()
            room = self.winfo_screenheight() - self.foot.winfo_reqheight() - self.ui.theme.px(FRAME)
            height = min(self.body.winfo_reqheight(), max(self.ui.theme.px(FRAME), room))
            self._body_scroll.canvas.configure(width=self.body.winfo_reqwidth(), height=height)
        place_over(self, self.ui.root, self._size)
        make_modal(self, self.ui.root)
        (focus or self).focus_set()


def secret_entry(body: ttk.Frame, ui: Ui, show: str) -> ttk.Entry:
    """Add an entry that hides what is typed, and a switch called ``show``."""
    entry = ttk.Entry(body, show=MASK, font=ui.theme.fonts["text"])
    entry.pack(fill="x", pady=ui.theme.px(6))
    visible = tk.BooleanVar(body, False)

    def follow() -> None:
        entry.configure(show="" if visible.get() else MASK)

    ttk.Checkbutton(body, text=show, variable=visible, command=follow).pack(anchor="w")
    return entry


class Question(Dialog):
    """A question that does not block the caller. Each button runs its action; Escape presses the last one.

    Args:
        question: text above the buttons.
    """

    def __init__(self, ui: Ui, title: str, question: str) -> None:
        super().__init__(ui, title, width=460)
        ttk.Label(self.body, text=question, wraplength=ui.theme.px(430), justify="left").pack(anchor="w")
        self._buttons: list[ttk.Button] = []

    def offer(self, label: str, act: Callable[[], object]) -> None:
        """Add a button that closes the window and runs ``act``. Enter presses the first one."""

        def take() -> None:
            self.destroy()
            act()

        self._buttons.append(self.add_button(label, take, accent=not self._buttons))

    def cancel(self) -> None:
        """Press the last button."""
        self._buttons[-1].invoke()

    def present(self, focus: tk.Misc | None = None) -> None:
        """Show it with the focus on its first button."""
        super().present(focus or self._buttons[0])


def ask_text(ui: Ui, title: str, question: str) -> str | None:
    """Ask for a line of text; ``None`` if cancelled."""
    answer: list[str] = []
    dialog = Dialog(ui, title, width=420)
    ttk.Label(dialog.body, text=question).pack(anchor="w")
    entry = ttk.Entry(dialog.body, width=40, font=ui.theme.fonts["text"])
    entry.pack(fill="x", pady=(ui.theme.px(6), 0))

    def take(_event: object = None) -> None:
        if entry.get().strip():
            answer.append(entry.get().strip())
            dialog.destroy()

    dialog.add_button("OK", take, accent=True)
    dialog.add_button("Cancel", dialog.cancel)
    entry.bind("<Return>", take)
    dialog.present(entry)
    ui.root.wait_window(dialog)
    return answer[0] if answer else None


def ask_choice(ui: Ui, title: str, question: str, labels: Sequence[str]) -> int | None:
    """Ask for one of several labels and return its position; ``None`` if cancelled."""
    answer: list[int] = []
    dialog = Dialog(ui, title, width=420)
    ttk.Label(dialog.body, text=question).pack(anchor="w")
    box = tk.Listbox(dialog.body, height=min(12, max(3, len(labels))), exportselection=False)
    style_text(ui.theme, box)
    box.insert("end", *labels)
    box.selection_set(0)
    box.pack(fill="both", expand=True, pady=(ui.theme.px(6), 0))

    def take(_event: object = None) -> None:
        chosen = chosen_line(box)
        if chosen is not None:
            answer.append(chosen)
            dialog.destroy()

    for key in ("<Return>", "<Double-Button-1>"):
        box.bind(key, take)
    dialog.add_button("OK", take, accent=True)
    dialog.add_button("Cancel", dialog.cancel)
    dialog.present(box)
    ui.root.wait_window(dialog)
    return answer[0] if answer else None


def confirm(ui: Ui, title: str, question: str, yes: str, no: str = "Cancel", loses: bool = False) -> bool:
    """Ask a yes-or-no question. Return whether the person agrees.

    Args:
        loses: yes loses something for good, so Enter presses no.
    """
    return ask_buttons(ui, title, question, (yes, no), usual=1 if loses else 0) == 0


def ask_buttons(ui: Ui, title: str, question: str, labels: Sequence[str], usual: int = 0) -> int | None:
    """Ask with one button per label and return the position of the one pressed. Enter presses the usual one."""
    answer: list[int] = []
    dialog = Dialog(ui, title, width=460)
    ttk.Label(dialog.body, text=question, wraplength=ui.theme.px(430), justify="left").pack(anchor="w")

    def take(index: int) -> None:
        answer.append(index)
        dialog.destroy()

    buttons = [
        dialog.add_button(label, partial(take, index), accent=index == usual)
        for index, label in enumerate(labels)
    ]
    dialog.present(buttons[usual])
    ui.root.wait_window(dialog)
    return answer[0] if answer else None


class _Cancelled(Exception):
    """The person has cancelled the work."""


def wait_for(
    ui: Ui, title: str, text: str, cancel: str, work: Callable[[Callable[[], None]], T]
) -> T | None:
    """Run ``work`` in the background and return its result; ``None`` if cancelled. What it raises is raised here.

    The main window takes no input meanwhile. If it takes longer than ``SOON``, a dialog says so and offers to cancel.

    Args:
        cancel: text of the button.
        work: is given a function that ends it, by an exception, once the person has cancelled. It must call it often.
    """
    result: Future[T] = Future()
    cancelled = threading.Event()

    def proceed() -> None:
        if cancelled.is_set():
            raise _Cancelled

    def run() -> None:
        try:
            result.set_result(work(proceed))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="background-work").start()
    with suppress(TimeoutError):
        return result.result(SOON)
    dialog = Dialog(ui, title, width=420)
    ttk.Label(dialog.body, text=text, wraplength=ui.theme.px(390), justify="left").pack(anchor="w")
    button = dialog.add_button(cancel, dialog.cancel)

    ended = threading.Event()

    def close() -> None:
        if dialog.winfo_exists():
            ended.set()
            dialog.destroy()

    dialog.present(button)
    # not before: a window that closes while it appears is an error
    result.add_done_callback(lambda _result: ui.pump.post(close))
    ui.root.wait_window(dialog)
    if ended.is_set():
        return result.result()
    cancelled.set()
    return None


def show_notes(ui: Ui, title: str, head: str, lines: Sequence[str]) -> Dialog:
    """Show a list to read and copy."""
    dialog = Dialog(ui, title, width=680, height=420)
    label = ttk.Label(dialog.body, text=head, wraplength=ui.theme.px(640), justify="left")
    label.pack(anchor="w", pady=(0, ui.theme.px(8)))
    box = tk.Text(dialog.body, wrap="word", height=12, width=60)
    style_text(ui.theme, box)
    set_text(box, "\n".join(lines))
    pack_with_bar(box)

    def copy() -> None:
        dialog.clipboard_clear()
        dialog.clipboard_append("\n".join(lines))

    close = dialog.add_button("Close", dialog.cancel, accent=True)
    dialog.add_button("Copy", copy)
    dialog.present(close)
    return dialog
