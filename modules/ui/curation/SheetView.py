"""A page of many prompts. The person likes and dislikes what stands out; an image in view for a second counts
as seen."""

from __future__ import annotations

import time
import tkinter as tk
from pathlib import Path

from modules.curation.ImageGroup import ImageGroup
from modules.curation.marking.Sheet import Strip
from modules.ui.curation.ChoiceView import Comparing, ViewContext
from modules.ui.curation.GridViews import GridView
from modules.ui.curation.PairController import Snapshot
from modules.ui.curation.SheetGrid import Section, SheetGrid
from modules.ui.texts import choosing as words
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import BAD, GOOD, later, shade

SEEN_AFTER_S = 1.0
LOOK_MS = 200
CELL, HEADING = 170, 26
"""Side of an image's place and height of a title at 100 %."""
SEEN = ("#5a5a5a", "#b0b0b0")
"""Frame colours of an image that was seen but not marked, for dark and light themes."""
Image = tuple[str, str]
"""Key of the group, and file."""


class SheetView(GridView):
    """Shows the page. Marks are saved immediately and drawn once they are on disk."""

    grid_of_images: SheetGrid

    def __init__(self, parent: tk.Misc, context: ViewContext) -> None:
        super().__init__(parent, context)
        self._images: list[tuple[Strip, str]] = []
        self._since: dict[Image, float] = {}
        self._told: set[Image] = set()
        self._prompt_at: str | None = None
        self.take_keys(self.way.keys(0))
        later(self, LOOK_MS, self._look)

    def make_grid(self) -> ThumbGrid:
        px = self.context.theme.px
        grid = SheetGrid(
            self,
            self.context.prefetcher,
            on_best=lambda place: self._toggle(place, True),
            on_worst=lambda place: self._toggle(place, False),
            cell=px(CELL),
            font=self.context.theme.fonts["text"],
        )
        grid.heading = px(HEADING)
        return grid

    def fit(self) -> None:
        """Keep the image size and let the page scroll."""
        self.show_sources()

    # --- showing ------------------------------------------------------------------------------------------------

    def show(self, shot: Snapshot) -> None:
        self.shot = shot
        before = self._images[0][0].group.key if self._images else None
        cursor = [(one.group.key, name) for one, name in self._images][self.grid_of_images.cursor :][:1]
        self._images = [(one, name) for one in shot.strips for name in one.files]
        same = before == (self._images[0][0].group.key if self._images else None)
        sections = [
            Section(self._title(one), [self.in_place(one.group, one.group.root / name) for name in one.files])
            for one in shot.strips
        ]
        captions = [] if self.context.blind else [Path(name).name for _, name in self._images]
        if not same:
            self._told.clear()
        places = [i for i, (one, name) in enumerate(self._images) if (one.group.key, name) in cursor]
        if places:  # a prompt above it may have more images now
            self.grid_of_images.cursor = places[0]
        self.grid_of_images.show_sections(sections, captions, keep_place=same)
        self.draw()

    def _title(self, one: Strip) -> str:
        return words.PROMPT_AND_SHAPE.format(prompt=one.group.prompt, shape=one.group.aspectratio, note="")

    def draw(self) -> None:
        self.hint = self.way.hint(self.group_state.situation, len(self.group_state.question))
        marks = {}
        for place, (strip, name) in enumerate(self._images):
            if not strip.is_new(name):
                like = strip.mark(name)
                marks[place] = shade(*SEEN) if like is None else GOOD if like else BAD
        self.grid_of_images.set_marks(marks)
        self.context.want()
        self._follow()

    def _under_cursor(self) -> Strip | None:
        place = min(self.grid_of_images.cursor, len(self._images) - 1)
        return self._images[place][0] if self._images else None

    def prompt(self) -> tuple[str, str, str]:
        """The prompt of the image under the cursor."""
        one = self._under_cursor()
        if one is None:
            return super().prompt()
        return one.group.prompt, one.group.aspectratio, one.state.again

    def group_in_sight(self) -> ImageGroup | None:
        one = self._under_cursor()
        return super().group_in_sight() if one is None else one.group

    def compare(self, how: Comparing | None) -> None:
        self.comparing = how
        if self.shot is not None:
            self.show(self.shot)
            self.event_generate("<<HintChanged>>")

    def _follow(self) -> None:
        group = self.group_in_sight()
        if group is not None and group.key != self._prompt_at:
            self._prompt_at = group.key
            self.event_generate("<<PromptChanged>>")
            self.show_sources()
            self.context.want()

    # --- marking ------------------------------------------------------------------------------------------------

    def like(self) -> None:
        self._toggle(self.grid_of_images.cursor, True)

    def dislike(self) -> None:
        self._toggle(self.grid_of_images.cursor, False)

    def _toggle(self, place: int, like: bool) -> None:
        if self.comparing is None and place < len(self._images) and self.grid_of_images.is_drawn(place):
            strip, name = self._images[place]
            self.controller.toggle(strip.group.key, name, like)
        self._follow()

    def ready(self) -> bool:
        """Return whether an image of the page was drawn or has failed. This keeps a held key from skipping
        an unseen page.
        """
        grid = self.grid_of_images
        settled = any(grid.is_drawn(i) or grid.has_failed(i) for i in grid.on_screen())
        return settled or not self._images

    def next_prompt(self) -> None:
        if self.shot is not None:
            self.controller.close_page({one.group.key: one.files for one in self.shot.strips})

    def on_key(self, key: str, shift: bool) -> bool:
        moved = self.grid_of_images.move_cursor(key.removeprefix("KP_"))
        if moved:
            self.context.want()
            self._follow()
        return moved

    # --- seeing -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Record images that have been in view long enough."""
        later(self, LOOK_MS, self._look)
        now = time.monotonic()
        places = [] if self.comparing is not None else self.grid_of_images.in_view()
        inside = [self._images[place] for place in places if place < len(self._images)]
        names = {(strip.group.key, name): strip for strip, name in inside}
        self._since = {image: self._since.get(image, now) for image in names}
        found: dict[str, list[str]] = {}
        for (key, name), strip in names.items():
            ripe = now - self._since[key, name] >= SEEN_AFTER_S
            if ripe and strip.is_new(name) and (key, name) not in self._told:
                found.setdefault(key, []).append(name)
                self._told.add((key, name))
        for key, files in found.items():
            self.controller.see(key, files)
