"""The result of an arena: a sentence, the interval, and all votes with their images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.ui.arena.ArenaController import ArenaResult
from modules.ui.texts import arena as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import GOOD, IDLE, later

BAR_WIDTH, BAR_HEIGHT, NAME_WIDTH = 420, 34, 200
LABEL_HEIGHT = 16
CELL = 130


class ResultPage(ttk.Frame):
    """Shows the result, names included.

    Args:
        more: back to voting; ``None`` when there is no further question.
        next_round: begins the next round of the project.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        result: ArenaResult,
        prefetcher: ImagePrefetcher,
        more: Callable[[], None] | None,
        close: Callable[[], None],
        next_round: Callable[[], None],
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        px = theme.px
        self.theme, self.result, self.prefetcher = theme, result, prefetcher
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        card = ttk.Frame(self, padding=px(16))
        card.grid(row=0, column=0, sticky="ew", padx=px(12), pady=px(10))
        card.columnconfigure(0, weight=1)
        told = result.told
        sentence = str(told["sentence"]) if told["votes"] else words.NO_VOTES
        self.sentence = self._line(card, 0, sentence, "Bold.TLabel")
        self._line(card, 1, words.BECAUSE[result.because], "Muted.TLabel")
        if told["votes"] and "interval" in told:
            self._interval(card, told["win_rate"], told["interval"], told["contestants"][0])
        said = [words.AUTOMATIC, *result.automatic] if result.automatic else []
        for number, text in enumerate(said, 4):
            self._line(card, number, text, "Small.TLabel")
        names = ", ".join(told["contestants"])
        self._line(card, 3, words.COLUMNS.format(names=names), "Small.TLabel")
        self.grid_ = ThumbGrid(self, prefetcher, cell=px(CELL), font=theme.fonts["small"])
        self.grid_.grid(row=1, column=0, sticky="nsew", padx=px(12))
        self.grid_.canvas.bind("<Configure>", lambda _event: prefetcher.want(self.grid_.in_sight()), add="+")
        self._votes()
        bottom = FlowFrame(self, theme.px(6))
        bottom.grid(row=2, column=0, sticky="ew", padx=px(12), pady=px(8))
        self.buttons: dict[str, ttk.Button] = {}
        wanted = {words.CLOSE: close, words.NEXT_ROUND: next_round}
        if more is not None:
            wanted = {words.MORE: more, **wanted}
        for number, (text, command) in enumerate(wanted.items()):
            style = "TButton" if number else "Accent.TButton"
            self.buttons[text] = bottom.add_button(text, command, style)
        first = next(iter(self.buttons.values()))
        later(first, IDLE, first.focus_set)

    def _line(self, card: ttk.Frame, row: int, text: str, style: str) -> ttk.Label:
        label = ttk.Label(card, text=text, style=style, justify="left", width=1)
        label.grid(row=row, column=0, sticky="ew", pady=(0, self.theme.px(4)))
        label.bind("<Configure>", lambda event: label.configure(wraplength=max(1, event.width)))
        return label

    def _interval(self, card: ttk.Frame, share: float, interval: list[float], name: str) -> None:
        """Draw 0 to 100 %: the interval as a band, the share as a line, 50 % as a dashed line."""
        px, palette = self.theme.px, self.theme.palette
        wide, high = px(BAR_WIDTH), px(BAR_HEIGHT)
        canvas = tk.Canvas(
            card,
            width=wide + px(NAME_WIDTH),
            height=high + px(LABEL_HEIGHT),
            highlightthickness=0,
            background=palette.panel,
            takefocus=0,
        )
        canvas.grid(row=2, column=0, sticky="w", pady=px(4))
        font, middle = self.theme.fonts["small"], high // 2
        canvas.create_line(0, middle, wide, middle, fill=palette.border, width=px(2))
        canvas.create_rectangle(
            wide * interval[0],
            middle - px(5),
            wide * interval[1],
            middle + px(5),
            fill=palette.selected,
            width=0,
        )
        canvas.create_line(wide // 2, 0, wide // 2, high, fill=palette.muted, dash=(3, 3))
        canvas.create_line(wide * share, middle - px(9), wide * share, middle + px(9), fill=GOOD, width=px(3))
        canvas.create_text(wide // 2, high, text=words.HALF, anchor="n", fill=palette.muted, font=font)
        canvas.create_text(wide + px(8), middle, text=name, anchor="w", fill=palette.muted, font=font)

    def _votes(self) -> None:
        paths: list[Path] = []
        marks: dict[int, str] = {}
        for number, vote in enumerate(self.result.voted):
            paths += [vote.first, vote.second]
            if vote.best is not None:
                marks[2 * number + vote.best] = GOOD
        self.grid_.show(paths)
        self.grid_.set_marks(marks)

    def arrived(self, key: Key) -> None:
        """Handle a decoded image; called by the pump."""
        self.grid_.arrived(key[0])

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Move through the votes with the arrow keys."""
        return self.grid_.move_cursor(key)
