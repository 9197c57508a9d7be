"""The caption editor, by keys and clicks as a person uses it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from modules.ui.captions.CaptionList import list_folder
from modules.ui.captions.CaptionsPage import CaptionsPage
from modules.ui.captions.CaptionsWindow import CaptionsWindow
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from modules.ui.widgets.ImagePrefetcher import COVER, load_shown
from modules.ui.widgets.theme import Theme
from tests.tools.pictures import contents, picture
from tests.ui.curation.drivers import CONTROL, SHIFT, Hands

pytestmark = pytest.mark.gui
NAMES = {" ": "space", ",": "comma"}


class Writer(Hands):
    """A person before the editor."""

    def __init__(self, root: tk.Tk, folder: Path) -> None:
        self.root, self.closed = root, False
        self.theme = Theme(root)
        self.theme.apply("Light", 100)
        root.report_callback_exception = self._report
        self.tool = CaptionsWindow(root, self.theme, folder, self._was_closed)
        self.tool.pack(fill="both", expand=True)
        self.until(lambda: self.editor.read and self.editor.grid_of_images.paths, "the captions")
        self.settle()

    @property
    def editor(self) -> CaptionsPage:
        return self.tool.editor

    def _settled(self) -> bool:
        return self.closed or (not self.tool.worker.busy and self.editor.read)

    def write(self, text: str, widget: tk.Misc | None = None) -> None:
        """Type where the focus is, or into an entry."""
        if widget is not None:
            self.focus(widget)
            widget.delete(0, "end")
        for character in text:
            target = self.root.focus_get()
            assert target is not None
            target.event_generate(f"<KeyPress-{NAMES.get(character, character)}>")
        self.root.update()

    def click(self, place: int, state: int = 0) -> None:
        """Click an image."""
        grid = self.editor.grid_of_images
        left, top = grid._corner(place)
        at = {
            "x": left + grid.cell // 2,
            "y": top + grid.cell // 2 - int(grid.canvas.canvasy(0)),
            "state": state,
        }
        grid.canvas.event_generate("<ButtonPress-1>", **at)
        grid.canvas.event_generate("<ButtonRelease-1>", **at)
        self.settle()

    def push(self, button: tk.Misc) -> None:
        """Press a button by the keyboard."""
        self.focus(button)
        self.press("space")

    def shown(self) -> list[str]:
        return [path.name for path in self.editor.grid_of_images.paths]

    def seen(self) -> list[str]:
        """What stands below the images."""
        canvas = self.editor.grid_of_images.canvas
        items = [item for item in canvas.find_all() if canvas.type(item) == "text"]
        return [str(canvas.itemcget(item, "text")).replace("\n", " ") for item in items]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images, the last without a caption, the fifth with one that is not text."""
    root = tmp_path / "images"
    root.mkdir()
    for number in range(6):
        picture(number).save(root / f"{number}.png")
    for number in range(4):
        (root / f"{number}.txt").write_text(f"fox, snow, n{number}")
    (root / "4.txt").write_bytes(b"fox \xff")
    mask = Image.new("L", (64, 48), 0)
    mask.paste(255, (0, 0, 32, 48))
    mask.save(root / "0-masklabel.png")
    return root


@pytest.fixture
def sit(root: tk.Tk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Writer]]:
    made: list[Writer] = []
    monkeypatch.setattr(Hands, "failures", [])
    for module in ("widgets.ToolHost", "captions.CaptionsPage"):
        monkeypatch.setattr(
            f"modules.ui.{module}.show_error", lambda parent, error: Hands.failures.append(error)
        )

    def sit_down() -> Writer:
        made.append(Writer(root, folder))
        return made[-1]

    yield sit_down
    for writer in made:
        if not writer.closed:
            writer.close()


def captions(folder: Path) -> list[str]:
    found = contents(folder)
    return [found.get(f"{n}.txt", b"-").decode("utf-8", "replace") for n in range(6)]


