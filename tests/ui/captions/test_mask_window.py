"""Painting masks in the caption editor, by mouse and keys as a person does it."""

from __future__ import annotations

import threading
import tkinter as tk
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from modules.tools.Journal import Journal
from modules.ui.captions.MaskWindow import MaskWindow
from modules.ui.texts import captions as words
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from tests.ui.captions.test_editor import Writer, folder, sit  # noqa: F401
from tests.ui.curation.drivers import CONTROL, Hands

pytestmark = pytest.mark.gui
LEFT, RIGHT = 1, 3


class Painter:
    """A person with a brush."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        writer.press("b")
        assert writer.editor.painter is not None
        self.window: MaskWindow = writer.editor.painter
        self.opened()

    def opened(self) -> None:
        self.writer.until(lambda: self.window.opened is not None, "the image")
        self.writer.until(lambda: self.window.canvas.winfo_width() > 300, "the window")
        self.writer.root.update()

    @property
    def levels(self) -> numpy.ndarray:
        assert self.window.opened is not None
        return self.window.opened.painting.levels

    def paint(self, *places: tuple[float, float], button: int = LEFT) -> None:
        """Press at the first place of the image, in its pixels, move over the others and let go."""
        canvas = self.window.canvas
        for number, place in enumerate(places):
            x, y = canvas.on_screen(place)
            event = f"<B{button}-Motion>" if number else f"<ButtonPress-{button}>"
            canvas.event_generate(event, x=x, y=y)
        canvas.event_generate(f"<ButtonRelease-{button}>", x=x, y=y)
        self.writer.root.update()

    def press(self, key: str, state: int = 0) -> None:
        self.window.focus_force()
        self.writer.until(lambda: self.writer.root.focus_get() is self.window, "the focus")
        self.window.event_generate(f"<KeyPress-{key}>", state=state)
        self.writer.settle()

    def dialog(self) -> ConfirmWindow:
        self.writer.until(lambda: self._dialogs(), "the question")
        return self._dialogs()[0]

    def _dialogs(self) -> list[ConfirmWindow]:
        return [child for child in self.window.winfo_children() if isinstance(child, ConfirmWindow)]

    def colour(self, place: tuple[float, float]) -> tuple[int, int, int]:
        """What the screen shows there."""
        canvas = self.window.canvas
        x, y = canvas.on_screen(place)
        for item in canvas.find_overlapping(x, y, x, y):
            if canvas.type(item) == "image":
                left, top = (int(at) for at in canvas.coords(item))
                found = canvas.tk.call(canvas.itemcget(item, "image"), "get", x - left, y - top)
                red, green, blue = (int(part) for part in str(found).strip("()").replace(",", " ").split())
                return red, green, blue
        raise AssertionError("no image is drawn there")


def mask(folder: Path, number: int) -> Any:  # noqa: F811
    return numpy.asarray(Image.open(folder / f"{number}-masklabel.png"))


def test_what_is_painted_is_seen_saved_and_taken_back(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    plain = painter.colour((30, 20))
    painter.paint((20, 20), (40, 20), button=RIGHT)
    reach = painter.window.radius
    assert painter.levels[20, 30] == 0 and painter.levels[20, 20 - int(reach) - 2] == 255
    red = painter.colour((30, 20))
    assert red != plain and red[0] > red[1]
    assert painter.colour((30, 40)) != red
    painter.paint((30, 20))
    assert painter.levels[20, 30] == 255 and painter.colour((30, 20)) == plain
    painter.press("z", CONTROL)
    assert painter.levels[20, 30] == 0 and painter.colour((30, 20)) == red
    assert not (folder / "1-masklabel.png").exists(), "nothing is written while a person paints"
    levels = painter.levels.copy()
    painter.press("Escape")
    writer.until(lambda: not painter.window.winfo_exists(), "the end of the window")
    assert numpy.array_equal(mask(folder, 1), levels)
    writer.root.focus_force()
    key = (writer.editor.grid_of_images.paths[1], writer.editor.grid_of_images._box())
    assert key[0].mask == folder / "1-masklabel.png", "the grid shows the mask"
    writer.press("z", state=CONTROL)
    assert not (folder / "1-masklabel.png").exists()


def test_areas_are_filled_and_the_whole_turned_round(sit, folder):  # noqa: F811
    writer = sit()
    painter = Painter(writer)
    assert painter.levels[:, :32].all() and not painter.levels[:, 32:].any(), "the mask that is there"
    painter.press("f")
    painter.paint((50, 10))
    assert painter.levels.all()
    painter.press("h")
    assert not painter.levels.any()
    painter.press("b")
    painter.window.size_scale.set(8)
    painter.window.strength_scale.set(50)
    painter.paint((10, 10))
    assert painter.levels[10, 10] == 128 and painter.levels[10, 20] == 0
    painter.press("i")
    assert painter.levels[10, 10] == 127 and painter.levels[10, 20] == 255
    painter.window.canvas.event_generate("<Button-4>", x=50, y=50)
    assert round(float(painter.window.size_scale.get())) == 10
    painter.press("bracketleft")
    assert round(float(painter.window.size_scale.get())) == 8


def test_the_brush_follows_the_mouse_when_looked_at_closely(sit, folder):  # noqa: F811
    for name in ("0.png", "0-masklabel.png"):
        Image.open(folder / name).resize((640, 480), Image.Resampling.NEAREST).save(folder / name)
    writer = sit()
    painter = Painter(writer)
    canvas = painter.window.canvas
    before = canvas.factor
    at = canvas.on_screen((400, 300))
    canvas.event_generate("<Button-4>", x=at[0], y=at[1], state=CONTROL)
    assert canvas.factor > before and canvas.on_screen((400, 300)) == pytest.approx(at, abs=1)
    canvas.event_generate("<ButtonPress-2>", x=100, y=100)
    canvas.event_generate("<B2-Motion>", x=130, y=90)
    assert canvas.on_screen((400, 300)) == pytest.approx((at[0] + 30, at[1] - 10), abs=1)
    painter.window.size_scale.set(2)
    painter.paint((400.5, 300.5))
    assert painter.levels[300, 400] == 255 and painter.levels[300, 420] == 0
    assert painter.colour((400.5, 300.5)) != painter.colour((420.5, 300.5))
    painter.press("0")
    assert canvas.factor == before


def test_another_image_saves_the_one_before(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.press("h")
    painter.press("Next")
    painter.opened()
    assert painter.window.title().startswith("2.png (3 of 6)")
    assert not mask(folder, 1).any() and painter.levels.all()
    painter.press("Prior")
    painter.opened()
    assert not painter.levels.any()
    painter.press("Prior")
    painter.opened()
    painter.press("h")
    painter.press("Prior")
    assert mask(folder, 0).any(), "there is no image before the first, so it is not left"
    painter.press("z", CONTROL)
    writer.close()
    assert not (folder / "2-masklabel.png").exists(), "what was only looked at gets no mask"


@pytest.mark.parametrize(("answer", "level"), [("y", 0), ("n", 77)])
def test_a_mask_that_changed_on_the_disk_is_asked_about(sit, folder, answer, level):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.press("h")
    Image.new("L", (64, 48), 77).save(folder / "1-masklabel.png")
    writer.tool.close()
    asked = painter.dialog()
    assert not writer.closed
    asked.focus_force()
    writer.until(lambda: writer.root.focus_get() is not None, "the focus")
    asked.event_generate(f"<KeyPress-{answer}>")
    writer.until(lambda: writer.closed, "the end")
    assert (mask(folder, 1) == level).all()
    assert bool(Journal(folder).jobs()) is (answer == "y")


def test_what_cannot_be_saved_keeps_the_window(sit, folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr(
        "modules.ui.captions.MaskWindow.show_error", lambda parent, error: Hands.failures.append(error)
    )
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.press("h")
    (folder / "1-masklabel.png").mkdir()
    painter.press("w", CONTROL)
    asked = painter.dialog()
    assert Hands.failures and painter.window.winfo_exists()
    asked.keep()
    Hands.failures.clear()
    (folder / "1-masklabel.png").rmdir()
    painter.press("s", CONTROL)
    writer.until(lambda: painter.window.status.cget("text") == words.SAVED, "saving")
    assert not mask(folder, 1).any()


def test_an_image_that_cannot_be_opened_is_named_and_the_next_one_can(sit, folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr(
        "modules.ui.captions.MaskWindow.show_error", lambda parent, error: Hands.failures.append(error)
    )
    Image.new("L", (9, 99)).save(folder / "2-masklabel.png")
    writer = sit()
    writer.click(2)
    writer.press("b")
    window = writer.editor.painter
    assert isinstance(window, tk.Toplevel)
    writer.until(lambda: Hands.failures, "the message")
    assert "2-masklabel.png" in str(Hands.failures[0]) and "2-masklabel.png" in window.status.cget("text")
    window.focus_force()
    window.event_generate("<KeyPress-Next>")
    writer.until(lambda: window.opened is not None, "the next image")
    assert window.opened.painting.levels.all()


class Busy:
    """The worker has something else to do until it is let go."""

    def __init__(self, writer: Writer) -> None:
        self._go, self._writer = threading.Event(), writer
        writer.tool.worker.submit(lambda: self._go.wait(20), lambda _: None)

    def over(self) -> None:
        self._go.set()
        self._writer.settle()


def test_what_is_painted_while_a_mask_is_being_saved_is_saved_too(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.paint((20, 20), button=RIGHT)
    busy = Busy(writer)
    painter.window.go(1)
    painter.paint((40, 30), button=RIGHT)
    canvas = painter.window.canvas
    x, y = canvas.on_screen((10, 40))
    canvas.event_generate("<ButtonPress-3>", x=x, y=y)
    busy.over()
    painter.opened()
    canvas.event_generate("<B3-Motion>", x=x + 9, y=y)
    canvas.event_generate("<ButtonRelease-3>", x=x + 9, y=y)
    writer.root.update()
    assert painter.window.title().startswith("2.png") and painter.levels.all()
    found = mask(folder, 1)
    assert [found[y, x] for x, y in ((20, 20), (40, 30), (10, 40))] == [0, 0, 0]


def test_saving_twice_in_a_row_asks_nothing(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.paint((20, 20), button=RIGHT)
    busy = Busy(writer)
    painter.window.save()
    painter.window.go(1)
    painter.window.go(1)
    busy.over()
    painter.opened()
    assert not painter._dialogs() and not Hands.failures
    assert painter.window.title().startswith("3.png (4 of 6)")
    assert mask(folder, 1)[20, 20] == 0 and len(Journal(folder).jobs()) == 1


def test_a_stroke_that_is_taken_back_while_it_is_being_saved_is_not_kept(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.paint((20, 20), button=RIGHT)
    busy = Busy(writer)
    painter.window.save()
    painter.window.undo()
    painter.window.close()
    busy.over()
    writer.until(lambda: not painter.window.winfo_exists(), "the end of the window")
    assert mask(folder, 1).all()


def test_closing_twice_while_a_mask_is_being_saved_closes_everything(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.press("h")
    busy = Busy(writer)
    painter.window.close()
    writer.tool.close()
    busy.over()
    writer.until(lambda: writer.closed, "the end")
    assert not mask(folder, 1).any()


def test_a_mask_is_seen_at_its_own_image_after_the_folder_was_read_again(sit, folder):  # noqa: F811
    writer = sit()
    writer.click(1)
    painter = Painter(writer)
    painter.press("h")
    (folder / "0.png").unlink()
    writer.editor.open()
    writer.settle()
    painter.press("s", CONTROL)
    writer.until(lambda: painter.window.status.cget("text") == words.SAVED, "saving")
    shown = writer.editor.list.pictures(masks=True)
    assert [getattr(one, "mask", None) for one in shown[:2]] == [folder / "1-masklabel.png", None]
