"""The tools of the Tools page: filled in, previewed, done, stopped and undone as a person does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tkinter as tk
from pathlib import Path
from tkinter import ttk

import numpy as np
import pytest
from PIL import Image

from modules.tools.catalog import CAPTION_EDITS, CAPTION_TOOLS, DATASET_TOOLS, MASK_TOOLS, MODEL_TOOLS, UPDATE
from modules.tools.ToolSpec import Kind
from modules.ui.captions.CaptionsWindow import CaptionsWindow
from modules.ui.ImageWindow import ImageWindow
from modules.ui.shell.ToolWindow import ToolWindow
from tests.captioner.models import onnx_tagger
from tests.scripts.test_merge import lora
from tests.tiny import tiny_folder
from tests.tools.pictures import contents, picture
from tests.ui.conftest import Desktop
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
ROOT = Path(__file__).resolve().parents[3]
GRID = """
import sys, time
from pathlib import Path
from PIL import Image
out = Path(next(word.removeprefix("--out=") for word in sys.argv if word.startswith("--out=")))
if "--dry-run" in sys.argv:
    family = next(word.removeprefix("--model-type=") for word in sys.argv if word.startswith("--model-type="))
    print(f"2 images of {family} would be made")
    sys.exit()
print("1/2 a red circle", file=sys.stderr, flush=True)
while not (out.parent / "go").exists():
    time.sleep(0.02)
out.mkdir()
Image.new("RGB", (8, 8)).save(out / "grid-1.png")
print("2 images made")
print(out / "grid-1.png")
"""
"""Makes a sheet where it is told to, once it may."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    root.mkdir()
    for number in range(3):
        picture(number).save(root / f"{number}.png")
    (root / "1.txt").write_text("one")
    return root


def below(page: tk.Misc, text: str) -> tk.Misc:
    """The button of a page, in sight or not."""
    waiting = [page]
    while waiting:
        widget = waiting.pop()
        if widget.winfo_class() == "TButton" and str(widget.cget("text")) == text:
            return widget
        waiting.extend(widget.winfo_children())
    raise AssertionError(f"no button says {text!r}")


def opened(hands: Hands, title: str) -> ToolWindow:
    hands.window.show_page("tools")
    hands.rest()
    hands.focus(below(hands.window.current_page(), f"{title}\u2026"))
    hands.keys("<space>")
    window = hands.dialog()
    assert isinstance(window, ToolWindow)
    return window


def fill(hands: Hands, window: ToolWindow, **texts: str) -> None:
    for key, text in texts.items():
        hands.focus(window.inputs[key])
        hands.keys("<Control-a>", "<Delete>")
        hands.type(text)


def press(hands: Hands, window: ToolWindow, label: str, seconds: float = 60) -> str:
    """Press a button and wait until the tool has ended; what it said."""
    hands.click(hands.button(label, window))
    hands.wait(lambda: window.job is None, "the tool does not end", seconds=seconds)
    return str(window.output.get("1.0", "end")) + str(window.fault.cget("text"))


def test_images_are_renamed_after_a_preview_and_undone(hands: Hands, folder: Path) -> None:
    before = contents(folder)
    window = opened(hands, "Rename images")
    assert "Fill in: Folder, Pattern" in press(hands, window, "Start")
    fill(hands, window, folder=folder.name, pattern="{folder}-{number:2}", start="7")
    assert "1.txt -> images-08.txt" in press(hands, window, "Preview")
    assert contents(folder) == before
    assert "4 files renamed" in press(hands, window, "Start")
    assert contents(folder).keys() == {
        "images-07.png", "images-08.png", "images-08.txt", "images-09.png"
    }  # fmt: skip
    assert "undone: 0001-rename" in press(hands, window, "Undo")
    assert contents(folder) == before
    fill(hands, window, pattern="same")
    assert "is not a pattern" in press(hands, window, "Start")
    hands.keys("<Escape>")
    assert not window.winfo_exists()


def test_in_a_window_lower_than_what_is_asked_for_the_field_with_the_focus_is_in_sight(hands: Hands) -> None:
    window = opened(hands, "Tag images")
    window.geometry("760x480")
    hands.wait(lambda: window.winfo_height() == 480)
    hands.focus(window.inputs["suffix"])
    hands.wait(lambda: window.asked.canvas.canvasy(0) > 0, "the field with the focus is out of sight")
    hands.keys("<Escape>")


