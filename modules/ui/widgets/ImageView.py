"""One image on a canvas, with zoom and pan that several views can share."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import font as tkfont

from PIL import Image, ImageTk

from modules.ui.texts import choosing as words
from modules.ui.widgets.ImagePrefetcher import Box, ImagePrefetcher, Shown, fit
from modules.ui.widgets.tk_support import shade

MAX_ZOOM = 16.0
STEP = 1.25
BORDER = 3


class ZoomState:
    """Zoom and position that several views share, so that all show the same part of their images.

    ``factor`` is screen pixels per image pixel, ``None`` while the whole image is shown. ``centre`` is a
    point in the image, as fractions of its width and height. ``used`` says whether the person has zoomed at
    all.
    """

    def __init__(self) -> None:
        self.factor: float | None = None
        self.centre = (0.5, 0.5)
        self.used = False
        self._views: list[Callable[[], None]] = []

    def watch(self, redraw: Callable[[], None]) -> None:
        """Call ``redraw`` after every change."""
        self._views.append(redraw)

    def set(self, factor: float | None, centre: tuple[float, float] = (0.5, 0.5)) -> None:
        """Centre the view on ``centre`` at ``factor``; ``None`` shows everything."""
        before = (self.factor, self.centre)
        self.factor = None if factor is None else min(MAX_ZOOM, factor)
        self.centre = (min(1.0, max(0.0, centre[0])), min(1.0, max(0.0, centre[1])))
        if (self.factor, self.centre) == before:
            return
        self.used = self.used or factor is not None
        for redraw in self._views:
            redraw()

    def toggle_actual_size(self) -> None:
        """Switch between one image pixel per screen pixel and the whole image."""
        self.set(1.0 if self.factor is None else None)


class ImageView(tk.Canvas):
    """Shows one image fitted into the widget, or a part of it when zoomed.

    Args:
        zoom: shared with the views that should move together.
        on_click: called on a click without dragging.
    """

    def __init__(
        self,
        parent: tk.Misc,
        prefetcher: ImagePrefetcher,
        zoom: ZoomState,
        on_click: Callable[[], None] | None = None,
        font: tkfont.Font | str = "TkDefaultFont",
    ) -> None:
        super().__init__(parent, highlightthickness=BORDER, borderwidth=0, takefocus=0, width=64, height=64)
        self.path: Shown | None = None
        self.shown: Shown | None = None
        self._prefetcher = prefetcher
        self._zoom = zoom
        self._on_click = on_click
        self._font = font
        self._photo: ImageTk.PhotoImage | None = None
        self._photo_key: tuple[Shown, Box] | None = None
        self._caption = ""
        self._mark: str | None = None
        self._drag: tuple[int, int] | None = None
        self._dragged = False
        zoom.watch(self.redraw)
        self.bind("<Configure>", lambda _event: self.redraw())
        self.bind("<ButtonPress-1>", self._press)
        self.bind("<B1-Motion>", self._move)
        self.bind("<ButtonRelease-1>", self._release)
        self.bind("<Double-Button-3>", lambda _event: self._zoom.set(None))
        self.bind("<MouseWheel>", lambda event: self._wheel(event, 1 if event.delta > 0 else -1))
        self.bind("<Button-4>", lambda event: self._wheel(event, 1))
        self.bind("<Button-5>", lambda event: self._wheel(event, -1))

    @property
    def box(self) -> Box:
        """The pixels available to an image."""
        inset = 2 * BORDER
        return max(1, self.winfo_width() - inset), max(1, self.winfo_height() - inset)

    @property
    def settled(self) -> bool:
        """True if the image is on the screen, cannot be shown, or there is none."""
        return self.path is None or self.shown == self.path or self._prefetcher.failure(self.path) is not None

    def show(self, path: Shown | None, caption: str = "") -> None:
        """Show an image, or a placeholder until it is decoded."""
        self.path, self._caption = path, caption
        self.redraw()

    def forget(self) -> None:
        """Forget what is drawn, because the file may hold another image."""
        self._photo_key, self.shown = None, None

    def destroy(self) -> None:
        self._photo = None  # megabytes, which must not wait for the garbage collector
        super().destroy()

    def mark(self, colour: str | None) -> None:
        """Frame the image in a colour, or remove the frame."""
        self._mark = colour
        self._draw_frame()

    def arrived(self, path: Shown) -> None:
        """Handle a decoded image: draw it if it belongs here and is not on the screen yet."""
        if path == self.path and self.shown != path:
            self.redraw()

    def _draw_frame(self) -> None:
        ground = shade("#1a1a1a", "#dcdcdc")
        colour = self._mark or ground
        self.configure(background=ground, highlightbackground=colour, highlightcolor=colour)

    def redraw(self) -> None:
        """Draw what is available. Zoomed views decode synchronously, because waiting would feel like lag."""
        if not self.winfo_exists() or self.winfo_width() <= 1:
            return
        self._draw_frame()
        self.delete("all")
        if self.path is None:
            self.shown = None
            return
        if self._zoom.factor is None:
            self._draw_whole(self.path)
        else:
            self._draw_part(self.path, self._zoom.factor)
        if self._caption:
            self._draw_caption()

    def _middle(self) -> tuple[int, int]:
        return self.winfo_width() // 2, self.winfo_height() // 2

    def _draw_whole(self, path: Shown) -> None:
        if self._photo_key != (path, self.box):
            image = self._prefetcher.get(path, self.box)
            if image is None:
                self.shown = None
                self._say(self._prefetcher.failure(path))
                return
            self._photo = ImageTk.PhotoImage(image)
            self._photo_key = (path, self.box)
        self.create_image(*self._middle(), image=self._photo)
        self.shown = path

    def _draw_part(self, path: Shown, factor: float) -> None:
        image = self._prefetcher.get_now(path, None)
        if image is None:
            self._say(self._prefetcher.failure(path))
            return
        width, height = self.box
        part = visible_part(image.size, self.box, factor, self._zoom.centre)
        size = (
            max(1, min(width, round((part[2] - part[0]) * factor))),
            max(1, min(height, round((part[3] - part[1]) * factor))),
        )
        how = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BILINEAR
        self._photo = ImageTk.PhotoImage(image.resize(size, how, box=part))
        self._photo_key = None
        self.create_image(*self._middle(), image=self._photo)
        self.shown = path

    def _say(self, failure: str | None) -> None:
        name = "" if self.path is None else self.path.name
        text = "\u2026" if failure is None else words.CANNOT_BE_SHOWN.format(name=name, reason=failure)
        self.create_text(
            *self._middle(),
            text=text,
            fill=shade("#bbbbbb", "#444444"),
            width=self.box[0] - 20,
            font=self._font,
        )

    def _draw_caption(self) -> None:
        item = self.create_text(10, 8, text=self._caption, anchor="nw", fill="#ffffff", font=self._font)
        left, top, right, bottom = self.bbox(item)
        ground = self.create_rectangle(left - 5, top - 2, right + 5, bottom + 2, fill="#202020", width=0)
        self.tag_raise(item, ground)

    # --- mouse --------------------------------------------------------------------------------------------------

    def _full_size(self) -> Box | None:
        image = None if self.path is None else self._prefetcher.get_now(self.path, None)
        return None if image is None else image.size

    def _wheel(self, event: tk.Event[tk.Misc], direction: int) -> None:
        self.zoom_by(direction, event.x, event.y)

    def zoom_by(self, direction: int, x: int | None = None, y: int | None = None) -> None:
        """Zoom one level in (1) or out (-1), keeping the point under (x, y) fixed."""
        size = self._full_size()
        if size is None:
            return
        whole = fit(size, self.box)[0] / size[0]
        before = self._zoom.factor or whole
        factor = min(MAX_ZOOM, before * STEP**direction)
        if factor <= whole * 1.001:
            self._zoom.set(None)
            return
        middle = self._middle()
        dx, dy = (
            (x if x is not None else middle[0]) - middle[0],
            (y if y is not None else middle[1]) - middle[1],
        )
        at = self._zoom.centre if self._zoom.factor is not None else (0.5, 0.5)
        shift = 1 / before - 1 / factor
        self._zoom.set(factor, (at[0] + dx * shift / size[0], at[1] + dy * shift / size[1]))

    def _press(self, event: tk.Event[tk.Misc]) -> None:
        self._drag, self._dragged = (event.x, event.y), False

    def _move(self, event: tk.Event[tk.Misc]) -> None:
        if self._drag is None or self._zoom.factor is None:
            return
        dx, dy = event.x - self._drag[0], event.y - self._drag[1]
        if not self._dragged and abs(dx) + abs(dy) < 4:
            return
        size = self._full_size()
        if size is None:
            return
        self._dragged, self._drag = True, (event.x, event.y)
        factor, (cx, cy) = self._zoom.factor, self._zoom.centre
        self._zoom.set(factor, (cx - dx / factor / size[0], cy - dy / factor / size[1]))

    def _release(self, _event: tk.Event[tk.Misc]) -> None:
        if not self._dragged and self._drag is not None and self._on_click is not None:
            self._on_click()
        self._drag = None


def visible_part(
    size: Box, box: Box, factor: float, centre: tuple[float, float]
) -> tuple[float, float, float, float]:
    """The rectangle (left, top, right, bottom) of an image that fills ``box`` at ``factor``, within the
    image.
    """
    edges = []
    for length, room, at in zip(size, box, centre, strict=True):
        span = min(float(length), room / factor)
        start = min(max(0.0, at * length - span / 2), length - span)
        edges.append((start, start + span))
    return edges[0][0], edges[1][0], edges[0][1], edges[1][1]
