"""A run as a person sees it: started, watched, ordered, found again, explained. The trainer is a real process."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import tkinter as tk
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from modules.runner.events import EventWriter
from modules.runner.RunDirectory import MIRROR, RunDirectory
from modules.ui.dialogs import Dialog
from modules.ui.pages.RunPage import RunPage
from modules.ui.run import RunActions
from modules.ui.state import RunControl
from modules.ui.state.ConfigState import Problem
from modules.ui.state.RunHistory import SampleImage
from modules.ui.texts.run import START_CANCELLED
from modules.util.config.load import load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from tests.runner.test_pace import run_with, started, step
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.ui.main.trainer import TRAINER
from tests.usual import usual

pytestmark = pytest.mark.gui
ENDLESS = ("--steps", "100000", "--pace", "0.01")


def run_page(hands: Hands) -> RunPage:
    hands.window.show_page("run")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    return page


def text_of(button: object) -> str:
    return str(button.cget("text"))  # type: ignore[attr-defined]


def test_from_start_to_the_finished_curve(hands: Hands, tmp_path: Path) -> None:
    hands.fill("epochs", "3")
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished", "the run does not finish")
    hands.rest(0.4)
    assert load_config(tmp_path / "workspace" / "run" / "config.json").epochs == 3
    plot = page.plots[0]
    assert [curve.name for curve in plot.curves] == ["training"]
    assert list(plot.curves[0].x) == list(range(1, 21))
    lines = [item for item in plot.find_all() if plot.type(item) == "line"]
    assert any(len(plot.coords(item)) == 40 for item in lines)
    assert [(first and first.step, last.step) for first, last in page.gallery._rows] == [(0, 20)]
    hands.wait(lambda: len(page.gallery._thumbnails._photos) == 2, "the samples do not appear")
    assert "training begins" in page.log.get("1.0", "end")
    assert "Training finished" in page.diary.get("1.0", "end")
    bar = hands.window.bottom_bar
    assert float(bar.run_bar.cget("value")) == 1.0
    assert "step 20 of 20" in text_of(bar._text)
    assert bar.buttons["start"].instate(["!disabled"])
    assert bar.buttons["stop"].instate(["disabled"])


def test_the_buttons_give_orders(open_window: OpenWindow) -> None:
    hands = open_window(trainer=ENDLESS)
    bar, control = hands.window.bottom_bar, hands.window.control
    hands.click(bar.buttons["start"])
    hands.wait(lambda: control.state == "running")
    hands.wait(lambda: bar.buttons["stop"].instate(["!disabled"]))
    assert bar.buttons["start"].instate(["disabled"])
    hands.click(bar.buttons["pause"])
    hands.wait(lambda: text_of(bar.buttons["pause"]) == "Resume", "it does not pause")
    hands.click(bar.buttons["pause"])
    hands.wait(lambda: text_of(bar.buttons["pause"]) == "Pause", "it does not go on")
    before = len(control.history.samples)
    hands.click(bar.buttons["sample"])
    hands.wait(lambda: len(control.history.samples) > before, "no sample is made")
    hands.expect_status("This run has no prompts")
    control.has_prompts = True
    hands.click(bar.buttons["sample"])
    hands.expect_status("Samples will be made")
    hands.click(bar.buttons["stop"])
    hands.wait(lambda: control.state == "stopped", "it does not stop")
    assert hands.dialogs() == []


@pytest.mark.parametrize(
    ("button", "resumes"),
    [("Resume", True), pytest.param("New run", False, marks=pytest.mark.slow), ("Cancel", None)],
)
def test_a_start_after_a_kill_offers_the_step_to_resume_from(
    hands: Hands, tmp_path: Path, button: str, resumes: bool | None
) -> None:
    run = RunDirectory(tmp_path / "workspace" / "run")
    run.create()
    (run.backup_dir / "b").mkdir(parents=True)
    with run.writer() as writer:
        writer.emit(
            "run_started", total_steps=120, device="cpu", progress={"global_step": 0}, resumed_from=None
        )
        writer.emit("backup", path="backup/b", progress={"global_step": 48})
        writer.emit("step", progress={"global_step": 53}, metrics={}, total_steps=120)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: any(isinstance(w, Dialog) for w in hands.window.winfo_children()), "nothing is asked")
    (dialog,) = [w for w in hands.window.winfo_children() if isinstance(w, Dialog)]
    (question,) = [str(w.cget("text")) for w in dialog.body.winfo_children()]
    assert "after step 48 of 120" in question
    hands.click(hands.button(button, dialog))
    if resumes is None:
        hands.wait(lambda: hands.status() == "The start was cancelled")
        assert run.trainer() is None and not (run.path / "config.json").exists()
        assert hands.window.bottom_bar.buttons["start"].instate(["!disabled"])
        return
    hands.wait(lambda: hands.window.control.state == "finished", "the run does not finish")
    assert load_config(run.path / "config.json").continue_last_backup is resumes
    assert hands.window.state_.config.continue_last_backup is False


@pytest.mark.slow
def test_the_run_survives_the_window_and_is_found_again(open_window: OpenWindow) -> None:
    first = open_window(trainer=ENDLESS)
    first.keys("<F5>", to=first.window)
    first.wait(lambda: first.window.control.state == "running" and first.window.control.history.series)
    run = first.window.control.run
    assert run is not None
    first.window.control._trainer = None  # the test's clean-up must not end it
    first.close()
    assert RunDirectory(run.path).trainer() is not None
    second = open_window(trainer=ENDLESS)
    second.wait(lambda: second.window.control.state == "running", "the run is not found")
    page = run_page(second)
    second.wait(lambda: page.plots[0].curves and len(page.plots[0].curves[0].x) > 3)
    assert page.plots[0].curves[0].x[0] == 1
    second.keys("<Shift-F5>", to=second.window)
    second.wait(lambda: second.window.control.state == "stopped")


def test_a_run_that_is_over_is_shown_at_once(open_window: OpenWindow, tmp_path: Path) -> None:
    first = open_window()
    first.keys("<F5>", to=first.window)
    first.wait(lambda: first.window.control.state == "finished")
    first.close()
    second = open_window()
    page = run_page(second)
    assert page.plots[0].curves and page.gallery._rows
    assert "training begins" in page.log.get("1.0", "end")
    other = tmp_path / "other"
    RunDirectory(other).create()
    second.window.runs.attach(str(other))
    assert not page.plots[0].curves and not page.gallery._rows
    second.window.runs.attach(str(tmp_path / "workspace" / "run"))
    assert page.plots[0].curves and page.gallery._rows


def test_running_out_of_memory_is_explained(open_window: OpenWindow) -> None:
    hands = open_window(trainer=("--steps", "10", "--fail", "memory"))
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.dialogs())
    assert "batch size" in hands.dialogs()[0].message
    hands.expect_dialog("the graphics card ran out of memory")
    assert page.advice.winfo_viewable()
    assert "batch size" in text_of(page.advice)


def test_a_start_that_fails_is_told_and_can_be_tried_again(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    hands.window.state_.set_value("workspace_dir", str(tmp_path / "file" / "run"))
    hands.keys("<F5>", to=hands.window)
    hands.expect_dialog("cannot be written")
    hands.window.state_.set_value("workspace_dir", str(tmp_path / "good"))
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished")


def test_orders_without_a_run_are_told(hands: Hands) -> None:
    hands.keys("<F7>", to=hands.window)
    hands.expect_status("No run")


def test_values_under_the_pointer(hands: Hands) -> None:
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished")
    hands.rest(0.4)
    plot = page.plots[0]
    plot.event_generate("<Motion>", x=plot.winfo_width() - 16, y=90)
    texts = [plot.itemcget(item, "text") for item in plot.find_withtag("hover") if plot.type(item) == "text"]
    assert texts == ["step 20\ntraining: 0.05"]


def test_the_queue_works_through_its_runs(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.runner import launcher

    command = hands.window.control._command
    assert command is not None
    monkeypatch.setattr(launcher, "train_command", lambda run: list(command(run)))
    page = run_page(hands)
    page.tabs.select(3)
    hands.rest()
    for name in ("one", "two"):
        hands.window.state_.set_value("workspace_dir", str(tmp_path / name))
        page.queue._do(page.queue.add)
    hands.wait(lambda: len(page.queue.tree.get_children()) == 2)
    hands.click(page.queue._go)
    hands.wait(
        lambda: [e.state for e in hands.window.queue.entries] == ["finished"] * 2, "the queue stands", 40
    )
    shown = [page.queue.tree.item(name, "values")[0] for name in page.queue.tree.get_children()]
    assert shown == ["finished", "finished"]
    assert hands.window.control.run is not None and hands.window.control.run.path == tmp_path / "two"


def test_an_online_run_shows_its_reward(hands: Hands, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "online")
    with run.locked(), run.writer() as writer:
        for step in range(1, 4):
            place = {"epoch": 0, "epoch_step": step, "epoch_sample": step, "global_step": step}
            metrics = {
                "loss/train_step": 0.0,
                "rl/reward_mean": step / 10,
                "reward/brightness/mean": step / 10,
            }
            writer.emit("step", progress=place, metrics=metrics, total_steps=3)
        writer.emit("run_finished", status="finished", progress={"global_step": 3})
    hands.window.show_page("run")
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    assert [picker.get() for picker in page.pickers] == ["Loss", "Accuracy"]
    hands.window.runs.attach(str(run.path))
    hands.wait(lambda: page.pickers[1].get() == "Reward", "the reward is not shown")
    page.pickers[1].set("Mean of each reward")
    page.pickers[1].event_generate("<<ComboboxSelected>>")
    hands.rest()
    page.run_changed()
    assert page.pickers[1].get() == "Mean of each reward"


@pytest.fixture
def other_run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A training of this computer that this window knows nothing of."""
    run = RunDirectory(tmp_path / "other")
    process = subprocess.Popen([sys.executable, str(TRAINER), str(run.path), *ENDLESS])
    end = time.monotonic() + 30
    while run.trainer() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    yield run
    process.kill()
    process.wait()


