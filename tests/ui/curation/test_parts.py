"""The parts below the pages: the worker, the feed of groups, garbage, rows that break."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

import pytest
from PIL import Image, ImageTk

from modules.curation.intake.duplicates import image_distance
from modules.curation.intake.groups import ScanOptions
from modules.curation.session import ImageGroup
from modules.ui.curation import GroupFeed as feed_module
from modules.ui.curation import PairController as controller_module
from modules.ui.curation.ChoosingPage import time_left
from modules.ui.curation.GroupFeed import AHEAD, GroupFeed
from modules.ui.widgets.ActionRow import ActionRow
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import ErrorDialog, Pump, install_error_dialog, show_error
from modules.util.errors import UserError
from tests.ui.curation.drivers import make_images


def wait(done: Callable[[], object], live: Callable[[], None] = lambda: None, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        live()
        time.sleep(0.002)


# --- the worker -------------------------------------------------------------------------------------------------


@pytest.mark.gui
def test_calls_run_in_order_off_the_tk_thread_and_answer_on_it(root):
    seen, failed = [], []
    worker = SerialWorker(root, failed.append)
    here = threading.current_thread()

    def work(number: int) -> tuple[int, bool]:
        time.sleep(0.01 if number == 0 else 0)
        if number == 2:
            raise ValueError("two")
        return number, threading.current_thread() is here

    def done(result: tuple[int, bool]) -> None:
        seen.append((*result, threading.current_thread() is here))

    for number in range(4):
        worker.submit(lambda number=number: work(number), done)
    worker.submit(lambda: work(2), done, lambda error: seen.append(str(error)))
    wait(lambda: not worker.busy, root.update)
    assert seen == [(0, False, True), (1, False, True), (3, False, True), "two"]
    assert [str(error) for error in failed] == ["two"]
    worker.close()


@pytest.mark.gui
def test_closing_finishes_what_was_asked_for(root):
    done: list[int] = []
    worker = SerialWorker(root, lambda error: None)
    for number in range(3):
        worker.submit(lambda number=number: (time.sleep(0.02), done.append(number)), lambda _: None)
    worker.close()
    assert done == [0, 1, 2]
    worker.submit(lambda: done.append(9), lambda _: None)
    assert done == [0, 1, 2]


@pytest.mark.gui
def test_a_failing_answer_does_not_stop_the_next_one(root):
    seen = []
    root.report_callback_exception = lambda *_: seen.append("reported")
    worker = SerialWorker(root, lambda error: None)
    worker.submit(lambda: 1, lambda _: 1 / 0)
    worker.submit(lambda: 2, seen.append)
    wait(lambda: not worker.busy, root.update)
    assert sorted(map(str, seen)) == ["2", "reported"]
    worker.close()


# --- garbage ----------------------------------------------------------------------------------------------------


@pytest.mark.gui
def test_images_in_reference_cycles_are_freed_on_the_tk_thread_alone(root, monkeypatch):
    freed: list[threading.Thread] = []

    class Watched(ImageTk.PhotoImage):
        def __del__(self) -> None:
            freed.append(threading.current_thread())
            super().__del__()

    pump = Pump(root)
    try:
        assert not gc.isenabled()
        cycle: list[object] = [Watched(Image.new("RGB", (4, 4)))]
        cycle.append(cycle)
        del cycle

        def allocate() -> None:
            rows = []
            for _ in range(200_000):
                row: list[object] = []
                row.append(row)
                rows.append(row)

        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        assert freed == []
        wait(lambda: freed, root.update)
        assert freed == [threading.current_thread()]
    finally:
        pump.close()
    assert gc.isenabled()
    pump.close()
    assert gc.isenabled()


# --- the feed ---------------------------------------------------------------------------------------------------


def drained(feed: GroupFeed) -> list[ImageGroup]:
    found: list[ImageGroup] = []

    def take() -> None:
        while (group := feed.next()) is not None:
            found.append(group)

    wait(lambda: not feed.status().searching, take)
    take()
    return found


def test_groups_come_once_and_finished_ones_not_at_all(tmp_path):
    source = make_images(tmp_path / "in", 5, 3)
    (source / "broken.png").write_bytes(b"no image")
    feed = GroupFeed(source, tmp_path / "out", (), ScanOptions(), lambda: None)
    groups = drained(feed)
    feed.close()
    assert len(groups) == 5
    assert {len(group.files) for group in groups} == {3}
    assert [fault.path.name for fault in feed.faults] == ["broken.png"]
    status = feed.status()
    assert (status.groups, status.faults, status.counted) == (5, 1, True)
    finished = {group.key for group in groups[:2]}
    feed = GroupFeed(source, tmp_path / "out", finished, ScanOptions(), lambda: None)
    assert [group.key for group in drained(feed)] == [group.key for group in groups[2:]]
    assert feed.take(groups[0].key) == groups[0], "an undo can still lead to it"
    feed.put_back(groups[0])
    assert feed.coming(2) == [groups[0]]
    feed.close()


def test_only_a_few_groups_are_decoded_ahead(tmp_path):
    source = make_images(tmp_path / "in", AHEAD + 6, 2, 16)
    feed = GroupFeed(source, tmp_path / "out", (), ScanOptions(), lambda: None)
    wait(lambda: len(feed.coming(99)) == AHEAD)
    time.sleep(0.1)
    assert len(feed.coming(99)) == AHEAD
    assert feed.status().groups == AHEAD + 6, "the number of all is known all the same"
    assert feed.next() is not None
    wait(lambda: len(feed.coming(99)) == AHEAD)
    feed.close()


def test_a_group_that_grows_is_handed_out_once_and_known_whole(tmp_path, monkeypatch):
    small = ImageGroup("key", "a fox", "1:1", tmp_path, ("a.png", "b.png"))
    large = ImageGroup("key", "a fox", "1:1", tmp_path, ("a.png", "b.png", "c.png"))
    monkeypatch.setattr(feed_module, "scan_groups", lambda *args, **options: iter([small, large]))
    feed = GroupFeed(tmp_path, tmp_path / "out", (), ScanOptions(), lambda: None)
    wait(lambda: not feed.status().searching)
    assert feed.next() == large
    assert feed.next() is None
    feed.close()


def test_the_scan_rests_half_of_the_time_once_there_is_something_to_look_at(tmp_path, monkeypatch):
    rested: list[float] = []
    asked: list[bool] = []
    group = ImageGroup("key", "a fox", "1:1", tmp_path, ("a.png", "b.png"))

    def scan(source, output, options, finished, stopped, cache, counted):
        asked.extend(stopped() for _ in range(5))
        asked.append(bool(rested))
        yield group
        end = time.monotonic() + 20 * feed_module.REST_SECONDS
        while time.monotonic() < end:
            asked.append(stopped())

    real = time.sleep
    monkeypatch.setattr(feed_module.time, "sleep", lambda seconds: (rested.append(seconds), real(seconds))[1])
    monkeypatch.setattr(feed_module, "scan_groups", scan)
    feed = GroupFeed(tmp_path, tmp_path / "out", (), ScanOptions(), lambda: None)
    feed._thread.join(20)
    assert not any(asked), "it never rests before the first group, and is not told to stop"
    assert 1 <= rested.count(feed_module.REST_SECONDS) <= 11
    feed.close()


def test_a_finished_group_that_is_asked_for_before_it_is_found_comes_when_it_is(tmp_path, monkeypatch):
    go_on = threading.Event()
    group = ImageGroup("key", "a fox", "1:1", tmp_path, ("a.png", "b.png"))

    def scan(*args, **options):
        assert go_on.wait(20)
        yield group

    monkeypatch.setattr(feed_module, "scan_groups", scan)
    feed = GroupFeed(tmp_path, tmp_path / "out", {"key"}, ScanOptions(), lambda: None)
    assert feed.take("key") is None
    go_on.set()
    wait(lambda: not feed.status().searching)
    assert feed.next() == group
    feed.close()


def test_a_scan_that_fails_says_why(tmp_path):
    told = threading.Event()
    feed = GroupFeed(tmp_path / "gone", tmp_path / "out", (), ScanOptions(), told.set)
    wait(lambda: not feed.status().searching)
    assert "cannot be read" in str(feed.status().failure)
    assert told.wait(5)
    feed.close()


def test_each_image_is_decoded_once_however_often_it_is_compared(tmp_path, monkeypatch):
    source = make_images(tmp_path / "in", 1, 3)
    (source / "broken.png").write_bytes(b"no image")
    first, second, third = (source / f"g000_i0{i}.png" for i in range(3))
    decoded: list[Path] = []
    real = controller_module.file_dhash
    monkeypatch.setattr(controller_module, "file_dhash", lambda path: (decoded.append(path), real(path))[1])
    distance = controller_module.LookDistance()
    assert distance(first, first) == 0
    assert distance(first, second) == distance(second, first) == image_distance(first, second) > 0
    assert distance(second, third) > 0
    assert distance(first, source / "broken.png") == 64
    assert distance(second, source / "broken.png") == 64
    assert decoded == [first, second, third, source / "broken.png"]


# --- widgets ----------------------------------------------------------------------------------------------------


@pytest.mark.gui
def test_a_row_breaks_where_the_window_ends(root):
    theme = Theme(root)
    theme.apply("Light", 100)
    row = ActionRow(root, theme)
    row.pack(fill="x")
    buttons = [ttk.Button(row, text=f"button {i}") for i in range(8)]
    row.add(*buttons)
    for width in (1000, 400, 150):
        root.geometry(f"{width}x400")
        wait(lambda width=width: row.winfo_width() == width, root.update)
        root.update()
        for button in buttons:
            assert button.winfo_x() >= 0
            assert button.winfo_x() + button.winfo_width() <= max(width, button.winfo_reqwidth())
            assert button.winfo_y() + button.winfo_height() <= row.winfo_height()
    assert len({button.winfo_y() for button in buttons}) > 4
    row.clear()
    assert row.winfo_children() == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (12000, "3 h 20 min")]
)
def test_time_left_is_said_shortly(seconds: float, text: str):
    assert time_left(seconds) == text


# --- errors -----------------------------------------------------------------------------------------------------


def dialogs(root) -> list[ErrorDialog]:
    return [child for child in root.winfo_children() if isinstance(child, ErrorDialog)]


@pytest.mark.gui
def test_a_fault_in_a_callback_is_shown_once_and_the_program_lives_on(root):
    Theme(root).apply("Dark", 100)
    install_error_dialog(root)
    lived: list[int] = []
    for _ in range(2):
        root.after(1, lambda: 1 / 0)
    root.after(5, lambda: lived.append(1))
    wait(lambda: lived and dialogs(root), root.update)
    (dialog,) = dialogs(root)
    assert dialog.message == "ZeroDivisionError: division by zero"
    assert "Traceback" in dialog.details
    dialog.copy()
    assert root.clipboard_get() == f"{dialog.message}\n\n{dialog.details}".strip()
    wait(lambda: root.focus_get() is dialog.close_button, root.update)
    dialog.close_button.event_generate("<KeyPress-Escape>")
    wait(lambda: not dialogs(root), root.update)


@pytest.mark.gui
def test_what_a_person_can_put_right_is_shown_without_a_traceback(root):
    Theme(root).apply("Light", 150)
    dialog = show_error(root, UserError("the folder is full", hint="make room"))
    root.update()
    assert dialog.details == ""
    assert "the folder is full" in dialog.message and "make room" in dialog.message
    assert dialog.winfo_width() < 1280
    dialog.destroy()
