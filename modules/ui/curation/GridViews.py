"""Views of all images of a group at once: a question about all of them, and the review of a ranking."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.curation.group_state import GroupState
from modules.curation.ImageGroup import ImageGroup
from modules.ui.curation.ChoiceView import (
    Action,
    ChoiceView,
    ViewContext,
    source_captions,
    sources_at_scale,
)
from modules.ui.curation.PairController import Snapshot
from modules.ui.curation.SourcePane import SourcePane
from modules.ui.texts import choosing as words
from modules.ui.widgets.ImagePrefetcher import Key, Shown
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import BAD, GOOD
from modules.util.display import counted

SMALLEST = 150
"""Minimum side of an image's place at 100 %. Below it, the grid scrolls."""


class GridView(ChoiceView):
    """A grid with a cursor moved by the arrow keys."""

    def __init__(self, parent: tk.Misc, context: ViewContext) -> None:
        super().__init__(parent, context)
        self.columnconfigure(1, weight=1)
        self.rowconfigure(0, weight=1)
        self.sources = SourcePane(self, context.prefetcher, context.theme.fonts["text"])
        self.sources.grid(row=0, column=0, sticky="n")
        self.grid_of_images = self.make_grid()
        self.grid_of_images.grid(row=0, column=1, sticky="nsew")
        self.grid_of_images.canvas.bind("<Configure>", lambda _event: self._resized(), add="+")
        self._own_size = False
        self._place: tuple[str, int] | None = None

    def show(self, shot: Snapshot) -> None:
        assert shot.group is not None
        assert shot.state is not None
        before, self._place = self._place, (shot.group.key, shot.state.events)
        if before != self._place:
            self.begin(shot.state)
        super().show(shot)

    def begin(self, state: GroupState) -> None:
        """Begin with another group, or after an answer."""

    def make_grid(self) -> ThumbGrid:
        """Make the grid with its click handlers."""
        raise NotImplementedError

    def fit(self) -> None:
        """Make the images as large as fits, unless the person has chosen a size."""
        if not self._own_size:
            self.grid_of_images.fit_cells(self.context.theme.px(SMALLEST))
        self.show_sources()

    def group_in_sight(self) -> ImageGroup | None:
        """The group whose sources are shown."""
        return None if self.shot is None else self.shot.group

    def show_sources(self) -> None:
        """Show the sources at the size of the images."""
        group = self.group_in_sight()
        if group is not None:
            captions = source_captions(group, self.context.blind)
            self.sources.show(sources_at_scale(group), captions, self.grid_of_images.cell)

    def _resized(self) -> None:
        self.fit()
        self.context.want()

    def wanted(self) -> list[Key]:
        return [*self.sources.wanted(), *self.grid_of_images.in_sight()]

    def arrived(self, path: Shown) -> None:
        self.grid_of_images.arrived(path)
        self.sources.arrived(path)

    def zoom_by(self, direction: int) -> None:
        self._own_size = True
        self.grid_of_images.resize_cells(direction)
        self.show_sources()
        self.context.want()


