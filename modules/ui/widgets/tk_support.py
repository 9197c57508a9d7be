"""Support for every window: results from worker threads, non-fatal error handling, modal dialogs, scaling.

Tk is called from one thread only. Workers post functions to a ``Pump``. The Tk thread runs them a few times a
second, so that many results arriving together cost one redraw.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import sys
import threading
import time
import tkinter as tk
import traceback
from bisect import bisect_right
from collections.abc import Callable
from tkinter import font as tkfont
from tkinter import ttk
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import customtkinter as ctk

from modules.ui.texts import window as words
from modules.util.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)

PUMP_MS = 50
PUMP_BUDGET_SECONDS = 0.012
IDLE: Literal["idle"] = "idle"
FULL_COLLECTION_SECONDS = 30.0
"""Interval between two full garbage collections."""
MIN_SCALE, MAX_SCALE = 75, 200
MAX_LABEL, MAX_LABEL_LINES = 420, 6

RIGHT_CLICK = "<Button-2>" if sys.platform == "darwin" else "<Button-3>"
GOOD = "#2e9e5b"
BAD = "#c8503c"
FOCUS = "#3b8ed0"


def shade(dark: str, light: str) -> str:
    """The colour that suits the current appearance, for plain Tk widgets, which do not follow it."""
    return dark if ctk.get_appearance_mode() == "Dark" else light


class _TkGarbage:
    """Collects cyclic garbage only on the Tk thread, as long as there is a pump.

    Destroyed widgets, variables and images are part of reference cycles, and their finalisers call Tk. Python
    collects on whatever thread happens to allocate: on a worker that call waits for the Tk thread, or fails.
    """

    def __init__(self) -> None:
        self._pumps = 0
        self._next_full = 0.0

    def opened(self) -> None:
        self._pumps += 1
        gc.disable()

    def closed(self) -> None:
        self._pumps -= 1
        if not self._pumps:
            gc.enable()

    def collect(self) -> None:
        """Collect what Python would have collected by now. A full collection (old objects too) is rare,
        because it blocks the window when there are many objects.
        """
        counts = list(zip(gc.get_count(), gc.get_threshold(), strict=True))
        due = [number for number, (count, limit) in enumerate(counts) if limit and count > limit]
        if not due:
            return
        start = time.monotonic()
        full = due[-1] == len(counts) - 1 and start >= self._next_full
        gc.collect(due[-1] if full else min(due[-1], len(counts) - 2))
        if full:
            end = time.monotonic()
            self._next_full = end + max(FULL_COLLECTION_SECONDS, 500 * (end - start))


_garbage = _TkGarbage()


class Pump:
    """Runs functions posted by other threads on the Tk thread, every ``PUMP_MS`` milliseconds.

    While one is open, cyclic garbage is collected only here (see ``_TkGarbage``).

    Args:
        widget: any widget that lives as long as the pump, usually the window.
    """

    def __init__(self, widget: tk.Misc) -> None:
        self._widget = widget
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._closed = False
        _garbage.opened()
        self._timer = later(widget, PUMP_MS, self._tick)

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` on the Tk thread soon. May be called from any thread; ignored after ``close``."""
        if not self._closed:
            self._posted.put(call)

    def drain(self, budget_seconds: float = PUMP_BUDGET_SECONDS) -> None:
        """Run pending calls until the time is used up. The rest wait for the next tick."""
        end = time.perf_counter() + budget_seconds
        while time.perf_counter() < end:
            try:
                call = self._posted.get_nowait()
            except queue.Empty:
                return
            call()

    def _tick(self) -> None:
        if self._closed:
            return
        self._timer = later(self._widget, PUMP_MS, self._tick)
        self.drain()
        _garbage.collect()

    def close(self) -> None:
        """Stop. Pending calls are dropped."""
        if self._closed:
            return
        self._closed = True
        _garbage.closed()
        cancel_timer(self._widget, self._timer)


