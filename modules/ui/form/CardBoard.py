"""Boxes of different heights in as many columns as fit."""

from __future__ import annotations

import tkinter as tk
from bisect import bisect_left
from tkinter import ttk

from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import IDLE, Timer

CARD_WIDTH = 500
MAX_CARD_WIDTH = 760
GAP = 12


class CardBoard(ttk.Frame):
    """Lays out its cards, which are ordinary frames that may grow, shrink and be hidden.

    Args:
        parent: container; the board fills its width and takes the height it needs.
    """

    def __init__(self, parent: tk.Misc, theme: Theme) -> None:
        super().__init__(parent, style="Back.TFrame", height=10)
        self._theme = theme
        self._cards: list[ttk.Frame] = []
        self._shown: dict[ttk.Frame, bool] = {}
        self._arranging = Timer(self, IDLE, self._arrange)
        self.bind("<Configure>", lambda _event: self.arrange_soon())
        theme.on_change(self.arrange_soon, self)

    def add(self, title: str, first: bool = False) -> ttk.Frame:
        """Add a card, last or ``first``. Grid widgets into it from row 1 on."""
        px = self._theme.px
        card = ttk.Frame(self, padding=(px(14), px(10), px(14), px(14)))
        card.columnconfigure(1, minsize=px(150))
        card.columnconfigure(2, weight=1)
        if title:
            label = ttk.Label(card, text=title, style="Bold.TLabel")
            label.grid(row=0, column=0, columnspan=4, sticky="w", pady=(0, px(6)))
        self._cards.insert(0 if first else len(self._cards), card)
        if first:
            card.lower()  # the stacking order is the order of Tab
        self._shown[card] = True
        card.bind("<Configure>", lambda _event: self.arrange_soon())
        self._theme.on_change(lambda: card.configure(padding=(px(14), px(10), px(14), px(14))), card)
        return card

    def show(self, card: ttk.Frame, shown: bool) -> None:
        """Hide a card that has nothing to show, or show it again."""
        if self._shown[card] is not shown:
            self._shown[card] = shown
            self.arrange_soon()

    def arrange_soon(self) -> None:
        """Arrange the cards once the current changes are done."""
        self._arranging.start()

    def columns(self) -> int:
        return max(1, min(3, self.winfo_width() // self._theme.px(CARD_WIDTH)))

    def _arrange(self) -> None:
        if self.winfo_width() <= 1:
            return
        gap, columns = self._theme.px(GAP), self.columns()
        width = min((self.winfo_width() - gap * (columns + 1)) // columns, self._theme.px(MAX_CARD_WIDTH))
        shown = [card for card in self._cards if self._shown[card]]
        heights = [card.winfo_reqheight() for card in shown]
        tall = 0
        for column, members in enumerate(_split(heights, columns)):
            top = 0
            for index in members:
                shown[index].place(x=gap + column * (width + gap), y=top, width=width)
                top += heights[index] + gap
            tall = max(tall, top)
        for card in self._cards:
            if not self._shown[card]:
                card.place_forget()
        if self.winfo_reqheight() != tall:
            self.configure(height=max(tall, 10))


def wrapped_label(
    parent: tk.Misc,
    theme: Theme,
    style: str = "TLabel",
    text: str = "",
    card: tk.Misc | None = None,
    taken: int = 0,
) -> ttk.Label:
    """Make a label whose text wraps to the width of its card.

    Args:
        card: the card, if it is not the parent.
        taken: pixels at 100 % taken by other widgets in the same line.
    """
    label = ttk.Label(parent, text=text, style=style, justify="left")
    card = card or parent

    def follow(_event: object) -> None:
        wide = card.winfo_width() - theme.px(32 + taken)
        if wide > 1 and label.winfo_exists():
            label.configure(wraplength=wide)

    card.bind("<Configure>", follow, add="+")
    return label


def _split(heights: list[int], columns: int) -> list[list[int]]:
    """Distribute positions over columns, in order, so that the tallest column is as low as possible."""
    if not heights:
        return []
    limits = range(max(heights), sum(heights) + 1)
    lowest = bisect_left(limits, True, key=lambda limit: len(_fill(heights, limit)) <= columns)
    return _fill(heights, limits[lowest])


def _fill(heights: list[int], limit: int) -> list[list[int]]:
    made: list[list[int]] = [[]]
    used = 0
    for index, height in enumerate(heights):
        if made[-1] and used + height > limit:
            made.append([])
            used = 0
        made[-1].append(index)
        used += height
    return made
