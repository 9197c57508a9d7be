"""The window that paints the masks of images in the caption editor."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from tkinter import ttk

from modules.tools.dataset.files import DataImage
from modules.tools.dataset.mask_painting import (
    Area,
    MaskChangedError,
    OpenedMask,
    Painting,
    Point,
    open_painting,
    save_painting,
)
from modules.ui.captions.MaskCanvas import MOVE, MaskCanvas
from modules.ui.texts import captions as words
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.KeysWindow import show_keys
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import place_over, show_error, tie

LEARNED, HIDDEN = 255, 0
SMALLEST, LARGEST = 1, 500
FIRST_SHARE = 0.04
"""Initial brush size, as a share of the longer side."""
SHARE = 0.85
"""Share of the screen."""
MIN_SIZE = (560, 400)
CONTROL = 0x4

Then = Callable[[], None] | None


class MaskWindow(tk.Toplevel):
    """Paints masks, one image at a time. A mask is saved when another image is shown or the window closes.

    Args:
        root: the folder of the images.
        images: the images that can be shown.
        index: the image to show first.
        saved: called with an image whose mask was written.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        worker: SerialWorker,
        root: Path,
        images: Sequence[DataImage],
        index: int,
        saved: Callable[[DataImage], None],
    ) -> None:
        over = parent.winfo_toplevel()
        super().__init__(over)
        self.withdraw()
        self.configure(background=theme.palette.panel)
        self.theme, self.root_folder = theme, root
        self._worker, self._images, self._tell = worker, list(images), saved
        self.index = index
        self.opened: OpenedMask | None = None
        self._at: Point | None = None
        self._level = LEARNED
        self._looks = 0
        self._saving = False
        self._waiting: list[tuple[Then, Then]] = []
        """The action to take once the mask being saved is on disk."""
        self.canvas = MaskCanvas(self, theme, self._press, self._drag, self._release, self.change_size)
        self._build()
        self._bind_keys()
        self.minsize(*(theme.px(side) for side in MIN_SIZE))
        screen = (int(self.winfo_screenwidth() * SHARE), int(self.winfo_screenheight() * SHARE))
        place_over(self, over, screen)
        tie(self, over)
        self.deiconify()
        self.focus_set()
        self._open()

    def _build(self) -> None:
        px = self.theme.px
        foot = ttk.Frame(self, padding=px(8))
        foot.pack(side="bottom", fill="x")
        self.canvas.pack(side="top", fill="both", expand=True)
        row = FlowFrame(foot, px(6))
        row.pack(fill="x")
        self.tool = tk.StringVar(self, words.BRUSH)
        self.tools = {
            name: ttk.Radiobutton(row, text=name, value=name, variable=self.tool, command=self._show_size)
            for name in (words.BRUSH, words.FILL)
        }
        self.size_label, self.strength_label = ttk.Label(row, width=9), ttk.Label(row, width=14)
        self.size_scale = ttk.Scale(row, from_=SMALLEST, to=LARGEST, command=lambda _value: self._show_size())
        self.strength_scale = ttk.Scale(
            row, from_=5, to=100, value=100, command=lambda _value: self._show_size()
        )
        actions: tuple[tuple[str, Callable[[], object]], ...] = (
            (words.ALL_LEARNED, lambda: self.fill_all(LEARNED)),
            (words.ALL_HIDDEN, lambda: self.fill_all(HIDDEN)),
            (words.INVERT, self.invert),
            (words.UNDO, self.undo),
            (words.REDO, self.redo),
            (words.SAVE, self.save),
            (words.KEYS_BUTTON, lambda: show_keys(self, self.theme, words.PAINT_KEYS)),
        )
        self.buttons = {
            text: ttk.Button(row, text=text, command=call, style="Small.TButton") for text, call in actions
        }
        for widget in (
            *self.tools.values(), self.size_label, self.size_scale, self.strength_label, self.strength_scale,
            *self.buttons.values(),
        ):  # fmt: skip
            row.add(widget)
        self.status = ttk.Label(foot, style="Muted.TLabel", justify="left")
        self.status.pack(fill="x", pady=(px(6), 0))
        self.status.bind(
            "<Configure>", lambda event: self.status.configure(wraplength=max(1, event.width)), add="+"
        )

    def _bind_keys(self) -> None:
        alone: dict[str, Callable[[], object]] = {
            "b": lambda: self.choose(words.BRUSH), "f": lambda: self.choose(words.FILL),
            "a": lambda: self.fill_all(LEARNED), "h": lambda: self.fill_all(HIDDEN), "i": self.invert,
            "bracketleft": lambda: self.change_size(-1), "bracketright": lambda: self.change_size(1),
            "plus": lambda: self.canvas.zoom(1), "equal": lambda: self.canvas.zoom(1),
            "KP_Add": lambda: self.canvas.zoom(1), "minus": lambda: self.canvas.zoom(-1),
            "KP_Subtract": lambda: self.canvas.zoom(-1), "0": self.canvas.fit, "KP_0": self.canvas.fit,
            "Left": lambda: self.canvas.move_by(MOVE, 0), "Right": lambda: self.canvas.move_by(-MOVE, 0),
            "Up": lambda: self.canvas.move_by(0, MOVE), "Down": lambda: self.canvas.move_by(0, -MOVE),
            "Prior": lambda: self.go(-1), "Next": lambda: self.go(1), "Escape": self.close,
            "F1": lambda: show_keys(self, self.theme, words.PAINT_KEYS),
        }  # fmt: skip
        control: dict[str, Callable[[], object]] = {
            "z": self.undo, "y": self.redo, "s": self.save, "w": self.close,
        }  # fmt: skip

        def key(event: tk.Event[tk.Misc]) -> str | None:
            name = event.keysym.lower() if len(event.keysym) == 1 else event.keysym
            on_scale = isinstance(event.widget, ttk.Scale) and name in ("Left", "Right", "Up", "Down")
            call = None if on_scale else (control if int(event.state) & CONTROL else alone).get(name)
            if call is None:
                return None
            call()
            return "break"

        self.bind("<KeyPress>", key)
        self.protocol("WM_DELETE_WINDOW", self.close)

    # --- one image --------------------------------------------------------------------------------------------------

    @property
    def image(self) -> DataImage:
        """The image whose mask is being painted."""
        return self._images[self.index]

    def _open(self) -> None:
        count = len(self._images)
        self.title(words.MASK_TITLE.format(name=self.image.name, number=self.index + 1, count=count))
        self.opened = self._at = None
        self.canvas.show(None, None)
        self._say(words.OPENING)
        self._looks += 1
        one, look = self.image, self._looks

        def done(opened: OpenedMask) -> None:
            if not self.winfo_exists() or look != self._looks:
                return
            first = self.opened is None and not self._started
            self.opened = opened
            if first:
                self._started = True
                self.size_scale.set(max(SMALLEST, min(LARGEST, round(max(opened.image.size) * FIRST_SHARE))))
            self.canvas.show(opened.image, opened.painting)
            self._show_size()
            self._say(words.PAINT_HINT)

        def failed(error: Exception) -> None:
            if self.winfo_exists() and look == self._looks:
                self._say(str(error))
                show_error(self, error)

        self._worker.submit(lambda: open_painting(self.root_folder, one), done, failed)

    _started = False

    def go(self, step: int) -> None:
        """Save, then show another image."""
        if not self._saving and not 0 <= self.index + step < len(self._images):
            return

        def then() -> None:
            index = max(0, min(len(self._images) - 1, self.index + step))
            if index != self.index and self.winfo_exists():
                self.index = index
                self._open()

        self.save(then)

    def _say(self, text: str) -> None:
        self.status.configure(text=text)

    # --- painting ---------------------------------------------------------------------------------------------------

    def choose(self, tool: str) -> None:
        """Switch to the brush or to filling areas."""
        self.tool.set(tool)
        self._show_size()

    @property
    def radius(self) -> float:
        """Brush radius in image pixels."""
        return round(float(self.size_scale.get())) / 2

    def change_size(self, step: int) -> None:
        """Enlarge (1) or shrink (-1) the brush by a fifth, at least by one pixel."""
        size = round(float(self.size_scale.get()))
        self.size_scale.set(max(SMALLEST, min(LARGEST, size + step * max(1, round(size * 0.2)))))
        self._show_size()

    def _show_size(self) -> None:
        self.size_label.configure(text=words.SIZE.format(size=round(float(self.size_scale.get()))))
        self.strength_label.configure(
            text=words.STRENGTH.format(percent=round(float(self.strength_scale.get())))
        )
        self.canvas.set_radius(self.radius if self.tool.get() == words.BRUSH else 0)

    def _press(self, at: Point, learn: bool) -> None:
        self.focus_set()
        if self.opened is None or self._at is not None:
            return
        self._level = LEARNED if learn else HIDDEN
        self.opened.painting.begin()
        self._at = at
        if self.tool.get() == words.FILL:
            self._painted(self.opened.painting.fill(at, self._level, self._share()))
        else:
            self._drag(at)

    def _drag(self, at: Point) -> None:
        if self.opened is None or self._at is None or self.tool.get() == words.FILL:
            return
        start, self._at = self._at, at
        painting = self.opened.painting
        self._painted(painting.stroke(start, at, self.radius, self._level, self._share()))

    def _release(self) -> None:
        self._at = None
        if self.opened is not None:
            self.opened.painting.end()
            self._tell_state()

    def _share(self) -> float:
        return round(float(self.strength_scale.get())) / 100

    def _painted(self, area: Area | None) -> None:
        if area is not None:
            self.canvas.draw_area(area)

    def _tell_state(self) -> None:
        if self.opened is not None:
            self._say(words.NOT_YET_SAVED if self.opened.painting.changed else words.PAINT_HINT)

    def _at_once(self, change: Callable[[Painting], Area | None]) -> None:
        if self.opened is not None and self._at is None:
            self._painted(change(self.opened.painting))
            self._tell_state()

    def fill_all(self, level: int) -> None:
        """Mark the whole image as learned or hidden."""
        self._at_once(lambda painting: painting.fill_all(level))

    def invert(self) -> None:
        """Swap learned and hidden areas."""
        self._at_once(lambda painting: painting.invert())

    def undo(self) -> None:
        """Undo the last stroke."""
        self._at_once(lambda painting: painting.undo())

    def redo(self) -> None:
        """Redo the last undone stroke."""
        self._at_once(lambda painting: painting.redo())

    # --- saving -----------------------------------------------------------------------------------------------------

    def save(self, then: Then = None, failed: Then = None) -> None:
        """Write the mask if it changed. Strokes painted meanwhile are also written before ``then`` is called.

        Args:
            then: called when everything is on disk.
            failed: called if writing failed, after the person was told.
        """
        if self._saving:
            # what the file will hold is known only after this save
            self._waiting.append((then, failed))
            return
        opened = self.opened
        if opened is not None:
            opened.painting.end()
            self._at = None
        if opened is None or not opened.painting.changed:
            if then is not None:
                then()
            return
        one, levels, digest = self.image, opened.painting.levels.copy(), opened.digest
        self._saving = True
        self._say(words.SAVING)

        def done(written: str) -> None:
            opened.digest = written
            opened.painting.saved(levels)
            self._tell(one)
            if self.winfo_exists():
                self._say(words.NOT_YET_SAVED if opened.painting.changed else words.SAVED)
            for wish in self._wishes((then, failed) if then is not None else None):
                self.save(*wish)

        def wrong(error: Exception) -> None:
            wishes = self._wishes((None, failed))
            if not self.winfo_exists():
                return
            self._tell_state()
            if isinstance(error, MaskChangedError):
                self._ask(opened, error.digest, then, failed)
            else:
                show_error(self, error)
            for _, call in wishes:
                if call is not None:
                    call()

        self._worker.submit(lambda: save_painting(self.root_folder, one, levels, digest), done, wrong)

    def _wishes(self, first: tuple[Then, Then] | None) -> list[tuple[Then, Then]]:
        """End the current save and return the callbacks that waited for it."""
        wishes = [*([first] if first is not None else []), *self._waiting]
        self._saving, self._waiting = False, []
        return wishes

    def _ask(
        self,
        opened: OpenedMask,
        digest: str,
        then: Then,
        failed: Then,
    ) -> None:
        """Ask what to do with a mask that another program has changed too. Without an answer the painted mask stays
        unsaved, and the next save asks again.
        """

        def write_mine() -> None:
            opened.digest = digest
            self.save(then, failed)

        def keep_theirs() -> None:
            opened.painting.saved(opened.painting.levels)
            (then or self._open)()

        question = words.MASK_CHANGED_QUESTION.format(name=self.image.name)
        ConfirmWindow(
            self, self.theme, words.MASK_CHANGED_TITLE, question, words.WRITE_MINE, write_mine, keep_theirs
        )

    def close(self, then: Then = None, stay: Then = None) -> None:
        """Save, then close.

        Args:
            then: called when the window is closed.
            stay: called if it stays open because the mask could not be saved.
        """

        def end() -> None:
            self.destroy()
            if then is not None:
                then()

        def failed() -> None:
            if stay is not None:
                stay()
            if not any(isinstance(child, ConfirmWindow) for child in self.winfo_children()):
                question = words.LOSE_QUESTION.format(name=self.image.name)
                ConfirmWindow(self, self.theme, words.LOSE_TITLE, question, words.CLOSE, end)

        self.save(end, failed)