@pytest.mark.slow
def test_start_waits_for_another_training_on_the_device_and_says_so(
    hands: Hands, other_run: RunDirectory
) -> None:
    bar, control = hands.window.bottom_bar, hands.window.control
    hands.click(bar.buttons["start"])
    waiting = f"waits for the run in {other_run.path}"
    hands.wait(lambda: waiting in text_of(bar._text), "it does not say that it waits")
    assert bar.buttons["start"].instate(["disabled"])
    hands.rest(0.4)  # it has looked again meanwhile
    assert control.run is None
    hands.click(bar.buttons["stop"])
    hands.wait(lambda: text_of(bar._text) == "Ready", "Stop does not cancel it")
    other_run.post("pause")
    hands.click(bar.buttons["start"])
    hands.wait(lambda: waiting in text_of(bar._text))
    other_run.post("stop")
    hands.wait(lambda: control.state == "finished", "its turn does not come")
    assert control.run is not None and control.run.path.name == "run"
    assert hands.dialogs() == []


def test_start_right_after_stop_is_kept_while_the_cancelled_start_is_still_being_tried(
    hands: Hands, other_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar, control = hands.window.bottom_bar, hands.window.control
    begun, finish = threading.Event(), threading.Event()
    start = control.start

    def slow_start(folder: str, config: dict[str, object]) -> str:
        begun.set()
        assert finish.wait(30)
        return start(folder, config)

    hands.click(bar.buttons["start"])
    waiting = f"waits for the run in {other_run.path}"
    hands.wait(lambda: waiting in text_of(bar._text), "it does not say that it waits")
    monkeypatch.setattr(control, "start", slow_start)
    hands.wait(begun.is_set, "it does not try again")
    hands.click(bar.buttons["stop"])
    hands.wait(lambda: text_of(bar._text) == "Ready", "Stop does not cancel it")
    hands.click(bar.buttons["start"])
    finish.set()
    hands.wait(lambda: waiting in text_of(bar._text), "the second press of Start is lost")
    other_run.post("stop")
    hands.wait(lambda: control.state == "finished", "its turn does not come")
    assert hands.dialogs() == []


@pytest.mark.slow
def test_the_queue_waits_for_a_run_that_was_started_beside_it(
    open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.runner import launcher

    hands = open_window(trainer=ENDLESS)
    command = hands.window.control._command
    assert command is not None
    monkeypatch.setattr(launcher, "train_command", lambda run: list(command(run)))
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "running")
    first = hands.window.control.run
    assert first is not None
    hands.fill("workspace_dir", str(tmp_path / "second"))
    run_page(hands)
    page.tabs.select(3)
    hands.rest()
    hands.click(hands.button("Add these settings"))
    hands.wait(lambda: len(page.queue.tree.get_children()) == 1)
    hands.click(page.queue._go)
    note = lambda: str(page.queue.tree.item(page.queue.tree.get_children()[0], "values")[2])  # noqa: E731
    hands.wait(
        lambda: f"waits for the run in {first.path}" in note(), "it does not say what it waits for"
    )
    second = RunDirectory(tmp_path / "second")
    assert second.launched() is None and second.trainer() is None
    hands.keys("<Shift-F5>", to=hands.window)
    hands.wait(lambda: second.trainer() is not None, "its turn does not come")
    assert first.trainer() is None
    second.post("stop")
    hands.wait(lambda: hands.window.queue.entries[0].state == "stopped", "it does not stop")


def _question(hands: Hands) -> Dialog:
    (found,) = [child for child in hands.window.winfo_children() if isinstance(child, Dialog)]
    return found


def drawn(page: RunPage) -> str:
    canvas = page.gallery.canvas
    return "\n".join(
        canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"
    )


def test_where_samples_will_be_says_what_is_going_on(open_window: OpenWindow) -> None:
    hands = open_window(trainer=("--sampling",))
    page = run_page(hands)
    hands.wait(lambda: "Add prompts" in drawn(page), "nothing is said")
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: "Making sample 1 of 2, denoising step 5 of 20" in drawn(page), "it is not told")
    bar = hands.window.bottom_bar
    assert "Making sample 1 of 2, denoising step 5 of 20" in text_of(bar._text)
    assert float(bar.epoch_bar.cget("value")) == 0.25
    hands.keys("<Shift-F5>", to=hands.window)
    hands.wait(lambda: len(page.gallery._rows) == 1, "the sample is not shown")
    assert "a fox" in drawn(page) and "Making" not in drawn(page)


