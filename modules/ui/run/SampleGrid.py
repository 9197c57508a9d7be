"""Samples as a grid of images: a row per prompt, a column per checkpoint."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.run.Thumbnails import Thumbnails
from modules.ui.state.runs.comparing import Grid
from modules.ui.texts import runs as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import fit_middle, items_in_sight, on_event

CELL = 128
HEAD = 26
LEFT = 150


class SampleGrid(ttk.Frame):
    """A canvas that scrolls both ways and draws only what is visible."""

    def __init__(self, parent: tk.Misc, ui: Ui) -> None:
        super().__init__(parent)
        self._ui = ui
        self._grid = Grid()
        self._nothing = words.SELECT_ONE
        self._thumbnails = Thumbnails(self, ui, self.redraw)
        self.rowconfigure(0, weight=1)
        self.columnconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, highlightthickness=2, borderwidth=0, takefocus=1, height=10, width=10)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        down, across = ttk.Scrollbar(self, command=self._down), ttk.Scrollbar(self, orient="horizontal")
        across.configure(command=self._across)
        down.grid(row=0, column=1, sticky="ns")
        across.grid(row=1, column=0, sticky="ew")
        self.canvas.configure(yscrollcommand=down.set, xscrollcommand=across.set)
        self.canvas.bind("<Configure>", lambda _event: self.redraw())
        self.canvas.bind("<Button-1>", lambda _event: self._open(self.canvas.find_withtag("current")))
        for key in ("<Return>", "<KP_Enter>", "<space>"):
            self.canvas.bind(key, lambda _event: self._open(items_in_sight(self.canvas)))
        for name, axis, step in (
            ("<Button-4>", "y", -1), ("<Button-5>", "y", 1), ("<Up>", "y", -1), ("<Down>", "y", 1),
            ("<Shift-Button-4>", "x", -1), ("<Shift-Button-5>", "x", 1), ("<Left>", "x", -1), ("<Right>", "x", 1),
        ):  # fmt: skip
            self.canvas.bind(name, on_event(self._move, axis, step))
        self.canvas.bind("<MouseWheel>", lambda event: self._move("y", -1 if event.delta > 0 else 1))
        ui.theme.on_change(self.redraw, self)

    def show(self, grid: Grid, nothing: str) -> None:
        """Replace the grid, or show the text ``nothing`` if there are no images."""
        self._grid, self._nothing = grid, nothing
        self.canvas.xview_moveto(0)
        self.canvas.yview_moveto(0)
        self.redraw()

    def read_again(self) -> None:
        """Forget cached images after the files have changed."""
        self._thumbnails.forget()

    def redraw(self) -> None:
        """Draw the visible cells."""
        if not self.winfo_exists():
            return
        canvas, palette, px, grid = self.canvas, self._ui.theme.palette, self._ui.theme.px, self._grid
        canvas.delete("all")
        canvas.configure(
            background=palette.panel, highlightbackground=palette.panel, highlightcolor=palette.accent
        )
        if not grid.cells:
            self._text(px(12), px(12), self._nothing, max(100, canvas.winfo_width() - px(24)))
            canvas.configure(scrollregion=(0, 0, 1, 1))
            return
        side, head, left = px(CELL), px(HEAD), px(LEFT)
        canvas.configure(scrollregion=(0, 0, left + side * len(grid.columns), head + side * len(grid.rows)))
        for column, title in enumerate(grid.columns):
            fitting = fit_middle(title, side - px(6), self._ui.theme.fonts["small"])
            self._text(left + column * side, px(4), fitting, side)
        for row, prompt in enumerate(grid.rows):
            self._text(px(4), head + row * side, prompt, left - px(10))
        with self._thumbnails.drawing():
            self._draw_cells(side, head, left)

    def _draw_cells(self, side: int, head: int, left: int) -> None:
        canvas = self.canvas
        x0, y0 = canvas.canvasx(0), canvas.canvasy(0)
        x1, y1 = x0 + canvas.winfo_width(), y0 + canvas.winfo_height()
        for (row, column), image in self._grid.cells.items():
            x, y = left + column * side, head + row * side
            if x > x1 or y > y1 or x + side < x0 or y + side < y0:
                continue
            box = side - self._ui.theme.px(6)
            shown = self._thumbnails.get((image.path, (box, box)))
            if isinstance(shown, str):
                self._text(x, y, shown, box)
            else:
                self.canvas.create_image(x, y, image=shown, anchor="nw", tags=(f"cell:{row}:{column}",))

    def _text(self, x: int, y: int, text: str, width: int) -> None:
        theme = self._ui.theme
        self.canvas.create_text(
            x, y, anchor="nw", text=text, width=width, fill=theme.palette.muted, font=theme.fonts["small"]
        )

    # -- hands -----------------------------------------------------------------------------------------------

    def _down(self, *args: str) -> None:
        self.canvas.yview(*args)
        self.redraw()

    def _across(self, *args: str) -> None:
        self.canvas.xview(*args)
        self.redraw()

    def _move(self, axis: str, step: int) -> str:
        (self.canvas.yview_scroll if axis == "y" else self.canvas.xview_scroll)(step, "units")
        self.redraw()
        return "break"

    def _open(self, items: tuple[int, ...]) -> None:
        """Show the first image among these items large."""
        self.canvas.focus_set()
        tags = [tag for item in items for tag in self.canvas.gettags(item)]
        cell = next((tag for tag in tags if tag.startswith("cell:")), None)
        if cell is None:
            return
        row, column = (int(part) for part in cell.split(":")[1:])
        order = sorted(self._grid.cells)
        shown = [ShownImage(self._grid.cells[one].path, self._grid.cells[one].title) for one in order]
        ImageWindow(self._ui, shown, order.index((row, column)), self)