@pytest.mark.slow
def test_images_are_tagged_in_a_window_lower_than_what_is_asked_for(
    hands: Hands, folder: Path, tmp_path: Path
) -> None:
    tagger = onnx_tagger(folder / "tagger")
    (folder / "0.txt").write_text("")
    before = contents(folder)
    window = opened(hands, "Tag images")
    window.geometry("760x480")
    hands.wait(lambda: window.winfo_height() == 480)
    fill(
        hands,
        window,
        folder=folder.name,
        model=f"{folder.name}/{tagger.name}",
        threshold="0.1",
        suffix="by me",
    )
    assert window.asked.canvas.canvasy(0) > 0, "the field with the focus is in sight"
    assert "2 images of 3 would get a caption" in press(hands, window, "Preview")
    assert contents(folder) == before
    assert "2 captions written" in press(hands, window, "Start")
    assert (folder / "1.txt").read_text() == "one"
    assert (folder / "0.txt").read_text().endswith(" by me") and (folder / "2.txt").is_file()
    assert "undone: 0001-captions" in press(hands, window, "Undo")
    assert contents(folder) == before
    hands.keys("<Escape>")
    hands.wait(lambda: not window.winfo_exists())


@pytest.mark.slow
def test_masks_are_made_in_the_window_and_undone(hands: Hands, folder: Path) -> None:
    before = contents(folder)
    window = opened(hands, "Masks by colour")
    fill(hands, window, folder=folder.name, tolerance="0")
    hands.focus(window.inputs["invert"])
    hands.keys("<space>")
    assert "3 images of 3 would get a mask" in press(hands, window, "Preview")
    assert contents(folder) == before
    assert "3 masks written" in press(hands, window, "Start")
    with Image.open(folder / "1-masklabel.png") as mask:
        assert (mask.mode, mask.size, mask.getextrema()) == ("L", (64, 48), (255, 255))
    assert "undone: 0001-masks" in press(hands, window, "Undo")
    assert contents(folder) == before
    hands.keys("<Escape>")
    hands.wait(lambda: not window.winfo_exists())


