"""An image overlaid with the mask being painted. Only changed areas are redrawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable

from PIL import Image, ImageTk

from modules.tools.dataset.mask_painting import Area, Painting, Point
from modules.ui.widgets.ImagePrefetcher import COVER, COVERING
from modules.ui.widgets.theme import Theme

TILE = 256
"""Screen pixels. The area a brush touches is redrawn in tiles of this size."""
STEP = 1.25
CLOSEST = 16.0
MOVE = 60
CURSOR = "cursor"


class MaskCanvas(tk.Canvas):
    """Show one image with its mask in red at any zoom, and report where the mouse paints.

    Args:
        press: called when a stroke begins, with a place in the image and whether it is to be learned.
        drag: called with the next place of the stroke.
        release: called at the end of the stroke.
        resize: called with 1 or -1 when the wheel is turned.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        press: Callable[[Point, bool], None],
        drag: Callable[[Point], None],
        release: Callable[[], None],
        resize: Callable[[int], None],
    ) -> None:
        super().__init__(parent, highlightthickness=0, borderwidth=0, cursor="crosshair", takefocus=0)
        self._theme = theme
        self._image: Image.Image | None = None
        self._painting: Painting | None = None
        self.factor = 1.0
        self._fitted = True
        self._left = self._top = 0.0
        self._base: Image.Image | None = None
        self._tiles: dict[tuple[int, int], ImageTk.PhotoImage] = {}
        self._radius = 1.0
        self._mouse: tuple[int, int] | None = None
        self._held: tuple[int, int] | None = None
        self._press, self._drag, self._resize = press, drag, resize
        self.configure(background=theme.palette.back)
        theme.on_change(lambda: self.configure(background=theme.palette.back), self)
        for button, learn in ((1, True), (3, False)):
            self.bind(f"<ButtonPress-{button}>", lambda event, learn=learn: self._pressed(event, learn))  # type: ignore[misc]
            self.bind(f"<B{button}-Motion>", self._dragged)
            self.bind(f"<ButtonRelease-{button}>", lambda _event: release())
        self.bind("<ButtonPress-2>", self._hold)
        self.bind("<B2-Motion>", self._pan)
        self.bind("<Motion>", self._moved)
        self.bind("<Leave>", self._left_it)
        self.bind("<Configure>", lambda _event: self._configured())
        for event, turn in (("<Button-4>", 1), ("<Button-5>", -1)):
            self.bind(event, lambda event, turn=turn: self._turned(event, turn))  # type: ignore[misc]
        self.bind("<MouseWheel>", lambda event: self._turned(event, 1 if event.delta > 0 else -1))

    def show(self, image: Image.Image | None, painting: Painting | None) -> None:
        """Show the whole of another image; ``None`` shows nothing."""
        self._image, self._painting = image, painting
        self.fit()

    # --- where things are ------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Show the whole image."""
        self._fitted = True
        if self._image is not None:
            width, height = self._image.size
            room = max(1, self.winfo_width()), max(1, self.winfo_height())
            self.factor = min(room[0] / width, room[1] / height, CLOSEST)
            self._left = (room[0] - width * self.factor) / 2
            self._top = (room[1] - height * self.factor) / 2
        self.redraw()

    def zoom(self, turn: int, at: tuple[int, int] | None = None) -> None:
        """Zoom in (1) or out (-1). The point of the image at ``at`` keeps its place on the screen."""
        if self._image is None:
            return
        x, y = at or self._mouse or (self.winfo_width() // 2, self.winfo_height() // 2)
        place = self.spot(x, y)
        whole = min(self.winfo_width() / self._image.width, self.winfo_height() / self._image.height)
        wanted = self.factor * STEP**turn
        if wanted <= whole:
            self.fit()
            return
        self._fitted = False
        self.factor = min(CLOSEST, wanted)
        self._left, self._top = x - place[0] * self.factor, y - place[1] * self.factor
        self.redraw()

    def move_by(self, x: float, y: float) -> None:
        """Move the image on the screen. Part of it always stays visible."""
        if self._image is None:
            return
        self._fitted = False
        width, height = (side * self.factor for side in self._image.size)
        self._left = min(self.winfo_width() - TILE / 4, max(TILE / 4 - width, self._left + x))
        self._top = min(self.winfo_height() - TILE / 4, max(TILE / 4 - height, self._top + y))
        self.redraw()

    def spot(self, x: float, y: float) -> Point:
        """The point of the image at a place on the screen."""
        return (x - self._left) / self.factor, (y - self._top) / self.factor

    def on_screen(self, point: Point) -> tuple[int, int]:
        """The place on the screen of a point of the image."""
        return round(point[0] * self.factor + self._left), round(point[1] * self.factor + self._top)

    def _configured(self) -> None:
        if self._fitted:
            self.fit()
        else:
            self.redraw()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _window(self) -> Area:
        """The part of the screen that the image covers."""
        assert self._image is not None
        width, height = (side * self.factor for side in self._image.size)
        return Area(
            max(0, round(self._left)),
            max(0, round(self._top)),
            min(self.winfo_width(), round(self._left + width)),
            min(self.winfo_height(), round(self._top + height)),
        )

    def _source(self, screen: Area) -> tuple[float, float, float, float]:
        """The part of the image shown in a part of the screen."""
        assert self._image is not None
        width, height = self._image.size
        left, top = self.spot(screen.left, screen.top)
        right, bottom = self.spot(screen.right, screen.bottom)
        left, top = min(max(0.0, left), width - 0.01), min(max(0.0, top), height - 0.01)
        return (
            left,
            top,
            min(float(width), max(right, left + 0.01)),
            min(float(height), max(bottom, top + 0.01)),
        )

    def redraw(self) -> None:
        """Draw everything."""
        self.delete("all")
        self._tiles.clear()
        self._base = None
        if self._image is None or self._painting is None or self._window().empty:
            return
        window = self._window()
        size = (window.right - window.left, window.bottom - window.top)
        way = Image.Resampling.NEAREST if self.factor >= 2 else Image.Resampling.BILINEAR
        self._base = self._image.resize(size, way, self._source(window), reducing_gap=2.0)
        for row in range(0, size[1], TILE):
            for column in range(0, size[0], TILE):
                self._draw_tile(column, row)
        self._draw_cursor()

    def draw_area(self, area: Area) -> None:
        """Redraw a painted area, given in image pixels."""
        if self._base is None or area.empty:
            return
        window = self._window()
        left, top = self.on_screen((area.left, area.top))
        right, bottom = self.on_screen((area.right, area.bottom))
        for column, row in list(self._tiles):
            across = column + TILE > left - window.left - 2 and column < right - window.left + 2
            if across and row + TILE > top - window.top - 2 and row < bottom - window.top + 2:
                self._draw_tile(column, row)

    def _draw_tile(self, column: int, row: int) -> None:
        assert self._base is not None and self._painting is not None
        window = self._window()
        piece = self._base.crop(
            (column, row, min(column + TILE, self._base.width), min(row + TILE, self._base.height))
        )
        screen = Area(window.left + column, window.top + row, 0, 0)
        screen = screen._replace(right=screen.left + piece.width, bottom=screen.top + piece.height)
        source = self._source(screen)
        left, top = int(source[0]), int(source[1])
        levels = self._painting.levels[top : int(source[3]) + 1, left : int(source[2]) + 1]
        inside = (source[0] - left, source[1] - top, source[2] - left, source[3] - top)
        mask = Image.fromarray(levels).resize(piece.size, Image.Resampling.NEAREST, inside)
        hidden = mask.point(lambda level: round((255 - level) * COVERING))
        piece.paste(COVER, (0, 0), hidden)
        photo = self._tiles.get((column, row))
        if photo is None:
            self._tiles[column, row] = photo = ImageTk.PhotoImage(piece)
            self.create_image(screen.left, screen.top, image=photo, anchor="nw")
            self.tag_raise(CURSOR)
        else:
            photo.paste(piece)

    def set_radius(self, radius: float) -> None:
        """Show the brush size, in image pixels; 0 hides it."""
        self._radius = radius
        self._draw_cursor()

    def _draw_cursor(self) -> None:
        self.delete(CURSOR)
        if self._mouse is None or self._image is None or not self._radius:
            return
        (x, y), reach = self._mouse, self._radius * self.factor
        for wider, colour in ((1, "black"), (0, "white")):
            self.create_oval(
                x - reach - wider, y - reach - wider, x + reach + wider, y + reach + wider,
                outline=colour, tags=CURSOR,
            )  # fmt: skip

    # --- the mouse --------------------------------------------------------------------------------------------------

    def _pressed(self, event: tk.Event[tk.Misc], learn: bool) -> None:
        self._moved(event)
        self._press(self.spot(event.x, event.y), learn)

    def _dragged(self, event: tk.Event[tk.Misc]) -> None:
        self._moved(event)
        self._drag(self.spot(event.x, event.y))

    def _moved(self, event: tk.Event[tk.Misc]) -> None:
        self._mouse = (event.x, event.y)
        self._draw_cursor()

    def _left_it(self, _event: tk.Event[tk.Misc]) -> None:
        self._mouse = None
        self._draw_cursor()

    def _turned(self, event: tk.Event[tk.Misc], turn: int) -> None:
        if int(event.state) & 0x4:
            self.zoom(turn, (event.x, event.y))
        else:
            self._resize(turn)

    def _hold(self, event: tk.Event[tk.Misc]) -> None:
        self._held = (event.x, event.y)

    def _pan(self, event: tk.Event[tk.Misc]) -> None:
        if self._held is not None:
            self.move_by(event.x - self._held[0], event.y - self._held[1])
        self._held = (event.x, event.y)

    def destroy(self) -> None:
        self._tiles.clear()
        super().destroy()
