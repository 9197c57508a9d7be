"""Folders and files are asked for in the desktop's own window where there is one, else in Tk's."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tkinter import ttk

import pytest

from modules.runner.ProcessId import ProcessId
from modules.ui.state.SessionStore import SessionStore
from modules.ui.widgets.Chooser import desktop_commands
from modules.ui.widgets.tk_support import ErrorDialog, show_error
from modules.util.errors import UserError
from tests.ui.main.conftest import Desktop, OpenWindow
from tests.ui.main.drivers import Hands
from tests.ui.main.test_concepts import data_page
from tests.usual import usual

pytestmark = pytest.mark.gui


def browse(hands: Hands, path: str, text: str = "\u2026") -> None:
    """Press a button at the end of a field."""
    row = hands.row(path)
    hands.click(hands.button(text, row.input.widget))
    hands.rest(0.05)


def test_the_desktop_is_asked_where_the_field_points_and_the_answer_is_in_the_field(
    hands: Hands, desktop: Desktop, tmp_path: Path
) -> None:
    chosen = tmp_path / "my runs; rm -rf *"
    chosen.mkdir()
    desktop.answers(chosen)
    hands.window.state_.set_value("workspace_dir", str(tmp_path))
    browse(hands, "workspace_dir")
    assert hands.window.state_.config.workspace_dir == str(chosen)
    assert "--directory" in desktop.asked()
    assert f"--filename={tmp_path}/" in desktop.asked()


def test_the_last_folder_is_remembered_over_a_restart(
    open_window: OpenWindow, desktop: Desktop, tmp_path: Path
) -> None:
    hands = open_window()
    model = tmp_path / "models" / "base.safetensors"
    model.parent.mkdir()
    model.touch()
    desktop.answers(model)
    browse(hands, "base_model_name", "File")
    assert hands.window.state_.config.base_model_name == str(model)
    assert f"--filename={Path.home()}/" in desktop.asked()  # never the program's folder
    hands.close()
    again = open_window()
    desktop.answers("", code=1)
    browse(again, "cache_dir")
    assert f"--filename={model.parent}/" in desktop.asked()
    memory, _ = SessionStore(tmp_path / "settings").load_window()
    assert memory.folder == str(model.parent)


def test_cancel_changes_nothing(hands: Hands, desktop: Desktop) -> None:
    before = hands.window.state_.config.workspace_dir
    desktop.answers("/somewhere", code=1)
    browse(hands, "workspace_dir")
    assert hands.window.state_.config.workspace_dir == before
    assert hands.dialogs() == []


def test_a_folder_that_does_not_exist_is_refused(hands: Hands, desktop: Desktop, tmp_path: Path) -> None:
    before = hands.window.state_.config.workspace_dir
    desktop.answers(tmp_path / "gone")
    browse(hands, "workspace_dir")
    hands.expect_dialog("gone is not a folder")
    assert hands.window.state_.config.workspace_dir == before


def test_a_model_is_a_file_or_a_folder(hands: Hands, desktop: Desktop, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    desktop.answers(tmp_path / "model")
    browse(hands, "base_model_name", "Folder")
    assert hands.window.state_.config.base_model_name == str(tmp_path / "model")


def test_input_waits_while_the_desktop_asks(hands: Hands, desktop: Desktop, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    (tmp_path / "bin" / "zenity").write_text(f"#!/bin/sh\nwhile [ -e {hold} ]; do sleep 0.05; done\nexit 1\n")
    (tmp_path / "bin" / "zenity").chmod(0o755)
    seen: list[str] = []

    def look() -> None:
        holder = hands.window.grab_current()
        if holder is None and time.monotonic() < end:
            hands.window.after(10, look)
            return
        seen.append(holder.winfo_class() if holder is not None else "nothing")
        hold.unlink()

    end = time.monotonic() + 20
    hands.window.after(10, look)
    browse(hands, "workspace_dir")
    assert seen == ["Frame"]
    assert hands.window.grab_current() is None


def test_a_window_closed_while_the_desktop_asks_ends_the_question(
    hands: Hands, desktop: Desktop, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "zenity").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    (tmp_path / "bin" / "zenity").chmod(0o755)
    row = hands.row("workspace_dir")
    button = hands.button("\u2026", row.input.widget)
    hands.window.after(300, hands.close)
    begin = time.monotonic()
    button.invoke()
    assert time.monotonic() - begin < 30
    assert ProcessId.of(int((tmp_path / "pid").read_text())) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the desktop's window is Tk's here")
def test_tk_is_asked_where_the_desktop_has_nothing(
    hands: Hands, desktop: Desktop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    desktop.answers("", code=5)  # it is there and does not work
    (tmp_path / "inner").mkdir()
    (tmp_path / ".hidden").mkdir()
    hands.window.state_.set_value("workspace_dir", str(tmp_path))

    def answer() -> None:
        window = ".__tk_choosedir"
        entry = f"{window}.contents.f2.ent"
        shown = f"expr {{[winfo exists {entry}] && [winfo viewable {entry}]}}"
        if not hands.window.tk.getboolean(hands.window.tk.eval(shown)):
            hands.window.after(50, answer)
            return
        assert hands.window.tk.eval("set ::tk::dialog::file::showHiddenVar") == "0"
        hands.window.tk.call(entry, "delete", 0, "end")
        hands.window.tk.call(entry, "insert", 0, str(tmp_path / "inner"))
        hands.window.tk.call("event", "generate", entry, "<Return>")
        hands.window.after(100, lambda: hands.window.tk.call(f"{window}.contents.f2.ok", "invoke"))

    hands.window.after(400, answer)
    browse(hands, "workspace_dir")
    assert hands.window.state_.config.workspace_dir == str(tmp_path / "inner")


def test_the_desktop_decides_which_program_is_asked_first(
    desktop: Desktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("zenity", "kdialog"):
        desktop.answers("/x", program=program)
    kinds = (("JSON files", "*.json"), ("All files", "*"))
    first = desktop_commands("file", "Open", Path("/a b"), "", kinds)
    assert [Path(line[0]).name for line in first] == ["zenity", "kdialog"]
    assert first[0][1:] == [
        "--file-selection", "--title=Open", "--filename=/a b/", "--file-filter=JSON files | *.json",
        "--file-filter=All files | *",
    ]  # fmt: skip
    monkeypatch.setenv("XDG_CURRENT_DESKTOP", "KDE")
    second = desktop_commands("save", "Save", Path("/a"), "x.json", kinds)
    assert second[0][1:] == [
        "--title",
        "Save",
        "--getsavefilename",
        "/a/x.json",
        "*.json|JSON files\n*|All files",
    ]
    assert second[1][-1] == "--file-filter=All files | *"


def test_saving_without_an_ending_never_replaces_a_file_that_nobody_named(
    hands: Hands, desktop: Desktop, tmp_path: Path
) -> None:
    desktop.answers(tmp_path / "mine")
    hands.keys("<Control-s>", to=hands.window)
    assert (tmp_path / "mine.json").is_file()
    (tmp_path / "other.json").write_text("{}")
    desktop.answers(tmp_path / "other")
    hands.keys("<Control-S>", to=hands.window)
    hands.expect_dialog("other.json already exists")
    assert (tmp_path / "other.json").read_text() == "{}"


@pytest.mark.parametrize("path", usual(["workspace_dir", "base_model_name", "epochs"], "epochs"))
def test_ctrl_a_selects_everything_and_typing_replaces_it(hands: Hands, path: str) -> None:
    entry = hands.row(path).input.focus_widget
    assert isinstance(entry, ttk.Entry)
    hands.focus(entry)
    hands.keys("<Control-a>")
    assert entry.selection_present() and entry.selection_get() == entry.get()
    hands.type("7")
    assert entry.get() == "7"


@pytest.mark.slow
def test_the_desktop_asks_once_if_the_key_is_pressed_twice(
    hands: Hands, desktop: Desktop, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "zenity").write_text(f"#!/bin/sh\necho x >> {tmp_path}/calls\nsleep 0.5\nexit 1\n")
    (tmp_path / "bin" / "zenity").chmod(0o755)
    button = hands.button("\u2026", hands.row("workspace_dir").input.widget)
    hands.focus(button)
    for _ in range(3):
        button.event_generate("<space>", when="tail")
    hands.wait((tmp_path / "calls").exists)
    hands.wait(lambda: hands.window.grab_current() is None)
    hands.rest(0.2)
    assert (tmp_path / "calls").read_text().split() == ["x"]
    hands.expect_focus(button)


def test_a_message_that_comes_while_the_desktop_asks_keeps_the_input_until_it_is_closed(
    hands: Hands, desktop: Desktop, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    (tmp_path / "bin" / "zenity").write_text(f"#!/bin/sh\nwhile [ -e {hold} ]; do sleep 0.05; done\nexit 1\n")
    (tmp_path / "bin" / "zenity").chmod(0o755)
    page = data_page(hands)
    page.add([tmp_path])
    window = page.open_concept(0)
    row = next(form.rows["path"] for form in window.forms if "path" in form.rows)
    shown: list[ErrorDialog] = []

    def tell() -> None:
        message = show_error(hands.window, UserError("the disk is full"))
        assert message is not None
        shown.append(message)
        hands.wait(lambda: message.grab_status() == "local")
        hold.unlink()

    hands.window.after(300, tell)
    hands.click(hands.button("\u2026", row.input.widget))
    hands.wait(lambda: not hold.exists())
    assert shown[0].grab_status() == "local"
    hands.click(shown[0].close_button)
    hands.wait(lambda: not shown[0].winfo_exists(), "the message cannot be closed with the mouse")
    assert window.grab_status() == "local"