def test_a_run_with_prompts_says_when_samples_come(open_window: OpenWindow, tmp_path: Path) -> None:
    hands = open_window(trainer=("--sampling",))
    hands.window.state_.set_value("samples", [SampleConfig(prompt="a fox")])
    RunDirectory(tmp_path / "later").config_path.parent.mkdir()
    hands.window.state_.config.save(tmp_path / "later" / "config.json")
    page = run_page(hands)
    hands.window.runs.attach(str(tmp_path / "later"))
    hands.wait(lambda: "Training makes them when they are due" in drawn(page), "it is not told")


def test_captions_of_samples_are_whole(hands: Hands, tmp_path: Path) -> None:
    page = run_page(hands)
    hands.window.control.follow(tmp_path / "empty")
    prompt = " ".join(f"word{number}" for number in range(80))
    samples = [SampleImage(f"{n}.png", prompt if n < 2 else "short", n, 20) for n in range(12)]
    page.gallery.show(samples, "")
    hands.rest()
    canvas = page.gallery.canvas
    texts = [item for item in canvas.find_all() if canvas.type(item) == "text"]
    whole = [item for item in texts if canvas.itemcget(item, "text") == f"{prompt}\nstep 20"]
    assert whole
    page.gallery.canvas.yview_moveto(0.5)
    page.gallery.redraw()
    boxes = [canvas.bbox(item) for item in canvas.find_all() if canvas.type(item) == "text"]
    columns = {box[0]: sorted(b for b in boxes if b[0] == box[0]) for box in boxes}
    assert boxes and all(
        above[3] <= below[1] for column in columns.values() for above, below in pairwise(column)
    )