def later(widget: tk.Misc, delay: int | Literal["idle"], call: Callable[..., object], *args: object) -> str:
    """Call a function once, unless the widget is gone by then. Returns a timer for ``cancel_timer``.

    ``widget.after`` would not do. A widget that goes away deletes the Tcl command behind its timer, but not the timer.
    The name of the command is a memory address, so a newer command may get it, and the timer would run that one: a
    button's, for example. Here the command belongs to the root, which outlives all timers.

    Args:
        delay: milliseconds, or ``IDLE``: as soon as there is nothing else to do.
    """

    def due() -> None:
        if widget.winfo_exists():
            call(*args)

    root: tk.Misc = widget._root()  # type: ignore[attr-defined]
    timer: str = root.after(delay, due)
    return timer


def cancel_timer(widget: tk.Misc, timer: str) -> None:
    """Cancel a timer of ``later``. Nothing happens if it has already run."""
    widget._root().after_cancel(timer)  # type: ignore[attr-defined]


class Timer:
    """Calls a function after a delay, at most once for any number of starts, unless the widget is gone by then.

    Args:
        delay: as for ``later``.
    """

    def __init__(self, widget: tk.Misc, delay: int | Literal["idle"], call: Callable[[], object]) -> None:
        self._widget, self._delay, self._call = widget, delay, call
        self._waiting = ""

    @property
    def running(self) -> bool:
        """True if the call is still to come."""
        return bool(self._waiting)

    def start(self) -> None:
        """Begin the delay, unless it has begun."""
        if not self._waiting:
            self._waiting = later(self._widget, self._delay, self._due)

    def restart(self) -> None:
        """Begin the delay again, from now."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Cancel the call."""
        if self._waiting:
            cancel_timer(self._widget, self._waiting)
            self._waiting = ""

    def _due(self) -> None:
        self._waiting = ""
        self._call()


def run_in_thread(
    pump: Pump,
    work: Callable[[], T],
    done: Callable[[T], object],
    failed: Callable[[Exception], None],
) -> threading.Thread:
    """Run ``work`` off the Tk thread, then call ``done`` or ``failed`` on it with the outcome."""

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
            caught = error
            pump.post(lambda: failed(caught))
        else:
            pump.post(lambda: done(result))

    thread = threading.Thread(target=run, daemon=True, name="pair-tool-work")
    thread.start()
    return thread


def on_event(call: Callable[P, T], *given: P.args, **named: P.kwargs) -> Callable[[object], T]:
    """Make a handler for ``bind`` that ignores the event and calls with the arguments given here."""
    return lambda _event: call(*given, **named)


def show_in_grid(widget: tk.Widget, shown: bool) -> None:
    """Hide a widget of a grid, or show it again in its place."""
    if shown is not bool(widget.winfo_manager()):
        (widget.grid if shown else widget.grid_remove)()


def set_text(box: tk.Text, text: str) -> None:
    """Replace the content of a box in which nobody can type."""
    box.configure(state="normal")
    box.delete("1.0", "end")
    box.insert("1.0", text)
    box.configure(state="disabled")


def pack_with_bar(view: tk.Text | ttk.Treeview) -> None:
    """Let a view fill its parent, with a scrollbar to its right."""
    bar = ttk.Scrollbar(view.master, command=view.yview)
    view.configure(yscrollcommand=bar.set)
    bar.pack(side="right", fill="y")
    view.pack(side="left", fill="both", expand=True)


def bind_row_keys(table: ttk.Treeview) -> None:
    """Let Up and Down move the selection of a list, and with Shift extend it if several rows can be selected.

    Tk's own keys do nothing until a row was clicked, and again after the rows were replaced.
    """
    several = str(table.cget("selectmode")) == "extended"
    for key, step in (("Up", -1), ("Down", 1)):
        table.bind(f"<{key}>", on_event(_move_row, table, step, False))
        if several:
            table.bind(f"<Shift-{key}>", on_event(_move_row, table, step, True))


def _move_row(table: ttk.Treeview, step: int, extends: bool) -> str:
    rows, selected = table.get_children(), table.selection()
    if rows:
        now = table.focus() or (selected[0] if selected else "")
        place = rows.index(now) + step if now in rows else 0
        row = rows[min(max(place, 0), len(rows) - 1)]
        if not extends:
            table.selection_set(row)
        elif row != now and row in selected:  # back towards the row where the selection began
            table.selection_remove(now)
        else:
            table.selection_add(row)
        table.focus(row)
        table.see(row)
    return "break"


