"""Curves on a plain canvas: axes, legend, smoothing, values under the pointer."""

from __future__ import annotations

import math
import tkinter as tk
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from modules.ui.texts import run as words
from modules.ui.widgets.theme import Theme

MAX_DRAWN = 600
SMOOTHED_FROM = 40


@dataclass(frozen=True)
class Curve:
    """A curve: its name in the legend and its points, by rising x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def smooth(values: Sequence[float], share: float) -> list[float]:
    """Exponential moving average, bias-corrected at the start; ``share`` 0 changes nothing."""
    made: list[float] = []
    held, weight = 0.0, 0.0
    for value in values:
        held = share * held + (1 - share) * value
        weight = share * weight + (1 - share)
        made.append(held / weight)
    return made


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers between ``low`` and ``high``."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step) * step
    made = [first + index * step for index in range(math.floor((high - first) / step + 1e-9) + 1)]
    return [0.0 if abs(value) < step * 1e-9 else value for value in made]


def thin(x: Sequence[float], y: Sequence[float], most: int) -> tuple[list[float], list[float]]:
    """Reduce to at most ``most`` points: the lowest and the highest of each stretch, so that peaks stay."""
    if len(x) <= most:
        return list(x), list(y)
    size = math.ceil(len(x) / (most // 2))
    made_x: list[float] = []
    made_y: list[float] = []
    for start in range(0, len(x), size):
        part = range(start, min(len(x), start + size))
        low, high = min(part, key=y.__getitem__), max(part, key=y.__getitem__)
        for index in sorted({low, high}):
            made_x.append(x[index])
            made_y.append(y[index])
    return made_x, made_y


class CurvePlot(tk.Canvas):
    """One diagram.

    Args:
        reserved: pixels at 100 % to the left of the legend, used by other widgets.
        from_zero: start the vertical axis at 0, so that the height of a curve is its share.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        height: int = 220,
        reserved: int = 0,
        from_zero: bool = False,
    ) -> None:
        super().__init__(
            parent,
            highlightthickness=0,
            borderwidth=0,
            takefocus=0,
            width=theme.px(260),
            height=theme.px(height),
        )
        self._theme = theme
        self.title, self._reserved, self._from_zero = "", reserved, from_zero
        self.curves: list[Curve] = []
        self.smoothing = 0.0
        self._drawn: list[tuple[Curve, list[float]]] = []
        self._area = (0.0, 0.0, 1.0, 1.0)
        self._range = (0.0, 1.0, 0.0, 1.0)
        self.bind("<Configure>", lambda _event: self.redraw())
        self.bind("<Motion>", self._hover)
        self.bind("<Leave>", lambda _event: self.delete("hover"))
        theme.on_change(self.redraw, self)

    def show(self, title: str, curves: Sequence[Curve], smoothing: float = 0.0) -> None:
        """Replace the curves."""
        self.title, self.curves, self.smoothing = title, list(curves), smoothing
        self.redraw()

    def redraw(self) -> None:
        """Draw everything."""
        self.delete("all")
        palette, px = self._theme.palette, self._theme.px
        self.configure(background=palette.panel)
        width, height = self.winfo_width(), self.winfo_height()
        if width <= px(80) or height <= px(60):
            return
        self._area = (px(58), px(48), width - px(14), height - px(26))
        font = self._theme.fonts["bold"]
        if self.title:
            self.create_text(px(12), px(8), text=self.title, anchor="nw", fill=palette.text, font=font)
        if not any(curve.x for curve in self.curves):
            middle = (width // 2, height // 2)
            self.create_text(*middle, text=words.NO_CURVE, fill=palette.muted, font=self._theme.fonts["text"])
            self._drawn = []
            return
        self._drawn = [
            (curve, smooth(curve.y, self.smoothing if len(curve.y) >= SMOOTHED_FROM else 0.0))
            for curve in self.curves
            if curve.x
        ]
        self._range = self._limits()
        self._axes()
        for index, (curve, values) in enumerate(self._drawn):
            colour = palette.curves[index % len(palette.curves)]
            if self.smoothing and len(curve.y) >= SMOOTHED_FROM:
                self._line(curve.x, curve.y, _faint(colour, palette.panel), 1)
            self._line(curve.x, values, colour, px(1.6))
        self._legend()

    def _limits(self) -> tuple[float, float, float, float]:
        left = min(curve.x[0] for curve, _ in self._drawn)
        right = max(curve.x[-1] for curve, _ in self._drawn)
        low = min(min(values) for _, values in self._drawn)
        high = max(max(values) for _, values in self._drawn)
        room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
        if self._from_zero and low >= 0:
            low, room = 0.0, high * 0.08 or 1.0
            return left, right if right > left else left + 1, low, high + room
        return left, right if right > left else left + 1, low - room, high + room

    def _place(self, x: float, y: float) -> tuple[float, float]:
        x0, y0, x1, y1 = self._area
        left, right, low, high = self._range
        return x0 + (x - left) / (right - left) * (x1 - x0), y1 - (y - low) / (high - low) * (y1 - y0)

    def _line(self, x: Sequence[float], y: Sequence[float], colour: str, width: float) -> None:
        xs, ys = thin(x, y, MAX_DRAWN)
        top, bottom = self._area[1], self._area[3]
        points: list[float] = []
        for point in zip(xs, ys, strict=True):
            across, down = self._place(*point)
            points += [across, min(bottom, max(top, down))]
        if len(xs) == 1:
            radius = self._theme.px(3)
            a, b = points
            self.create_oval(a - radius, b - radius, a + radius, b + radius, fill=colour, outline="")
        else:
            self.create_line(points, fill=colour, width=width)

    def _axes(self) -> None:
        palette, fonts, px = self._theme.palette, self._theme.fonts, self._theme.px
        x0, y0, x1, y1 = self._area
        left, right, low, high = self._range
        for value in ticks(low, high, max(2, int((y1 - y0) / px(26)))):
            _, y = self._place(left, value)
            self.create_line(x0, y, x1, y, fill=palette.hover)
            self.create_text(
                x0 - px(6), y, text=f"{value:.4g}", anchor="e", fill=palette.muted, font=fonts["small"]
            )
        for value in ticks(left, right, max(2, int((x1 - x0) / px(90)))):
            x, _ = self._place(value, low)
            self.create_text(
                x, y1 + px(5), text=f"{value:g}", anchor="n", fill=palette.muted, font=fonts["small"]
            )
        self.create_line(x0, y1, x1, y1, fill=palette.border)

    def _legend(self) -> None:
        palette, fonts, px = self._theme.palette, self._theme.fonts, self._theme.px
        right = self._area[2]
        for index in reversed(range(len(self._drawn))):
            curve, values = self._drawn[index]
            colour = palette.curves[index % len(palette.curves)]
            newest = f"{curve.name} {values[-1]:.4g}"
            item = self.create_text(
                right, px(14), text=newest, anchor="ne", fill=palette.text, font=fonts["small"]
            )
            left = self.bbox(item)[0]
            if left - px(14) < px(self._reserved):
                self.delete(item)
                return
            self.create_rectangle(left - px(14), px(17), left - px(5), px(25), fill=colour, outline="")
            right = left - px(26)

    def _hover(self, event: tk.Event[tk.Misc]) -> None:
        self.delete("hover")
        x0, y0, x1, y1 = self._area
        if not self._drawn or not x0 <= event.x <= x1:
            return
        left, right, _, _ = self._range
        wanted = left + (event.x - x0) / (x1 - x0) * (right - left)
        lines = []
        step = wanted
        for curve, values in self._drawn:
            index = _nearest(curve.x, wanted)
            step = curve.x[index]
            lines.append(f"{curve.name}: {values[index]:.5g}")
        palette, px = self._theme.palette, self._theme.px
        x, _ = self._place(step, self._range[2])
        self.create_line(x, y0, x, y1, fill=palette.muted, tags="hover")
        anchor: Literal["nw", "ne"] = "nw" if event.x < (x0 + x1) / 2 else "ne"
        place = x + px(8) if anchor == "nw" else x - px(8)
        said = "\n".join([words.AT_STEP.format(step=step), *lines])
        item = self.create_text(
            place, y0 + px(6), text=said, anchor=anchor, fill=palette.text,
            font=self._theme.fonts["small"], tags="hover",
        )  # fmt: skip
        a, b, c, d = self.bbox(item)
        box = self.create_rectangle(
            a - 5, b - 3, c + 5, d + 3, fill=palette.field, outline=palette.border, tags="hover"
        )
        self.tag_raise(item, box)


def _nearest(x: Sequence[float], wanted: float) -> int:
    after = min(bisect_left(x, wanted), len(x) - 1)
    before = max(0, after - 1)
    return before if abs(x[before] - wanted) <= abs(x[after] - wanted) else after


def _faint(colour: str, under: str) -> str:
    """A colour mixed with the background."""
    pairs = zip(*(bytes.fromhex(text[1:]) for text in (colour, under)), strict=True)
    return "#" + "".join(f"{round(a * 0.35 + b * 0.65):02x}" for a, b in pairs)
