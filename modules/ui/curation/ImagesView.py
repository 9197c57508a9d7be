"""Views of images next to each other: questions about one, two, four or more, and the saved pair."""

from __future__ import annotations

import math
import tkinter as tk
from functools import partial
from pathlib import Path

from modules.ui.curation.ChoiceView import (
    Action,
    ChoiceView,
    Comparing,
    ViewContext,
    source_captions,
    sources_at_scale,
)
from modules.ui.curation.PairController import Snapshot
from modules.ui.texts import choosing as words
from modules.ui.widgets.ImagePrefetcher import Compared, Key, Shown
from modules.ui.widgets.ImageView import ImageView
from modules.ui.widgets.tk_support import BAD, GOOD, RIGHT_CLICK, cancel_timer, later, on_event
from modules.util.display import counted

MAX_AHEAD = 32
FLICKER_MS = 350


class ImagesView(ChoiceView):
    """Images next to each other that zoom and pan together, with their sources on the left.

    Args:
        places: maximum number of images at once.
        sources: maximum number of sources, shown at the same size.
    """

    def __init__(self, parent: tk.Misc, context: ViewContext, places: int, sources: int = 0) -> None:
        super().__init__(parent, context)
        font = context.theme.fonts["bold"]
        self.sources = [ImageView(self, context.prefetcher, context.zoom, font=font) for _ in range(sources)]
        self.views = [
            ImageView(
                self,
                context.prefetcher,
                context.zoom,
                on_click=partial(self._clicked_at, i),
                font=font,
            )
            for i in range(places)
        ]
        columns = math.ceil(math.sqrt(places))
        rows = -(-places // columns)
        before = -(-sources // rows)
        for i, view in enumerate(self.sources):
            view.grid(row=i % rows, column=i // rows, sticky="nsew", padx=2, pady=2)
        for i, view in enumerate(self.views):
            view.grid(row=i // columns, column=before + i % columns, sticky="nsew", padx=2, pady=2)
            view.bind("<Configure>", lambda _event: context.want(), add="+")
        for column in range(before + columns):
            self.columnconfigure(column, weight=1, uniform="images")
        for row in range(rows):
            self.rowconfigure(row, weight=1, uniform="images")
        self._order = list(range(places))
        self._flickering: str | None = None

    def _clicked_at(self, place: int) -> None:
        self.clicked(self._order[place])

    def clicked(self, place: int) -> None:
        """Handle a click on an image, given its place when images are not in each other's places."""

    def labels(self) -> list[str]:
        """The labels of the places."""
        return [""] * len(self.views)

    @property
    def question(self) -> tuple[int, ...]:
        """Image numbers in screen order."""
        return self.group_state.question

    def draw(self) -> None:
        labels = self.labels()
        asked = self.question
        for place, view in enumerate(self.views):
            source = self._order[place]
            if source < len(asked):
                index = asked[source]
                shown = self.in_place(self.group, self.group.path(index))
                view.show(shown, self._compared_caption() or self.caption(index, labels[source]))
            else:
                view.show(None)
        captions = source_captions(self.group, self.context.blind)
        for view, path, caption in zip(self.sources, sources_at_scale(self.group), captions, strict=False):
            view.show(path, caption)

    def _compared_caption(self) -> str:
        if self.comparing is None:
            return ""
        return words.SOURCE if self.comparing is Comparing.SOURCE else words.DIFFERENCE_SHOWN

    def wanted(self) -> list[Key]:
        assert self.shot is not None
        boxes = [view.box for view in self.views]
        asked = list(self.question)
        others = [i for i in self.group_state.alive if i not in asked][:MAX_AHEAD]
        images = [(self.group.path(i), box) for i, box in zip(asked, boxes, strict=False)]
        keys: list[Key] = [(self.in_place(self.group, path), box) for path, box in images]
        keys += [*self._wanted_sources(), *images]
        different = list(dict.fromkeys(boxes))
        keys += [(self.group.path(i), box) for i in asked + others for box in different]
        if self.context.zoom.used:  # someone who zooms once zooms again, and should not wait for a decode
            keys += [(self.group.path(i), None) for i in asked]
        keys += [(path, box) for path in self.shot.coming for box in different]
        return keys

    def _wanted_sources(self) -> list[Key]:
        """The sources, and whatever else a key may show in place of an image."""
        shown = sources_at_scale(self.group)
        keys: list[Key] = [(path, view.box) for path, view in zip(shown, self.sources, strict=False)]
        for source in self.group.sources[:1]:
            for view, index in zip(self.views, self.question, strict=False):
                path = self.group.path(index)
                keys += [(Compared(path, source.path, difference), view.box) for difference in (False, True)]
        return keys

    def arrived(self, path: Shown) -> None:
        for view in (*self.views, *self.sources):
            view.arrived(path)

    def ready(self) -> bool:
        return all(view.settled for view in (*self.views, *self.sources))

    def zoom_by(self, direction: int) -> None:
        self.views[0].zoom_by(direction)

    def flicker(self, on: bool) -> None:
        if on and self._flickering is None:
            self._swap()
        elif not on and self._flickering is not None:
            cancel_timer(self, self._flickering)
            self._flickering = None
            self._order = list(range(len(self.views)))
            self.draw()

    def _swap(self) -> None:
        self._order = [*self._order[1:], self._order[0]]
        self.draw()
        self._flickering = later(self, FLICKER_MS, self._swap)


class QuestionView(ImagesView):
    """The question of a way of choosing.

    With two images, a click picks the better one. With more, the first digit or click marks the best image
    and the second the worst.
    """

    def __init__(self, parent: tk.Misc, context: ViewContext, places: int, sources: int = 0) -> None:
        super().__init__(parent, context, places, sources)
        self.best: int | None = None
        self.take_keys(self.way.keys(places))
        for place, view in enumerate(self.views if places > 2 else ()):
            view.bind(RIGHT_CLICK, on_event(self._right_clicked, place))

    def show(self, shot: Snapshot) -> None:
        self.best = None
        super().show(shot)

    def labels(self) -> list[str]:
        places = len(self.views)
        return [str(place) for place in range(1, places + 1)] if places > 2 else [""] * places

    def caption(self, index: int, label: str = "") -> str:
        if self.way.compares or self.context.blind:
            return super().caption(index, label)
        return Path(self.group.files[index]).name

    def draw(self) -> None:
        self.hint = self.way.hint(self.group_state.situation, len(self.views))
        super().draw()
        for place, view in enumerate(self.views):
            view.mark(GOOD if self._order[place] == self.best else None)

    def clicked(self, place: int) -> None:
        if not self.way.compares or place >= len(self.question) or not self.may_judge():
            return
        if len(self.views) == 2:
            self._answer(place)
        elif self.best is None or self.best == place:
            self.best = place if self.best is None else None
            self.draw()
        else:
            self.worst(place)

    def better(self, place: int) -> None:
        self._answer(self._order[place])

    def _answer(self, place: int) -> None:
        if place < len(self.question) and self.may_judge():
            self.controller.answer(best=self.question[place])

    def _right_clicked(self, place: int) -> None:
        self.worst(self._order[place])

    def worst(self, place: int) -> None:
        """Answer with this image as the worst, if another one is marked as the best."""
        if not self.may_judge():
            return
        if self.best is not None and place < len(self.question) and place != self.best:
            self.controller.answer(best=self.question[self.best], worst=self.question[place])

    def only_best(self) -> None:
        if self.best is not None:
            self.controller.answer(best=self.question[self.best])

    def on_key(self, key: str, shift: bool) -> bool:
        key = key.removeprefix("KP_")
        places = len(self.views)
        if places > 2 and key.isdigit() and 1 <= int(key) <= places:
            self.clicked(int(key) - 1)
        elif key == "Escape" and self.best is not None:
            self.best = None
            self.draw()
        else:
            return False
        return True


class ContinueView(ImagesView):
    """The pair saved by a pick, and the question whether to keep scoring this prompt."""

    def __init__(self, parent: tk.Misc, context: ViewContext, sources: int = 0) -> None:
        super().__init__(parent, context, 2, sources)
        self.actions = [
            Action(words.KEEP_SCORING, ("y",), context.controller.go_on),
            Action(words.TO_NEXT_PROMPT, ("n", "Return", "KP_Enter"), context.controller.next_group, True),
        ]

    @property
    def question(self) -> tuple[int, ...]:
        """The last pair: chosen, rejected."""
        assert self.shot is not None
        if not self.shot.pairs:
            return ()
        places = {str(self.group.path(i)): i for i in range(len(self.group.files))}
        sources = self.shot.pairs[-1].get("sources", {})
        found = [places.get(sources.get(side, "")) for side in ("chosen", "rejected")]
        return tuple(i for i in found if i is not None)

    def labels(self) -> list[str]:
        return [words.CHOSEN, words.REJECTED]

    def draw(self) -> None:
        state = self.group_state
        left = counted(len(state.alive), words.IMAGE)
        self.hint = words.SAVED_HINT.format(pairs=counted(state.pairs, words.PAIR), images=left)
        super().draw()
        for view, colour in zip(self.views, (GOOD, BAD), strict=True):
            view.mark(colour)