def install_error_dialog(root: tk.Misc) -> None:
    """Show exceptions of callbacks in a dialog and in the log. The program keeps running."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show_error(root, error, trace)

    root.winfo_toplevel()
    tk_root = root._root()  # type: ignore[attr-defined,unused-ignore]
    tk_root.report_callback_exception = report


def show_error(
    parent: tk.Misc, error: BaseException, trace: TracebackType | None = None
) -> ErrorDialog | None:
    """Log an exception and show it; ``None`` if the window is already gone."""
    if isinstance(error, UserError):
        log.warning("%s", error)
        details = ""
    else:
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
        details = "".join(lines)
        log.error("%s", details)
    try:
        open_ones = [w for w in parent._root().winfo_children() if isinstance(w, ErrorDialog)]  # type: ignore[attr-defined]
        if open_ones and details and open_ones[-1].details == details:
            return open_ones[-1]
        return ErrorDialog(parent, error, details)
    except tk.TclError:
        log.exception("the error above could not be shown")
        return None


class ErrorDialog(tk.Toplevel):
    """Shows one problem with details that can be copied, in the style of its parent window.

    Args:
        details: traceback of a bug; empty for something the person can fix.
    """

    def __init__(self, parent: tk.Misc, error: BaseException, details: str) -> None:
        super().__init__(parent._root())  # type: ignore[attr-defined]
        self.withdraw()
        self.details = details
        self.message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        self.title(words.USER_ERROR_TITLE if isinstance(error, UserError) else words.PROGRAM_ERROR_TITLE)
        style = ttk.Style(self)
        font = tkfont.Font(self, font=style.lookup(".", "font") or "TkDefaultFont")
        unit = font.measure("n")
        self.configure(background=style.lookup("TFrame", "background"))
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        head, more = _head_and_more(self.message)
        body = "\n\n".join(part for part in (more, details) if part)
        label = ttk.Label(self, text=head, wraplength=min(70 * unit, 720), justify="left", anchor="w")
        label.grid(row=0, column=0, sticky="ew", padx=2 * unit, pady=(2 * unit, unit))
        if body:
            wrap: Literal["none", "word"] = "none" if details else "word"
            box = tk.Text(self, wrap=wrap, width=80, height=14, borderwidth=0, padx=unit, pady=unit)
            for option, name in (("background", "fieldbackground"), ("foreground", "foreground")):
                colour = style.lookup("Treeview", name) or style.lookup(".", option)
                if colour:
                    box.configure(**{option: colour})
            set_text(box, body)
            box.grid(row=1, column=0, sticky="nsew", padx=2 * unit)
        buttons = ttk.Frame(self)
        buttons.grid(row=2, column=0, sticky="e", padx=2 * unit, pady=(unit, 2 * unit))
        ttk.Button(buttons, text="Copy", command=self.copy).pack(side="left", padx=unit)
        self.close_button = ttk.Button(buttons, text="Close", style="Accent.TButton", command=self.destroy)
        self.close_button.pack(side="left")
        for key in ("<Escape>", "<Return>"):
            self.bind(key, lambda _event: self.destroy())
        over = parent.winfo_toplevel()
        if not over.winfo_viewable():
            over = parent._root()  # type: ignore[attr-defined]
        self._had_focus = focused(self) is not None
        place_over(self, over)
        tie(self, over)
        self.deiconify()
        later(self, 20, self._raise)

    def _raise(self) -> None:
        self.lift()
        if grabbing(self) is not None and self.winfo_viewable():  # the grab would keep all input from the dialog
            keep_input(self)
        (self.close_button.focus_force if self._had_focus else self.close_button.focus_set)()

    def copy(self) -> None:
        """Copy message and details to the clipboard."""
        self.clipboard_clear()
        self.clipboard_append(f"{self.message}\n\n{self.details}".strip())


def _head_and_more(message: str) -> tuple[str, str]:
    """Split a message too long for a label: its first line, and the full text for a box that scrolls."""
    if len(message) <= MAX_LABEL and message.count("\n") < MAX_LABEL_LINES:
        return message, ""
    first = message.partition("\n")[0]
    return (first if len(first) <= MAX_LABEL else f"{first[:MAX_LABEL]}\u2026"), message


def place_over(window: tk.Toplevel, over: tk.Misc, size: tuple[int, int] = (0, 0)) -> None:
    """Centre a window over another one, within the screen.

    Args:
        over: the window to centre over.
        size: width and height in pixels, enlarged to fit the content; 0 fits the content.
    """
    window.update_idletasks()
    screen = (window.winfo_screenwidth(), window.winfo_screenheight())
    width = min(max(size[0], window.winfo_reqwidth()), screen[0] - 40)
    height = min(max(size[1], window.winfo_reqheight()), screen[1] - 80)
    base = over.winfo_toplevel()
    left = base.winfo_rootx() + (base.winfo_width() - width) // 2
    top = base.winfo_rooty() + (base.winfo_height() - height) // 2
    left = max(0, min(left, screen[0] - width))
    top = max(0, min(top, screen[1] - height - 40))
    window.geometry(f"{width}x{height}+{left}+{top}")


def tie(window: tk.Toplevel, over: tk.Misc) -> None:
    """Keep a window above its parent, if that is on the screen."""
    base = over.winfo_toplevel()
    if base.winfo_viewable() and base is not window:
        window.transient(base)  # type: ignore[call-overload,unused-ignore]


def focused(widget: tk.Misc) -> tk.Misc | None:
    """The focused widget. ``None`` also for Tk's own windows (an open list, a file dialog), which have no
    object and make ``focus_get`` fail.
    """
    try:
        return widget.focus_get()
    except KeyError:
        return None


def dialog_with_focus(widget: tk.Misc) -> tk.Toplevel | None:
    """The dialog that is tied to the widget's window and has the focus, if there is one."""
    window = widget.winfo_toplevel()
    focus = focused(widget)
    other = None if focus is None else focus.winfo_toplevel()
    if not isinstance(other, tk.Toplevel) or other is window or str(other.transient()) != str(window):
        return None
    return other