class SelectView(GridView):
    """Left click marks the best image, right click the worst. With both marked, the pair is saved."""

    def __init__(self, parent: tk.Misc, context: ViewContext) -> None:
        super().__init__(parent, context)
        self.best: int | None = None
        self.worst: int | None = None
        self.shown: list[int] = []
        self.take_keys(self.way.keys(0))

    def make_grid(self) -> ThumbGrid:
        return ThumbGrid(
            self,
            self.context.prefetcher,
            on_best=lambda place: self.mark(best=place),
            on_worst=lambda place: self.mark(worst=place),
            font=self.context.theme.fonts["text"],
        )

    def begin(self, state: GroupState) -> None:
        self.best = self.worst = None

    def draw(self) -> None:
        self.hint = self.way.hint(self.group_state.situation, len(self.group_state.question))
        alive = list(self.group_state.question)
        same = alive == self.shown
        self.shown = alive
        captions = [] if self.context.blind else [Path(self.group.files[i]).name for i in alive]
        shown = [self.in_place(self.group, self.group.path(i)) for i in alive]
        self.grid_of_images.show(shown, captions, keep_place=same)
        self.fit()
        self._draw_marks()

    def _draw_marks(self) -> None:
        pairs = ((self.best, GOOD), (self.worst, BAD))
        self.grid_of_images.set_marks({place: colour for place, colour in pairs if place is not None})

    def mark_best(self) -> None:
        self.mark(best=self.grid_of_images.cursor)

    def mark_worst(self) -> None:
        self.mark(worst=self.grid_of_images.cursor)

    def mark(self, best: int | None = None, worst: int | None = None) -> None:
        """Mark images by their positions in the grid. Marking an image again removes the mark."""
        if not self.may_judge():
            return
        if best is not None:
            self.best = None if self.best == best else best
            self.worst = None if self.worst == best else self.worst
        if worst is not None:
            self.worst = None if self.worst == worst else worst
            self.best = None if self.best == worst else self.best
        self._draw_marks()
        if self.best is not None and self.worst is not None:
            self.controller.choose(self.shown[self.best], self.shown[self.worst])

    def on_key(self, key: str, shift: bool) -> bool:
        return self.grid_of_images.move_cursor(key.removeprefix("KP_"))


class RankedView(GridView):
    """The images from best to worst. The person adjusts the order, sets the number of pairs and exports.

    Args:
        leave: returns to the questions.
    """

    def __init__(self, parent: tk.Misc, context: ViewContext, leave: Callable[[], None]) -> None:
        super().__init__(parent, context)
        self.order: list[int] = []
        self.count = 1
        self.actions = [
            Action(words.EXPORT, ("Return", "KP_Enter"), self._export, True),
            Action(words.FEWER, ("minus", "KP_Subtract"), lambda: self.set_count(self.count - 1)),
            Action(words.MORE, ("plus", "KP_Add", "equal"), lambda: self.set_count(self.count + 1)),
            Action(words.MOVE_UP, ("less", "comma"), lambda: self._shift(-1)),
            Action(words.MOVE_DOWN, ("greater", "period"), lambda: self._shift(1)),
            Action(words.BACK, ("Escape",), leave),
        ]

    def make_grid(self) -> ThumbGrid:
        theme = self.context.theme
        return ThumbGrid(
            self,
            self.context.prefetcher,
            on_move=self.move,
            font=theme.fonts["text"],
        )

    def begin(self, state: GroupState) -> None:
        self.order = state.standing.order(state.alive)
        self.count = max(1, min(self.count, len(self.order) // 2))

    def draw(self) -> None:
        blind = self.context.blind
        captions = [f"{n}" if blind else self.caption(i, f"{n}") for n, i in enumerate(self.order, 1)]
        shown = [self.in_place(self.group, self.group.path(i)) for i in self.order]
        self.grid_of_images.show(shown, captions, keep_place=True)
        self.fit()
        last = len(self.order)
        marks = dict.fromkeys(range(self.count), GOOD)
        marks |= dict.fromkeys(range(last - self.count, last), BAD)
        self.grid_of_images.set_marks(marks)
        self.hint = words.RANKED_HINT.format(pairs=counted(self.count, words.PAIR))

    def set_count(self, count: int) -> None:
        """Set the number of pairs to export."""
        self.count = max(1, min(count, len(self.order) // 2))
        self.draw()
        self.event_generate("<<HintChanged>>")

    def move(self, start: int, end: int) -> None:
        """Move the image at ``start`` to ``end``."""
        self.order.insert(end, self.order.pop(start))
        self.grid_of_images.cursor = end
        self.draw()

    def _shift(self, step: int) -> None:
        start = self.grid_of_images.cursor
        if 0 <= start + step < len(self.order):
            self.move(start, start + step)
            self.grid_of_images.see_cursor()

    def _export(self) -> None:
        self.controller.export_ranked(self.order, self.count)

    def on_key(self, key: str, shift: bool) -> bool:
        key = key.removeprefix("KP_")
        step = {"Left": -1, "Right": 1, "Up": -1, "Down": 1}.get(key)
        if shift and step is not None:
            self._shift(step * (self.grid_of_images.columns() if key in ("Up", "Down") else 1))
            return True
        return self.grid_of_images.move_cursor(key)