def test_undoing_in_the_field_never_brings_back_what_another_image_said(sit, folder):
    (folder / "1.txt").write_text("me")
    writer = sit()
    writer.press("Home", "F2")
    writer.editor.field.box.delete("1.0", "end")
    writer.write("me")
    writer.press("Return")
    assert writer.editor.list.name == "1.txt"
    writer.editor.field.box.event_generate("<<Undo>>")
    writer.press("Return")
    assert captions(folder)[:2] == ["me", "me"]


def test_captions_are_written_one_after_the_other_and_saved(sit, folder):
    writer = sit()
    writer.press("End", "F2")
    assert writer.root.focus_get() is writer.editor.field.box
    writer.write("a red fox")
    assert captions(folder)[5] == "-", "nothing is saved while a person types"
    writer.press("Prior")
    assert captions(folder)[5] == "a red fox"
    assert writer.editor.field.name is None, "a caption that is not text cannot be written"
    writer.press("Home")
    assert captions(folder)[4].startswith("fox ")
    writer.press("Return")
    writer.write(", me")
    writer.press("Return")
    assert captions(folder)[0] == "fox, snow, n0, me"
    assert writer.editor.list.name == "1.txt"
    assert writer.root.focus_get() is writer.editor.field.box
    writer.write("x")
    writer.press("Escape")
    assert captions(folder)[1] == "fox, snow, n1"
    writer.press("Return")
    writer.write("y")
    writer.close()
    assert captions(folder)[1] == "fox, snow, n1y", "closing saves too"


def test_many_are_selected_changed_and_undone(sit, folder):
    writer = sit()
    before = captions(folder)
    writer.click(1)
    writer.click(3, state=SHIFT)
    writer.click(2, state=CONTROL)
    assert sorted(writer.editor.list.chosen) == [1, 3]
    writer.write("me, n3", writer.editor.change.tag)
    writer.push(writer.editor.change.buttons[0])
    changed = ["fox, snow, n0", "me, n3, fox, snow, n1", "fox, snow, n2", "me, fox, snow, n3"]
    assert captions(folder)[:4] == changed
    assert "2 captions changed" in writer.editor.status.cget("text")
    writer.click(0)
    writer.press("a", state=CONTROL)
    writer.write("snow", writer.editor.change.old)
    writer.write("ice", writer.editor.change.new)
    writer.press("Return")
    assert captions(folder)[:4] == [text.replace("snow", "ice") for text in changed]
    assert "not changed: 1 caption (4.txt is not UTF-8" in writer.editor.status.cget("text")
    assert any(text.startswith("fox, ice, n0") for text in writer.seen())
    writer.click(0)
    writer.press("z", "z", state=CONTROL)
    assert captions(folder) == before
    assert writer.seen()[0].startswith("fox, snow, n0")
    writer.press("z", state=CONTROL)
    assert "nothing to undo" in writer.editor.status.cget("text")


def test_what_is_looked_for_is_shown_and_all_shown_can_be_changed(sit, folder):
    writer = sit()
    writer.press("f", state=CONTROL)
    writer.write("N2")
    writer.until(lambda: writer.shown() == ["2.png"])
    writer.editor.find.by_tag("snow")
    assert writer.shown() == ["0.png", "1.png", "2.png", "3.png"]
    writer.editor.change.all_shown.invoke()
    writer.write("snow", writer.editor.change.tag)
    writer.push(writer.editor.change.buttons[2])
    assert captions(folder)[:4] == [f"fox, n{n}" for n in range(4)]
    assert dict(writer.editor.tags._tags) == {"fox": 4, "n0": 1, "n1": 1, "n2": 1, "n3": 1}
    writer.push(writer.editor.find.show_all)
    assert len(writer.shown()) == 6
    writer.editor.find.by.set("Without caption")
    writer.editor.find.by.event_generate("<<ComboboxSelected>>")
    writer.settle()
    assert writer.shown() == ["5.png"]