@pytest.mark.slow
def test_a_folder_in_the_queue_shows_both_ends(hands: Hands, tmp_path: Path) -> None:
    page = run_page(hands)
    folder = tmp_path / ("a long name of a folder " * 6) / "the end of it"
    hands.window.state_.set_value("workspace_dir", str(folder))
    page.tabs.select(3)
    hands.rest()
    page.queue.add()
    page.queue._work.look()
    hands.wait(lambda: page.queue.tree.get_children(), "it is not in the list")
    shown = page.queue.tree.set(page.queue.tree.get_children()[0], "folder")
    assert shown.startswith(str(tmp_path)[:5]) and shown.endswith("end of it") and "\u2026" in shown
    assert hands.window.theme.fonts["text"].measure(shown) <= page.queue.tree.column("folder", "width")
    line = hands.window.bottom_bar._status
    assert hands.window.theme.fonts["small"].measure(text_of(line)) <= line.winfo_width()
    assert text_of(line).startswith(str(tmp_path)[:5]) and re.search(
        r"added to the queue at \d\d:\d\d$", text_of(line)
    )


@pytest.mark.slow
def test_a_trainer_is_ended_by_force_only_when_the_question_is_answered(open_window: OpenWindow) -> None:
    hands = open_window(trainer=ENDLESS)
    control = hands.window.control
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: control.state == "running", "it does not start")
    hands.answer("Cancel")
    hands.click(page.end_button)
    hands.rest(0.3)
    assert control.is_live
    hands.answer("End now")
    hands.click(page.end_button)
    hands.wait(lambda: not control.is_live, "it is not ended")
    assert len(hands.asked) == 2
    hands.wait(lambda: "ended" in hands.status(), "the end is not told")


