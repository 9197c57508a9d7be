"""A person at the pair tool: generated images, key presses, waiting for what they lead to."""

from __future__ import annotations

import random
import time
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image, PngImagePlugin

from modules.curation.choosing.base import AnswerKind
from modules.curation.CurationMode import CurationMode
from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.PairController import Snapshot
from modules.ui.widgets.theme import Theme

PATIENCE = 30.0
CONTROL, SHIFT = 0x4, 0x1
KEYS = {" ": "space", "/": "slash", ".": "period", "-": "minus", "_": "underscore", "~": "asciitilde"}


def make_images(folder: Path, groups: int, per_group: int, size: int = 48, blank: int = 0) -> Path:
    """``groups`` prompts with ``per_group`` images each; a higher number in a group is a better image.

    The first ``blank`` groups were made without a prompt, and are twice as wide.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    for group in range(groups):
        prompt = "" if group < blank else f"a fox number {group} in the snow"
        text = f"{prompt}\nSteps: 20, Sampler: Euler, Seed: 1, Size: {size}x{size}"
        for image in range(per_group):
            info = PngImagePlugin.PngInfo()
            info.add_text("parameters", text)
            small = Image.frombytes("RGB", (9, 8), rng.randbytes(9 * 8 * 3))
            big = small.resize((size * 2 ** (group < blank), size), Image.Resampling.BILINEAR)
            big.save(folder / f"g{group:03d}_i{image:02d}.png", pnginfo=info)
    return folder


class Hands:
    """Presses keys in a pair tool and waits until they have had their effect.

    ``failures`` are the errors that were shown in a dialog during the test.
    """

    failures: ClassVar[list[BaseException]] = []

    def __init__(self, root: tk.Tk, source: Path, output: Path, settings: Path) -> None:
        self.root = root
        self.closed = False
        self.theme = Theme(root)
        self.theme.apply("Dark", 100)
        self.tool = DPOCurationWindow(root, self.theme, settings, self._was_closed)
        root.report_callback_exception = self._report
        self.tool.pack(fill="both", expand=True)
        self.tool.memory.source, self.tool.memory.output = str(source), str(output)

    def _report(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self.root.errors.append(error.with_traceback(trace))

    def _was_closed(self) -> None:
        self.closed = True

    # --- waiting ---

    def until(self, done: Callable[[], object], what: str = "") -> None:
        """Let the window live until ``done``."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, f"waited in vain for {what or done}"
            assert not self.root.errors, self.root.errors
            self.root.update()
            time.sleep(0.001)

    def settle(self) -> None:
        """Wait until nothing is under way and what is asked about is on the screen."""
        self.until(self._settled, "a quiet window")

    def _settled(self) -> bool:
        page, controller = self.tool.page, self.tool.controller
        if self.tool.worker.busy or (controller is not None and controller.waiting):
            return False
        if not isinstance(page, ChoosingPage) or self.failures:
            return page is not None
        if page.shot is None or (page.shot.group is None and page.shot.search.searching):
            return False
        return page.view is None or page.view.ready()

    # --- hands ---

    def press(self, *keys: str, state: int = 0) -> None:
        """Press keys one after the other, each as real key events to what has the focus."""
        for key in keys:
            focus = self.root.focus_get() or self.root
            focus.event_generate(f"<KeyPress-{key}>", state=state)
            (self.root.focus_get() or self.root).event_generate(f"<KeyRelease-{key}>", state=state)
            self.settle()

    def type(self, entry: tk.Entry, text: str) -> None:
        """Replace what an entry holds by typing."""
        self.focus(entry)
        entry.delete(0, "end")
        for character in text:
            name = KEYS.get(character)
            entry.event_generate(f"<KeyPress-{name or character}>")

    def close(self) -> None:
        """Close the window by its button."""
        self.tool.close()
        self.until(lambda: self.closed, "the end")

    # --- the tool ---

    def begin(self, mode: CurationMode, **fields: Any) -> None:
        """Fill in the start page and press Return on its button."""
        self.tool.memory.mode = mode.value
        for name, value in fields.items():
            assert hasattr(self.tool.memory, name)
            setattr(self.tool.memory, name, value)
        self.open_start()
        self.focus(self.start_page.go)
        self.press("Return")

    def open_start(self) -> None:
        """Show the start page and wait until it has put the focus somewhere."""
        self.tool.show_start()
        self.settle()
        self.until(lambda: self.root.focus_get() not in (None, self.root), "the first focus")

    def focus(self, widget: tk.Misc) -> None:
        """Give a widget the focus."""
        widget.focus_force()
        self.until(lambda: self.root.focus_get() is widget, "the focus")

    @property
    def start_page(self) -> Any:
        return self.tool.page

    @property
    def page(self) -> ChoosingPage:
        assert isinstance(self.tool.page, ChoosingPage), self.tool.page
        return self.tool.page

    @property
    def shot(self) -> Snapshot:
        assert self.page.shot is not None
        return self.page.shot

    @property
    def phase(self) -> str:
        return "finished" if self.shot.state is None else self.shot.state.phase.value

    def name(self, index: int) -> str:
        assert self.shot.group is not None
        return self.shot.group.files[index]

    @property
    def question(self) -> tuple[int, ...]:
        assert self.shot.state is not None
        return self.shot.state.question

    def quality(self, index: int) -> int:
        """What this person thinks of an image: later ones of a group are better."""
        return int(self.name(index).split("_i")[1].split(".")[0])