def test_a_tag_is_taken_from_the_list(sit, folder):
    writer = sit()
    table = writer.editor.tags.table
    writer.focus(table)
    writer.press("Down")
    writer.until(lambda: writer.editor.change.tag.get() == "fox")
    writer.press("Down")
    writer.until(lambda: writer.editor.change.old.get() == "snow")
    writer.press("Return")
    assert writer.shown() == ["0.png", "1.png", "2.png", "3.png"]


@pytest.mark.parametrize(("key", "kept"), [("n", "from elsewhere"), ("y", "fox, snow, n0, me")])
def test_a_caption_that_changed_on_the_disk_is_not_overwritten_in_silence(sit, folder, key, kept):
    writer = sit()
    writer.press("Return")
    writer.write(", me")
    (folder / "0.txt").write_text("from elsewhere")
    writer.press("Return")
    (window,) = (child for child in writer.root.winfo_children() if isinstance(child, ConfirmWindow))
    assert captions(folder)[0] == "from elsewhere"
    window.focus_force()
    writer.root.update()
    window.event_generate(f"<KeyPress-{key}>")
    writer.until(lambda: not writer.editor.list.drafts and not writer.tool.worker.busy)
    assert captions(folder)[0] == kept
    writer.press("Escape", "Home")
    assert writer.editor.field.typed == kept
    assert not Hands.failures


def asked(writer) -> ConfirmWindow:
    writer.until(lambda: any(isinstance(one, ConfirmWindow) for one in writer.root.winfo_children()))
    (window,) = (child for child in writer.root.winfo_children() if isinstance(child, ConfirmWindow))
    window.focus_force()
    writer.until(lambda: writer.root.focus_get() is not None)
    return window


def answer(writer, key: str) -> bool:
    """Press a key where the focus is in the dialog; whether the dialog has closed."""
    window = asked(writer)
    window.focus_get().event_generate(f"<{key}>")
    writer.root.update()
    return not window.winfo_exists()


def test_enter_and_escape_lose_neither_caption(sit, folder):
    writer = sit()
    writer.press("Return")
    writer.write(", me")
    (folder / "0.txt").write_text("from elsewhere")
    writer.press("Return")
    assert not answer(writer, "Return"), "the key that saves captions decides nothing here"
    assert answer(writer, "Escape")
    assert captions(folder)[0] == "from elsewhere"
    assert "not saved" in writer.seen()
    writer.tool.close()
    assert not answer(writer, "Return") and not writer.closed
    assert answer(writer, "KeyPress-y")
    writer.until(lambda: not writer.editor.list.drafts and not writer.tool.worker.busy)
    assert captions(folder)[0] == "fox, snow, n0, me"


def test_closing_asks_once_about_a_caption_that_was_not_saved_yet(sit, folder):
    writer = sit()
    writer.press("Return")
    writer.write(", me")
    (folder / "0.txt").write_text("from elsewhere")
    writer.tool.close()
    asked(writer)
    writer.settle()
    asked(writer)
    assert captions(folder)[0] == "from elsewhere" and not writer.closed
    assert answer(writer, "KeyPress-n")
    assert not any(isinstance(one, ConfirmWindow) for one in writer.root.winfo_children())
    assert captions(folder)[0] == "from elsewhere" and not writer.editor.list.drafts


def test_what_cannot_be_saved_is_not_lost(sit, folder, monkeypatch):
    writer = sit()
    writer.press("Return")
    writer.write(", me")
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("modules.ui.captions.CaptionsPage.save_caption", full)
        writer.press("Return")
        assert len(Hands.failures) == 1
        assert "not saved" in writer.seen()
        writer.tool.close()
        writer.until(lambda: any(isinstance(one, ConfirmWindow) for one in writer.root.winfo_children()))
    (window,) = (child for child in writer.root.winfo_children() if isinstance(child, ConfirmWindow))
    window.keep()
    assert not writer.closed
    writer.close()
    assert captions(folder)[0] == "fox, snow, n0, me"


