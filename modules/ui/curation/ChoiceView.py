"""The common base of all views of the choosing page: actions with keys, images to decode, a snapshot to show."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from tkinter import ttk

from modules.curation.choosing.base import Board, WayOfChoosing
from modules.curation.choosing.base import Key as WayKey
from modules.curation.group_state import GroupState
from modules.curation.ImageGroup import ImageGroup
from modules.ui.curation.PairController import PairController, Snapshot
from modules.ui.texts import choosing as words
from modules.ui.widgets.ImagePrefetcher import Compared, ImagePrefetcher, Key, Shown
from modules.ui.widgets.ImageView import ZoomState
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import Timer


@dataclass(frozen=True)
class Action:
    """An action with a key, a button or both.

    Args:
        label: text of the button.
        keys: Tk key names; the first is shown on the button.
        main: it is the most frequent action here.
        judges: it rates the images, so they must be on the screen.
        queues: it does not wait until earlier answers are saved.
    """

    label: str
    keys: tuple[str, ...]
    run: Callable[[], None]
    main: bool = False
    judges: bool = False
    queues: bool = False


FLIP_MS = 900
MOST_SHOWN = 4
"""Maximum number of sources of one edit shown at once; no model takes more."""


class Comparing(Enum):
    """The image shown in place of an edit."""

    SOURCE = "source"
    DIFFERENCE = "difference"


def sources_at_scale(group: ImageGroup) -> list[Shown]:
    """The sources of a group, scaled like its first image. All its images have one shape."""
    return [Compared(group.path(0), source.path) for source in group.sources[:MOST_SHOWN] if group.files]


def source_captions(group: ImageGroup, blind: bool) -> list[str]:
    """The captions on the sources of a group."""
    names = [source.path.name for source in group.sources]
    numbers = [""] if len(names) == 1 else [f" {number}" for number in range(1, len(names) + 1)]
    return [
        f"{words.SOURCE}{number}" if blind else f"{words.SOURCE}{number}  {name}"
        for number, name in zip(numbers, names, strict=True)
    ]


KEY_NAMES = {
    "Left": "\u2190",
    "Right": "\u2192",
    "Up": "\u2191",
    "Down": "\u2193",
    "space": "Space",
    "Escape": "Esc",
    "Return": "Enter",
    "Control-z": "Ctrl+Z",
    "Delete": "Del",
    "plus": "+",
    "minus": "\u2212",
    "less": "<",
    "greater": ">",
}


def key_name(key: str) -> str:
    """A Tk key name as written for people."""
    return KEY_NAMES.get(key, key.upper() if len(key) == 1 else key)


def action_button(parent: tk.Misc, theme: Theme, action: Action, run: Callable[[], object]) -> ttk.Button:
    """Make a low button that shows its key. It takes no focus, because the keyboard has the keys."""
    style = "Compact.Accent.TButton" if action.main else "Compact.TButton"
    padding = (theme.px(9), theme.px(1))
    theme.style.configure(style, padding=padding)
    text = f"{key_name(action.keys[0])}  {action.label}"
    return ttk.Button(parent, text=text, style=style, takefocus=0, command=run)


@dataclass
class ViewContext:
    """Objects that views share.

    Args:
        blind: hide file names and ratings.
        want: decodes what the view needs now; called after its size or content changed.
    """

    theme: Theme
    controller: PairController
    prefetcher: ImagePrefetcher
    zoom: ZoomState = field(default_factory=ZoomState)
    blind: bool = False
    want: Callable[[], None] = lambda: None


class ChoiceView(ttk.Frame):
    """The middle of the choosing page. Subclasses fill ``actions`` and draw in ``draw``.

    It is the ``Board`` on which the keys of a way of choosing act.
    """

    def __init__(self, parent: tk.Misc, context: ViewContext) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.context = context
        self.shot: Snapshot | None = None
        self.actions: list[Action] = []
        self.hint = ""
        self.comparing: Comparing | None = None
        self._turn = 0
        self._turning = Timer(self, FLIP_MS, self._next_source)

    @property
    def controller(self) -> PairController:
        """The controller that receives answers."""
        return self.context.controller

    @property
    def group(self) -> ImageGroup:
        """The open group."""
        assert self.shot is not None
        assert self.shot.group is not None
        return self.shot.group

    @property
    def group_state(self) -> GroupState:
        """State of the open group."""
        assert self.shot is not None
        assert self.shot.state is not None
        return self.shot.state

    @property
    def way(self) -> WayOfChoosing:
        """The way of choosing."""
        return self.controller.options.session.mode.way

    def take_keys(self, keys: Sequence[WayKey[Board]]) -> None:
        """Use the keys of a way of choosing."""
        self.actions = [
            Action(key.label, key.keys, partial(key.do, self), key.main, key.judges, key.queues)
            for key in keys
        ]

    def offered(self) -> list[Action]:
        """The actions available now."""
        difference = Action(words.DIFFERENCE, ("x",), self.toggle_difference)
        return [*self.actions, difference] if self.has_sources else self.actions

    # --- what keys do to the question -------------------------------------------------------------------------

    def better(self, place: int) -> None:
        """Of two images, the one at ``place`` is better."""

    def equal(self) -> None:
        """The images are equally good."""
        self.controller.answer(tie=True)

    def poor(self) -> None:
        """The images are equally poor."""
        self.controller.answer(both_bad=True)

    def skip(self) -> None:
        """Skip the question."""
        self.controller.answer()

    def only_best(self) -> None:
        """Answer with the image marked as best and no worst one."""

    def mark_best(self) -> None:
        """Mark the image under the cursor as the best."""

    def mark_worst(self) -> None:
        """Mark the image under the cursor as the worst."""

    def judge(self, good: bool | None) -> None:
        """Rate the image as good, bad or neither."""
        self.controller.judge(good)

    def like(self) -> None:
        """Like the image under the cursor, or remove the mark."""

    def dislike(self) -> None:
        """Dislike the image under the cursor, or remove the mark."""

    def next_prompt(self) -> None:
        """Finish this prompt."""
        self.controller.next_group()

    # --- showing ------------------------------------------------------------------------------------------------

    def prompt(self) -> tuple[str, str, str]:
        """The prompt, the shape of its images, and why it is shown again."""
        return self.group.prompt, self.group.aspectratio, self.group_state.again

    def show(self, shot: Snapshot) -> None:
        """Show a snapshot that has an open group."""
        self.shot = shot
        self.draw()

    def draw(self) -> None:
        """Update the widgets to match ``shot``."""
        raise NotImplementedError

    def wanted(self) -> list[Key]:
        """The images to decode, most urgent first."""
        raise NotImplementedError

    def arrived(self, path: Shown) -> None:
        """Handle a decoded image."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Return whether the images in question are on the screen."""
        return True

    def shows_images(self) -> bool:
        """Return whether the images themselves are on the screen, rather than their sources or differences.
        """
        return self.comparing is None and self.ready()

    def may_judge(self) -> bool:
        """Return whether an answer now would apply to what is on the screen."""
        return self.shot is not None and not self.controller.waiting and self.shows_images()

    # --- edits and their sources ---

    @property
    def has_sources(self) -> bool:
        """True if any image on the screen is an edit."""
        shot = self.shot
        groups = [] if shot is None else [shot.group, *(one.group for one in shot.strips)]
        return any(group is not None and group.sources for group in groups)

    def in_place(self, group: ImageGroup, path: Path) -> Shown:
        """Return what is shown in place of an image of a group."""
        if self.comparing is None or not group.sources:
            return path
        if self.comparing is Comparing.DIFFERENCE:
            return Compared(path, group.sources[0].path, difference=True)
        return Compared(path, group.sources[self._turn % len(group.sources)].path)

    def flip(self, on: bool) -> None:
        """Show the sources in place of the images, cycling through several, or stop doing so."""
        if on and not self._turning.running and self.has_sources:
            self._turn = -1
            self._next_source()
        elif not on and self._turning.running:
            self._turning.stop()
            self.compare(None)

    def _next_source(self) -> None:
        self._turn += 1
        self._turning.start()
        self.compare(Comparing.SOURCE)

    def toggle_difference(self) -> None:
        """Show how the images differ from their first source, or show the images again."""
        other = None if self.comparing is Comparing.DIFFERENCE else Comparing.DIFFERENCE
        if self.has_sources:
            self.compare(other)

    def show_images(self) -> None:
        """Show images again when the question changes."""
        self._turning.stop()
        self.comparing = None

    def compare(self, how: Comparing | None) -> None:
        """Show sources, differences or the images themselves."""
        self.comparing = how
        self.draw()
        self.context.want()
        self.event_generate("<<HintChanged>>")

    def on_key(self, key: str, shift: bool) -> bool:
        """Handle a key that belongs to no action. Return ``True`` if it is used here."""
        return False

    def flicker(self, on: bool) -> None:
        """Alternate the images in the same place, or stop doing so."""

    def zoom_by(self, direction: int) -> None:
        """Zoom one level in (1) or out (-1)."""

    def caption(self, index: int, label: str = "") -> str:
        """The caption of an image. In blind mode it holds nothing that could bias the person."""
        if self.context.blind:
            return label
        rating = self.group_state.standing.ratings[index]
        name = Path(self.group.files[index]).name
        return f"{label}  {name}   {rating:.0f}".strip()