# --- a person who likes later images better ---------------------------------------------------------------------


def choose_everything(hands: Hands, answer: Callable[[Hands], None] | None = None) -> None:
    """Answer by keys, one pair for each prompt, until no prompt is left."""
    for _ in range(4000):
        if hands.phase == "finished":
            return
        if hands.phase == "continue":
            hands.press("n")
        else:
            (answer or answer_as_liked)(hands)
    raise AssertionError("the session does not end")


def answer_as_liked(hands: Hands) -> None:
    """One answer, whatever the way of choosing asks."""
    way = hands.tool.controller.options.session.mode.way
    state = hands.shot.state
    quality = [hands.quality(i) for i in hands.question]
    best, worst = quality.index(max(quality)), quality.index(min(quality))
    if way.kind is AnswerKind.MARK:
        mark_page(hands)
        hands.press("Return")
    elif way.kind is AnswerKind.JUDGE:
        hands.press("Right" if quality[0] >= len(hands.shot.group.files) // 2 else "Left")
    elif way.kind is AnswerKind.CHOOSE:
        go_to(hands, best)
        hands.press("Return")
        go_to(hands, worst)
        hands.press("w")
    elif not way.stops_when_certain and all(state.standing.shown[i] >= 2 for i in state.alive):
        hands.press("p")
    elif len(quality) == 2:
        hands.press("Right" if best else "Left")
    else:
        hands.press(str(1 + best), str(1 + worst))


def mark_page(hands: Hands) -> None:
    """Like the best image of every prompt of the page, and look at others of it."""
    number = 0
    while number < len(hands.shot.strips):  # prompts that are found meanwhile join the page
        files = hands.shot.strips[number].files
        before = sum(len(one.files) for one in hands.shot.strips[:number])
        go_to(hands, before + files.index(max(files)))
        hands.until(lambda: hands.page.view.grid_of_images.is_drawn(hands.page.view.grid_of_images.cursor))
        hands.press("space")
        hands.until(lambda at=number: sum(map(hands.shot.strips[at].is_new, hands.shot.strips[at].files)) < 2)
        number += 1


def go_to(hands: Hands, place: int) -> None:
    """Move the cursor of the grid."""
    grid = hands.page.view.grid_of_images
    while grid.cursor != place:
        before = grid.cursor
        hands.press("Right" if place > before else "Left")
        assert grid.cursor != before
