"""Opening, saving, importing, presets; what survives the end of the program, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tkinter as tk
from pathlib import Path

import pytest

from modules.ui.shell.PresetMenu import MOST_IN_A_MENU
from modules.ui.state.SessionStore import Session, SessionStore
from modules.ui.texts.window import KEEP_PRESET, REMOVE_PRESET, YOUR_PRESETS
from modules.util.config.kohya import kohya_data
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from tests.ui.main.conftest import Desktop, OpenWindow
from tests.ui.main.drivers import Hands
from tests.usual import usual

pytestmark = pytest.mark.gui
ROOT = Path(__file__).resolve().parents[3]


def test_save_and_open(hands: Hands, tmp_path: Path, desktop: Desktop) -> None:
    target = tmp_path / "deep" / "my config.json"
    target.parent.mkdir()
    desktop.answers(target)
    hands.fill("epochs", "33")
    hands.keys("<Control-s>")
    assert {"--file-selection", "--save", f"--filename={Path.home() / 'config.json'}"} <= set(desktop.asked())
    assert load_config(target).epochs == 33
    assert hands.window.title().startswith("my config.json \u2013")
    hands.fill("epochs", "44")
    assert hands.window.title().startswith("my config.json * \u2013")
    hands.answer("Discard")
    hands.keys("<Control-o>")
    assert hands.row("epochs").input.focus_widget.get() == "33"  # type: ignore[attr-defined]
    hands.keys("<Control-z>")
    assert hands.window.state_.config.epochs == 44
    assert hands.window.memory.recent == [str(target)]


@pytest.mark.parametrize(("answer", "epochs"), [("Replace", 34), ("Cancel", 77)])
def test_what_another_program_wrote_into_the_open_file_is_replaced_only_after_a_question(
    hands: Hands, tmp_path: Path, answer: str, epochs: int
) -> None:
    target = tmp_path / "mine.json"
    hands.fill("epochs", "33")
    assert hands.window.files.save_to(target)
    assert hands.window.files.save_to(target), "its own save is no change"
    data = json.loads(target.read_text())
    target.write_text(json.dumps({**data, "epochs": 77}))
    hands.fill("epochs", "34")
    hands.answer(answer)
    assert hands.window.files.save_to(target) == (answer == "Replace")
    assert json.loads(target.read_text())["epochs"] == epochs
    assert hands.asked == [f"{target} was changed since it was opened. Replace it with the settings of this window?"]


def test_what_another_program_wrote_between_two_starts_is_replaced_only_after_a_question(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    target = tmp_path / "mine.json"
    first = open_window()
    first.fill("epochs", "33")
    assert first.window.files.save_to(target)
    first.close()
    target.write_text(json.dumps({**json.loads(target.read_text()), "epochs": 77}))
    second = open_window()
    second.fill("batch_size", "3")
    second.answer("Cancel")
    second.keys("<Control-s>")
    assert json.loads(target.read_text())["epochs"] == 77
    assert [question.partition(" was ")[0] for question in second.asked] == [str(target)]


def test_undoing_an_open_leaves_the_file_that_was_opened(hands: Hands, tmp_path: Path) -> None:
    other, mine = tmp_path / "other.json", tmp_path / "mine.json"
    for path, epochs in ((other, "11"), (mine, "22")):
        hands.fill("epochs", epochs)
        assert hands.window.files.save_to(path)
    assert hands.window.files.load(other)
    hands.keys("<Control-z>")
    hands.wait(lambda: hands.window.title().startswith("mine.json \u2013"))
    hands.fill("epochs", "33")
    hands.keys("<Control-s>")
    assert [load_config(path).epochs for path in (other, mine)] == [11, 33]


@pytest.mark.slow
def test_redoing_an_open_after_saving_under_a_new_name_keeps_that_name(hands: Hands, tmp_path: Path) -> None:
    mine, other, copy = (tmp_path / f"{name}.json" for name in ("mine", "other", "copy"))
    for path, epochs in ((other, "11"), (mine, "22")):
        hands.fill("epochs", epochs)
        assert hands.window.files.save_to(path)
    files, state = hands.window.files, hands.window.state_
    assert files.load(other)
    hands.fill("epochs", "33")
    assert files.save_to(copy)
    for step, expected in (
        (state.undo, (copy, 11)), (state.undo, (mine, 22)), (state.redo, (copy, 11)), (state.redo, (copy, 33)),
    ):  # fmt: skip
        assert step()
        assert (Path(files.path), state.config.epochs) == expected
    assert not state.is_modified()
    hands.fill("epochs", "44")
    hands.keys("<Control-s>")
    assert [load_config(path).epochs for path in (mine, other, copy)] == [22, 11, 44]


def test_a_config_of_the_command_line_is_the_same_file_when_the_program_starts_elsewhere(
    open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine.json").write_text('{"epochs": 5}')
    first = open_window()
    assert first.window.files.load(Path("mine.json"))
    first.close()
    monkeypatch.chdir(tmp_path / "elsewhere")
    second = open_window()
    second.fill("epochs", "7")
    second.keys("<Control-s>")
    assert load_config(tmp_path / "mine.json").epochs == 7
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_config_that_is_a_link_is_saved_where_the_link_leads(hands: Hands, tmp_path: Path) -> None:
    kept, link = tmp_path / "kept" / "mine.json", tmp_path / "link.json"
    kept.parent.mkdir()
    kept.write_text('{"epochs": 5}')
    link.symlink_to(kept)
    assert hands.window.files.load(link)
    hands.fill("epochs", "7")
    hands.keys("<Control-s>")
    assert link.is_symlink() and load_config(kept).epochs == 7


def press(hands: Hands, text: str) -> None:
    """Press a button of the question that is open, once it has the input."""
    window = hands.dialog()
    hands.wait(lambda: window.grab_status() == "local")
    hands.click(hands.button(text, window))


ANSWERS = [("Discard", 10), ("Cancel", 33), ("Save", 10)]


@pytest.mark.parametrize(("answer", "epochs"), usual(ANSWERS, *ANSWERS[1:]))
def test_new_settings_ask_when_there_are_unsaved_ones(
    hands: Hands, tmp_path: Path, desktop: Desktop, answer: str, epochs: int
) -> None:
    target = tmp_path / "kept.json"
    desktop.answers(target)
    hands.fill("epochs", "33")
    hands.window.after(50, lambda: press(hands, answer))
    hands.keys("<Control-n>", to=hands.window)
    assert hands.window.state_.config.epochs == epochs
    assert target.exists() == (answer == "Save")
    if answer == "Cancel":
        return
    hands.wait(lambda: "Ctrl+Z" in hands.status())
    hands.focus(hands.row("epochs").input.focus_widget)  # where a desktop puts it back, now or later
    assert "Ctrl+Z" in hands.status()
    hands.focus(hands.window)
    hands.keys("<Control-z>", to=hands.window)
    assert hands.window.state_.config.epochs == 33


def test_new_settings_do_not_ask_when_nothing_would_be_lost(hands: Hands) -> None:
    hands.keys("<Control-n>", to=hands.window)
    hands.expect_status("New settings")
    hands.fill("epochs", "33")
    hands.focus(hands.window)
    hands.keys("<Control-z>", to=hands.window)
    assert not hands.window.state_.is_modified(), "otherwise the next key waits for an answer"
    hands.keys("<Control-n>", to=hands.window)
    hands.expect_status("New settings")


def test_a_config_with_faults_is_told_and_changes_nothing(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"__version": 1, "epochs": "ten", "learning_rte": 1}')
    hands.fill("epochs", "5")
    hands.window.files.load(path)
    assert {"epochs", "learning_rte"} <= set(hands.dialogs()[0].message.replace(":", " ").split())
    hands.expect_dialog("did you mean 'learning_rate'")
    assert hands.window.state_.config.epochs == 5


def test_a_config_of_a_newer_program_is_told(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "newer.json"
    path.write_text(json.dumps({"__version": 50, "epochs": 3}))
    assert not hands.window.files.load(path)
    hands.expect_dialog("has format 50")
    assert hands.window.state_.config.epochs == 10


def test_contradictions_in_a_config_are_shown_not_refused(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    path.write_text('{"__version": 1, "rlhf_enabled": true, "training_method": "FINE_TUNE"}')
    assert hands.window.files.load(path)
    hands.wait(lambda: "error" in str(hands.window.bottom_bar.problems.cget("text")))


def test_a_onetrainer_config_is_taken_over_with_a_list_of_the_rest(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "ot.json"
    data = {
        "__version": 11, "training_method": "LORA", "epochs": 21, "lora_rank": 4, "cloud": {"enabled": True},
        "compile": True, "concepts": [{"__version": 2, "path": "/images", "name": "cats", "concept_stats": {}}],
    }  # fmt: skip
    path.write_text(json.dumps(data))
    hands.window.files.load(path)
    hands.rest()
    window = hands.dialog()
    assert window.title() == "Imported, with omissions"
    text = window.body.winfo_children()[1].get("1.0", "end")  # type: ignore[attr-defined]
    assert "cloud" in text
    hands.click(hands.button("Copy", window))
    assert "cloud" in hands.window.clipboard_get()
    hands.click(hands.button("Close", window))
    hands.wait(lambda: not window.winfo_exists(), "the list does not close")
    # keys go to where the focus is, and the window has to get it back first
    hands.focus(hands.window)
    config = hands.window.state_.config
    assert (config.epochs, config.lora_rank) == (21, 4)
    assert config.concepts is not None and config.concepts[0].name == "cats"
    hands.keys("<Control-z>", to=hands.window)
    assert hands.window.state_.config.epochs == 10


def test_presets_in_the_menu(hands: Hands) -> None:
    presets = hands.window.presets.folder
    for name, epochs in (("#demo", 3), ("Sana/#fast", 1), ("Sana/mine too", 2), ("mine", 4)):
        path = presets / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"__version": 1, "epochs": epochs}))
    picker = hands.window.top_bar.preset
    hands.focus(picker)
    hands.keys("<Down>")
    hands.wait(picker.menu.winfo_viewable, "the menu does not open")
    assert _entries(picker.menu) == ["mine", "", "# demo", "Sana", "", KEEP_PRESET, REMOVE_PRESET]
    family = picker.nametowidget(picker.menu.entrycget(3, "menu"))
    assert _entries(family) == ["mine too", "# fast"]
    for key in ("<Down>", "<Down>", "<Down>", "<Right>", "<Down>", "<Return>"):
        menu = family if family.winfo_viewable() else picker.menu
        menu.event_generate(key)
        hands.rest()
    assert hands.window.state_.config.epochs == 1
    assert picker.cget("text") == "# Sana / fast \u25be"


def test_many_own_presets_get_a_submenu(hands: Hands) -> None:
    for number in range(MOST_IN_A_MENU + 1):
        hands.window.presets.save(f"mine {number:02}", hands.window.state_.config)
    picker = hands.window.top_bar.preset
    picker.menu.configure(postcommand="")
    picker._fill()
    assert _entries(picker.menu) == [YOUR_PRESETS, "", KEEP_PRESET, REMOVE_PRESET]
    assert len(_entries(picker.nametowidget(picker.menu.entrycget(0, "menu")))) == MOST_IN_A_MENU + 1


def _entries(menu: tk.Menu) -> list[str]:
    last = menu.index("end")
    assert last is not None
    return ["" if menu.type(i) == "separator" else menu.entrycget(i, "label") for i in range(last + 1)]


def test_an_own_preset_is_kept_by_name(hands: Hands) -> None:
    hands.fill("epochs", "12")
    hands.window.after(50, lambda: _answer(hands, "mine"))
    hands.window.files.keep_preset()
    kept = hands.window.presets.presets()
    assert [preset.label for preset in kept] == ["mine"]
    assert json.loads(kept[0].path.read_text())["epochs"] == 12


def test_an_own_preset_is_replaced_only_after_a_question(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(epochs: str, name: str, answer: str) -> int:
        monkeypatch.setattr("modules.ui.shell.FileActions.ask_text", lambda *_: name)
        hands.fill("epochs", epochs)
        hands.answer(answer)
        hands.window.files.keep_preset()
        (kept,) = hands.window.presets.presets()
        return int(json.loads(kept.path.read_text())["epochs"])

    hands.window.presets.save("a-b", hands.window.state_.config)
    assert keep("13", "a/b", "Replace") == 13
    assert keep("14", "a-b", "Cancel") == 13
    assert hands.asked[-1] == "You already have a preset a-b. Replace it?"


def test_the_chosen_one_of_the_own_presets_is_removed(hands: Hands) -> None:
    for name in ("first", "second"):
        hands.answer("OK", *name)
        hands.window.files.keep_preset()
    hands.answer("Cancel")
    hands.window.files.remove_preset()
    assert [preset.label for preset in hands.window.presets.presets()] == ["first", "second"]
    hands.answer("OK", "<Down>")
    hands.window.files.remove_preset()
    assert [preset.label for preset in hands.window.presets.presets()] == ["first"]
    assert hands.asked == ["Name of the preset"] * 2 + ["Which preset?"] * 2


def test_a_name_that_no_longer_acts_is_told_when_a_config_is_opened(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps({"__version": 1, "rlhf_strict_loss_mixing": False}))
    hands.window.files.load(tmp_path / "old.json")
    hands.expect_status("old.json. rlhf_strict_loss_mixing: has no effect any more")


@pytest.fixture
def slow_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A dataset file of kohya with 200 images on a slow disk, and the captions that were read."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(200):
        (images / f"{number}.png").touch()
        (images / f"{number}.txt").write_text("first\nsecond")
    source = tmp_path / "dataset.toml"
    source.write_text(
        f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "{images}"\ncaption_extension = ".txt"\nclass_tokens = "x"\n'
    )
    read: list[str] = []

    def slowly(file: Path) -> bool:
        read.append(file.name)
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(0.01)
        return True

    monkeypatch.setattr(kohya_data, "_has_lines", slowly)
    return source, read


def test_captions_are_read_while_the_window_lives(hands: Hands, slow_captions: tuple[Path, list[str]]) -> None:
    source, read = slow_captions
    hands.window.files.import_from(source)
    assert hands.asked == []
    assert len(read) == 200 and hands.window.state_.config.concepts[0].path == str(source.with_name("images"))
    notes = hands.dialog()
    assert notes.title() == "Imported, with omissions"
    notes.destroy()


def test_an_import_that_takes_long_can_be_cancelled(hands: Hands, slow_captions: tuple[Path, list[str]]) -> None:
    source, read = slow_captions
    hands.answer("Cancel")
    assert not hands.window.files.import_from(source)
    assert hands.asked == ["Reading dataset.toml and the captions of its images"]
    hands.rest(0.1)
    before = len(read)
    hands.rest(0.2)
    assert 0 < before == len(read) < 200
    assert not hands.window.state_.config.concepts and not hands.window.state_.is_modified()


def test_an_import_that_fails_late_says_why(
    hands: Hands, slow_captions: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = kohya_data._has_lines

    def fail_late(file: Path) -> bool:
        if len(slow_captions[1]) > 60:
            raise UserError("the captions are on a disk that was unplugged")
        return slowly(file)

    monkeypatch.setattr(kohya_data, "_has_lines", fail_late)
    assert not hands.window.files.import_from(slow_captions[0])
    hands.expect_dialog("a disk that was unplugged")
    assert not hands.window.state_.is_modified()


def test_an_import_that_ends_while_its_dialog_appears_is_kept(
    hands: Hands, slow_captions: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, read = slow_captions
    appear = tk.Toplevel.wait_visibility

    def slowly(window: tk.Toplevel, *given: tk.Misc) -> None:
        appear(window, *given)
        hands.wait(lambda: len(read) == 200)
        hands.rest(0.2)

    with monkeypatch.context() as slow_desktop:
        slow_desktop.setattr(tk.Toplevel, "wait_visibility", slowly)
        assert hands.window.files.import_from(source)
    assert hands.window.state_.config.concepts[0].path == str(source.with_name("images"))
    hands.dialog().destroy()


def _answer(hands: Hands, text: str) -> None:
    window = hands.dialog()
    hands.wait(lambda: window.focus_get() is not None and window.focus_get().winfo_class() == "TEntry")
    hands.type(text)
    hands.keys("<Return>")


def test_everything_comes_back_after_the_window_was_closed(open_window: OpenWindow) -> None:
    first = open_window()
    first.fill("epochs", "66")
    first.fill("batch_size", "many")
    first.window.show_page("lora")
    first.close()
    second = open_window()
    assert second.window.page == "lora"
    assert second.window.state_.config.epochs == 66
    assert second.window.state_.typed() == {"batch_size": "many"}
    assert second.window.title().startswith("untitled *")
    row = second.row("batch_size")
    assert row._fault is not None and row._fault.winfo_viewable()


@pytest.mark.slow
def test_a_damaged_session_is_told_and_the_window_works(open_window: OpenWindow, tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "settings")
    store.save_session(Session(TrainConfig().to_dict()))
    store.session_path.write_bytes(store.session_path.read_bytes()[:100])
    hands = open_window()
    hands.expect_dialog("not valid JSON")
    hands.fill("epochs", "9")
    assert hands.window.state_.config.epochs == 9
    assert len(list(store.folder.glob("session.unreadable-*.json"))) == 1


@pytest.mark.slow
def test_a_settings_folder_that_cannot_be_written_is_told_once(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    hands = open_window(store=SessionStore(tmp_path / "file" / "settings"))
    hands.fill("epochs", "9")
    hands.expect_dialog("The settings cannot be saved in")
    hands.fill("epochs", "8")
    hands.rest(0.4)
    assert hands.dialogs() == []
    assert hands.window.state_.config.epochs == 8


def test_a_killed_program_has_its_settings_back(display: None, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from modules.ui.MainWindow import MainWindow\n"
        "from modules.ui.state.SessionStore import SessionStore\n"
        "window = MainWindow(SessionStore(Path(sys.argv[1])))\n"
        "window.after(100, lambda: window.state_.set_text('epochs', '31'))\n"
        "window.mainloop()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")], cwd=ROOT, env=dict(os.environ)
    )
    session = tmp_path / "s" / "session.json"
    end = time.monotonic() + 30
    while not (session.is_file() and json.loads(session.read_text())["config"]["epochs"] == 31):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    config, _, trouble = SessionStore(tmp_path / "s").load_session()
    assert trouble == ""
    assert config is not None and config.epochs == 31


def test_the_command_line_opens_a_config_and_its_help_is_short(tmp_path: Path) -> None:
    from modules.ui.MainWindow import main

    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0


def test_an_error_in_a_callback_is_shown_and_the_program_lives_on(hands: Hands) -> None:
    hands.window.after(1, lambda: 1 // 0)
    hands.wait(lambda: hands.dialogs())
    dialog = hands.dialogs()[0]
    assert "ZeroDivisionError" in dialog.message
    assert "Traceback" in dialog.details
    dialog.copy()
    assert "ZeroDivisionError" in hands.window.clipboard_get()
    hands.expect_dialog("ZeroDivisionError")
    hands.fill("epochs", "9")
    assert hands.window.state_.config.epochs == 9


@pytest.mark.slow
def test_many_faults_fit_the_message(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    unknown = [f"unknown_setting_{number}" for number in range(20)]
    numbers = [
        name for name, value in TrainConfig().to_dict().items() if type(value) is int and name[0] != "_"
    ][:20]
    names = [*unknown, *numbers]
    path.write_text(json.dumps({"__version": 1} | dict.fromkeys(names, "many")))
    hands.window.files.load(path)
    hands.rest(0.1)
    dialog = hands.dialogs()[0]
    assert [name for name in names if name not in dialog.message] == []
    assert dialog.winfo_reqheight() <= dialog.winfo_screenheight()
    assert dialog.winfo_reqwidth() <= 800
    hands.expect_dialog("40 faults")


def test_a_second_window_beside_the_first(open_window: OpenWindow) -> None:
    first = open_window()
    first.fill("epochs", "21")
    first.window.autosave.now()
    second = open_window()
    assert "Another window is open" in second.status()
    assert second.window.state_.config.epochs == 21
    second.fill("epochs", "22")
    second.close()
    first.window.focus_force()
    first.fill("batch_size", "3")
    first.close()
    third = open_window()
    assert (third.window.state_.config.epochs, third.window.state_.config.batch_size) == (21, 3)


def test_without_a_screen_there_is_one_line(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    env["TASTEMAKER_SETTINGS"] = str(tmp_path)
    if not sys.platform.startswith("linux"):
        pytest.skip("only X has no screen sometimes")
    command = [sys.executable, str(ROOT / "scripts" / "train_ui.py")]
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "no screen" in found.stderr