def test_a_tool_can_be_stopped_in_the_middle(
    hands: Hands, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that lasts: the real one is over before a person could press a button."""
    begun = folder / "begun"
    slow = (
        f"import sys, time, pathlib\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from scripts import dataset\n"
        "from modules.tools import Journal as J\n"
        "move = J.Job.move\n"
        f"def slowly(self, *words):\n    move(self, *words); pathlib.Path({str(begun)!r}).touch(); time.sleep(30)\n"
        "J.Job.move = slowly\n"
        "sys.exit(dataset.main(sys.argv[1:]))\n"
    )
    before = contents(folder)
    start = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", slow, *command[2:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr("modules.runner.LineProcess.subprocess.Popen", instead)
    window = opened(hands, "Rename images")
    fill(hands, window, folder=folder.name, pattern="x{number}")
    hands.click(hands.button("Start", window))
    hands.wait(begun.exists, "the tool does not begin", seconds=60)
    hands.click(hands.button("Stop", window))
    hands.wait(lambda: window.job is None, "it does not stop", seconds=60)
    begun.unlink()
    assert contents(folder) == before
    assert window.progress.cget("text") == "Stopped"


def test_what_a_tool_has_made_is_shown(
    hands: Hands, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in the place of the one that makes the images."""
    start = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", GRID, *command[2:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr("modules.runner.LineProcess.subprocess.Popen", instead)
    window = opened(hands, "Try models and LoRAs")
    fill(hands, window, model="a model", out=f"{folder.name}/made", prompt="a red circle")
    pick(hands, window, "model_type", "FLUX.1 dev")
    assert "2 images of FLUX_DEV_1 would be made" in press(hands, window, "Preview")
    assert not (folder / "made").exists()
    hands.click(hands.button("Start", window))
    hands.wait(lambda: window.progress.cget("text") == "1 of 2: a red circle", "its progress is not shown")
    (folder / "go").touch()
    hands.wait(lambda: window.job is None, "the tool does not end")
    shown = [one for one in window.winfo_children() if isinstance(one, ImageWindow)]
    assert [one.images[0].path for one in shown] == [Path(folder.name) / "made" / "grid-1.png"]


@pytest.mark.slow
def test_a_grid_of_a_lora_is_made_and_shown(hands: Hands, folder: Path) -> None:
    lora(folder / "a.safetensors", 1)
    window = opened(hands, "Try models and LoRAs")
    assert "Fill in: Base model" in press(hands, window, "Start")
    fill(
        hands, window, model=str(tiny_folder()), out=f"{folder.name}/made", prompt="a red circle", steps="1",
        adapter=f"{folder.name}/a.safetensors", x="strength=0,1", width="64", height="64",
    )  # fmt: skip
    pick(hands, window, "model_type", "Stable Diffusion 1.5")
    assert "2 of 2 images would be made" in press(hands, window, "Preview")
    assert not (folder / "made").exists()
    assert press(hands, window, "Start", seconds=240).startswith("2 of 2 images made\n")
    (sheet,) = (folder / "made").glob("grid-*.png")
    shown = [one for one in window.winfo_children() if isinstance(one, ImageWindow)]
    assert [one.images[0].path.resolve() for one in shown] == [sheet.resolve()]


def open_list(hands: Hands, combo: ttk.Combobox) -> str:
    """The path of the window with a box's list, once it is open."""
    hands.focus(combo)
    hands.keys("<Down>", to=combo)
    popdown = str(combo.tk.call("ttk::combobox::PopdownWindow", combo))
    hands.wait(lambda: combo.tk.call("winfo", "viewable", popdown), "the list does not open")
    return popdown


def pick(hands: Hands, window: ToolWindow, key: str, label: str) -> None:
    """Pick a choice from its list by keys."""
    box = window.inputs[key]
    assert isinstance(box, ttk.Combobox)
    popdown = open_list(hands, box)
    names = list(box["values"])
    room = int(box.tk.call("winfo", "width", f"{popdown}.f.l"))
    assert max(hands.window.theme.fonts["text"].measure(name) for name in names) <= room, "names are cut"
    for name in ("<Home>", *["<Down>"] * names.index(label), "<Return>"):
        box.tk.call("event", "generate", f"{popdown}.f.l", name)
    hands.wait(lambda: not box.tk.call("winfo", "viewable", popdown), "the list does not close")
    assert box.get() == label


def test_every_tool_of_the_page_has_a_window(hands: Hands) -> None:
    for spec in (*DATASET_TOOLS, *CAPTION_TOOLS, *CAPTION_EDITS, *MASK_TOOLS, *MODEL_TOOLS, UPDATE):
        window = opened(hands, spec.title)
        assert set(window.inputs) == {field.key for field in spec.fields}
        assert window.output.winfo_height() > window.ui.theme.px(60), "what it says is in sight"
        hands.keys("<Escape>")
        hands.wait(lambda window=window: not window.winfo_exists())


def check_list_follows_the_theme(hands: Hands, combo: ttk.Combobox) -> None:
    popdown = open_list(hands, combo)
    palette = hands.window.theme.palette
    colours = [str(combo.tk.call(f"{popdown}.f.l", "cget", name)) for name in ("-background", "-foreground")]
    assert colours == [palette.field, palette.text]
    combo.tk.call("event", "generate", f"{popdown}.f.l", "<Escape>")
    hands.wait(lambda: not combo.tk.call("winfo", "viewable", popdown))


def test_the_lists_of_a_tool_and_of_the_caption_editor_follow_the_theme(
    hands: Hands, folder: Path, desktop: Desktop
) -> None:
    tool = next(spec for spec in DATASET_TOOLS if any(field.kind is Kind.CHOICE for field in spec.fields))
    window = opened(hands, tool.title)
    for field in tool.fields:
        box = window.inputs[field.key]
        if isinstance(box, ttk.Combobox):
            box.update()
            hands.wait(box.winfo_viewable)
            check_list_follows_the_theme(hands, box)
    window.cancel()
    editor = editor_on(hands, folder, desktop)[1]
    check_list_follows_the_theme(hands, editor.editor.find.by)
    editor.close()


def editor_on(hands: Hands, folder: Path, desktop: Desktop) -> tuple[tk.Misc, CaptionsWindow]:
    """The caption editor with an x typed into the first caption."""
    desktop.answers(folder)
    hands.window.show_page("tools")
    hands.rest()
    button = below(hands.window.current_page(), "Caption editor\u2026")
    hands.focus(button)
    hands.keys("<space>")
    window = hands.dialog()
    (editor,) = (child for child in window.winfo_children() if isinstance(child, CaptionsWindow))
    hands.wait(lambda: editor.editor.read)
    editor.editor.field.box.focus_force()
    hands.rest()
    hands.keys("x")
    return window, editor


def test_the_caption_editor_opens_on_a_folder_and_closes(
    hands: Hands, folder: Path, desktop: Desktop
) -> None:
    window, editor = editor_on(hands, folder, desktop)
    editor.close()
    hands.wait(lambda: not window.winfo_exists())
    assert (folder / "0.txt").read_text() == "x"


def test_closing_the_main_window_saves_what_is_typed_and_painted_in_the_editor(
    hands: Hands, folder: Path, desktop: Desktop
) -> None:
    _, editor = editor_on(hands, folder, desktop)
    editor.editor.paint()
    painter = editor.editor.painter
    assert painter is not None
    hands.wait(lambda: painter.opened)
    painter.invert()
    editor.editor.field.box.insert("end", "y")
    hands.window.ask_quit()
    with contextlib.suppress(tk.TclError):
        hands.wait(lambda: not hands.window.winfo_exists())
    assert (folder / "0.txt").read_text() == "xy"
    assert not np.asarray(Image.open(folder / "0-masklabel.png")).any()
