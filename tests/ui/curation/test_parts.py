"""The parts below the pages: the worker, garbage, rows that break."""

from __future__ import annotations

import gc
import threading
import time
import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

import pytest
from PIL import Image, ImageTk

from modules.ui.curation.ChoosingPage import time_left
from modules.ui.widgets import tk_support
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import (
    IDLE,
    ErrorDialog,
    Pump,
    cancel_timer,
    install_error_dialog,
    later,
    show_error,
)
from modules.util.errors import UserError
from tests.tools.pictures import damaged_avif, picture


def wait(done: Callable[[], object], live: Callable[[], None] = lambda: None, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        live()
        time.sleep(0.002)


# --- timers -----------------------------------------------------------------------------------------------------


@pytest.mark.gui
def test_a_timer_of_a_widget_that_is_gone_calls_nothing(root: tk.Tk) -> None:
    """Least of all the command of a newer widget, which may have got the same name."""
    called: list[str] = []
    gone, kept = tk.Frame(root), tk.Frame(root)
    for delay in (IDLE, 1):
        later(gone, delay, called.append, "gone")
        later(kept, delay, called.append, str(delay))
    late = later(kept, 1, called.append, "cancelled")
    cancel_timer(kept, late)
    gone.destroy()
    pending = [root.tk.splitlist(root.tk.call("after", "info", timer))[0] for timer in
               root.tk.splitlist(root.tk.call("after", "info"))]  # fmt: skip
    assert all(root.tk.call("info", "commands", name) for name in pending), "a timer has lost its command"
    assert len(pending) >= 4
    wait(lambda: len(called) == 2, root.update)
    time.sleep(0.01)
    root.update()
    assert sorted(called) == ["1", "idle"]
    cancel_timer(kept, late)
    assert {name for name in pending if root.tk.call("info", "commands", name)} == set(), "a command is left"


# --- images decoded ahead ---------------------------------------------------------------------------------------


def test_images_of_any_damage_are_told_and_the_next_ones_are_still_decoded(tmp_path):
    damaged = [damaged_avif(tmp_path / f"{number}.avif") for number in range(3)]
    picture(2).save(tmp_path / "whole.png")
    prefetcher = ImagePrefetcher(lambda key: None)
    prefetcher.want((path, (20, 20)) for path in (*damaged, tmp_path / "whole.png"))
    wait(lambda: prefetcher.get(tmp_path / "whole.png", (20, 20)) is not None)
    wait(lambda: all(prefetcher.failure(path) for path in damaged))
    prefetcher.close()


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

    # as in a process of its own: another test may have left a window without closing it
    monkeypatch.setattr(tk_support, "_garbage", tk_support._TkGarbage())
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


# --- widgets ----------------------------------------------------------------------------------------------------


@pytest.mark.gui
def test_a_row_breaks_where_the_window_ends(root):
    theme = Theme(root)
    theme.apply("Light", 100)
    row = FlowFrame(root, theme.px(6))
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
