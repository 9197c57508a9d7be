"""Dialogs come up in the middle of the window they belong to, and stay above it; images in a window of their own."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

import pytest
from PIL import Image

from modules.ui.dialogs import Dialog
from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.pages.RunPage import RunPage
from modules.ui.state.SessionStore import WindowMemory
from modules.util.errors import UserError
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
FRAME = 40
"""Pixels that a window manager's frame may shift a window by."""


def middle(window: tk.Misc) -> tuple[int, int]:
    return (
        window.winfo_rootx() + window.winfo_width() // 2,
        window.winfo_rooty() + window.winfo_height() // 2,
    )


def in_the_middle(window: tk.Misc, over: tk.Misc) -> bool:
    return all(abs(a - b) <= FRAME for a, b in zip(middle(window), middle(over), strict=True))


@pytest.fixture
def small(open_window: OpenWindow) -> Hands:
    """A window in the corner of the screen."""
    hands = open_window(memory=WindowMemory(geometry="760x480+500+200"))
    hands.wait(lambda: hands.window.winfo_rootx() > 400)
    return hands


@pytest.mark.slow
def test_an_error_comes_up_in_the_middle_and_stays_above(small: Hands) -> None:
    small.window.ui.error(UserError("the disk is full", hint="make room"))
    (dialog,) = small.dialogs()
    small.wait(lambda: dialog.winfo_viewable() and in_the_middle(dialog, small.window), "it is elsewhere")
    assert str(dialog.transient()) == str(small.window)
    small.click(small.button("Close", dialog))
    assert not dialog.winfo_exists()


def test_an_error_of_a_dialog_can_be_closed_and_gives_the_input_back(small: Hands) -> None:
    dialog = Dialog(small.window.ui, "A question")
    dialog.add_button("OK", dialog.destroy)
    dialog.present()
    small.window.ui.error(UserError("that was wrong"))
    (error,) = small.dialogs()
    small.wait(lambda: error.grab_status() == "local", "it gets no input")
    small.click(small.button("Close", error))
    small.wait(lambda: dialog.grab_status() == "local", "the dialog gets no input any more")
    small.click(small.button("OK", dialog))
    assert not dialog.winfo_exists()


@pytest.mark.slow
def test_dialogs_are_in_the_middle_of_the_window(small: Hands) -> None:
    small.window.open_view()
    dialog = small.dialog()
    small.wait(lambda: in_the_middle(dialog, small.window), "it is elsewhere")
    assert str(dialog.transient()) == str(small.window)
    small.click(small.button("Cancel", dialog))


def viewers(hands: Hands) -> list[ImageWindow]:
    return [c for c in hands.window.winfo_children() if isinstance(c, ImageWindow)]


def test_a_sample_is_looked_at_large_by_keys(small: Hands) -> None:
    hands = small
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished")
    hands.window.show_page("run")
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    canvas = page.gallery.canvas
    page.scroll.see(page.gallery)
    hands.wait(lambda: len(page.gallery._thumbnails._photos) == 2)
    hands.focus(canvas)
    assert int(canvas.cget("highlightthickness")) and canvas.cget("highlightcolor") != canvas.cget("background")
    hands.keys("<Return>")
    (viewer,) = viewers(hands)
    hands.wait(lambda: (focus := hands.window.focus_get()) and focus.winfo_toplevel() is viewer)
    assert "a fox" in str(viewer.about.cget("text"))
    hands.keys("<Escape>")
    hands.expect_focus(canvas)


def test_a_sample_is_looked_at_large_and_the_arrows_lead_on(small: Hands, tmp_path: Path) -> None:
    hands = small
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished")
    hands.window.show_page("run")
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    gallery = page.gallery
    page.scroll.see(gallery)
    hands.wait(
        lambda: len(gallery._thumbnails._photos) == 2 and gallery.canvas.find_withtag("current") is not None
    )
    item = next(i for i in gallery.canvas.find_all() if gallery.canvas.type(i) == "image")
    x, y = (int(value) for value in gallery.canvas.coords(item))
    gallery.canvas.event_generate("<Motion>", x=x, y=y, warp=True)
    hands.wait(lambda: gallery.canvas.find_withtag("current") == (item,), "the pointer is not on the image")
    gallery.canvas.event_generate("<ButtonPress-1>", x=x, y=y)
    hands.rest()
    (viewer,) = viewers(hands)
    hands.wait(lambda: viewer.view.shown is not None, "no image appears")
    photo = viewer.view._photo
    assert photo is not None and photo.height() > 0.6 * hands.window.winfo_screenheight()  # of 64 pixels
    assert "a fox" in str(viewer.about.cget("text")) and "step 0" in str(viewer.about.cget("text"))
    assert viewer.before.instate(["disabled"])
    hands.focus(viewer)
    hands.keys("<Right>", to=viewer)
    hands.wait(lambda: "step 20" in str(viewer.about.cget("text")))
    hands.wait(lambda: viewer.view.shown == viewer.shown.path, "the other image does not appear")
    assert viewer.title().endswith("2 of 2")
    hands.click(viewer.before)
    assert viewer.index == 0
    hands.keys("<Escape>", to=viewer)
    assert viewers(hands) == []


def test_an_image_that_cannot_be_read_says_so(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    viewer = ImageWindow(hands.window.ui, [ShownImage(tmp_path / n) for n in ("a.png", "b.png")], 0)

    def texts() -> list[str]:
        view = viewer.view
        return [view.itemcget(item, "text") for item in view.find_all() if view.type(item) == "text"]

    hands.wait(lambda: any("cannot be shown" in text for text in texts()), "nothing is said")
    hands.keys("<Right>", to=viewer)
    hands.wait(lambda: viewer.view.shown == tmp_path / "b.png")
