"""The voting page: two images, no names, the keys of the pair tool."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tkinter import ttk

from modules.arena.Arena import Ballot
from modules.curation.choosing.base import KEYS_OF_TWO
from modules.ui.arena.ArenaController import ArenaController, ArenaShot
from modules.ui.curation.ChoiceView import Action, action_button, key_name
from modules.ui.texts import arena as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import Compared, ImagePrefetcher, Key
from modules.ui.widgets.ImageView import ImageView, ZoomState
from modules.ui.widgets.KeysWindow import show_keys
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import Timer, show_in_grid
from modules.util.display import counted

UNDO_KEYS = ("Control-z", "BackSpace")
QUIET_MS = 1000
"""Votes begin once no key and no button was pressed for this time."""


class VotingPage(ttk.Frame):
    """Asks about two images. It implements ``Answering``, so the pair tool's keys for two images act on it.

    Args:
        leave: shows the result.
        unasked: the window opened by itself. The person may be typing elsewhere, so votes begin after a pause.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        controller: ArenaController,
        prefetcher: ImagePrefetcher,
        leave: Callable[[], None],
        unasked: bool = False,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        px = theme.px
        self.theme, self.controller, self.prefetcher = theme, controller, prefetcher
        self.shot: ArenaShot | None = None
        self._swapped = False
        self._unasked, self._quiet = unasked, Timer(self, QUIET_MS, self._begin)
        self.zoom = ZoomState()
        self.columnconfigure((1, 2), weight=1, uniform="images")
        self.rowconfigure(2, weight=1)
        top = ttk.Frame(self)
        top.grid(row=0, column=0, columnspan=3, sticky="ew")
        top.columnconfigure(1, weight=1)
        self.count = ttk.Label(top, style="Bold.TLabel")
        self.count.grid(row=0, column=0, padx=px(10), pady=px(3))
        self.standing = ttk.Label(top, style="Muted.TLabel", text=words.HIDDEN, width=1)
        self.standing.grid(row=0, column=1, sticky="ew")
        self.prompt = ttk.Label(self, text=words.LOOKING, padding=(px(10), px(6)), width=1, justify="left")
        self.prompt.grid(row=1, column=0, columnspan=3, sticky="ew")
        self.prompt.bind("<Configure>", lambda event: self.prompt.configure(wraplength=max(1, event.width)))
        self.views = [
            ImageView(self, prefetcher, self.zoom, partial(self._clicked, i), theme.fonts["bold"])
            for i in (0, 1)
        ]
        for i, view in enumerate(self.views):
            view.grid(row=2, column=i + 1, sticky="nsew", padx=2, pady=2)
            view.bind("<Configure>", lambda _event: self._want(), add="+")
        self.origin = ttk.Frame(self, style="Back.TFrame")
        self.origin.columnconfigure(0, weight=1)
        self.origin.grid(row=2, column=0, sticky="nsew")
        self.origin.grid_remove()
        self.sources: list[ImageView] = []
        bottom = ttk.Frame(self, padding=(px(10), px(4)))
        bottom.grid(row=3, column=0, columnspan=3, sticky="ew")
        bottom.columnconfigure(0, weight=1)
        self.hint = ttk.Label(bottom, text=words.PAUSE if unasked else words.HINT, style="Bold.TLabel")
        self.hint.grid(row=0, column=0, sticky="w", pady=px(3))
        row = FlowFrame(bottom, theme.px(6))
        row.grid(row=1, column=0, sticky="ew")
        self.actions = [Action(k.label, k.keys, partial(k.do, self), k.main, k.judges) for k in KEYS_OF_TWO]
        self.actions += [
            Action(words.UNDO, UNDO_KEYS, self.undo),
            Action(words.STANDING, ("r",), self.tell_standing),
            Action(words.ACTUAL_SIZE, ("z",), self.zoom.toggle_actual_size),
            Action(words.KEYS, ("F1",), self.show_keys),
            Action(words.RESULT, ("e",), leave),
        ]
        for action in self.actions:
            row.add(action_button(row, theme, action, partial(self.run, action)))

    # --- showing ------------------------------------------------------------------------------------------------

    def show(self, shot: ArenaShot) -> None:
        """Draw a snapshot that has an open question."""
        assert shot.ballot is not None
        self.shot, self._swapped = shot, False
        self.zoom.set(None)
        self.standing.configure(text=words.HIDDEN)
        left = words.LEFT.format(questions=counted(shot.left, words.QUESTION))
        self.count.configure(text=f"{counted(shot.votes, words.VOTE)}, {left}")
        self.prompt.configure(text=words.SEED.format(prompt=shot.ballot.prompt, seed=shot.ballot.seed))
        self._show_sources(shot.ballot)
        self._draw()
        self._want()
        self._pause()

    def _pause(self) -> None:
        """Let votes begin after a pause from now, if they have not begun yet."""
        if self._unasked:
            self._quiet.restart()

    def _begin(self) -> None:
        if not self._complete():
            self._pause()
            return
        self._unasked = False
        self.hint.configure(text=words.HINT)

    def _show_sources(self, ballot: Ballot) -> None:
        """Show what both images were made from on their left, at their size."""
        for view in self.sources[len(ballot.sources) :]:
            view.destroy()
        del self.sources[len(ballot.sources) :]
        while len(self.sources) < len(ballot.sources):
            view = ImageView(self.origin, self.prefetcher, self.zoom, font=self.theme.fonts["bold"])
            view.grid(row=len(self.sources), column=0, sticky="nsew", padx=2, pady=2)
            view.bind("<Configure>", lambda _event: self._want(), add="+")
            self.origin.rowconfigure(len(self.sources), weight=1)
            self.sources.append(view)
        for view, path in zip(self.sources, ballot.sources, strict=True):
            view.show(Compared(ballot.show[0], path), words.SOURCE)
        self.columnconfigure(0, weight=int(bool(self.sources)), uniform="images" if self.sources else "")
        show_in_grid(self.origin, bool(self.sources))

    def _paths(self) -> tuple[Path, Path]:
        assert self.shot is not None and self.shot.ballot is not None
        left, right = self.shot.ballot.show
        return (right, left) if self._swapped else (left, right)

    def _draw(self) -> None:
        for view, path in zip(self.views, self._paths(), strict=True):
            view.show(path)

    def _want(self) -> None:
        if self.shot is None or self.shot.ballot is None:
            return
        boxes = dict.fromkeys(view.box for view in self.views)
        wanted: list[Key] = [(path, box) for path in self.shot.ballot.show for box in boxes]
        origins = [(view.path, view.box) for view in self.sources if view.path is not None]
        self.prefetcher.want([*wanted, *origins])

    def arrived(self, key: Key) -> None:
        """Handle a decoded image; called by the pump."""
        for view in (*self.views, *self.sources):
            view.arrived(key[0])
        self._pause()

    def tell_standing(self) -> None:
        """Show the current standing, without names, until the next vote."""
        if self.shot is not None:
            self.standing.configure(text=self.shot.standing)

    def show_keys(self) -> None:
        """List all keys."""
        keys = [
            (", ".join(key_name(key) for key in a.keys if "KP_" not in key), a.label) for a in self.actions
        ]
        show_keys(self, self.theme, [*keys, *words.LOOKING_KEYS])

    # --- input --------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether a vote counts: the images in question are on the screen, and votes have begun."""
        return not self._unasked and self._complete()

    def _complete(self) -> bool:
        return self.shot is not None and all(view.settled for view in (*self.views, *self.sources))

    def run(self, action: Action) -> None:
        """Run an action, unless the screen is out of date."""
        self._pause()
        if self._unasked:
            return
        if not self.controller.waiting and (self.ready() or not action.judges) and self.shot is not None:
            action.run()

    def _clicked(self, place: int) -> None:
        self._pause()
        if self.ready() and not self.controller.waiting:
            self.better(place)

    def better(self, place: int) -> None:
        """Vote for the image at this place."""
        self.controller.answer(1 - place if self._swapped else place)

    def equal(self) -> None:
        """Vote that the images are equally good."""
        self.controller.answer(None)

    def poor(self) -> None:
        """Vote that both images are poor, which counts as a tie here."""
        self.controller.answer(None)

    def skip(self) -> None:
        """Skip the question. It is not asked again."""
        self.controller.answer(None, skipped=True)

    def undo(self) -> None:
        """Undo the last vote."""
        self.prefetcher.forget_all()  # the next question may be a different one under the same name
        for view in (*self.views, *self.sources):
            view.forget()
        self.controller.undo()

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Handle a key press. Return ``True`` if the key is used here."""
        self._pause()
        name = key.lower() if len(key) == 1 else key
        name = f"Control-{name}" if control else name
        for action in self.actions:
            if name in action.keys:
                self.run(action)
                return True
        if name == "f":
            self._swap(True)
        elif key in ("plus", "minus", "equal", "KP_Add", "KP_Subtract") and not control:
            self.views[0].zoom_by(-1 if key in ("minus", "KP_Subtract") else 1)
        elif key == "Escape":
            self.zoom.set(None)
        else:
            return False
        return True

    def on_release(self, key: str) -> None:
        """Handle a key release."""
        if key.lower() == "f":
            self._swap(False)

    def _swap(self, on: bool) -> None:
        if self.shot is not None and self._swapped is not on:
            self._swapped = on
            self._draw()