def test_closing_the_window_says_that_training_continues(open_window: OpenWindow) -> None:
    hands = open_window(trainer=ENDLESS)
    window = hands.window
    hands.keys("<F5>", to=window)
    hands.wait(lambda: window.control.state == "running", "it does not start")
    asked: list[str] = []

    def answer(key: str) -> None:
        if not any(isinstance(child, Dialog) for child in window.winfo_children()):
            window.after(100, lambda: answer(key))
            return
        dialog = _question(hands)
        asked.append(dialog.title())
        hands.keys(key, to=dialog if key == "<Escape>" else None)

    for key in ("<Escape>", "<Return>"):
        hands.rest(0.3)  # the focus comes back to the window
        window.after(300, lambda key=key: answer(key))
        hands.keys("<Control-q>", to=window)
    assert asked == ["Training continues"] * 2
    with pytest.raises(tk.TclError):
        window.winfo_exists()
    assert window.control.is_live
    window.control.end_now()


def test_a_run_whose_events_cannot_be_written_is_not_dead(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = open_window(trainer=("--fail", "disk", "--pace", "0.05"))
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "running", "it does not start")

    def full(*_args: object, **_fields: object) -> int:
        raise UserError("the event file cannot be written: No space left on device")

    monkeypatch.setattr(EventWriter, "emit", full)
    hands.wait(lambda: hands.dialogs(), "the end is not told")
    hands.expect_dialog("cannot be written: No space left")
    assert hands.window.control.state == "failed"
    hands.rest()
    assert "No space left" in text_of(page.advice) and page.advice.winfo_ismapped()
    assert text_of(page.folder).startswith("failed")
    assert text_of(hands.window.bottom_bar._text).startswith("Failed")


PHASES = ["files are checked", "a run is looked for", "the trainer is launched"]


@pytest.mark.parametrize("phase", usual(PHASES, "files are checked", "the trainer is launched"))
def test_stop_during_a_start_never_reaches_the_watched_run_elsewhere(
    phase: str, hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, sent, reached, held = hands.window, list[str](), threading.Event(), threading.Event()
    mirror = run_with(tmp_path / "elsewhere", [started(0), step(1, 1)], TrainConfig().to_dict())
    (mirror.path / MIRROR).mkdir()
    window.runs.attach(str(mirror.path))
    window.control.connected = True
    monkeypatch.setattr(window.remote.watch, "send", sent.append)
    bar = window.bottom_bar
    hands.wait(lambda: window.control.state == "running" and bar.buttons["stop"].instate(["!disabled"]))

    def slow(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wait(*args: Any) -> Any:
            reached.set()
            held.wait(20)
            return real(*args)

        monkeypatch.setattr(module, name, wait)

    if phase == "files are checked":
        window.check._of_files = [Problem("", "it was missing")]
        (tmp_path / "hold").touch()
        reached.set()
    elif phase == "a run is looked for":
        slow(RunActions, "unfinished")
    else:
        slow(RunControl, "launch")
    hands.click(bar.buttons["start"])
    hands.wait(reached.is_set)
    hands.click(bar.buttons["stop"])
    assert hands.status() == START_CANCELLED
    held.set()
    (tmp_path / "hold").unlink(missing_ok=True)
    hands.wait(lambda: not window.runs.starting and not window.check.checking)
    hands.wait(lambda: not window.control.is_live_here, "the cancelled trainer stays")
    assert not sent
    if phase != "the trainer is launched":
        assert window.control.run is not None and window.control.run.path == mirror.path
