"""Thumbnails on one scrolling canvas. Only visible ones are drawn, so thousands cost as much as twenty."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from tkinter import font as tkfont
from tkinter import ttk

from PIL import ImageTk

from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key, Shown
from modules.ui.widgets.tk_support import FOCUS, RIGHT_CLICK, shade

MIN_CELL, MAX_CELL = 110, 520
PAD = 6


class ThumbGrid(ttk.Frame):
    """A grid of images with a cursor and coloured marks.

    Args:
        on_best: called on a left click or Enter with the position of an image.
        on_worst: called on a right click or W.
        on_move: called after dragging an image from one position to another; ``None`` disables dragging.
        cell: side of an image's place, in pixels.
        font: font of captions.
    """

    foot = 0
    """Height below each image, in pixels."""

    def __init__(
        self,
        parent: tk.Misc,
        prefetcher: ImagePrefetcher,
        on_best: Callable[[int], None] | None = None,
        on_worst: Callable[[int], None] | None = None,
        on_move: Callable[[int, int], None] | None = None,
        cell: int = 220,
        font: tkfont.Font | str = "TkDefaultFont",
    ) -> None:
        super().__init__(parent)
        self._prefetcher = prefetcher
        self._on_best, self._on_worst, self._on_move = on_best, on_worst, on_move
        self.cell = cell
        self._font = font
        self.cursor = 0
        self.paths: list[Shown] = []
        self._captions: list[str] = []
        self._marks: dict[int, str] = {}
        self._photos: dict[Key, ImageTk.PhotoImage] = {}
        self._dragging: int | None = None
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.canvas = tk.Canvas(self, highlightthickness=0, borderwidth=0, takefocus=0)
        self.canvas.grid(row=0, column=0, sticky="nsew")
        bar = ttk.Scrollbar(self, orient="vertical", command=self._scroll)
        bar.grid(row=0, column=1, sticky="ns")
        self.canvas.configure(yscrollcommand=bar.set)
        self.canvas.bind("<Configure>", lambda _event: self.redraw())
        self.canvas.bind("<ButtonPress-1>", self._press)
        self.canvas.bind("<ButtonRelease-1>", self._release)
        self.canvas.bind(RIGHT_CLICK, self._right)
        for name, step in (("<Button-4>", -1), ("<Button-5>", 1)):
            self.canvas.bind(name, lambda event, step=step: self._wheel(event, step))  # type: ignore[misc]
        self.canvas.bind("<MouseWheel>", lambda event: self._wheel(event, -1 if event.delta > 0 else 1))

    def destroy(self) -> None:
        self._photos = {}  # megabytes, which must not wait for the garbage collector
        super().destroy()

    # --- content ------------------------------------------------------------------------------------------------

    def show(self, paths: Sequence[Shown], captions: Sequence[str] = (), keep_place: bool = False) -> None:
        """Show these images in this order."""
        self.paths, self._captions = list(paths), list(captions)
        self.cursor = min(self.cursor, max(0, len(self.paths) - 1)) if keep_place else 0
        if not keep_place:
            self.canvas.yview_moveto(0)
        self.redraw()

    def set_marks(self, marks: dict[int, str]) -> None:
        """Frame images in colours, by position."""
        self._marks = dict(marks)
        self.redraw()

    def in_sight(self) -> list[Key]:
        """The images for the prefetcher, visible ones first."""
        visible = self._visible()
        order = [*visible, *(i for i in range(len(self.paths)) if i not in visible)]
        return [(self.paths[i], self._box()) for i in order]

    def arrived(self, path: Shown) -> None:
        """Handle a decoded image."""
        if any(self.paths[i] == path for i in self._visible()):
            self.redraw()

    def is_drawn(self, index: int) -> bool:
        """Return whether an image is drawn, not just being loaded."""
        return (self.paths[index], self._box()) in self._photos

    # --- geometry -----------------------------------------------------------------------------------------------

    def _box(self) -> tuple[int, int]:
        return self.cell - 2 * PAD, self.cell - 2 * PAD

    def columns(self) -> int:
        """Number of images per row."""
        return max(1, self.canvas.winfo_width() // self.cell)

    def _rows(self) -> int:
        return -(-len(self.paths) // self.columns())

    def _height(self) -> int:
        """Total height in pixels."""
        return self._rows() * self.row_height

    @property
    def row_height(self) -> int:
        """Height of an image's place with its caption, in pixels."""
        return self.cell + self.foot

    def _corner(self, index: int) -> tuple[int, int]:
        """Left and top of an image's place."""
        return index % self.columns() * self.cell, index // self.columns() * self.row_height

    def _draw_between(self) -> None:
        """Draw the space between the images."""

    def _visible(self) -> range:
        top = self.canvas.canvasy(0)
        first = max(0, int(top // self.row_height)) * self.columns()
        rows = self.canvas.winfo_height() // self.row_height + 2
        return range(min(first, len(self.paths)), min(len(self.paths), first + rows * self.columns()))

    def _at(self, event: tk.Event[tk.Misc]) -> int | None:
        return self._place_at(event.x, self.canvas.canvasy(event.y))

    def _place_at(self, x: float, y: float) -> int | None:
        column, row = int(x // self.cell), int(y // self.row_height)
        index = row * self.columns() + column
        return index if 0 <= column < self.columns() and 0 <= index < len(self.paths) else None

    # --- drawing ------------------------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Draw the visible images."""
        if not self.winfo_exists() or self.canvas.winfo_width() <= 1:
            return
        canvas, cell = self.canvas, self.cell
        canvas.configure(
            background=shade("#1e1e1e", "#e6e6e6"),
            scrollregion=(0, 0, self.columns() * cell, max(self._height(), canvas.winfo_height())),
        )
        canvas.delete("all")
        used: dict[Key, ImageTk.PhotoImage] = {}
        for index in self._visible():
            self._draw_cell(index, *self._corner(index), used)
        self._draw_between()
        self._photos = used

    def _draw_cell(self, index: int, left: int, top: int, used: dict[Key, ImageTk.PhotoImage]) -> None:
        canvas, cell = self.canvas, self.cell
        key = (self.paths[index], self._box())
        photo = self._photos.get(key)
        if photo is None and (image := self._prefetcher.get(*key)) is not None:
            photo = ImageTk.PhotoImage(image)
        middle = (left + cell // 2, top + cell // 2)
        if photo is not None:
            used[key] = photo
            canvas.create_image(*middle, image=photo)
        else:
            text = self._prefetcher.failure(key[0]) or "\u2026"
            canvas.create_text(
                *middle, text=text, fill=shade("#aaaaaa", "#555555"), width=cell - 20, font=self._font
            )
        mark = self._marks.get(index)
        edge = (left + 2, top + 2, left + cell - 2, top + cell - 2)
        if mark is not None:
            canvas.create_rectangle(*edge, outline=mark, width=5)
        if index == self.cursor:
            inset = 5 if mark else 0  # a mark stays visible around the cursor
            inner = (edge[0] + inset, edge[1] + inset, edge[2] - inset, edge[3] - inset)
            canvas.create_rectangle(*inner, outline=FOCUS, width=2)
        if index < len(self._captions) and self._captions[index]:
            item = canvas.create_text(
                left + 10, top + 10, text=self._captions[index], anchor="nw", fill="#ffffff", font=self._font
            )
            x0, y0, x1, y1 = canvas.bbox(item)
            canvas.tag_raise(
                item, canvas.create_rectangle(x0 - 4, y0 - 2, x1 + 4, y1 + 2, fill="#202020", width=0)
            )

    # --- input --------------------------------------------------------------------------------------------------

    def _scroll(self, *args: str) -> None:
        self.canvas.yview(*args)  # type: ignore[no-untyped-call,unused-ignore]
        self.redraw()
        self._prefetcher.want(self.in_sight())

    def _wheel(self, _event: tk.Event[tk.Misc], step: int) -> None:
        if self._height() > self.canvas.winfo_height():
            self.canvas.yview_scroll(step * 3, "units")
            self.redraw()
            self._prefetcher.want(self.in_sight())

    def _press(self, event: tk.Event[tk.Misc]) -> None:
        self._dragging = self._at(event)

    def _release(self, event: tk.Event[tk.Misc]) -> None:
        start, self._dragging = self._dragging, None
        end = self._at(event)
        if start is None or end is None:
            return
        self.cursor = end
        if start != end and self._on_move is not None:
            self._on_move(start, end)
        elif start == end and self._on_best is not None:
            self._on_best(end)
        self.redraw()

    def _right(self, event: tk.Event[tk.Misc]) -> None:
        index = self._at(event)
        if index is not None and self._on_worst is not None:
            self.cursor = index
            self._on_worst(index)

    def move_cursor(self, key: str) -> bool:
        """Move the cursor with an arrow key, Home or End. Return ``False`` for any other key."""
        steps = {"Left": -1, "Right": 1, "Up": -self.columns(), "Down": self.columns()}
        last = len(self.paths) - 1
        if key in steps:
            target = self.cursor + steps[key]
            self.cursor = target if 0 <= target <= last else self.cursor
        elif key in ("Home", "End"):
            self.cursor = 0 if key == "Home" else max(0, last)
        else:
            return False
        self.see_cursor()
        return True

    def see_cursor(self) -> None:
        """Scroll until the cursor is visible."""
        top, height = self._corner(self.cursor)[1], max(1, self._height())
        view = self.canvas.canvasy(0)
        if top < view:
            self.canvas.yview_moveto(top / height)
        elif top + self.row_height > view + self.canvas.winfo_height():
            self.canvas.yview_moveto((top + self.row_height - self.canvas.winfo_height()) / height)
        self.redraw()

    def fit_cells(self, smallest: int) -> None:
        """Make the images as large as possible with all of them visible, but at least ``smallest``."""
        width, height = self.canvas.winfo_width(), self.canvas.winfo_height()
        count = len(self.paths)
        if width <= 1 or not count:
            return
        sides = [min(width // n, height // -(-count // n)) for n in range(1, count + 1)]
        side = max(smallest, min(MAX_CELL, max(sides)))
        if side != self.cell:
            self.cell = side
            self.redraw()

    def resize_cells(self, step: int) -> None:
        """Enlarge (1) or shrink (-1) the images."""
        self.cell = max(MIN_CELL, min(MAX_CELL, round(self.cell * 1.25**step)))
        self.redraw()
        self._prefetcher.want(self.in_sight())