def test_masks_are_seen_and_switched_off(sit, folder):
    writer = sit()
    grid = writer.editor.grid_of_images
    key = lambda: (grid.paths[0], grid._box())  # noqa: E731
    writer.until(lambda: writer.tool.prefetcher.get(*key()))
    masked = writer.tool.prefetcher.get(*key())
    writer.press("m")
    writer.until(lambda: writer.tool.prefetcher.get(*key()))
    plain = writer.tool.prefetcher.get(*key())
    left, right = (8, masked.height // 2), (masked.width - 8, masked.height // 2)
    assert masked.getpixel(left) == plain.getpixel(left)
    assert masked.getpixel(right) != plain.getpixel(right)


def test_masks_are_seen_as_training_reads_them(folder):
    """What is transparent is black, and a mask of another format is none."""
    clear = Image.new("RGBA", (64, 48), (255, 255, 255, 0))
    clear.paste((255, 255, 255, 255), (0, 0, 32, 48))
    clear.save(folder / "1-masklabel.png")
    Image.new("L", (64, 48)).save(folder / "2-masklabel.jpg")
    masked = list_folder(folder, False).masked
    seen = load_shown(masked[1], (64, 48))
    plain = load_shown(folder / "1.png", (64, 48))
    assert seen.getpixel((8, 24)) == plain.getpixel((8, 24))
    red, green, blue = seen.getpixel((56, 24))
    was = plain.getpixel((56, 24))
    assert [round(0.35 * old + 0.65 * new) for old, new in zip(was, COVER, strict=True)] == pytest.approx(
        [red, green, blue], abs=2
    )
    assert masked[2] == folder / "2.png"


def test_the_folder_is_read_again_and_nothing_that_is_typed_is_lost(sit, folder):
    writer = sit()
    (folder / "1.txt").write_text("wolf")
    (folder / "3.png").unlink()
    (folder / "3.txt").unlink()
    picture(9).save(folder / "9.png")
    writer.editor.open()
    writer.editor.edit()
    writer.root.update()
    writer.editor.field.box.insert("end", ", me")
    writer.settle()
    assert writer.shown() == ["0.png", "1.png", "2.png", "4.png", "5.png", "9.png"]
    assert writer.editor.field.typed == "fox, snow, n0, me"
    writer.press("Return")
    assert captions(folder)[0] == "fox, snow, n0, me"
    assert dict(writer.editor.tags._tags)["wolf"] == 1
    assert "n3" not in dict(writer.editor.tags._tags)


def test_a_change_of_many_is_stopped_and_changes_nothing(sit, folder, monkeypatch):
    writer = sit()
    before = captions(folder)
    carry_out = CaptionsPage.change_many.__globals__["carry_out_edits"]

    def slow(root: Path, plan: object, progress: Callable[[int, str], None]) -> object:
        progress(0, "")
        assert writer.editor._stop.wait(20)
        return carry_out(root, plan, progress)

    monkeypatch.setattr("modules.ui.captions.CaptionsPage.carry_out_edits", slow)
    writer.press("a", state=CONTROL)
    writer.write("me", writer.editor.change.tag)
    writer.focus(writer.editor.change.buttons[1])
    writer.editor.change.buttons[1].event_generate("<KeyPress-space>")
    writer.editor.change.buttons[1].event_generate("<KeyRelease-space>")
    writer.until(lambda: "0 of 5 written" in writer.editor.status.cget("text"))
    writer.editor.edit()
    writer.write("x")
    assert not writer.editor.field.changed, "it would overwrite the change"
    writer.push(writer.editor.stop_button)
    writer.editor.edit()
    writer.write("x")
    assert writer.editor.field.changed
    writer.editor.field._drop()
    assert "Nothing was changed" in writer.editor.status.cget("text")
    assert captions(folder) == before
