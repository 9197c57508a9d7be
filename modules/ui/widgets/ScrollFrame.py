"""A frame that scrolls content of any height, follows the focus, and leaves the wheel to scrolling widgets
inside.
"""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import show_in_grid

_SCROLL_THEMSELVES = ("Text", "Listbox", "Treeview")


class ScrollFrame(ttk.Frame):
    """A scrolling frame. Put content into ``inside``.

    Args:
        auto_hide: show the scrollbar only if needed.
        fill: make the content at least as high as the visible area.
    """

    def __init__(self, parent: tk.Misc, theme: Theme, auto_hide: bool = False, fill: bool = False) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, takefocus=0, yscrollincrement=1)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        self._bar = ttk.Scrollbar(self, orient="vertical", command=self.canvas.yview)
        self._bar.grid(row=0, column=1, sticky="ns")
        self.canvas.configure(yscrollcommand=self._moved)
        self.inside = ttk.Frame(self.canvas, style="Back.TFrame")
        self._item = self.canvas.create_window(0, 0, anchor="nw", window=self.inside)
        self.inside.bind("<Configure>", self._content_changed)
        # content that shrinks until it is out of sight is unmapped rather than configured
        self.inside.bind("<Unmap>", self._content_changed)
        self._fill = fill
        self.canvas.bind("<Configure>", self._resized)
        self._theme, self._auto_hide = theme, auto_hide
        theme.on_change(lambda: self.canvas.configure(background=theme.palette.back), self)

    def _height(self) -> int:
        """Height of the content."""
        needed = self.inside.winfo_reqheight()
        return max(needed, self.canvas.winfo_height()) if self._fill else needed

    def _resized(self, _event: object) -> None:
        self.canvas.itemconfigure(self._item, width=self.canvas.winfo_width())
        self._content_changed(None)

    def _content_changed(self, _event: object) -> None:
        if self._fill:
            self.canvas.itemconfigure(self._item, height=self._height())
        whole = self._height()
        self.canvas.configure(scrollregion=(0, 0, 1, whole))
        room = whole - self.canvas.winfo_height()
        if self.canvas.canvasy(0) > max(0, room):  # the content is now shorter than the scroll position
            self.canvas.yview_moveto(max(0, room) / max(1, whole))

    def _moved(self, first: float, last: float) -> None:
        self._bar.set(first, last)
        if self._auto_hide:  # Tk passes both as texts
            show_in_grid(self._bar, float(first) > 0.0 or float(last) < 1.0)

    def wheel(self, step: int) -> None:
        """Scroll by a notch of the wheel (-1 up, 1 down)."""
        if self._height() > self.canvas.winfo_height():
            self.canvas.yview_scroll(step * self._theme.px(60), "units")

    def page(self, step: int) -> None:
        """Scroll by most of the visible height."""
        if self._height() > self.canvas.winfo_height():
            self.canvas.yview_scroll(step * int(self.canvas.winfo_height() * 0.85), "units")

    def top(self) -> None:
        self.canvas.yview_moveto(0)

    def see(self, widget: tk.Misc) -> None:
        """Scroll until a widget inside is visible."""
        height, whole = self.canvas.winfo_height(), self._height()
        if whole <= height:
            return
        top = widget.winfo_rooty() - self.inside.winfo_rooty()
        bottom = top + widget.winfo_height()
        above = self.canvas.canvasy(0)
        margin = self._theme.px(28)
        if top - margin < above:
            self.canvas.yview_moveto(max(0, top - margin) / whole)
        elif bottom + margin > above + height:
            self.canvas.yview_moveto(min(whole - height, bottom + margin - height) / whole)


def install_wheel(root: tk.Tk) -> None:
    """Let the wheel scroll the frame under the pointer. It never changes a value it happens to be over."""
    for name in ("<MouseWheel>", "<Button-4>", "<Button-5>"):
        for kind in ("TCombobox", "TSpinbox"):
            root.unbind_class(kind, name)
    root.bind_all("<MouseWheel>", lambda event: _turn(event, -1 if event.delta > 0 else 1), add="+")
    root.bind_all("<Button-4>", lambda event: _turn(event, -1), add="+")
    root.bind_all("<Button-5>", lambda event: _turn(event, 1), add="+")
    pressed: set[str] = set()
    root.bind_all("<ButtonPress-1>", lambda event: pressed.add(str(event.widget)), add="+")
    root.bind_all("<ButtonRelease-1>", lambda _event: pressed.clear(), add="+")
    root.bind_all("<FocusIn>", lambda event: _follow(event, pressed), add="+")


def _frame_around(widget: object) -> ScrollFrame | None:
    while isinstance(widget, tk.Misc):
        if isinstance(widget, ScrollFrame):
            return widget
        widget = widget.master
    return None


def _turn(event: tk.Event[tk.Misc], step: int) -> None:
    widget = event.widget
    if isinstance(widget, tk.Misc) and widget.winfo_class() not in _SCROLL_THEMSELVES:
        frame = _frame_around(widget)
        if frame is not None:
            frame.wheel(step)


def _follow(event: tk.Event[tk.Misc], pressed: set[str]) -> None:
    """Scroll to the widget with the focus, unless a mouse button on it is down: it would move away before the release,
    and a button would not be pressed.
    """
    widget = event.widget
    if str(widget) in pressed:
        return
    # Frames around the widget get its focus events too. Showing all of a tall one would scroll away from
    # it.
    if isinstance(widget, tk.Misc) and str(widget.tk.call("focus")) == str(widget):
        frame = _frame_around(widget)
        if frame is not None and widget is not frame.canvas:
            frame.see(widget)
