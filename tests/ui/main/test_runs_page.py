"""The Runs page: runs are listed, compared, deleted and brought back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.runner.known_runs import note_run
from modules.runner.RunDirectory import MIRROR
from modules.runner.trash import TRASH
from modules.ui.dialogs import Dialog
from modules.ui.ImageWindow import ImageWindow
from modules.ui.pages.RunsPage import RunsPage
from modules.ui.state.runs.comparing import differences
from modules.util.config.TrainConfig import TrainConfig
from modules.util.files.user_folder import FOLDER_VARIABLE
from tests.runner.test_pace import run_with, started
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
COLOURS = {"first": (200, 30, 30), "second": (30, 30, 200)}


def a_run(folder: Path, age: float, **changes: Any) -> Path:
    """One with curves, and samples of one prompt at two steps."""
    events: list[dict[str, Any]] = [started(0)]
    for at in (0, 20):
        name = f"samples/{at}.png"
        (folder / "samples").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), COLOURS.get(folder.name, (90, 90, 90))).save(folder / name)
        place = {"global_step": at}
        events.append(
            {"t": at, "kind": "sample", "progress": place, "path": name, "prompt": "a fox", "number": 0}
        )
    for at in range(1, 21):
        metrics = {"loss/train_step": 1.0 / at, "dpo/accuracy": at / 20}
        place = {"global_step": at}
        events.append({"t": at, "kind": "step", "progress": place, "metrics": metrics, "total_steps": 20})
    events.append({"t": 21, "kind": "run_finished", "status": "finished", "progress": {"global_step": 20}})
    places = {name: str(folder / name) for name in ("cache_dir", "concept_file_name", "sample_definition_file_name")}
    held: dict[str, Any] = {"concepts": [], "samples": []}
    run = run_with(folder, events, TrainConfig().to_dict() | places | held | changes)
    os.utime(run.events_path, (1e9 - age, 1e9 - age))
    return run.path


@pytest.fixture
def page(open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Hands, RunsPage]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))
    adapter = tmp_path / "models" / "taste.safetensors"
    adapter.parent.mkdir()
    adapter.write_bytes(b"x")
    note_run(
        a_run(tmp_path / "work" / "first", 10, learning_rate=1e-4, output_model_destination=str(adapter))
    )
    note_run(a_run(tmp_path / "work" / "second", 5, learning_rate=3e-5, rlhf_enabled=True))
    hands = open_window()
    hands.window.show_page("runs")
    found = hands.window.current_page()
    assert isinstance(found, RunsPage)
    hands.wait(lambda: len(found.runs) == 2, "the runs are not listed")
    return hands, found


def drawn(page: RunsPage) -> list[str]:
    return [curve.name for curve in page.plot.curves]


def test_runs_are_listed_newest_first_with_mode_steps_and_state(page: tuple[Hands, RunsPage]) -> None:
    hands, runs = page
    rows = [(runs.tree.item(row, "text"), *runs.tree.item(row, "values")) for row in runs.tree.get_children()]
    assert [(row[0], row[2], row[3], row[4]) for row in rows] == [
        ("second", "DPO", "20 of 20", "finished"),
        ("first", "Images", "20 of 20", "finished"),
    ]
    hands.wait(lambda: drawn(runs) == ["training"])


def test_runs_of_the_same_round_of_two_projects_have_different_names(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    for folder in ("cats/round-1/run", "dogs/round-1/run", "dogs/round-2/run"):
        note_run(a_run(tmp_path / folder, 1))
    hands = open_window()
    hands.window.show_page("runs")
    runs = hands.window.current_page()
    assert isinstance(runs, RunsPage)
    hands.wait(lambda: len(runs.runs) == 3, "the runs are not listed")
    names = {runs.tree.item(row, "text") for row in runs.tree.get_children()}
    assert names == {"cats/round-1/run", "dogs/round-1/run", "round-2/run"}


def test_runs_are_selected_by_keys_even_after_the_list_was_refreshed(page: tuple[Hands, RunsPage]) -> None:
    hands, runs = page
    hands.focus(runs.tree)
    hands.keys("<Down>")
    assert runs.tree.selection() == ("1",)
    runs.look()
    hands.wait(lambda: runs.tree.focus() == "", "the list was not refreshed")
    for key, selected in (
        ("<Up>", ("0",)), ("<Shift-Down>", ("0", "1")), ("<Shift-Down>", ("0", "1")), ("<Shift-Up>", ("0",)),
    ):  # fmt: skip
        hands.keys(key)
        assert runs.tree.selection() == selected, key


def test_a_file_of_concepts_that_the_configs_do_not_hold_is_a_difference() -> None:
    found = differences([{"concept_file_name": name, "concepts": None} for name in ("foxes.json", "owls.json")])
    assert [(one.path, one.values) for one in found] == [("concept_file_name", ("foxes.json", "owls.json"))]


def test_several_runs_are_compared(page: tuple[Hands, RunsPage], tmp_path: Path) -> None:
    hands, runs = page
    hands.focus(runs.tree)
    hands.keys("<Control-a>")
    hands.wait(lambda: drawn(runs) == ["second: training", "first: training"], str(drawn(runs)))
    runs.picker.set("Accuracy")
    runs.picker.event_generate("<<ComboboxSelected>>")
    hands.wait(lambda: len(drawn(runs)) == 2 and all("training" in name for name in drawn(runs)))
    rows = {
        runs.table.item(row, "values")[0]: runs.table.item(row, "values")[1:]
        for row in runs.table.get_children()
    }
    assert rows == {"Learning rate": ("3e-05", "0.0001"), "Preference training": ("true", "false")}
    runs.tabs.select(2)
    grid = runs.grid_
    hands.wait(lambda: len(grid._thumbnails._photos) == 4, "the samples are not shown")
    assert grid._grid.rows == ("a fox",)
    assert grid._grid.columns == ("second step 0", "second step 20", "first step 0", "first step 20")
    (item,) = grid.canvas.find_withtag("cell:0:2")
    left, top, right, bottom = grid.canvas.bbox(item)
    hands.rest(0.1)
    hands.click(grid.canvas, (left + right) // 2, (top + bottom) // 2)
    window = hands.dialog()
    assert isinstance(window, ImageWindow) and "first step 0" in window.shown.caption
    assert window.shown.path == tmp_path / "work" / "first" / "samples" / "0.png"
    window.destroy()


def test_the_adapter_is_copied_and_settings_are_loaded_without_touching_the_run(
    page: tuple[Hands, RunsPage], tmp_path: Path
) -> None:
    hands, runs = page
    assert hands.window.files.save_to(tmp_path / "mine.json")
    runs.tree.selection_set("0")
    hands.rest(0.1)
    assert runs.buttons["Copy path"].instate(["disabled"])
    runs.tree.selection_set("1")
    hands.rest(0.1)
    hands.click(runs.buttons["Copy path"])
    assert hands.window.clipboard_get() == str(tmp_path / "models" / "taste.safetensors")
    runs.tree.selection_set("0")
    hands.rest(0.1)
    hands.click(runs.buttons["Load settings"])
    assert hands.window.state_.config.learning_rate == 3e-5
    assert hands.window.files.path == "", "saving would replace the person's own config"
    hands.keys("<Control-z>", to=hands.window)
    assert hands.window.state_.config.learning_rate == 1e-4
    assert hands.window.files.path == str(tmp_path / "mine.json") and not hands.window.state_.is_modified()


def test_a_run_is_watched_from_the_list(page: tuple[Hands, RunsPage], tmp_path: Path) -> None:
    hands, runs = page
    runs.tree.selection_set("1")
    hands.focus(runs.tree)
    hands.keys("<Return>")
    assert hands.window.page == "run"
    assert hands.window.control.run is not None
    assert hands.window.control.run.path == tmp_path / "work" / "first"


def test_deleting_is_undone_and_what_cannot_be_deleted_says_why(
    page: tuple[Hands, RunsPage], tmp_path: Path
) -> None:
    hands, runs = page
    (tmp_path / "work" / "second" / "mine.txt").write_text("x")
    hands.focus(runs.tree)
    hands.keys("<Control-a>")
    hands.keys("<Delete>")
    hands.expect_dialog("mine.txt")
    hands.wait(lambda: [run.path.name for run in runs.runs] == ["second"])
    assert not (tmp_path / "work" / "first").exists()
    hands.click(runs.buttons["Undo delete"])
    hands.wait(lambda: [run.path.name for run in runs.runs] == ["second", "first"])
    assert (tmp_path / "work" / "first" / "samples" / "20.png").is_file()
    assert runs.buttons["Undo delete"].instate(["disabled"])


def test_a_deleted_run_whose_name_is_taken_can_be_restored_once_it_is_free(
    page: tuple[Hands, RunsPage], tmp_path: Path
) -> None:
    hands, runs = page
    first = tmp_path / "work" / "first"
    runs.tree.selection_set("1")
    hands.focus(runs.tree)
    hands.keys("<Delete>")
    hands.wait(lambda: [run.path.name for run in runs.runs] == ["second"])
    first.mkdir()
    (first / "other.txt").write_text("x")
    hands.click(runs.buttons["Undo delete"])
    hands.expect_dialog("first")
    first.rename(tmp_path / "other")
    hands.click(runs.buttons["Undo delete"])
    hands.wait(lambda: [run.path.name for run in runs.runs] == ["second", "first"])
    assert (first / "samples" / "20.png").is_file()


def test_a_run_whose_name_is_taken_keeps_neither_its_batch_nor_earlier_deletions_from_being_restored(
    page: tuple[Hands, RunsPage], tmp_path: Path
) -> None:
    hands, runs = page
    work = tmp_path / "work"
    note_run(a_run(work / "third", 1))

    def listed(*names: str) -> None:
        hands.wait(lambda: [run.path.name for run in runs.runs] == list(names))

    runs.look()
    listed("third", "second", "first")
    hands.focus(runs.tree)
    for chosen, left in ((["2"], ["third", "second"]), (["0", "1"], [])):
        runs.tree.selection_set(chosen)
        hands.rest(0.1)
        hands.keys("<Delete>")
        listed(*left)
    (work / "third").mkdir()
    hands.click(runs.buttons["Undo delete"])
    hands.expect_dialog("third")
    listed("second")
    hands.click(runs.buttons["Undo delete"])
    listed("second", "first")
    (work / "third").rmdir()
    hands.click(runs.buttons["Undo delete"])
    listed("third", "second", "first")
    assert runs.buttons["Undo delete"].instate(["disabled"])


def test_the_trash_is_emptied_when_asked(page: tuple[Hands, RunsPage], tmp_path: Path) -> None:
    hands, runs = page
    trash = tmp_path / "work" / TRASH
    hands.click(runs.buttons["Empty trash\u2026"])
    hands.expect_status("The trash is empty")
    runs.tree.selection_set("1")
    hands.focus(runs.tree)
    hands.keys("<Delete>")
    hands.wait(lambda: [run.path.name for run in runs.runs] == ["second"])
    (trash / "not-a-run").mkdir()
    asked: list[Dialog] = []

    def press_enter() -> None:
        focus = hands.window.focus_get()
        if focus is None or not isinstance(focus.winfo_toplevel(), Dialog) or isinstance(focus, Dialog):
            hands.window.after(50, press_enter)
            return
        asked.append(focus.winfo_toplevel())
        hands.keys("<Return>")

    press_enter()
    hands.click(runs.buttons["Empty trash\u2026"])
    assert asked and len(list(trash.iterdir())) == 2, "Enter, held a little too long, deletes for good"
    hands.answer("Cancel")
    hands.click(runs.buttons["Empty trash\u2026"])
    assert len(list(trash.iterdir())) == 2
    hands.answer("Remove")
    hands.click(runs.buttons["Empty trash\u2026"])
    assert hands.asked == ["1 run in the trash will be removed for good. This cannot be undone."] * 2
    hands.wait(lambda: [path.name for path in trash.iterdir()] == ["not-a-run"], "the run is still there")
    assert (tmp_path / "work" / "second").is_dir() and runs.buttons["Undo delete"].instate(["disabled"])


def test_the_arena_wants_a_project(page: tuple[Hands, RunsPage]) -> None:
    hands, runs = page
    assert runs.buttons["Compare in the arena"].instate(["disabled"]), "the run has no adapter"
    runs.tree.selection_set("1")
    hands.rest(0.1)
    hands.click(runs.buttons["Compare in the arena"])
    hands.expect_status("This uses the prompts of a project")


def test_a_run_with_a_backup_is_resumed_from_the_list(page: tuple[Hands, RunsPage], tmp_path: Path) -> None:
    hands, runs = page
    runs.tree.selection_set("1")
    hands.rest(0.1)
    assert runs.buttons["Resume"].instate(["disabled"])
    (tmp_path / "work" / "first" / "backup" / "a-backup").mkdir(parents=True)
    hands.click(runs.buttons["Refresh"])
    hands.wait(lambda: runs.buttons["Resume"].instate(["!disabled"]))
    hands.click(runs.buttons["Resume"])
    config = hands.window.state_.config
    assert config.continue_last_backup and config.workspace_dir == str(tmp_path / "work" / "first")


def test_a_run_of_another_folder_is_watched_from_the_page(
    page: tuple[Hands, RunsPage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, runs = page
    elsewhere = a_run(tmp_path / "elsewhere" / "third", 1)
    monkeypatch.setattr(hands.window.ui.chooser, "folder", lambda *_args, **_kinds: elsewhere)
    hands.click(runs.buttons["Other folder\u2026"])
    assert hands.window.page == "run" and hands.window.control.run is not None
    assert hands.window.control.run.path == elsewhere


def test_settings_of_a_run_elsewhere_are_trained_in_another_folder(
    page: tuple[Hands, RunsPage], tmp_path: Path
) -> None:
    hands, runs = page
    mirror = tmp_path / "work" / "taste-20261124-101500-3f2a"
    changes = {
        "workspace_dir": str(mirror),
        "output_model_destination": str(mirror / "model" / "a.safetensors"),
    }
    note_run(a_run(mirror, 1, **changes))
    for folder in (MIRROR, "backup/one"):  # fetched with backups
        (mirror / folder).mkdir(parents=True)
    hands.click(runs.buttons["Refresh"])
    hands.wait(lambda: len(runs.runs) == 3)
    runs.tree.selection_set("0")
    hands.rest(0.1)
    assert runs.buttons["Resume"].instate(["disabled"])
    hands.click(runs.buttons["Load settings"])
    config, wanted = hands.window.state_.config, tmp_path / "work" / "taste"
    assert Path(config.workspace_dir) == wanted
    assert Path(config.output_model_destination) == wanted / "model" / "a.safetensors"