def grabbing(widget: tk.Misc) -> tk.Misc | None:
    """The widget of this program that grabs all input, if any. See ``focused`` for Tk's own."""
    try:
        found: tk.Misc | None = widget.grab_current()  # type: ignore[no-untyped-call]
    except KeyError:
        return None
    return found


def chosen_line(box: tk.Listbox) -> int | None:
    """The number of the selected line."""
    chosen: tuple[int, ...] = box.curselection()  # type: ignore[no-untyped-call]
    return chosen[0] if chosen else None


def make_modal(window: tk.Toplevel, parent: tk.Misc) -> None:
    """Show ``window`` in front of the window with all input, or else of ``parent``. It keeps all input until it closes.

    Tk ignores that a window gets the focus while another one keeps all input, so the focus is taken again, unless it
    was in another program. Keys and clicks that come before the window is visible do nothing: they would open it a
    second time, or answer a question that nobody has seen.
    """
    had_focus = focused(window) is not None
    focus = window.focus_force if had_focus else window.focus_set
    tie(window, grabbing(window) or parent)
    tags = window.bindtags()
    for event in ("<KeyPress>", "<ButtonPress>"):
        window.tk.call("bind", _OPENING, event, "break")
    window.bindtags((_OPENING, *tags))
    window.deiconify()
    below = grabbing(window)
    with contextlib.suppress(tk.TclError):  # while a mouse button is down, only a visible window can keep all input
        keep_input(window)
    focus()
    window.wait_visibility()
    # a message that came meanwhile keeps all input until it is closed
    if grabbing(window) in (None, below, window):
        keep_input(window)
        focus()
    window.bindtags(tags)


_OPENING = "Opening"
"""First bind tag of a window that is not visible yet."""
_BELOW: WeakKeyDictionary[tk.Misc, list[tk.Misc]] = WeakKeyDictionary()
"""For a window that keeps all input, those that kept it before, the last one first."""


def keep_input(window: tk.Misc) -> None:
    """Keep all input in ``window``. When it closes, the last window that kept it before and is open keeps it again."""
    holder = grabbing(window)
    if holder is window:
        return
    window.grab_set()
    below = _BELOW[window] = [] if holder is None else [holder, *_BELOW.get(holder, ())]

    def give_back(event: tk.Event[tk.Misc]) -> None:
        if event.widget is not window:
            return
        last = next((one for one in below if one.winfo_exists()), None)
        if last is not None and grabbing(last) in (None, window) and last.winfo_viewable():
            last.grab_set()
            (last.focus_lastfor() or last).focus_set()

    window.bind("<Destroy>", give_back, add="+")


def bind_own(window: tk.Tk, event: str, call: Callable[[tk.Event[tk.Misc]], object]) -> None:
    """Call this for events of a window itself. A binding of the window would be called for every widget in it, too:
    thousands of times while a page is built.
    """
    tag = f"Own{window}"
    if tag not in window.bindtags():
        window.bindtags((tag, *window.bindtags()))
    window.bind_class(tag, event, call, add="+")


def focus_on_click(root: tk.Misc) -> None:
    """Give the focus to what is clicked, as customtkinter does, but leave it to a dialog that the click has opened. A
    button that takes no focus does not get it either: the window around it has keys of its own, among them Space.
    """

    def pressed(event: tk.Event[tk.Misc]) -> None:
        widget = event.widget
        if not isinstance(widget, tk.Misc) or not widget.winfo_exists() or dialog_with_focus(widget) is not None:
            return
        if not isinstance(widget, ttk.Button) or str(widget.cget("takefocus")) != "0":
            widget.focus_set()

    root.unbind_all("<Button-1>")
    root.bind_all("<Button-1>", pressed)


def select_all_with_ctrl_a(root: tk.Misc) -> None:
    """Make Ctrl+A select everything, as in other programs. On X11, Tk's entries move the cursor to the start
    instead.
    """
    for key in ("<Control-Key-a>", "<Control-Lock-Key-A>"):
        root.event_delete("<<LineStart>>", key)
        root.event_add("<<SelectAll>>", key)


def items_in_sight(canvas: tk.Canvas) -> tuple[int, ...]:
    """The items of a canvas that are visible at least in part, in the order in which they were drawn."""
    x, y = canvas.canvasx(0), canvas.canvasy(0)
    return canvas.find_overlapping(x, y, x + canvas.winfo_width(), y + canvas.winfo_height())


def set_ui_scale(percent: int) -> int:
    """Scale fonts, widgets and windows. Returns the percentage used, limited to 75 to 200."""
    taken = max(MIN_SCALE, min(MAX_SCALE, int(percent)))
    ctk.set_widget_scaling(taken / 100)
    ctk.set_window_scaling(taken / 100)
    return taken


def elide_middle(text: str, length: int) -> str:
    """``text`` with its middle replaced by an ellipsis when it is longer than ``length``."""
    if length < 3 or len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}\u2026{text[len(text) - (length - 1 - head) :]}"


def fit_middle(text: str, width: int, font: tkfont.Font) -> str:
    """Shorten ``text`` in the middle until it is at most ``width`` pixels wide."""
    if width <= 1 or font.measure(text) <= width:
        return text
    lengths = range(4, len(text))
    fitting = bisect_right(lengths, width, key=lambda length: font.measure(elide_middle(text, length)))
    return elide_middle(text, 3 + fitting)


def types_text(widget: tk.Misc | None) -> bool:
    """Return whether keys pressed in ``widget`` are typed text rather than commands."""
    if widget is None or widget.winfo_class() not in ("Entry", "Text", "TEntry", "TCombobox"):
        return False
    return widget.winfo_class() != "Text" or str(widget.cget("state")) == "normal"


def listen_while_alive(
    listeners: list[Callable[[], None]], call: Callable[[], None], widget: tk.Misc
) -> None:
    """Add ``call`` to the listeners until ``widget`` is destroyed."""
    listeners.append(call)

    def forget(event: tk.Event[tk.Misc]) -> None:
        if event.widget is widget:
            listeners.remove(call)

    widget.bind("<Destroy>", forget, add="+")
